// SPDX-License-Identifier: Apache-2.0
// The vhost-user protocol's messages as they lie on the socket (QEMU documentation, "Vhost-user Protocol").
// Written from the specification, on purpose apart from what the engine uses: each side of the tests has its own
// reading of it, and a wrong one shows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "messages are read in place");

// Front end to back end.
enum Request : uint32_t {
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
  kSetBackendReqFd = 21,
  kGetConfig = 24,
  kSetConfig = 25,
  kGetInflightFd = 31,
  kSetInflightFd = 32,
  kResetDevice = 34,
};

// Back end to front end, on the channel that kSetBackendReqFd gave it.
enum BackendRequest : uint32_t {
  kBackendConfigChange = 2,
};

struct Header {
  uint32_t request;
  uint32_t flags;
  uint32_t size;  // bytes of payload behind the header
};
static_assert(sizeof(Header) == 12);

inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kVersionMask = 3;
inline constexpr uint32_t kFlagReply = 1U << 2;
inline constexpr uint32_t kFlagNeedReply = 1U << 3;

// Protocol features, as bits of a mask.
inline constexpr uint64_t kProtocolMq = 1ULL << 0;
inline constexpr uint64_t kProtocolLogShmfd = 1ULL << 1;
inline constexpr uint64_t kProtocolReplyAck = 1ULL << 3;
inline constexpr uint64_t kProtocolBackendReq = 1ULL << 5;
inline constexpr uint64_t kProtocolConfig = 1ULL << 9;
inline constexpr uint64_t kProtocolInflightShmfd = 1ULL << 12;
inline constexpr uint64_t kProtocolResetDevice = 1ULL << 13;

// The features that vhost adds to a device's.
inline constexpr uint64_t kFeatureLogAll = 1ULL << 26;
inline constexpr uint64_t kFeatureProtocolFeatures = 1ULL << 30;

struct VringState {
  uint32_t index;
  uint32_t num;
};

struct VringAddr {
  uint32_t index;
  uint32_t flags;  // kVringLog
  uint64_t desc_user;
  uint64_t used_user;
  uint64_t avail_user;
  uint64_t log_gpa;
};
static_assert(sizeof(VringAddr) == 40);
inline constexpr uint32_t kVringLog = 1;

// SET_VRING_KICK, CALL, ERR: a u64 with the ring's index and whether no descriptor comes with it.
inline constexpr uint64_t kVringIndexMask = 0xff;
inline constexpr uint64_t kVringNoFd = 1ULL << 8;

struct MemoryRegion {
  uint64_t gpa;
  uint64_t size_bytes;
  uint64_t user_addr;  // the front end's own address of it, in which ring addresses are given
  uint64_t mmap_offset_bytes;
};
inline constexpr uint32_t kMemoryRegionsMax = 8;

struct MemTableHeader {
  uint32_t region_count;
  uint32_t padding;
};

struct Log {
  uint64_t size_bytes;
  uint64_t mmap_offset_bytes;
};

struct Inflight {
  uint64_t mmap_size_bytes;
  uint64_t mmap_offset_bytes;
  uint16_t num_queues;
  uint16_t queue_size;
  uint32_t padding;
};
static_assert(sizeof(Inflight) == 24);
// The message is 20 bytes by the specification's text and 24 in every implementation (C's padding); both are
// sent and taken in the wild. We send 24 and take either.
inline constexpr size_t kInflightBytesMin = 20;

struct ConfigHeader {
  uint32_t offset;
  uint32_t size;
  uint32_t flags;
};
inline constexpr size_t kConfigBytesMax = 256;

// A payload above this is no vhost-user message that a front end would take.
inline constexpr uint32_t kPayloadBytesMax = 4096;
// Descriptors one message can carry (as many as there are memory regions).
inline constexpr size_t kMessageFdsMax = 8;

}  // namespace cleat::perf::wire
