// SPDX-License-Identifier: Apache-2.0
// What the I/O queues of hosts share on one reactor: memory for commands and their data, buffers to receive to, and the namespaces that each
// subsystem has there. Nothing of it is shared with other reactors.
//
// Memory has limits, and who finds none waits: commands for a buffer, in the order in which they came, and connections with a command that
// brings data along. The two have pools of their own. What a capsule brings is executed without anything more from the host, so that its
// memory comes back by itself; were it one pool, commands whose data is asked for could hold all of it while that data stands in a socket
// behind a capsule that finds none.
//
// Made on the control reactor, and used on its own one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "block/pipeline.h"
#include "nvme/fabrics/memory/data_buffers.h"
#include "nvme/target/reservations/reservation.h"
#include "nvme/target/subsystem.h"
#include "nvmf_target/io/io_command.h"
#include "nvmf_target/io/write_order.h"
#include "nvmf_target/memory/receive_buffers.h"
#include "observe/reactor_counters.h"
#include "observe/recorder.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"

namespace cleat::nvmf_target {

inline constexpr uint32_t kNamespacesMax = 64;  // of one subsystem: NSIDs 1 to this

// A namespace on one reactor. Changed there alone.
struct NamespacePort {
  block::PipelineChannel* channel = nullptr;  // stays while requests to it are in flight
  bool open = false;                          // takes commands
  uint32_t epoch =
      0;  // another one for each namespace that has the identifier in turn: a command is for one of them
  observe::DiskCounters* counters = nullptr;  // nullptr: nobody counts
  uint32_t in_flight = 0;
  OlderWrites* older = nullptr;  // one for all reactors; outlives what is in flight
  Event* drained = nullptr;      // who removes it waits
  // The reservation says which host may do what; nullptr: each may do everything, as none holds one. All reactors have the same once the command
  // that has changed it is answered.
  std::shared_ptr<const nvme::target::Reservation> reservation;
  bool shut = false;  // nobody may use it, as nobody knows whom to keep out
  // So many writes are copied before the data of one is kept where it was received again: storage was not through at once with the last that was.
  uint32_t copies_left = 0;
  uint32_t to_end = 0;            // of what is in flight: whose hosts may not have it executed any more
  Event* rights_ended = nullptr;  // who has changed the reservation waits for these
};

// A subsystem on one reactor. Changed there alone.
struct SubsystemPort {
  // How each I/O command ends while this engine does not serve the subsystem: another one may have its disks. 0: it is executed.
  uint16_t path_status = nvme::target::PathStatusOf(nvme::fabrics::AnaState::kInaccessible);
  std::array<NamespacePort, kNamespacesMax> namespaces;  // by NSID - 1

  NamespacePort* Find(uint32_t nsid) {
    if (nsid - 1 >= namespaces.size() || !namespaces[nsid - 1].open) return nullptr;
    return &namespaces[nsid - 1];
  }
};

// How much memory the queues of one reactor may have. Of a reactor's own, and of use as long as there are connections.
struct PortLimits {
  uint32_t commands = 1U << 15;  // in flight; at most 64 Ki, for their tags
  uint32_t data_slabs = 128;     // of 1 MiB, for reads and for data that is asked for
  uint32_t capsule_slabs = 64;   // for data that commands bring along
  uint32_t registered_slabs =
      64;  // as data_slabs, of queues over RDMA: pinned as long as an adapter has it registered
  uint32_t lent_bytes =
      2 << 20;  // of data, to the kernel, which locks them (RLIMIT_MEMLOCK): what is beyond is sent as a copy
};

class IoPort final : private observe::InFlightSource {
 public:
  static constexpr uint64_t kTrimNs = 5 * kNsPerSecond;
  static constexpr uint32_t kShares = 8;  // that a queue has one of

  IoPort(Reactor& reactor, const PortLimits& limits)
      : reactor_(reactor),
        commands_max_(limits.commands),
        lent_max_(limits.lent_bytes),
        share_bytes_(ShareOf(limits.data_slabs)),
        registered_share_bytes_(ShareOf(limits.registered_slabs)),
        data_(limits.data_slabs),
        of_capsules_(limits.capsule_slabs),
        registered_(limits.registered_slabs) {}
  ~IoPort() override;  // stopped, without commands
  IoPort(const IoPort&) = delete;
  IoPort& operator=(const IoPort&) = delete;

  Reactor& reactor() const { return reactor_; }
  // The one core that the reactor's thread is bound to; -1: to none alone, or not known before LearnCpu. Any thread.
  int cpu() const { return cpu_.load(std::memory_order_relaxed); }
  // ---- The rest on the reactor.
  std::span<uint8_t> receive_buffer() { return received_.Current(); }
  void LearnCpu();
  // Memory that adapters reach. Its pages are never given back, nor changed for others. Any thread may have its region registered.
  nvme::fabrics::DataBuffers& registered() { return registered_; }
  void UseCounters(observe::ReactorCounters* counters);
  // No queue is left.
  void Stop() {
    trim_.Cancel();
    order_.Stop();
  }

  // ---- Commands and their memory
  // nullptr: there are too many. `of_capsule_bytes`: of data that comes along.
  IoCommand* Take(IoQueue& queue, uint32_t of_capsule_bytes);
  // The same of a command whose data stays where it was received, in the receive buffer. nullptr: it can't.
  IoCommand* TakeReceived(IoQueue& queue, std::span<const uint8_t> data);
  // Storage does not need the data of such a command any more, or never has: other data may be received there. Nothing for any other command.
  void LetGoOfReceived(IoCommand& command) {
    if (command.buffer_of == BufferOf::kReceived && command.buffer.region != nullptr) GiveBuffer(command);
  }
  // Commands whose data is kept where it was received.
  uint32_t kept() const { return received_.kept(); }
  // Of a queue that comes from another process, for what was in flight there: only tags are limited. nullptr: there are none.
  IoCommand* TakeRestored(IoQueue& queue);
  IoCommand* Find(uint16_t tag) { return tag < commands_.size() ? commands_[tag].get() : nullptr; }
  // Room for the command's data, or it waits and IoQueue::Proceed comes later. Returns whether it has it. No queue has more than its
  // share, so that a slow disk's requests do not keep all others' from memory.
  bool TakeBuffer(IoCommand& command);
  void Give(IoCommand& command);
  // Takes the buffer of a lent command away from it. The buffer counts in its queue's share until GiveKept.
  block::Segment TakeLent(IoCommand& command);
  bool may_lend() const { return lent_bytes_ < lent_max_; }
  // Takes back a buffer that TakeLent gave. `in_kernel`: the kernel may still send from its pages, and new ones take their place.
  void GiveKept(IoQueue& queue, const block::Segment& piece, bool in_kernel);

  // ---- Queues that wait, and who lets them go on
  void WaitForRoom(IoQueue& queue) { paused_.push_back(&queue); }
  void Forget(IoQueue& queue);
  // Its commands that wait for a buffer wait no more: each goes to `abandon`.
  void AbandonWaiting(IoQueue& queue, const std::function<void(IoCommand&)>& abandon);
  // Its commands that wait within the storage's pipeline, for limits or for space, end as soon as they can.
  void AbortQueued(const IoQueue& queue);
  // The namespace's commands that its reservation does not allow their hosts, and all of the hosts of `also`, have to end: they count in its
  // `to_end` until they have.
  void EndForbidden(NamespacePort& space, std::span<const nvme::fabrics::Uuid> also);
  // What waits of them within the storage's pipeline ends as soon as it can; what comes to wait there later wants this again.
  void AbortForbidden(NamespacePort& space);
  WriteOrder& order() { return order_; }

  // ---- What is in the storage, and what is counted
  void BeginTurn();
  void Submitted(IoCommand& command, NamespacePort& space);
  void Done(IoCommand& command);
  // The same of one that counts for nothing, as it is to be executed again.
  void Undone(IoCommand& command);
  // What has ended is with the kernel, or disks' counters are about to go.
  void FlushCounters();

 private:
  struct TrimTimer : Timer {
    explicit TrimTimer(IoPort& p) : Timer(&Fire), port(p) {}
    static void Fire(Timer& timer);
    IoPort& port;
  };

  static constexpr uint64_t ShareOf(uint32_t slabs) {
    return std::max<uint64_t>(slabs / kShares, 1) * nvme::fabrics::DataBuffers::kSlabBytes;
  }
  // Whether the queue may have so much more, as far as its share goes.
  bool IsWithinShare(IoQueue& queue, uint32_t bytes) const;
  bool AddCommand(size_t most);
  IoCommand* TakeFree(IoQueue& queue);
  void GiveBuffer(IoCommand& command);
  bool TakeShare(IoCommand& command);
  // What has come back goes to who waits for it, at the reactor's next turn.
  void ServeLater();
  void ServeWaiting();
  void LeaveStorage(IoCommand& command);
  bool any_in_flight() const override { return in_storage_ > 0; }
  void VisitInFlight(observe::InFlightVisitor& visitor) override;

  Reactor& reactor_;
  std::atomic<int> cpu_{-1};
  const uint32_t commands_max_;
  const uint32_t lent_max_;
  uint32_t lent_bytes_ = 0;                // of data_, from TakeLent to GiveKept
  const uint64_t share_bytes_;             // of data_, that one queue may have
  const uint64_t registered_share_bytes_;  // of registered_
  ReceiveBuffers received_;
  nvme::fabrics::DataBuffers data_;
  nvme::fabrics::DataBuffers of_capsules_;
  nvme::fabrics::DataBuffers registered_;
  std::vector<std::unique_ptr<IoCommand>> commands_;  // by tag; made as they are needed
  std::vector<uint16_t> free_;                        // the one that came back last is used first
  IntrusiveList<IoCommand, &IoCommand::waiting> waiting_;
  IntrusiveList<IoCommand, &IoCommand::running> running_;
  WriteOrder order_{reactor_};
  std::deque<IoQueue*> paused_;
  bool serves_later_ = false;
  uint32_t in_storage_ = 0;
  uint64_t turn_began_ns_ = 0;
  uint64_t batch_ = 0;
  observe::ReactorCounters* counters_ = nullptr;
  std::optional<observe::Recorder> recorder_;
  TrimTimer trim_{*this};
};

}  // namespace cleat::nvmf_target
