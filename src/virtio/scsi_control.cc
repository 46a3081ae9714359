// SPDX-License-Identifier: Apache-2.0
#include "virtio/scsi_control.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>

namespace cleat::virtio {
namespace {

bool IsAbort(uint32_t function) {
  return function == VIRTIO_SCSI_T_TMF_ABORT_TASK || function == VIRTIO_SCSI_T_TMF_ABORT_TASK_SET ||
         function == VIRTIO_SCSI_T_TMF_CLEAR_TASK_SET;
}
bool IsReset(uint32_t function) {
  return function == VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET || function == VIRTIO_SCSI_T_TMF_I_T_NEXUS_RESET;
}
bool IsQuery(uint32_t function) {
  return function == VIRTIO_SCSI_T_TMF_QUERY_TASK || function == VIRTIO_SCSI_T_TMF_QUERY_TASK_SET;
}

}  // namespace

void ScsiControlQueue::HandleChain(const Chain& chain, Ticket ticket) {
  union {  // both begin with the type
    uint32_t type;
    ScsiManagementRequest management;
    ScsiNotificationRequest notification;
  } request{};
  const uint64_t bytes = std::min<uint64_t>(chain.readable_bytes(), sizeof(request));
  if (chain.writable_bytes() == 0 || bytes < sizeof(request.type)) {
    Abandon(ticket, "virtio-scsi control request of " + std::to_string(chain.readable_bytes()) +
                        " bytes with " + std::to_string(chain.writable_bytes()) +
                        " for the response, in the chain of descriptor " + std::to_string(chain.head()));
    return;
  }
  Gather(chain.readable(), 0, &request, bytes);
  const auto first = std::ranges::find_if(chain.writable(), [](const auto& s) { return s.length_bytes > 0; });
  const block::Segment response{first->region, first->offset_bytes, 1};
  switch (request.type) {
    case VIRTIO_SCSI_T_TMF:
      if (bytes < sizeof(request.management)) break;
      return StartFunction(ticket, response, request.management);
    case VIRTIO_SCSI_T_AN_QUERY:
    case VIRTIO_SCSI_T_AN_SUBSCRIBE:
      if (bytes < sizeof(request.notification)) break;
      return AnswerNotification(chain, ticket, request.notification);
    default:
      break;
  }
  Answer(ticket, response, VIRTIO_SCSI_S_FAILURE);
}

// None of the events exists here: event_actual is 0.
void ScsiControlQueue::AnswerNotification(const Chain& chain, Ticket ticket,
                                          const ScsiNotificationRequest& request) {
  if (chain.writable_bytes() < sizeof(ScsiNotificationResponse)) {
    return Abandon(ticket, "virtio-scsi notification request with " + std::to_string(chain.writable_bytes()) +
                               " bytes for a response of " +
                               std::to_string(sizeof(ScsiNotificationResponse)));
  }
  ScsiNotificationResponse reply{};
  const ScsiAddress address = ScsiAddress::Parse(request.lun);
  reply.response = address.unit == ScsiAddress::Unit::kNone ? VIRTIO_SCSI_S_BAD_TARGET : VIRTIO_SCSI_S_OK;
  std::array<block::Segment, kChainSegmentsMax> pieces;
  const uint32_t count = Cut(chain.writable(), 0, sizeof(reply), pieces.data());
  block::Scatter(&reply, sizeof(reply), {pieces.data(), count}, 0);
  MarkWritten(ticket, {pieces.data(), count});
  Complete(ticket, sizeof(reply));
}

void ScsiControlQueue::StartFunction(Ticket ticket, block::Segment response,
                                     const ScsiManagementRequest& request) {
  const uint32_t function = request.subtype;
  const ScsiAddress address = ScsiAddress::Parse(request.lun);
  if (!IsAbort(function) && !IsReset(function) && !IsQuery(function)) {
    return Answer(ticket, response, VIRTIO_SCSI_S_FUNCTION_REJECTED);  // CLEAR ACA too: there is no ACA
  }
  if (address.target >= kScsiTargetsMax) return Answer(ticket, response, VIRTIO_SCSI_S_BAD_TARGET);
  if (functions_ == kFunctionsMax) return Answer(ticket, response, VIRTIO_SCSI_S_FUNCTION_REJECTED);
  ++functions_;
  Spawn(Run(ticket, response, request));
}

// Of what a predecessor left behind. False: the queue is being stopped, and what the others hold may never have been
// looked at here.
Task<bool> ScsiControlQueue::Settle() {
  const uint64_t settled_ns = started_ns() + kSettleNs;
  while (now_ns() < settled_ns && !draining()) {
    const Deadline deadline(home_, hurry_, settled_ns);
    co_await hurry_.Wait();
  }
  co_return now_ns() >= settled_ns;
}

Task<void> ScsiControlQueue::Run(Ticket ticket, block::Segment response, ScsiManagementRequest request) {
  const uint32_t function = request.subtype;
  const ScsiAddress address = ScsiAddress::Parse(request.lun);
  // A nexus reset concerns all units of the target.
  const bool right_unit =
      address.unit == ScsiAddress::Unit::kZero || function == VIRTIO_SCSI_T_TMF_I_T_NEXUS_RESET;
  uint8_t result = 0;
  const bool settled = co_await Settle();
  if (!settled) {
    result = VIRTIO_SCSI_S_FAILURE;
  } else if (IsQuery(function) || !right_unit) {
    std::optional<uint64_t> tag;
    if (function == VIRTIO_SCSI_T_TMF_QUERY_TASK) tag = uint64_t{request.tag};
    result = co_await Query(address.target, tag);
    if (!right_unit && result != VIRTIO_SCSI_S_BAD_TARGET) result = VIRTIO_SCSI_S_INCORRECT_LUN;
  } else {
    result = co_await Manage(address.target, function, request.tag);
  }
  --functions_;
  Answer(ticket, response, result);  // the queue may be gone now
}

Task<uint8_t> ScsiControlQueue::Manage(uint32_t target, uint32_t function, uint64_t tag) {
  const scsi::Abort why = IsReset(function) ? scsi::Abort::kReset : scsi::Abort::kTask;
  std::optional<uint64_t> only;
  if (function == VIRTIO_SCSI_T_TMF_ABORT_TASK) only = tag;
  std::shared_ptr<scsi::LogicalUnit> unit;
  uint8_t result = kScsiFunctionComplete;
  for (const auto& port : ports_) {
    co_await port->reactor().Enter();
    if (unit == nullptr && port->unit(target) != nullptr) unit = port->unit(target)->unit();
    const ScsiPort::Quiesced quiesced = co_await port->Quiesce(target, why, only);
    // The guest is not told that commands are gone which the next one to serve this ring will carry out.
    if (quiesced == ScsiPort::Quiesced::kStopped) result = VIRTIO_SCSI_S_FAILURE;
  }
  co_await home_.Enter();
  if (unit == nullptr) co_return VIRTIO_SCSI_S_BAD_TARGET;
  if (function == VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET) unit->Reset();
  if (function == VIRTIO_SCSI_T_TMF_I_T_NEXUS_RESET) unit->Raise(scsi::Attention::kNexusLoss);
  co_return result;
}

Task<uint8_t> ScsiControlQueue::Query(uint32_t target, std::optional<uint64_t> tag) {
  bool exists = false;
  bool has = false;
  for (const auto& port : ports_) {
    co_await port->reactor().Enter();
    exists |= port->unit(target) != nullptr;
    has |= port->Has(target, tag);
  }
  co_await home_.Enter();
  if (!exists) co_return VIRTIO_SCSI_S_BAD_TARGET;
  co_return has ? VIRTIO_SCSI_S_FUNCTION_SUCCEEDED : kScsiFunctionComplete;
}

void ScsiControlQueue::Answer(Ticket ticket, const block::Segment& response, uint8_t result) {
  *response.data() = result;
  MarkWritten(ticket, {&response, 1});
  Complete(ticket, 1);
}

}  // namespace cleat::virtio
