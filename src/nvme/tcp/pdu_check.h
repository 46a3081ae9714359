// SPDX-License-Identifier: Apache-2.0
// Whether a PDU that came may be what its header says: one table for each side of what the types that it receives may have, asked before
// any more of the PDU is waited for or used. What it means to the connection (which command, which order) is the connection's to check.
//
// Source: NVM Express TCP Transport Specification 1.0, 3.6. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "nvme/tcp/pdu.h"

namespace cleat::nvme::tcp {

// What the other side is told before the connection ends, and people.
struct Refusal {
  TermReason reason = TermReason::kInvalidHeaderField;
  uint32_t information = 0;  // FEI: the field's place in the PDU, or the digest
  std::string text;          // "C2HData with a header of 20 bytes, 24 expected"
};

struct Digests {
  bool header = false;
  bool data = false;
};

// Data that follows a PDU's header: none, always, or in some (a command's capsule).
enum class PduData : uint8_t { kNone, kAlways, kSome };

// What a PDU may have. Fields that a type has reserved are not looked at, as the specification wants it.
struct PduShape {
  uint8_t header_bytes = 0;    // 0: this side does not receive it
  uint32_t pdu_max_bytes = 0;  // without digests and data; 0: its data decides
  bool has_header_digest = false;
  PduData data = PduData::kNone;
};

// By type.
using PduShapes = std::array<PduShape, 1U << 4>;
inline constexpr PduShapes kHostReceives = [] {
  PduShapes shapes{};
  const auto at = [&shapes](PduType type) -> PduShape& { return shapes[static_cast<uint8_t>(type)]; };
  at(PduType::kIcResp) = {sizeof(IcResp), sizeof(IcResp), false, PduData::kNone};
  at(PduType::kC2hTermReq) = {sizeof(TermReq), sizeof(TermReq) + kTermDataMaxBytes, false, PduData::kNone};
  at(PduType::kCapsuleResp) = {sizeof(CapsuleResp), sizeof(CapsuleResp), true, PduData::kNone};
  at(PduType::kC2hData) = {sizeof(C2hData), 0, true, PduData::kAlways};
  at(PduType::kR2t) = {sizeof(R2t), sizeof(R2t), true, PduData::kNone};
  return shapes;
}();
inline constexpr PduShapes kControllerReceives = [] {
  PduShapes shapes{};
  const auto at = [&shapes](PduType type) -> PduShape& { return shapes[static_cast<uint8_t>(type)]; };
  at(PduType::kIcReq) = {sizeof(IcReq), sizeof(IcReq), false, PduData::kNone};
  at(PduType::kH2cTermReq) = {sizeof(TermReq), sizeof(TermReq) + kTermDataMaxBytes, false, PduData::kNone};
  at(PduType::kCapsuleCmd) = {sizeof(CapsuleCmd), sizeof(CapsuleCmd), true, PduData::kSome};
  at(PduType::kH2cData) = {sizeof(H2cData), 0, true, PduData::kAlways};
  return shapes;
}();

// The type's shape; one that is in no table has no header.
constexpr PduShape ShapeOf(PduType type, const PduShapes& shapes) {
  const auto number = static_cast<uint8_t>(type);
  return number < shapes.size() ? shapes[number] : PduShape{};
}

// The first check, of the eight bytes of any PDU: that its type goes to this side, and its lengths, digests and data offset (PDO).
// Afterwards header.header_bytes is the type's, and pdu_bytes is at least HeaderEnd. `digests`: none before ICResp.
std::optional<Refusal> CheckCommonHeader(const CommonHeader& header, Digests digests,
                                         const PduShapes& shapes = kHostReceives);

// Bytes from the PDU's beginning to the end of its header digest.
constexpr uint32_t HeaderEnd(const CommonHeader& header, Digests digests, const PduShape& shape) {
  return header.header_bytes + (digests.header && shape.has_header_digest ? kDigestBytes : 0);
}

// The data of a C2HData or H2CData: that it is not empty, and PLEN is what PDO, data and digest make.
std::optional<Refusal> CheckDataLength(const C2hData& pdu, Digests digests);
std::optional<Refusal> CheckDataLength(const H2cData& pdu, Digests digests);
// The data that a command brings along: PLEN less PDO and digest, which is not 0 where there is a PDO; 0: none comes.
uint32_t DataInCapsule(const CapsuleCmd& pdu, Digests digests);

// The answer to an ICReq that asked for `asked`: a controller that does otherwise, with less checking or with more, is refused.
std::optional<Refusal> CheckIcResp(const IcResp& pdu, Digests asked);
// What a host begins with; digests are its choice.
std::optional<Refusal> CheckIcReq(const IcReq& pdu);

}  // namespace cleat::nvme::tcp
