// SPDX-License-Identifier: Apache-2.0
// PDUs of the NVM Express TCP Transport Specification 1.0 (sections are its). Multi-byte fields are little-endian.
// Written from the specification, on purpose apart from what the engine uses: see wire/nvme.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "perf/wire/nvme.h"

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "structures are read in place");

enum PduType : uint8_t {  // 3.6.1
  kPduIcReq = 0x00,
  kPduIcResp = 0x01,
  kPduHostTermination = 0x02,
  kPduTargetTermination = 0x03,
  kPduCommand = 0x04,
  kPduResponse = 0x05,
  kPduDataToTarget = 0x06,
  kPduDataToHost = 0x07,
  kPduReadyToTransfer = 0x09,
};

enum PduFlag : uint8_t {
  kPduHeaderDigest = 1U << 0,
  kPduDataDigest = 1U << 1,
  kPduLast = 1U << 2,
  kPduSuccess = 1U << 3,  // data to the host: a completion without an error comes with it
};

struct PduHeader {  // 3.6.1
  uint8_t type;
  uint8_t flags;
  uint8_t header_bytes;
  uint8_t data_at;  // PDO
  uint32_t pdu_bytes;
};
static_assert(sizeof(PduHeader) == 8);

struct PduInitialize {  // 3.6.2.2, 3.6.2.3: of the host, and the target's answer
  PduHeader header;
  uint16_t version;
  uint8_t alignment;  // HPDA, CPDA: of data, in dwords, 0 is one
  uint8_t digests;    // kPduHeaderDigest, kPduDataDigest
  uint32_t limit;     // the host's: R2Ts of a command beside the first; the target's: MAXH2CDATA
  uint8_t reserved[112];
};
static_assert(sizeof(PduInitialize) == 128);
inline constexpr uint8_t kPduAlignmentMax = 31;
inline constexpr uint32_t kPduAlignmentUnitBytes = 4;
inline constexpr uint32_t kMaxDataToTargetMin = 4096;

struct PduCommand {  // 3.6.2.6; data may follow
  PduHeader header;
  NvmeCommand command;
};
static_assert(sizeof(PduCommand) == 72);

struct PduResponse {  // 3.6.2.7
  PduHeader header;
  NvmeCompletion completion;
};
static_assert(sizeof(PduResponse) == 24);

struct PduTransfer {  // 3.6.2.8 to 3.6.2.10: data to the target, data to the host, ready to transfer
  PduHeader header;
  uint16_t cid;
  uint16_t tag;
  uint32_t offset_bytes;
  uint32_t length_bytes;
  uint32_t reserved;
};
static_assert(sizeof(PduTransfer) == 24);

struct PduTermination {  // 3.6.2.4, 3.6.2.5; the beginning of the PDU that was wrong follows
  PduHeader header;
  uint16_t reason;  // FES
  uint16_t information[2];
  uint8_t reserved[10];
};
static_assert(sizeof(PduTermination) == 24);
inline constexpr uint32_t kTerminationBytesMax = 152;

inline constexpr uint32_t kDigestBytes = 4;
// Data in the capsule of a fabrics or admin command (3.3.2.2).
inline constexpr uint32_t kAdminCapsuleDataBytes = 8192;

}  // namespace cleat::perf::wire
