// SPDX-License-Identifier: Apache-2.0
// The vhost-user protocol's messages as they lie on the socket (QEMU documentation, "Vhost-user Protocol"),
// and the virtio bits that go with them. Written from the specifications, on purpose apart from what the
// engine uses: each side of the tests has its own reading of them, and a wrong one shows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "messages and rings are read in place");

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

// Device features that concern the transport (virtio 1.2, 6, and vhost's own two).
inline constexpr uint64_t kFeatureLogAll = 1ULL << 26;
inline constexpr uint64_t kFeatureIndirectDesc = 1ULL << 28;
inline constexpr uint64_t kFeatureEventIdx = 1ULL << 29;
inline constexpr uint64_t kFeatureProtocolFeatures = 1ULL << 30;
inline constexpr uint64_t kFeatureVersion1 = 1ULL << 32;
inline constexpr uint64_t kFeatureRingPacked = 1ULL << 34;

// virtio-blk (virtio 1.2, 5.2.3).
inline constexpr uint64_t kBlkSizeMax = 1ULL << 1;
inline constexpr uint64_t kBlkSegMax = 1ULL << 2;
inline constexpr uint64_t kBlkGeometry = 1ULL << 4;
inline constexpr uint64_t kBlkReadOnly = 1ULL << 5;
inline constexpr uint64_t kBlkBlkSize = 1ULL << 6;
inline constexpr uint64_t kBlkFlush = 1ULL << 9;
inline constexpr uint64_t kBlkTopology = 1ULL << 10;
inline constexpr uint64_t kBlkConfigWce = 1ULL << 11;
inline constexpr uint64_t kBlkMq = 1ULL << 12;
inline constexpr uint64_t kBlkDiscard = 1ULL << 13;
inline constexpr uint64_t kBlkWriteZeroes = 1ULL << 14;

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

// virtio-blk's configuration space up to and with write zeroes (virtio 1.2, 5.2.4).
struct __attribute__((packed)) BlkConfig {
  uint64_t capacity_sectors;
  uint32_t size_max;
  uint32_t seg_max;
  uint16_t cylinders;
  uint8_t heads;
  uint8_t sectors;
  uint32_t blk_size;
  uint8_t physical_block_exp;
  uint8_t alignment_offset;
  uint16_t min_io_size;
  uint32_t opt_io_size;
  uint8_t writeback;
  uint8_t unused0;
  uint16_t num_queues;
  uint32_t max_discard_sectors;
  uint32_t max_discard_seg;
  uint32_t discard_sector_alignment;
  uint32_t max_write_zeroes_sectors;
  uint32_t max_write_zeroes_seg;
  uint8_t write_zeroes_may_unmap;
  uint8_t unused1[3];
};
static_assert(sizeof(BlkConfig) == 60);
inline constexpr uint32_t kBlkConfigWritebackOffset = offsetof(BlkConfig, writeback);

// Request types and statuses (virtio 1.2, 5.2.6).
enum BlkType : uint32_t {
  kBlkIn = 0,
  kBlkOut = 1,
  kBlkTypeFlush = 4,
  kBlkGetId = 8,
  kBlkTypeDiscard = 11,
  kBlkTypeWriteZeroes = 13,
};
enum BlkStatus : uint8_t { kBlkOk = 0, kBlkIoError = 1, kBlkUnsupported = 2 };

struct BlkHeader {
  uint32_t type;
  uint32_t reserved;
  uint64_t sector;
};
static_assert(sizeof(BlkHeader) == 16);

struct BlkRange {  // discard and write zeroes
  uint64_t sector;
  uint32_t sectors;
  uint32_t flags;  // kBlkRangeUnmap
};
static_assert(sizeof(BlkRange) == 16);
inline constexpr uint32_t kBlkRangeUnmap = 1;
inline constexpr uint32_t kBlkIdBytes = 20;
inline constexpr uint32_t kSectorBytes = 512;

// virtio-scsi (virtio 1.2, 5.6). Queues 0 and 1 are for control and events, requests go to those behind.
inline constexpr uint64_t kScsiInOut = 1ULL << 0;
inline constexpr uint64_t kScsiHotplug = 1ULL << 1;
inline constexpr uint64_t kScsiChange = 1ULL << 2;
inline constexpr uint16_t kScsiControlQueue = 0;
inline constexpr uint16_t kScsiEventQueue = 1;
inline constexpr uint16_t kScsiFirstRequestQueue = 2;
inline constexpr size_t kScsiLunBytes = 8;
inline constexpr size_t kScsiCdbBytes = 32;  // cdb_size and sense_size as they are after a reset
inline constexpr size_t kScsiSenseBytes = 96;

struct __attribute__((packed)) ScsiHeader {  // 5.6.6.1; data-out follows
  uint8_t lun[kScsiLunBytes];
  uint64_t id;
  uint8_t task_attribute;
  uint8_t priority;
  uint8_t crn;
  uint8_t cdb[kScsiCdbBytes];
};
static_assert(sizeof(ScsiHeader) == 51);

struct __attribute__((packed)) ScsiAnswer {  // data-in follows
  uint32_t sense_bytes;
  uint32_t residual;
  uint16_t status_qualifier;
  uint8_t status;    // SAM: kSamGood...
  uint8_t response;  // ScsiResponse
  uint8_t sense[kScsiSenseBytes];
};
static_assert(sizeof(ScsiAnswer) == 108);

enum ScsiResponse : uint8_t {
  kScsiOk = 0,
  kScsiOverrun = 1,
  kScsiAborted = 2,
  kScsiBadTarget = 3,
  kScsiReset = 4,
  kScsiBusy = 5,
  kScsiTransportFailure = 6,
  kScsiTargetFailure = 7,
  kScsiNexusFailure = 8,
  kScsiFailure = 9,
  kScsiFunctionSucceeded = 10,
  kScsiFunctionRejected = 11,
  kScsiIncorrectLun = 12,
};

// The control queue (5.6.6.2).
enum ScsiControlType : uint32_t { kScsiTmf = 0, kScsiAnQuery = 1, kScsiAnSubscribe = 2 };
enum ScsiTmfType : uint32_t {
  kTmfAbortTask = 0,
  kTmfAbortTaskSet = 1,
  kTmfClearAca = 2,
  kTmfClearTaskSet = 3,
  kTmfNexusReset = 4,
  kTmfLunReset = 5,
  kTmfQueryTask = 6,
  kTmfQueryTaskSet = 7,
};
struct ScsiTmfRequest {  // answered with one byte, a ScsiResponse
  uint32_t type;
  uint32_t subtype;
  uint8_t lun[kScsiLunBytes];
  uint64_t id;
};
static_assert(sizeof(ScsiTmfRequest) == 24);
struct ScsiAnRequest {  // query and subscribe
  uint32_t type;
  uint8_t lun[kScsiLunBytes];
  uint32_t event_requested;
};
static_assert(sizeof(ScsiAnRequest) == 16);
struct __attribute__((packed)) ScsiAnAnswer {
  uint32_t event_actual;
  uint8_t response;
};
static_assert(sizeof(ScsiAnAnswer) == 5);

// The event queue (5.6.6.3).
struct ScsiEvent {
  uint32_t event;
  uint8_t lun[kScsiLunBytes];
  uint32_t reason;
};
static_assert(sizeof(ScsiEvent) == 16);
inline constexpr uint32_t kScsiEventsMissed = 0x80000000;
inline constexpr uint32_t kScsiTransportReset = 1;
inline constexpr uint32_t kScsiParamChange = 3;
inline constexpr uint32_t kScsiReasonHard = 0;  // of a transport reset
inline constexpr uint32_t kScsiReasonRescan = 1;
inline constexpr uint32_t kScsiReasonRemoved = 2;
inline constexpr uint32_t kScsiCapacityChanged = 0x092a;  // of a parameter change: ASC 2Ah, ASCQ 09h

// Split virtqueue (virtio 1.2, 2.7). The rings behind the two indices are arrays: see driver_ring.cc.
struct Descriptor {
  uint64_t gpa;
  uint32_t len;
  uint16_t flags;
  uint16_t next;
};
static_assert(sizeof(Descriptor) == 16);
inline constexpr uint16_t kDescNext = 1;
inline constexpr uint16_t kDescWrite = 2;
inline constexpr uint16_t kDescIndirect = 4;
inline constexpr uint16_t kAvailNoInterrupt = 1;
inline constexpr uint16_t kUsedNoNotify = 1;

// Packed virtqueue (2.8).
struct PackedDescriptor {
  uint64_t gpa;
  uint32_t len;
  uint16_t id;
  uint16_t flags;
};
static_assert(sizeof(PackedDescriptor) == 16);
inline constexpr uint16_t kDescAvail = 1 << 7;
inline constexpr uint16_t kDescUsed = 1 << 15;
// The event suppression word: the descriptor (15 bits), its wrap counter, these flags.
inline constexpr uint32_t kEventEnable = 0 << 16;
inline constexpr uint32_t kEventDisable = 1 << 16;
inline constexpr uint32_t kEventDesc = 2 << 16;
inline constexpr uint32_t kEventFlagsMask = 3 << 16;

struct UsedElement {
  uint32_t id;
  uint32_t len;
};

}  // namespace cleat::perf::wire
