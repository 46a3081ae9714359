// SPDX-License-Identifier: Apache-2.0
// The vhost-user protocol as the engine speaks it (QEMU documentation, "Vhost-user Protocol"): message
// layouts, numbers, and what a message of each kind must look like. Plain values, no sockets.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleat::vhost {

static_assert(std::endian::native == std::endian::little, "messages are read in place");

// Limits. What goes beyond them is refused and ends the connection.
inline constexpr uint32_t kPayloadBytesMax = 1024;
inline constexpr uint32_t kDescriptorsMax = 8;    // with one message; as many as there are memory regions
inline constexpr uint32_t kMemoryRegionsMax = 8;  // librte_vhost's VHOST_MEMORY_MAX_NREGIONS
inline constexpr uint32_t kRingsMax = 128;        // librte_vhost's VHOST_MAX_QUEUE_PAIRS
inline constexpr uint32_t kConfigBytesMax = 256;

enum class Request : uint32_t {
  kGetFeatures = 1,
  kSetFeatures = 2,
  kSetOwner = 3,
  kResetOwner = 4,
  kSetMemTable = 5,
  kSetLogBase = 6,
  kSetLogFd = 7,
  kSetVringNum = 8,
  kSetVringAddr = 9,
  kSetVringBase = 10,
  kGetVringBase = 11,
  kSetVringKick = 12,
  kSetVringCall = 13,
  kSetVringErr = 14,
  kGetProtocolFeatures = 15,
  kSetProtocolFeatures = 16,
  kGetQueueNum = 17,
  kSetVringEnable = 18,
  kSetBackendFd = 21,  // SET_BACKEND_REQ_FD
  kGetConfig = 24,
  kSetConfig = 25,
  kGetInflightFd = 31,
  kSetInflightFd = 32,
};

// What a back end may ask of the front end, on the channel that SET_BACKEND_REQ_FD brought.
enum class BackendRequest : uint32_t { kConfigChange = 2 };  // CONFIG_CHANGE_MSG, without a payload

struct MessageHeader {
  uint32_t request = 0;
  uint32_t flags = 0;
  uint32_t size_bytes = 0;  // of the payload
};
static_assert(sizeof(MessageHeader) == 12);
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kVersionMask = 3;
inline constexpr uint32_t kFlagReply = 1U << 2;
inline constexpr uint32_t kFlagNeedReply = 1U << 3;
inline constexpr uint32_t kFlagsKnown = kVersionMask | kFlagReply | kFlagNeedReply;

// Device features that belong to the transport.
inline constexpr uint64_t kFeatureLogAll = 1ULL << 26;            // VHOST_F_LOG_ALL
inline constexpr uint64_t kFeatureProtocolFeatures = 1ULL << 30;  // VHOST_USER_F_PROTOCOL_FEATURES

// Protocol features.
inline constexpr uint64_t kProtocolMq = 1ULL << 0;
inline constexpr uint64_t kProtocolLogShmfd = 1ULL << 1;
inline constexpr uint64_t kProtocolReplyAck = 1ULL << 3;
inline constexpr uint64_t kProtocolBackendRequests = 1ULL << 5;  // VHOST_USER_PROTOCOL_F_BACKEND_REQ
inline constexpr uint64_t kProtocolConfig = 1ULL << 9;
inline constexpr uint64_t kProtocolInflightShmfd = 1ULL << 12;

struct VringState {
  uint32_t index;
  uint32_t num;
};
static_assert(sizeof(VringState) == 8);

struct VringAddresses {  // user addresses: the front end's own, see MemoryTable
  uint32_t index;
  uint32_t flags;
  uint64_t descriptors;
  uint64_t used;
  uint64_t available;
  uint64_t log_guest_address;
};
static_assert(sizeof(VringAddresses) == 40);

// SET_VRING_KICK, CALL and ERR carry a u64: the ring's index, and whether no descriptor comes with it.
inline constexpr uint64_t kVringIndexMask = 0xff;
inline constexpr uint64_t kVringNoDescriptor = 1ULL << 8;

struct MemoryTableHeader {
  uint32_t region_count;
  uint32_t padding;
};
struct MemoryTableRegion {
  uint64_t guest_address;
  uint64_t size_bytes;
  uint64_t user_address;
  uint64_t file_offset_bytes;
};
static_assert(sizeof(MemoryTableRegion) == 32);

struct LogDescription {
  uint64_t size_bytes;
  uint64_t offset_bytes;
};
static_assert(sizeof(LogDescription) == 16);

struct InflightDescription {
  uint64_t size_bytes;
  uint64_t offset_bytes;
  uint16_t queues;
  uint16_t queue_size;
  uint32_t padding;  // not in the specification's text, but on the wire in every implementation
};
static_assert(sizeof(InflightDescription) == 24);
inline constexpr uint32_t kInflightBytesMin = 20;

struct ConfigHeader {
  uint32_t offset;
  uint32_t size_bytes;
  uint32_t flags;
};
static_assert(sizeof(ConfigHeader) == 12);

// What a message of one kind looks like.
enum class Descriptors : uint8_t { kNone, kOne, kOneUnlessFlagged, kOnePerRegion };
struct RequestShape {
  Request request;
  std::string_view name;
  uint32_t payload_bytes_min;
  uint32_t payload_bytes_max;
  Descriptors descriptors;
  bool answered;  // by its nature, not only when the front end asks for an acknowledgement
};

// nullptr: a request that the engine does not offer.
const RequestShape* FindRequest(uint32_t request);
std::string RequestName(uint32_t request);  // "SET_MEM_TABLE", or "request 77"

}  // namespace cleat::vhost
