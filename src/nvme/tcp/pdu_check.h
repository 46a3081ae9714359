// SPDX-License-Identifier: Apache-2.0
// Whether a controller's PDU may be what its header says: one table of what each type may have, asked before any more of the PDU is waited
// for or used. What it means to the connection (which command, which order) is the connection's to check.
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

// What a host tells a controller before it ends the connection, and people.
struct Refusal {
  TermReason reason = TermReason::kInvalidHeaderField;
  uint32_t information = 0;  // FEI: the field's place in the PDU, or the digest
  std::string text;          // "C2HData with a header of 20 bytes, 24 expected"
};

struct Digests {
  bool header = false;
  bool data = false;
};

// What a PDU from a controller may have. Fields that a type has reserved are not looked at, as the specification wants it.
struct PduShape {
  uint8_t header_bytes = 0;    // 0: no controller sends it
  uint32_t pdu_max_bytes = 0;  // without digests; 0: its data decides
  bool has_header_digest = false;
  bool has_data = false;
};

// By type.
inline constexpr auto kPduShapes = [] {
  std::array<PduShape, 1U << 4> shapes{};
  const auto at = [&shapes](PduType type) -> PduShape& { return shapes[static_cast<uint8_t>(type)]; };
  at(PduType::kIcResp) = {sizeof(IcResp), sizeof(IcResp), false, false};
  at(PduType::kC2hTermReq) = {sizeof(TermReq), sizeof(TermReq) + kTermDataMaxBytes, false, false};
  at(PduType::kCapsuleResp) = {sizeof(CapsuleResp), sizeof(CapsuleResp), true, false};
  at(PduType::kC2hData) = {sizeof(C2hData), 0, true, true};
  at(PduType::kR2t) = {sizeof(R2t), sizeof(R2t), true, false};
  return shapes;
}();

constexpr const PduShape& ShapeOf(PduType type) {
  const auto number = static_cast<uint8_t>(type);
  return kPduShapes[number < kPduShapes.size() ? number : 0];
}
static_assert(ShapeOf(PduType::kIcReq).header_bytes == 0);  // what stands for all that nobody knows

// The first check, of the eight bytes of any PDU from a controller: that its type goes to a host, and its lengths, digests and data offset
// (PDO). Afterwards header.header_bytes is the type's, and pdu_bytes is at least HeaderEnd. `digests`: none before ICResp.
std::optional<Refusal> CheckCommonHeader(const CommonHeader& header, Digests digests);

// Bytes from the PDU's beginning to the end of its header digest.
constexpr uint32_t HeaderEnd(const CommonHeader& header, Digests digests) {
  const bool has_digest = digests.header && ShapeOf(header.type).has_header_digest;
  return header.header_bytes + (has_digest ? kDigestBytes : 0);
}

// The data of a C2HData: that it is not empty, and PLEN is what PDO, data and digest make.
std::optional<Refusal> CheckDataLength(const C2hData& pdu, Digests digests);

// The answer to an ICReq that asked for `asked`: a controller that does otherwise, with less checking or with more, is refused.
std::optional<Refusal> CheckIcResp(const IcResp& pdu, Digests asked);

}  // namespace cleat::nvme::tcp
