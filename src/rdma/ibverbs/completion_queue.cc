// SPDX-License-Identifier: Apache-2.0
#include "rdma/ibverbs/completion_queue.h"

#include <algorithm>
#include <array>

namespace cleat::rdma {
namespace {

constexpr uint32_t kPollMax = 16;  // of one call of the adapter

Completion CompletionOf(const ibv_wc& from, unsigned int invalidated_flag) {
  Completion to;
  to.id = from.wr_id;
  to.queue_pair = from.qp_num;
  to.status = StatusOf(from.status);
  // What else there is, the adapter says of work that is done alone.
  if (from.status != IBV_WC_SUCCESS || (from.opcode & IBV_WC_RECV) == 0) return to;
  to.received_bytes = from.byte_len;
  to.key_was_invalidated = (from.wc_flags & invalidated_flag) != 0;
  if (to.key_was_invalidated) to.invalidated_key = from.invalidated_rkey;
  return to;
}

}  // namespace

WorkStatus StatusOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return WorkStatus::kDone;
    case IBV_WC_WR_FLUSH_ERR:
      return WorkStatus::kFlushed;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return WorkStatus::kRetriesExceeded;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return WorkStatus::kRemoteRefused;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_MW_BIND_ERR:
      return WorkStatus::kLocalError;
    default:
      return WorkStatus::kOther;
  }
}

AdapterCompletionQueue::~AdapterCompletionQueue() {
  library_.destroy_cq(&queue_);
  library_.destroy_comp_channel(&channel_);
}

uint32_t AdapterCompletionQueue::Poll(std::span<Completion> completions) {
  std::array<ibv_wc, kPollMax> polled;
  uint32_t count = 0;
  while (count < completions.size()) {
    const int wanted = static_cast<int>(std::min<size_t>(completions.size() - count, kPollMax));
    const int came = ibv_poll_cq(&queue_, wanted, polled.data());
    // An adapter that is gone has none any more.
    for (int i = 0; i < came; ++i)
      completions[count++] = CompletionOf(polled[static_cast<size_t>(i)], invalidated_flag_);
    if (came < wanted) break;
  }
  return count;
}

Status AdapterCompletionQueue::Arm() {
  const int error = ibv_req_notify_cq(&queue_, /*solicited_only=*/0);
  if (error != 0) return ErrnoError(error, "RDMA: the adapter's completion queue cannot be armed");
  return {};
}

void AdapterCompletionQueue::TakeEvents() {
  unsigned int taken = 0;
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (library_.get_cq_event(&channel_, &queue, &context) == 0) ++taken;
  if (taken > 0) library_.ack_cq_events(&queue_, taken);
}

}  // namespace cleat::rdma
