// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/rdma_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/check.h"

namespace cleat::nvmf_target {

using nvme::rdma_target::TargetAdapter;

namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint64_t kQueueBytes = 2 * RdmaPort::kStagingBytes + RdmaPort::kEntriesBytes;
// READs of one queue outstanding: as many as Linux hosts serve, and few beside RdmaPort::kReadsMax.
constexpr uint32_t kReadCredits = 16;
// Works of one answer: its data in one piece, and its entry. An answer that has more pieces waits for room.
constexpr uint32_t kWorksOfAnswer = 2;
constexpr uint32_t kSlotsLeast = 256;  // one queue of the largest
constexpr uint32_t kInlineBytes = sizeof(nvme::fabrics::CompletionEntry);

}  // namespace

Result<std::unique_ptr<RdmaPort>> RdmaPort::Make(rdma::Device& device, IoPort& port,
                                                 std::function<void()> on_failed) {
  std::unique_ptr<RdmaPort> made(new RdmaPort(device, port, std::move(on_failed)));
  const rdma::DeviceLimits& limits = device.limits();
  const uint32_t completions = std::min(kCompletionsMax, limits.completion_entries);
  // Answers have the larger part of the completions.
  made->slots_ = std::min({kSlots, limits.receive_entries, completions / 4});
  if (made->slots_ < kSlotsLeast || limits.reads_sent == 0) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("{}: the adapter has room for {} receives, {} completions and {} READs of a queue "
                    "pair, which is too little for a target",
                    device.name(), limits.receive_entries, limits.completion_entries, limits.reads_sent));
  }
  CLEAT_TRY(made->MakeMemory());
  CLEAT_ASSIGN(made->completions_, device.MakeCompletionQueue(completions, port.reactor().index()));
  made->timed_completions_ = std::make_unique<TimedCompletions>(*made->completions_, port.reactor());
  made->SetCompletions(*made->completions_, completions);
  CLEAT_ASSIGN(made->receives_, device.MakeReceiveQueue(made->slots_));
  const auto slot_bytes =
      static_cast<uint32_t>(TargetAdapter::SlotMemoryBytes(made->slots_, kInCapsuleBytes));
  const rdma::LocalPiece slots = made->PieceAt(0, slot_bytes);
  made->adapter_ = std::make_unique<TargetAdapter>(
      nvme::rdma_target::TargetAdapterOptions{.slots = made->slots_,
                                              .in_capsule_bytes = kInCapsuleBytes,
                                              .slot_memory = slots,
                                              .completions_max = completions,
                                              .reads_max = kReadsMax},
      *made->timed_completions_, *made->receives_);
  CLEAT_TRY(
      made->adapter_->keys().Add(port.registered().region().get(), made->data_registration_->local_key()));
  return made;
}

// Capsules first, then the staging memory of each queue.
Status RdmaPort::MakeMemory() {
  const uint64_t slot_bytes = TargetAdapter::SlotMemoryBytes(slots_, kInCapsuleBytes);
  const uint64_t bytes =
      (slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes + uint64_t{kQueuesMax} * kQueueBytes;
  memory_ = {static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, bytes)),
             [](uint8_t* memory) { std::free(memory); }};
  if (memory_ == nullptr)
    return Error(ErrorCode::kResourceExhausted, device_.name() + ": no memory for the capsules of hosts");
  CLEAT_ASSIGN(memory_registration_, device_.Register({memory_.get(), bytes}, {.local_write = true}));
  const auto& data = *port_.registered().region();
  CLEAT_ASSIGN(data_registration_, device_.Register({data.base(), data.size_bytes()}, {.local_write = true}));
  for (uint32_t number = kQueuesMax; number > 0; --number) free_staging_.push_back(number - 1);
  return {};
}

RdmaPort::~RdmaPort() {
  CLEAT_CHECK(turns_.empty());
}

rdma::SendLimits RdmaPort::LimitsFor(uint32_t entries) const {
  const rdma::DeviceLimits& limits = device_.limits();
  return {.works = std::min(limits.works, kWorksOfAnswer * entries + kReadCredits),
          .pieces = std::min({limits.pieces, limits.read_pieces, nvme::rdma_target::kWorkPiecesMax}),
          .inline_bytes = kInlineBytes,
          .read_credits = std::min(limits.reads_sent, kReadCredits)};
}

rdma::LocalPiece RdmaPort::PieceAt(uint64_t offset_bytes, uint32_t bytes) const {
  return {.address = reinterpret_cast<uint64_t>(memory_.get() + offset_bytes),
          .length_bytes = bytes,
          .local_key = memory_registration_->local_key()};
}

Result<RdmaPort::Staging> RdmaPort::TakeStaging() {
  if (free_staging_.empty()) {
    return Error(ErrorCode::kResourceExhausted,
                 device_.name() + ": a reactor has as many queues over RDMA as it may");
  }
  Staging staging{.number = free_staging_.back(), .in = {}, .out = {}, .entries = {}};
  free_staging_.pop_back();
  const uint64_t slot_bytes = TargetAdapter::SlotMemoryBytes(slots_, kInCapsuleBytes);
  const uint64_t offset =
      (slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes + uint64_t{staging.number} * kQueueBytes;
  staging.in = PieceAt(offset, kStagingBytes);
  staging.out = PieceAt(offset + kStagingBytes, kStagingBytes);
  staging.entries = PieceAt(offset + uint64_t{2} * kStagingBytes, kEntriesBytes);
  return staging;
}

// ---- On the reactor

void RdmaPort::Wake(RdmaTurn& who) {
  if (!who.turn.linked()) turns_.PushBack(who);
  Wake();
}

// A queue that wakes the port in its turn has another one when the port is polled next.
bool RdmaPort::Turn() {
  IntrusiveList<RdmaTurn, &RdmaTurn::turn> now;
  while (RdmaTurn* const who = turns_.PopFront()) now.PushBack(*who);
  const bool any = !now.empty();
  while (RdmaTurn* const who = now.PopFront()) who->EndTurn();
  return any;
}

bool RdmaPort::Poll() {
  port_.BeginTurn();
  const bool found = Count(adapter_->Poll(kPollMax));
  const bool had_turns = Turn();
  if (adapter_->wants_to_post()) adapter_->Post();
  port_.FlushCounters();
  if (adapter_->failed()) [[unlikely]]
    Fail();
  return found || had_turns;
}

}  // namespace cleat::nvmf_target
