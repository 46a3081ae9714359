// SPDX-License-Identifier: Apache-2.0
// A disk in a namespace of an NVMe-oF subsystem on one I/O reactor: the disk's requests there (nvme/host/requests/request_queue.h), and an
// I/O queue for each path that is live. The disk's core on the control reactor (nvmf_disk.h) says when a life begins and ends; the channel
// tells it what the ledger of writes in doubt has to know. Both by mail: in order between the two, and harmless when the other one is gone.
//
// The end of a life here: the connection is closed, each command has come back, the life is reported. A queue that breaks by itself does all of
// it and says so; the core then ends the life everywhere. Over RDMA the last commands may come back a moment later than the queue breaks, and the life is
// reported then.
//
// Ownership: whoever opened the channel owns it (Lend), on its reactor, which outlives it and runs once more after that. Limits: one I/O
// queue a path at a time, kDepthMax commands each.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "block/device.h"
#include "modules/nvmf/channel/io_queue.h"
#include "modules/nvmf/doubt/kept_doubt_log.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/requests/doubt_waits.h"
#include "nvme/host/requests/request_queue.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class NvmfChannel;

// What the channels of a disk share. Constant but for the count.
struct NvmfChannelShared {
  IoQueueTarget target;
  bool write_cache = false;
  std::shared_ptr<const KeptDoubtLog> doubt_log;  // nullptr: there is none
  mutable std::atomic<uint32_t> open{0};          // channels that there are; any thread
};

// What the core sends mail to, and reads. `channel` is for the reactor's thread alone: nullptr once the channel is gone.
struct NvmfChannelPort {
  NvmfChannelPort(Reactor& r, nvme::host::OriginId origin) : reactor(r), first_origin(origin) {}

  Reactor& reactor;
  const nvme::host::OriginId first_origin;
  NvmfChannel* channel = nullptr;
  nvme::host::DoubtWaits waits;  // the reactor's to write, the core's to read
};

// What a channel needs for its I/O queue of one life.
struct IoQueuePlan {
  IoQueueId id;
  nvme::host::PathState state = nvme::host::PathState::kUnusable;
  nvme::host::PathFormat format;
};

// The disk's core, for its channels. On the control reactor.
class NvmfChannelOwner {
 public:
  // Welcome is the answer.
  virtual void Joined(std::shared_ptr<NvmfChannelPort> port) = 0;
  // The last mail: nothing of the channel is under way.
  virtual void Left(const NvmfChannelPort* port) = 0;
  // The I/O queue of this life is broken.
  virtual void QueueBroken(nvme::host::LifeId life, const Error& reason) = 0;
  virtual void PathRefused(nvme::host::LifeId life) = 0;
  virtual void Conflicted(nvme::host::LifeId life) = 0;
  virtual void Take(const nvme::host::LifeReport& report) = 0;
  virtual void Take(const nvme::host::DoubtAck& ack) = 0;
  virtual void Take(const nvme::host::BarrierEnded& ended) = 0;
  virtual void GivenUp(nvme::host::OriginId origin) = 0;

 protected:
  ~NvmfChannelOwner() = default;
};

// The way back. The control reactor outlives the channels.
struct NvmfControlLink {
  Reactor* control = nullptr;
  std::weak_ptr<NvmfChannelOwner> owner;

  void Post(std::function<void(NvmfChannelOwner&)> call) const;
};

class NvmfChannel final : private nvme::host::RequestQueueOwner {
 public:
  // Commands under way in an I/O queue, whatever the controller would take.
  static constexpr uint32_t kDepthMax = 128;

  NvmfChannel(std::shared_ptr<const NvmfChannelShared> shared, std::shared_ptr<NvmfChannelPort> port,
              NvmfControlLink control);
  ~NvmfChannel();  // no request is left; not within a completion of one

  // What the disk's user has of it, and may destroy within the completion of the last request: this object then goes a little later.
  static std::unique_ptr<block::Channel> Lend(std::unique_ptr<NvmfChannel> channel);

  // ---- As block::Channel has them
  void Submit(block::Request& request);
  void AbortQueued(const block::Request* only);

  // ---- Mail of the core
  // Says the channel's number in the ledger, and what becomes of requests that wait for doubt. Comes first, once; writes wait for a table.
  void Welcome(uint32_t number, const block::InDoubt& rule);
  // The path has no other life here.
  void BeginLife(const IoQueuePlan& plan);
  // Comes for each life that was live when the channel was welcomed, or since, whether there was a plan for it or not.
  void EndLife(nvme::host::LifeId life, const Error& reason);
  void SetState(nvme::host::LifeId life, nvme::host::PathState state);
  void SetFormat(nvme::host::LifeId life, const nvme::host::PathFormat& format);
  // The association has looked again, as PathRefused has asked for.
  void PathLooked(nvme::host::LifeId life) { requests_->PathLooked(life); }
  void Adopt(nvme::host::DoubtTable table);
  void SetInDoubt(const block::InDoubt& rule);

 private:
  class Lent;
  // The I/O queue of one life, in one try to connect it: carries the commands of requests_.
  class Queue final : public IoQueue {
   public:
    Queue(NvmfChannel& channel, const IoQueueId& id)
        : IoQueue(channel.shared_->target, id, channel.reactor_),
          channel_(channel),
          path_(id.path),
          life_(id.life) {}

    // ---- QueuePairOwner
    void Completed(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry,
                   uint64_t data_bytes) override;
    void Unanswered(uint64_t cookie, nvme::fabrics::Reached reached) override;
    void Ended(const Error& reason) override;

   protected:
    void Breaks(const Error& reason) override;

   private:
    NvmfChannel& channel_;
    const uint32_t path_;
    const nvme::host::LifeId life_;
  };
  // A life that was begun here and not ended by the core yet.
  struct Life {
    explicit Life(const IoQueuePlan& p) : plan(p) {}

    IoQueuePlan plan;
    std::unique_ptr<Queue> queue;  // nullptr: between two tries
    uint32_t tries = 0;
    uint64_t try_at_ns = 0;
    bool is_over = false;      // the queue is broken, or is to end
    bool is_reported = false;  // PathEnded was called
    bool is_left = false;      // the core has ended it, and its queue had not ended yet
  };
  struct TickTimer : Timer {
    explicit TickTimer(NvmfChannel& c)
        : Timer([](Timer& timer) { static_cast<TickTimer&>(timer).channel.Tick(); }), channel(c) {}
    NvmfChannel& channel;
  };

  // ---- RequestQueueOwner: mail to the core
  void Report(nvme::host::LifeReport report) override;
  void Acked(nvme::host::DoubtAck ack) override;
  void BarrierOver(nvme::host::BarrierEnded ended) override;
  void GivenUp(nvme::host::OriginId origin) override;
  void PathRefused(nvme::host::LifeId life) override;
  void Conflicted(nvme::host::LifeId life) override;

  void Close();
  Life* Find(nvme::host::LifeId life);
  bool IsFree(uint32_t path) const;
  void TryQueue(Life& life);
  void QueueReady(uint32_t path);
  void QueueBreaks(uint32_t path, const Error& reason);
  void QueueEnded(uint32_t path, const Error& reason);
  void Report(Life& life);
  static void RequestDone(block::Request& request, const block::Frame& frame);
  bool WantsTick() const;
  void Tick();
  void Tick(Life& life);
  // After a request alone: the lives wait for no time that they did not wait for before.
  void ArmTickForRequests() {
    if (requests_->wants_tick()) [[unlikely]]
      ArmTick();
  }
  // After whatever else may have left something that waits for time.
  void ArmTick() {
    if (!tick_.pending() && WantsTick()) [[unlikely]]
      reactor_.AddTimer(tick_, reactor_.now_ns() + nvme::host::RequestQueue::kPauseNs);
  }

  const std::shared_ptr<const NvmfChannelShared> shared_;
  const std::shared_ptr<NvmfChannelPort> port_;
  const NvmfControlLink control_;
  Reactor& reactor_;
  bool closing_ = false;
  block::RequestList early_;  // came before Welcome
  std::optional<nvme::host::RequestQueue> requests_;
  std::array<std::optional<Life>, nvme::host::RequestQueue::kPathsMax> lives_;  // by path
  TickTimer tick_{*this};
};

}  // namespace cleat::modules
