// SPDX-License-Identifier: Apache-2.0
// The protocol data units (PDUs) of NVMe over TCP as they lie on the wire, and the limits of a host's side.
//
// Source: NVM Express TCP Transport Specification 1.0 ("tcp"), 3.6.1 (common header), 3.6.2 (each PDU), 3.3.2 (data digests); the names of
// the fields are the specification's, in our case. Plain values, little-endian as the machine (checked in capsule.h); any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nvme/fabrics/capsule.h"

namespace cleat::nvme::tcp {

enum class PduType : uint8_t {
  kIcReq = 0x00,
  kIcResp = 0x01,
  kH2cTermReq = 0x02,
  kC2hTermReq = 0x03,
  kCapsuleCmd = 0x04,
  kCapsuleResp = 0x05,
  kH2cData = 0x06,
  kC2hData = 0x07,
  kR2t = 0x09,
};

// CommonHeader::flags.
inline constexpr uint8_t kFlagHeaderDigest = 1U << 0;
inline constexpr uint8_t kFlagDataDigest = 1U << 1;
inline constexpr uint8_t kFlagLast = 1U
                                     << 2;  // H2CData: the last of its R2T; C2HData: the last of its command
inline constexpr uint8_t kFlagSuccess = 1U
                                        << 3;  // C2HData: the command has succeeded, no CapsuleResp will come

struct CommonHeader {
  PduType type = PduType::kIcReq;
  uint8_t flags = 0;
  uint8_t header_bytes = 0;  // HLEN: without digest
  uint8_t data_offset = 0;   // PDO: from the PDU's beginning; 0 where there is no data
  uint32_t pdu_bytes = 0;    // PLEN: with digests, padding and data
};
static_assert(sizeof(CommonHeader) == 8);

// DGST of ICReq and ICResp.
inline constexpr uint8_t kHeaderDigestEnable = 1U << 0;
inline constexpr uint8_t kDataDigestEnable = 1U << 1;

struct IcReq {
  CommonHeader header;
  uint16_t format_version = 0;  // PFV
  uint8_t host_data_align = 0;  // HPDA: data of C2HData begins at a multiple of (HPDA + 1) * 4
  uint8_t digests = 0;
  uint32_t r2ts_less_one = 0;  // MAXR2T: R2Ts of one command at a time, less one
  uint8_t reserved[112] = {};
};
static_assert(sizeof(IcReq) == 128);

struct IcResp {
  CommonHeader header;
  uint16_t format_version = 0;
  uint8_t controller_data_align = 0;  // CPDA: as HPDA, of capsules and H2CData
  uint8_t digests = 0;
  uint32_t h2c_data_max_bytes = 0;  // MAXH2CDATA: data of one H2CData
  uint8_t reserved[112] = {};
};
static_assert(sizeof(IcResp) == 128);

// H2CTermReq and C2HTermReq. The header of the PDU at fault follows, at most kTermDataMaxBytes of it.
struct TermReq {
  CommonHeader header;
  uint16_t reason = 0;  // FES: TermReason
  uint16_t information_low =
      0;  // FEI, which is not aligned: where in the PDU the field at fault lies, or the digest that was calculated
  uint16_t information_high = 0;
  uint8_t reserved[10] = {};
};
static_assert(sizeof(TermReq) == 24);

struct CapsuleCmd {
  CommonHeader header;
  fabrics::SubmissionEntry entry;
};
static_assert(sizeof(CapsuleCmd) == 72);

struct CapsuleResp {
  CommonHeader header;
  fabrics::CompletionEntry entry;
};
static_assert(sizeof(CapsuleResp) == 24);

struct H2cData {
  CommonHeader header;
  uint16_t cid = 0;   // CCCID
  uint16_t ttag = 0;  // as the R2T had it
  uint32_t offset_bytes = 0;
  uint32_t data_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(H2cData) == 24);

struct C2hData {
  CommonHeader header;
  uint16_t cid = 0;
  uint16_t reserved_low = 0;
  uint32_t offset_bytes = 0;
  uint32_t data_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(C2hData) == 24);

struct R2t {
  CommonHeader header;
  uint16_t cid = 0;
  uint16_t ttag = 0;
  uint32_t offset_bytes = 0;
  uint32_t data_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(R2t) == 24);

// Why an end ends the connection (tcp 3.6.2.3, 3.6.2.4).
enum class TermReason : uint16_t {
  kInvalidHeaderField = 1,
  kPduSequence = 2,
  kHeaderDigest = 3,
  kDataOutOfRange = 4,
  kLimitExceeded = 5,  // of R2Ts where the host says so, of data where the controller does
  kUnsupportedParameter = 6,
};

// "PDU sequence error"; "a reason that the specification has not".
constexpr std::string_view NameOf(TermReason reason) {
  switch (reason) {
    case TermReason::kInvalidHeaderField:
      return "invalid PDU header field";
    case TermReason::kPduSequence:
      return "PDU sequence error";
    case TermReason::kHeaderDigest:
      return "header digest error";
    case TermReason::kDataOutOfRange:
      return "data transfer out of range";
    case TermReason::kLimitExceeded:
      return "limit exceeded";
    case TermReason::kUnsupportedParameter:
      return "unsupported parameter";
  }
  return "a reason that the specification has not";
}

constexpr std::string_view NameOf(PduType type) {
  switch (type) {
    case PduType::kIcReq:
      return "ICReq";
    case PduType::kIcResp:
      return "ICResp";
    case PduType::kH2cTermReq:
      return "H2CTermReq";
    case PduType::kC2hTermReq:
      return "C2HTermReq";
    case PduType::kCapsuleCmd:
      return "CapsuleCmd";
    case PduType::kCapsuleResp:
      return "CapsuleResp";
    case PduType::kH2cData:
      return "H2CData";
    case PduType::kC2hData:
      return "C2HData";
    case PduType::kR2t:
      return "R2T";
  }
  return "PDU of an unknown type";
}

inline constexpr uint16_t kFormatVersion = 0;
inline constexpr uint32_t kDigestBytes = 4;
inline constexpr uint32_t kTermDataMaxBytes = 128;
// The longest header that a PDU of either side has, without digest.
inline constexpr uint32_t kHeaderMaxBytes = 128;
// Data begins at multiples of (CPDA + 1) * 4 bytes; CPDA is at most this.
inline constexpr uint8_t kDataAlignMax = 31;
inline constexpr uint32_t kDataAlignUnitBytes = 4;
// The least MAXH2CDATA of a controller.
inline constexpr uint32_t kH2cDataLeastBytes = 4096;
// The data of one H2CData that a host makes, whatever the controller takes: its data digest is made in one go.
inline constexpr uint32_t kH2cDataMostBytes = 1 << 20;
// What the admin queue's capsules, and those of fabrics commands (Connect) on any queue, may carry (tcp 3.3.1, figure 9).
inline constexpr uint32_t kAdminInCapsuleBytes = 8192;
// The data of one command, either way.
inline constexpr uint64_t kCommandDataMaxBytes = 1ULL << 30;

}  // namespace cleat::nvme::tcp
