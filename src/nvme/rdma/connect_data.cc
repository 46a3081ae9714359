// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma/connect_data.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"

namespace cleat::nvme::rdma {
namespace {

template <typename Record>
bool Read(std::span<const uint8_t> private_data, Record& record) {
  if (private_data.size() < sizeof(Record)) return false;
  std::memcpy(&record, private_data.data(), sizeof(Record));
  return true;
}

}  // namespace

const char* NameOf(RejectStatus status) {
  switch (status) {
    case RejectStatus::kInvalidLength:
      return "invalid length of the private data";
    case RejectStatus::kInvalidRecordFormat:
      return "invalid record format";
    case RejectStatus::kInvalidQueueId:
      return "invalid queue ID";
    case RejectStatus::kInvalidHostSendSize:
      return "invalid HSQSIZE";
    case RejectStatus::kInvalidHostReceiveSize:
      return "invalid HRQSIZE";
    case RejectStatus::kNoResources:
      return "no resources";
    case RejectStatus::kInvalidIrd:
      return "invalid IRD";
    case RejectStatus::kInvalidOrd:
      return "invalid ORD";
  }
  return "a status that the specification does not have";
}

std::optional<RejectStatus> ParseRequest(std::span<const uint8_t> private_data, const QueueLimits& limits,
                                         AskedQueue& asked) {
  ConnectRequest request;
  if (!Read(private_data, request)) return RejectStatus::kInvalidLength;
  if (request.record_format != kRecordFormat) return RejectStatus::kInvalidRecordFormat;
  if (request.queue_id > limits.queue_id_max) return RejectStatus::kInvalidQueueId;
  const uint32_t entries = uint32_t{request.host_send_size} + 1;
  const uint32_t entries_max = request.queue_id == 0 ? limits.admin_entries_max : limits.io_entries_max;
  if (entries < kQueueEntriesMin || entries > entries_max) return RejectStatus::kInvalidHostSendSize;
  if (request.host_receive_size == 0) return RejectStatus::kInvalidHostReceiveSize;
  asked = {.queue_id = request.queue_id,
           .controller_id = request.controller_id,
           .entries = entries,
           .answers_max = request.host_receive_size};
  return std::nullopt;
}

ConnectRequest RequestOf(uint16_t queue_id, uint32_t entries, uint16_t controller_id) {
  CLEAT_CHECK(entries >= kQueueEntriesMin && entries <= UINT16_MAX);
  return {.queue_id = queue_id,
          .host_receive_size = static_cast<uint16_t>(entries),
          .host_send_size = static_cast<uint16_t>(entries - 1),
          .controller_id = controller_id,
          .reserved = {}};
}

Result<uint32_t> ParseReply(std::span<const uint8_t> private_data) {
  ConnectReply reply;
  if (!Read(private_data, reply)) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the controller accepts the connection with {} bytes of private data, {} expected",
                    private_data.size(), sizeof(reply)));
  }
  if (reply.record_format != kRecordFormat || reply.controller_receive_size == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the controller accepts the connection by record format {} for {} commands",
                             reply.record_format, reply.controller_receive_size));
  }
  return uint32_t{reply.controller_receive_size};
}

Error ParseReject(std::span<const uint8_t> private_data) {
  ConnectReject reject;
  if (!Read(private_data, reject) || reject.record_format != kRecordFormat)
    return Error(ErrorCode::kInvalidArgument, "the connection is rejected, and not by an NVMe controller");
  const auto status = static_cast<RejectStatus>(reject.status);
  return Error(
      status == RejectStatus::kNoResources ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument,
      fmt::format("the controller rejects the connection: {} (status {})", NameOf(status), reject.status));
}

}  // namespace cleat::nvme::rdma
