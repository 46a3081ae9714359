// SPDX-License-Identifier: Apache-2.0
// One virtqueue of a session: its configuration by the front end (on the control reactor), and the device
// queue that serves it on its I/O reactor, with the watch on the kick descriptor and the notifier that writes
// the call descriptor. Owned by the Session. Every Task is called on control, returns on control when the
// change has taken effect on the I/O reactor, and is awaited before the next one begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/reactor.h"
#include "reactor/task.h"
#include "vhost/protocol.h"
#include "virtio/device_model.h"
#include "virtio/device_queue.h"

namespace cleat::vhost {

// What the front end has set of a ring. The session checks values before it sets them.
struct RingConfig {
  uint16_t size = 0;  // 0: not yet
  std::optional<VringAddresses> addresses;
  std::optional<uint32_t> base;  // virtio::DeviceQueue::next_available
  bool kick = false;         // a kick descriptor came, or the word that there is none (the queue is polled)
  bool enabled = false;      // only with protocol features negotiated
  bool served = false;       // since the last GET_VRING_BASE
  bool ever_served = false;  // in this session
};

// What goes on with a ring that is stopped: the guest's driver, to which every request is answered, or another back end by the
// in-flight log, which is also left what the storage has no space for (virtio::DeviceQueue::LeaveToSuccessor).
enum class StopFor : uint8_t { kGuest, kSuccessor };

class Ring {
 public:
  // On the control reactor.
  using BrokenFn = std::function<void(Ring& ring)>;

  // `blocked` is the connection's: set, before on_broken, when a reactor has waited for an eventfd of one of its rings,
  // which only a front end that means harm brings about; none of them is signalled from then on. Outlives the ring.
  Ring(Reactor& control, Reactor& io, virtio::DeviceModel& model, uint32_t index, BrokenFn on_broken,
       std::atomic<bool>& blocked);
  ~Ring();  // closed
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  RingConfig config;

  uint32_t index() const { return index_; }
  bool running() const { return running_; }
  const std::string& broken() const { return broken_; }  // why; empty when it is not
  // Any thread: requests in the storage while the ring is being drained, as of a moment ago.
  uint32_t draining_requests() const { return draining_requests_.load(std::memory_order_relaxed); }

  // Begins to serve; `setup`'s notifier is filled in here. Signals the call descriptor once: a notification
  // may have died with whoever served the ring before. The queue starts active, so the ring is looked at
  // without a kick.
  Task<Status> Start(virtio::QueueSetup* setup);
  // Returns when every request in flight has been completed to the ring; config.base is where to go on from.
  Task<void> Stop(StopFor stop_for);
  // The same, if it is done by then (on the I/O reactor's clock). Otherwise the ring runs on, and how many requests were
  // in flight is the result.
  Task<uint32_t> StopBy(uint64_t deadline_ns, StopFor stop_for);
  // Destroys the device queue on its reactor. Stopped.
  Task<void> Close();

  // Running or not; while it runs they are exchanged without stopping. Invalid: none (polled; no
  // notifications). Anything but an eventfd is refused: writing to it might block, or worse.
  Task<Status> SetKick(UniqueFd kick);
  Task<Status> SetCall(UniqueFd call);
  Status SetError(UniqueFd error);
  // GET_VRING_BASE: the front end gives new ones before the ring starts again. Stopped.
  void DropDescriptors();

  // While it runs.
  Task<void> SetMemory(std::shared_ptr<const block::MemoryMap> memory, const virtio::RingMemory* ring);
  Task<void> SetDirtyLog(const virtio::DirtyLogMemory* log);

 private:
  struct CallNotifier final : virtio::Notifier {
    CallNotifier(Ring& r, UniqueFd f) : ring(r), fd(std::move(f)) {}
    void Call() override;
    Ring& ring;
    UniqueFd fd;
  };
  struct KickWatch : FdWatch {
    explicit KickWatch(Ring& r) : FdWatch(&OnKick), ring(r) {}
    static void OnKick(FdWatch& watch, uint32_t epoll_events);
    Ring& ring;
  };
  // Without a kick descriptor nothing could wake the queue: keeps it active.
  struct KeepActive final : Poller {
    explicit KeepActive(Ring& r) : ring(r) {}
    bool Poll() override;
    bool Arm() override { return false; }
    Ring& ring;
  };
  struct DrainMeter : Timer {
    explicit DrainMeter(Ring& r) : Timer(&Fire), ring(r) {}
    static void Fire(Timer& timer);
    Ring& ring;
  };

  void Broke(uint64_t life, const std::string& reason);  // on control
  bool Signal(const UniqueFd& eventfd);                  // false: it has just blocked

  // On the I/O reactor.
  Status StartQueue(virtio::QueueSetup* setup);
  Status WatchKick();
  void UnwatchKick();

  Reactor& control_;
  Reactor& io_;
  virtio::DeviceModel& model_;
  const uint32_t index_;
  const BrokenFn on_broken_;
  std::atomic<bool>& blocked_;

  // What the queue reports comes by mail and may come late: for a ring that is gone, or has started anew.
  const std::shared_ptr<Ring*> self_ = std::make_shared<Ring*>(this);
  uint64_t life_ = 0;
  bool running_ = false;
  std::string broken_;
  UniqueFd error_;

  // Touched on the I/O reactor while the ring runs.
  UniqueFd kick_;
  std::unique_ptr<CallNotifier> notifier_;
  std::unique_ptr<virtio::DeviceQueue> queue_;
  KickWatch kick_watch_{*this};
  KeepActive keep_active_{*this};
  bool kept_active_ = false;
  DrainMeter drain_meter_{*this};
  std::atomic<uint32_t> draining_requests_{0};
};

}  // namespace cleat::vhost
