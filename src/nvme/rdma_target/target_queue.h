// SPDX-License-Identifier: Apache-2.0
// The controller's end of one NVMe/RDMA queue, which is one queue pair: capsules that come in become commands, and their answers go out. The data of writes
// is read from the host's memory, that of reads written to it, each followed by a SEND of its completion entry in the same send queue: so the entry arrives
// behind the data.
//
// Memory. A command's data is in use by the adapter from Ask or Answer on until the owner's Give. That the queue has ended changes nothing in that: what was
// posted comes back when its works have completed, with whatever status, or by Destroyed. So its maker goes this way:
//
//   Abort, or Ended is heard --> TargetAdapter::Poll until with_adapter() == 0, or for as long as it likes --> the queue pair is destroyed --> Destroyed
//   --> commands() == 0, once the owner has answered what runs --> this is destroyed
//
// Room in the send queue: READs have as much of it as there are read credits, answers the rest, in the order of Answer. An answer that finds none waits.
// A host that may have no READs outstanding (SendLimits::read_credits) can have data in capsules alone; a command of it that needs one is answered with
// Data Transfer Error.
//
// Data that is in memory which is not registered (LocalKeys), as an admin queue's may be, is copied by way of memory of the queue's own: one command each
// way at a time, the others wait.
//
// A host is not trusted: a capsule that is short or too long, or a command more than the queue has entries, ends the queue with a reason that names the rule;
// descriptors that are wrong fail their command (nvme/rdma/keyed_sgl.h); those that are wrong in a way that only its adapter knows end the queue.
//
// Source: NVM Express RDMA Transport Specification 1.0. One thread: the reactor's that has the TargetAdapter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/rdma_target/command_wire.h"
#include "nvme/rdma_target/read_scheduler.h"
#include "nvme/rdma_target/target_adapter.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_target {

struct TargetQueueOptions {
  std::string name;  // in errors: "10.0.0.7:41234"
  uint32_t entries_max =
      0;  // of the queue, as the host has asked for when it connected (AskedQueue::entries)
  // Registered memory of the queue's own, which outlives the queue pair. For data that is not in registered memory, in either direction; without, a command
  // that needs it is answered with Internal Error.
  verbs::LocalPiece staging_in;
  verbs::LocalPiece staging_out;
  // For completion entries, 16 bytes each, aligned so; not needed where the adapter copies so many (SendLimits::inline_bytes).
  verbs::LocalPiece entry_memory;
};

class TargetQueue final : public fabrics::TargetQueue {
 public:
  // All outlive it, the queue pair until Destroyed. The adapter has room for it (CheckRoom).
  TargetQueue(TargetAdapter& adapter, verbs::QueuePair& pair, const TargetQueueOptions& options,
              fabrics::TargetQueueOwner& owner);
  ~TargetQueue() override;  // after Destroyed, without a command

  // ---- For the owner.
  // `entries`: entries_max at most.
  void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) override;
  using fabrics::TargetQueue::Answer;
  void Ask(fabrics::TargetCommand& command) override;
  void Answer(fabrics::TargetCommand& command, Status status, uint64_t result, uint32_t data_bytes) override;
  void Abort(const Error& reason) override;
  void Resume() override;
  bool waits() const override { return !waiting_.empty(); }
  // Commands of which the adapter has some memory, or may have: of a queue that has ended.
  uint32_t with_adapter() { return commands_ - running(); }

  // ---- For the maker of the queue pair
  uint32_t number() const { return number_; }
  // The queue pair of a queue that has ended is destroyed by now: nothing comes of it any more. What was on the wire is given back before this returns.
  void Destroyed();

  // ---- For the adapter
  uint16_t generation() const { return generation_; }
  uint32_t entries_max() const { return options_.entries_max; }
  const verbs::SendLimits& limits() const { return limits_; }
  void Received(ReceiveSlot& slot);
  // A READ or a signaled work of an answer.
  void Completed(WorkKind kind, CommandWire& wire, verbs::WorkStatus status);
  void Failed(const char* what, verbs::WorkStatus status);
  // A READ that the scheduler gave.
  void Due(CommandWire& wire) { due_.push_back(&wire); }
  void Post(SendChain& chain);
  ListHook turn;

 private:
  using TargetCommand = fabrics::TargetCommand;

  // Commands
  bool Begin(ReceiveSlot& slot);
  void LetGo(TargetCommand& command);
  void Refuse(ReceiveSlot& slot);
  void End(const Error& reason);
  // Data that is asked for
  void BeginStagedAsk(TargetCommand& command);
  void AddReads(CommandWire& wire);
  void ReadCompleted(CommandWire& wire, bool ok);
  void AllCame(CommandWire& wire);
  // Answers
  void AnswerCompleted(CommandWire& wire, bool ok);
  void FillAnswers(SendChain& chain);
  bool FillData(SendChain& chain, CommandWire& wire);
  void FillEntry(SendChain& chain, CommandWire& wire);
  void FillReads(SendChain& chain);
  void SignalLast(SendChain& chain, CommandWire& wire);
  bool BeginRound(CommandWire& wire);
  // `place` of parts_, which is less than twice its size.
  uint32_t PartAt(uint32_t place) const {
    const auto size = static_cast<uint32_t>(parts_.size());
    return place < size ? place : place - size;
  }
  LocalMemory MemoryOf(const CommandWire& wire, const verbs::LocalPiece& staging) const;

  TargetAdapter& adapter_;
  verbs::QueuePair* pair_;  // nullptr: it is destroyed
  const TargetQueueOptions options_;
  const verbs::SendLimits limits_;
  const uint32_t number_;
  const uint32_t pieces_max_;
  const bool copies_entries_;
  uint32_t sends_max_ = UINT32_MAX;  // SENDs that may be posted and not done: places in entry_memory
  uint16_t generation_;

  IntrusiveList<TargetCommand, &TargetCommand::to_send> answers_;  // of which something is not posted
  IntrusiveList<TargetCommand, &TargetCommand::to_send> asks_;     // that wait for the staging memory
  IntrusiveList<ReceiveSlot, &ReceiveSlot::hook> waiting_;         // capsules for which there was no command
  ReadQueue reads_;
  std::vector<CommandWire*> due_;  // READs to be posted; room for all credits
  uint32_t due_at_ = 0;
  CommandWire* staging_in_ = nullptr;  // that has the memory
  CommandWire* staging_out_ = nullptr;
  // Works of answers: how many a signaled one stands for, in the order of the send queue.
  std::vector<uint32_t> parts_;
  uint32_t parts_begin_ = 0;
  uint32_t parts_count_ = 0;
  uint32_t unsignaled_ = 0;  // behind the last signaled one
  uint32_t room_;            // works of answers that can be posted
  uint32_t sends_ = 0;       // posted, and not done
  uint32_t next_entry_ = 0;  // in entry_memory
  uint32_t unanswered_ =
      0;  // commands and capsules whose answer is not posted: what the host has sent and may not have an answer to
  uint32_t in_capsule_bytes_;
};

}  // namespace cleat::nvme::rdma_target
