// SPDX-License-Identifier: Apache-2.0
#include "rdma/ibverbs/queue_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "rdma/ibverbs/completion_queue.h"
#include "rdma/ibverbs/device.h"
#include "rdma/ibverbs/memory.h"
#include "rdma/ibverbs/pieces.h"
#include "rdma/ibverbs/receive_queue.h"

namespace cleat::rdma {
namespace {

// 0.64 ms, as ibv_modify_qp(3) encodes it for the attribute min_rnr_timer.
constexpr uint8_t kReceiverNotReadyTimer = 12;

ibv_wr_opcode OpcodeOf(SendOp op) {
  switch (op) {
    case SendOp::kSend:
      return IBV_WR_SEND;
    case SendOp::kSendAndInvalidate:
      return IBV_WR_SEND_WITH_INV;
    case SendOp::kWrite:
      return IBV_WR_RDMA_WRITE;
    case SendOp::kRead:
      return IBV_WR_RDMA_READ;
    case SendOp::kBindWindow:
      return IBV_WR_BIND_MW;
    case SendOp::kInvalidateWindow:
      break;
  }
  return IBV_WR_LOCAL_INV;
}

unsigned int If(bool wanted, unsigned int flag) {
  return wanted ? flag : 0;
}

void FillBinding(const WindowBinding& from, ibv_send_wr& to) {
  to.bind_mw.mw = static_cast<const AdapterWindow*>(from.window)->window();
  to.bind_mw.rkey = from.key;
  to.bind_mw.bind_info.mr = static_cast<const AdapterRegistration*>(from.registration)->region();
  to.bind_mw.bind_info.addr = from.address;
  to.bind_mw.bind_info.length = from.length_bytes;
  to.bind_mw.bind_info.mw_access_flags =
      If(from.peer_may_read, IBV_ACCESS_REMOTE_READ) | If(from.peer_may_write, IBV_ACCESS_REMOTE_WRITE);
}

// All but `next`.
void Fill(const SendWork& from, ibv_send_wr& to) {
  to.wr_id = from.id;
  to.sg_list = AdapterPieces(from.pieces);
  to.num_sge = static_cast<int>(from.pieces.size());
  to.opcode = OpcodeOf(from.op);
  to.send_flags = If(from.signaled || from.op == SendOp::kRead, IBV_SEND_SIGNALED) |
                  If(from.copies_data, IBV_SEND_INLINE);
  // In one place with immediate data, which soft-RoCE's driver wants to be 0 where a window is bound.
  to.invalidate_rkey = 0;
  switch (from.op) {
    case SendOp::kSend:
      break;
    case SendOp::kSendAndInvalidate:
    case SendOp::kInvalidateWindow:
      to.invalidate_rkey = from.key;
      break;
    case SendOp::kWrite:
    case SendOp::kRead:
      to.wr.rdma.remote_addr = from.remote_address;
      to.wr.rdma.rkey = from.key;
      break;
    case SendOp::kBindWindow:
      CLEAT_CHECK(from.binding != nullptr);
      FillBinding(*from.binding, to);
      break;
  }
}

void NoteBindings(std::span<const SendWork> posted) {
  for (const SendWork& work : posted)
    if (work.op == SendOp::kBindWindow)
      static_cast<AdapterWindow*>(work.binding->window)->BoundAs(work.binding->key);
}

SendLimits WithinLimits(SendLimits wanted, const DeviceLimits& most) {
  wanted.works = std::min(wanted.works, most.works);
  // A kRead has as many pieces as anything else (rdma/verbs.h).
  wanted.pieces = std::min({wanted.pieces, most.pieces, most.read_pieces});
  wanted.read_credits = std::min(wanted.read_credits, most.reads_sent);
  return wanted;
}

ibv_qp_init_attr AttributesOf(const QueuePairParts& parts, const SendLimits& limits) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = static_cast<AdapterCompletionQueue*>(parts.completions)->queue();
  attributes.recv_cq = attributes.send_cq;
  attributes.srq = static_cast<AdapterReceiveQueue*>(parts.receives)->queue();
  attributes.cap.max_send_wr = limits.works;
  attributes.cap.max_send_sge = limits.pieces;
  attributes.cap.max_inline_data = limits.inline_bytes;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 0;
  return attributes;
}

}  // namespace

Result<std::unique_ptr<AdapterQueuePair>> AdapterQueuePair::Make(const Library& library, rdma_cm_id& id,
                                                                 const QueuePairParts& parts) {
  const auto& device = static_cast<const AdapterDevice&>(*parts.device);
  if (id.verbs != device.context())
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format(
            "RDMA: the connection is by the adapter {}, its queues are on {}: use those of its own adapter",
            id.verbs == nullptr ? "-" : id.verbs->device->name, device.name()));
  SendLimits limits = WithinLimits(parts.wanted, device.limits());
  ibv_qp_init_attr attributes = AttributesOf(parts, limits);
  int made = library.create_qp(&id, device.domain(), &attributes);
  if (made != 0 && limits.inline_bytes > 0 && (errno == EINVAL || errno == ENOMEM)) {
    // No adapter says how much it takes inline.
    limits.inline_bytes = 0;
    attributes = AttributesOf(parts, limits);
    made = library.create_qp(&id, device.domain(), &attributes);
  }
  if (made != 0)
    return ErrnoError(
        errno,
        fmt::format("RDMA: {} makes no queue pair of {} work requests of {} pieces (it has room for {} "
                    "queue pairs): use fewer or smaller ones",
                    device.name(), limits.works, limits.pieces, device.limits().queue_pairs));
  return std::unique_ptr<AdapterQueuePair>(new AdapterQueuePair(library, id, limits));
}

uint32_t AdapterQueuePair::Post(std::span<const SendWork> works) {
  std::array<ibv_send_wr, kPostMax> chain;
  uint32_t posted = 0;
  while (posted < works.size()) {
    const std::span<const SendWork> group =
        works.subspan(posted, std::min<size_t>(works.size() - posted, kPostMax));
    bool binds = false;
    for (size_t i = 0; i < group.size(); ++i) {
      CLEAT_DCHECK(group[i].pieces.size() <= limits_.pieces);
      binds |= group[i].op == SendOp::kBindWindow;
      Fill(group[i], chain[i]);
      chain[i].next = i + 1 < group.size() ? &chain[i + 1] : nullptr;
    }
    ibv_send_wr* refused = nullptr;
    const bool all = ibv_post_send(&pair_, chain.data(), &refused) == 0;
    const size_t taken = all                  ? group.size()
                         : refused == nullptr ? 0
                                              : static_cast<size_t>(refused - chain.data());
    if (binds) NoteBindings(group.first(taken));
    posted += static_cast<uint32_t>(taken);
    if (!all) break;
  }
  return posted;
}

void AdapterQueuePair::Break() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  // Fails where the adapter is gone alone.
  library_.modify_qp(&pair_, &attributes, IBV_QP_STATE);
}

void AdapterQueuePair::SetReceiverNotReadyTimer() {
  ibv_qp_attr attributes{};
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  // An adapter without that keeps the connection manager's, which works as well, slowly.
  library_.modify_qp(&pair_, &attributes, IBV_QP_MIN_RNR_TIMER);
}

}  // namespace cleat::rdma
