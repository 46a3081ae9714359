// SPDX-License-Identifier: Apache-2.0
// What the queues of one reactor have of one adapter together: the completion queue, the receive queue with its memory, the READs and the order of them,
// and the keys of memory. The reactor calls Poll, in each turn.
//
// Memory for capsules is shared, and each queue has a claim to as much of it as it has entries: so a queue whose host sends all that it may never keeps
// another one from receiving, and nothing has to stop reading when commands are short. What a host sends beyond its entries ends its queue.
//
// Before a queue pair is destroyed, Poll is called until nothing comes of it any more: what it has received and nobody has polled is lost with it, the memory
// of the capsules too. slots_posted() says whether that has happened.
//
// One thread: the reactor's. Sources: ibv_post_srq_recv(3), ibv_poll_cq(3), ibv_modify_qp(3).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "nvme/rdma_target/local_keys.h"
#include "nvme/rdma_target/read_scheduler.h"
#include "nvme/rdma_target/send_chain.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_target {

class TargetQueue;

// Memory for a capsule.
struct ReceiveSlot {
  ListHook hook;  // among those to be posted, or in a queue whose commands are short
  uint32_t index = 0;
  uint32_t received_bytes = 0;
  bool posted = false;
};

struct TargetAdapterOptions {
  uint32_t slots = 0;             // capsules: the entries of all queues together, at most
  uint32_t in_capsule_bytes = 0;  // that a capsule may have behind its entry
  verbs::LocalPiece slot_memory;  // SlotMemoryBytes of it, registered; outlives the receive queue
  uint32_t completions_max = 0;   // that the completion queue has room for
  uint32_t reads_max = 0;         // of all queues together, outstanding: ReadScheduler
};

class TargetAdapter {
 public:
  static constexpr uint32_t kSlotAlign = 64;
  static constexpr uint64_t SlotBytes(uint32_t in_capsule_bytes) {
    return (sizeof(fabrics::SubmissionEntry) + uint64_t{in_capsule_bytes} + kSlotAlign - 1) / kSlotAlign *
           kSlotAlign;
  }
  static constexpr uint64_t SlotMemoryBytes(uint32_t slots, uint32_t in_capsule_bytes) {
    return slots * SlotBytes(in_capsule_bytes);
  }

  // The two outlive it.
  TargetAdapter(const TargetAdapterOptions& options, verbs::CompletionQueue& completions,
                verbs::ReceiveQueue& receives);
  ~TargetAdapter();  // without a queue
  TargetAdapter(const TargetAdapter&) = delete;
  TargetAdapter& operator=(const TargetAdapter&) = delete;

  LocalKeys& keys() { return keys_; }
  // Whether there is room for a queue of so many entries, whose queue pair has these limits. kResourceExhausted: which limit there is.
  cleat::Status CheckRoom(uint32_t entries, const verbs::SendLimits& limits) const;

  // Takes at most `budget` completions, calls the queues and by them their owners, then posts. Returns how many completions there were. Not from within.
  uint32_t Poll(uint32_t budget);
  // Posts what there is to be posted: at the end of a turn in which owners have answered or asked outside of Poll.
  void Post();
  bool wants_to_post() const { return wants_to_post_; }

  // Capsules that can be received now; without queues that wait, all slots of the options.
  uint32_t slots_posted() const { return slots_posted_; }
  // Completions of queue pairs that are gone.
  uint64_t ignored() const { return ignored_; }
  // The adapter has refused memory for capsules: it is gone, and its queues are to be aborted.
  bool failed() const { return failed_; }

  // ---- For queues
  uint16_t Attach(TargetQueue& queue);
  // Its queue pair is destroyed.
  void Detach(TargetQueue& queue);
  // To be asked for what it posts.
  void Line(TargetQueue& queue);
  ReadScheduler& scheduler() { return scheduler_; }
  const TargetAdapterOptions& options() const { return options_; }
  const uint8_t* BytesOf(const ReceiveSlot& slot) const;
  void Return(ReceiveSlot& slot);

 private:
  static constexpr uint32_t kBatch = 32;
  static constexpr uint32_t kRecent = 64;

  void Dispatch(const verbs::Completion& completion);
  void Received(const verbs::Completion& completion);
  void PostSlots();
  TargetQueue* Find(uint32_t queue_pair);

  const TargetAdapterOptions options_;
  verbs::CompletionQueue& completions_;
  verbs::ReceiveQueue& receives_;
  ReadScheduler scheduler_;
  LocalKeys keys_;
  SendChain chain_;
  std::unique_ptr<ReceiveSlot[]> slots_;
  IntrusiveList<ReceiveSlot, &ReceiveSlot::hook> free_slots_;
  // Queues that have something to post.
  struct Turns;
  std::unique_ptr<Turns> turns_;
  std::unordered_map<uint32_t, TargetQueue*> queues_;  // by the number of the queue pair
  std::array<TargetQueue*, kRecent> recent_{};         // of them, by the number's low bits: found there first
  std::array<verbs::ReceiveWork, kBatch> receives_to_post_;
  std::array<verbs::Completion, kBatch> batch_;
  uint32_t batch_at_ = 0;
  uint32_t batch_end_ = 0;
  uint32_t entries_ = 0;  // of all queues
  uint32_t works_ = 0;    // that their send queues have room for
  uint32_t slots_posted_ = 0;
  uint64_t ignored_ = 0;
  uint16_t generation_ = 0;
  bool wants_to_post_ = true;
  bool failed_ = false;
};

}  // namespace cleat::nvme::rdma_target
