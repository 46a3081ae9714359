// SPDX-License-Identifier: Apache-2.0
// Whether a controller's PDU may be what its header says: one table of what each type may have, asked before any more of the PDU is waited
// for or used. What it means to the connection (which command, which order) is the connection's to check.
//
// Source: NVM Express TCP Transport Specification 1.0, 3.6. Pure; any thread.
#pragma once

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

// The first check, of the eight bytes of any PDU from a controller: that its type goes to a host, and its lengths, digests and data offset
// (PDO). Afterwards header.header_bytes is the type's, and pdu_bytes is at least HeaderEnd. `digests`: none before ICResp.
std::optional<Refusal> CheckCommonHeader(const CommonHeader& header, Digests digests);

// Bytes from the PDU's beginning to the end of its header digest.
uint32_t HeaderEnd(const CommonHeader& header, Digests digests);

// The data of a C2HData: that it is not empty, and PLEN is what PDO, data and digest make.
std::optional<Refusal> CheckDataLength(const C2hData& pdu, Digests digests);

// The answer to an ICReq that asked for `asked`: a controller that does otherwise, with less checking or with more, is refused.
std::optional<Refusal> CheckIcResp(const IcResp& pdu, Digests asked);

}  // namespace cleat::nvme::tcp
