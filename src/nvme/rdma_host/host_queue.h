// SPDX-License-Identifier: Apache-2.0
// The host's end of one NVMe/RDMA queue, which is one queue pair that is connected: commands become capsules, messages that come in are their completion
// entries. Data is in the capsule where the controller takes so much, else in memory of the adapter's that a window shows to the controller (host_adapter.h).
//
// A command is over, and its owner hears of it, when three things have happened, in whatever order: the adapter has sent its capsule; its completion entry has
// come; and its window is shut, by the controller's SEND with invalidate or by work of this end.
//
// Its end:
//
//   Abort, or the controller breaks a rule --> the queue pair is broken; its maker hears it; the owner hears Unanswered of each command, Ended
//   --> HostAdapter::Poll until flushed(), or for as long as its maker likes --> windows of bound() are destroyed, the queue pair is destroyed
//   --> Destroyed --> this is destroyed
//
// Until Destroyed what its commands had of the adapter's memory is nobody's: the controller may still read and write it. Owners have their own memory back
// before, at Unanswered, as nothing but this end ever touches it. Not so those whose memory a window shows (direct_memory.h): they hear of their commands, and
// of the end, within Destroyed, since a late WRITE of the controller's would hit what they have there by then, and a late READ would take that.
//
// A controller is not trusted: an entry for a command that is not under way, a message of another length, a key invalidated that is not the command's ends
// the queue with a reason that names the rule.
//
// Source: NVM Express RDMA Transport Specification 1.0; Base Specification 2.0, 3.3.3. One thread: the reactor's that has the HostAdapter.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "nvme/fabrics/queues/command_ids.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/rdma_host/host_adapter.h"
#include "nvme/rdma_host/host_command.h"
#include "nvme/rdma_host/work_chain.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_host {

struct HostQueueOptions {
  std::string name;         // in errors: "controllers' name, queue 1"
  std::string target = {};  // whose queue it is: those of one target share (waiting_lines.h)
  // The queue's: one more than commands under way, 2 to fabrics::CommandIds::kCommandsMax + 1.
  uint32_t entries = 0;
  uint32_t in_capsule_bytes = 0;  // of data that a capsule may have; until set_in_capsule_bytes
  // For the maker of the queue pair: that is broken, and to be destroyed. Once, before the owner hears anything of it; may not destroy the queue.
  std::function<void(const Error& reason)> on_broken = {};
};

class HostQueue final : public fabrics::QueuePair {
 public:
  // All outlive it, the queue pair until Destroyed. The adapter has room for it (HostAdapter::CheckRoom).
  HostQueue(HostAdapter& adapter, verbs::QueuePair& pair, const HostQueueOptions& options,
            fabrics::QueuePairOwner& owner);
  ~HostQueue() override;  // after Destroyed

  // ---- For the owner, who hears no Connected: the queue is.
  uint32_t room() const override { return ended_ ? 0 : free_count_; }
  // Commands that find no place at the adapter wait within. At most fabrics::kTransferBytesMax of data; the segments that the command's spans name stay as the
  // memory does. Completed has all of from_target's bytes as filled where the command succeeds, and none else: over RDMA a host does not see how many came.
  void Submit(const fabrics::QueuedCommand& command) override;
  // Unanswered and Ended come before it returns, or within Destroyed where commands are left whose owner's memory may still be reached. Again does nothing.
  void Abort(const Error& reason) override;
  // The value that Identify has; used from the next Submit on, as far as capsules have room.
  void set_in_capsule_bytes(uint32_t bytes);
  bool ended() const { return ended_; }
  // The owner has still to hear of commands, and of the end that has come.
  bool owes() const { return late_ > 0; }

  // ---- For the maker of the queue pair, once it has ended
  // Whether the adapter has completed what was posted. May stay false where the adapter has refused works in the middle of a command's.
  bool flushed() const { return outstanding_ == 0; }
  // Windows that may be bound to the queue pair: the same from on_broken on until Destroyed. Each is to be destroyed before it, and has a place in Destroyed's
  // argument.
  std::vector<verbs::MemoryWindow*> bound();
  // The queue pair is destroyed; the owner hears now what it has to hear. `windows`: what takes the place of bound()'s, one by one; nullptr: there is none, and the adapter has one window less.
  void Destroyed(std::span<verbs::MemoryWindow* const> windows);

  // ---- For the adapter
  uint32_t number() const { return number_; }
  uint16_t generation() const { return static_cast<uint16_t>(owner_of_data_); }
  const verbs::SendLimits& limits() const { return limits_; }
  void SetTarget(Target& target) { target_ = &target; }
  Target& target() const { return *target_; }
  const std::string& target_name() const { return target_name_; }
  // The command has a place, and memory where it needs any.
  void Placed(HostCommand& command);
  void Received(const fabrics::CompletionEntry& entry, const verbs::Completion& completion);
  void Completed(WorkKind kind, uint32_t number, verbs::WorkStatus status);
  void Failed(const char* what, verbs::WorkStatus status);
  void Post(WorkChain& chain);
  ListHook turn;

 private:
  HostCommand& Take();
  // The window may show the owner's own memory, where that is in one piece.
  void FindDirect(HostCommand& command);
  HostCommand* Find(uint16_t cid);
  // Whether nothing of the command is with the adapter.
  static bool IsOver(const HostCommand& command);
  void CompleteIfOver(HostCommand& command);
  static uint64_t TakeData(const HostCommand& command);
  void Free(HostCommand& command);
  void Refuse(const std::string& rule);
  void End(const Error& reason);
  void TellEnd(const HostCommand& command);
  void GiveBack(HostCommand& command, std::span<verbs::MemoryWindow* const>& windows);
  void FillInvalidates(WorkChain& chain);
  void FillCommands(WorkChain& chain);
  void FillBinding(WorkChain& chain, HostCommand& command);
  void FillCapsule(WorkChain& chain, HostCommand& command);
  // Works that the adapter has not taken.
  void NotPosted(std::span<const verbs::SendWork> works);
  uint64_t IdOf(WorkKind kind, const HostCommand& command) const {
    return WorkId{kind, generation(), command.number}.Pack();
  }

  HostAdapter& adapter_;
  verbs::QueuePair* pair_;  // nullptr: it is destroyed
  fabrics::QueuePairOwner& owner_;
  const std::string name_;
  const std::string target_name_;
  Target* target_ = nullptr;  // the adapter's, from Attach to Detach
  const verbs::SendLimits limits_;
  const uint32_t number_;
  uint32_t owner_of_data_;  // DataShares
  uint32_t in_capsule_bytes_ = 0;
  std::vector<HostCommand> table_;
  std::vector<uint16_t> free_;  // the one that was freed last is used first: it is in the cache
  uint32_t free_count_;
  fabrics::CommandIds ids_;
  IntrusiveList<HostCommand, &HostCommand::of_queue>
      commands_;  // all that are under way, or were when it ended, in the order of Submit
  IntrusiveList<HostCommand, &HostCommand::waits> to_post_;
  IntrusiveList<HostCommand, &HostCommand::waits> to_shut_;  // whose windows are to be invalidated
  uint32_t room_;                                            // works that can be posted
  uint32_t outstanding_ = 0;                                 // signaled works that have not completed
  // The command whose binding is the last work that was taken: nothing signaled follows it.
  std::optional<uint16_t> last_binding_;
  const std::function<void(const Error&)> on_broken_;
  bool ended_ = false;
  // Commands that the owner hears of when the queue pair is destroyed, and the reason of the end, which it hears of then as well.
  uint32_t late_ = 0;
  std::optional<Error> reason_;
};

}  // namespace cleat::nvme::rdma_host
