// SPDX-License-Identifier: Apache-2.0
// What both ends of an NVMe/RDMA queue say to each other while the connection manager connects them: the private data of request, reply and reject
// (rdma_connect(3), rdma_accept(3), rdma_reject(3)). Each connection is one queue.
//
// The connection manager pads private data to a size of its own: 32 bytes arrive as 56 over RoCE. What is behind a record is not looked at.
//
// Source: NVM Express RDMA Transport Specification 1.0, 3.1 (setup, and the fabric-specific status of a reject). Of the request, HSQSIZE alone counts
// from 0, as SQSIZE of Connect does; HRQSIZE and CRQSIZE count from 1: so Linux has it, as a host and as a target (drivers/nvme). Plain values; any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"

namespace cleat::nvme::rdma {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint16_t kRecordFormat = 0;

// RDMA_CM_REQUEST.
struct ConnectRequest {
  uint16_t record_format = kRecordFormat;
  uint16_t queue_id = 0;
  uint16_t host_receive_size = 0;  // HRQSIZE: completion entries that it has memory for
  uint16_t host_send_size = 0;     // HSQSIZE, from 0: the queue's entries, as SQSIZE of Connect
  uint16_t controller_id = 0;      // CNTLID; 0 in requests of hosts that know no more than the first fields
  uint8_t reserved[22] = {};
};
static_assert(sizeof(ConnectRequest) == 32);

// RDMA_CM_ACCEPT.
struct ConnectReply {
  uint16_t record_format = kRecordFormat;
  uint16_t controller_receive_size = 0;  // CRQSIZE: commands that the controller has memory for
  uint8_t reserved[28] = {};
};
static_assert(sizeof(ConnectReply) == 32);

// STS of a reject.
enum class RejectStatus : uint16_t {
  kInvalidLength = 1,
  kInvalidRecordFormat = 2,
  kInvalidQueueId = 3,
  kInvalidHostSendSize = 4,
  kInvalidHostReceiveSize = 5,
  kNoResources = 6,
  kInvalidIrd = 7,  // READs that the host lets be outstanding
  kInvalidOrd = 8,  // READs that the host wants to have outstanding
};
const char* NameOf(RejectStatus status);  // one that came may have any value

// RDMA_CM_REJECT.
struct ConnectReject {
  uint16_t record_format = kRecordFormat;
  uint16_t status = 0;
};
static_assert(sizeof(ConnectReject) == 4);

// ---- A controller's side

// Entries of a queue, from 1.
struct QueueLimits {
  uint32_t admin_entries_max = 0;
  uint32_t io_entries_max = 0;
  uint16_t queue_id_max = 0;
};

inline constexpr uint32_t kQueueEntriesMin = 2;  // base 2.0, 3.3.1

struct AskedQueue {
  uint16_t queue_id = 0;  // 0: an admin queue
  uint16_t controller_id = 0;
  uint32_t entries = 0;      // of the submission queue: commands that the host may send unanswered, at most
  uint32_t answers_max = 0;  // that the host has memory for
};

// nullopt: `asked` says what the host asks for. Else what the request is to be rejected with. A host is not trusted.
std::optional<RejectStatus> ParseRequest(std::span<const uint8_t> private_data, const QueueLimits& limits,
                                         AskedQueue& asked);

// `entries`: of a request that has been parsed.
constexpr ConnectReply ReplyOf(uint32_t entries) {
  return {.controller_receive_size = static_cast<uint16_t>(entries), .reserved = {}};
}
constexpr ConnectReject RejectOf(RejectStatus status) {
  return {.status = static_cast<uint16_t>(status)};
}

// ---- A host's side

// kQueueEntriesMin <= entries <= 65535.
ConnectRequest RequestOf(uint16_t queue_id, uint32_t entries, uint16_t controller_id);
// The commands that the controller has memory for. kInvalidArgument: it is no reply, or is for none.
Result<uint32_t> ParseReply(std::span<const uint8_t> private_data);
// Why it rejected: kUnavailable where the same request may succeed later, kInvalidArgument where it will not, or where this is no reject.
Error ParseReject(std::span<const uint8_t> private_data);

}  // namespace cleat::nvme::rdma
