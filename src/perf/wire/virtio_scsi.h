// SPDX-License-Identifier: Apache-2.0
// virtio-scsi (virtio 1.2, 5.6): features, requests, task management, events. Queues 0 and 1 are for control and events,
// requests go to those behind.
// Written from the specification, on purpose apart from what the engine uses: each side of the tests has its own
// reading of it, and a wrong one shows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "requests are read in place");

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

}  // namespace cleat::perf::wire
