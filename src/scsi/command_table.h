// SPDX-License-Identifier: Apache-2.0
// Every command that a logical unit of ours knows, in one table: what the decoder checks a CDB against is what REPORT
// SUPPORTED OPERATION CODES tells the initiator (SPC-4 6.35), and neither can say what the other does not do.
// Constant; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "scsi/protocol.h"

namespace cleat::scsi {

inline constexpr size_t kCdbBytes = 32;  // how many are kept of a CDB; commands here have at most 16
using Cdb = std::array<uint8_t, kCdbBytes>;

// What a command does, whatever the length of its CDB.
enum class Action : uint8_t {
  kTestUnitReady,
  kRequestSense,
  kInquiry,
  kReportLuns,
  kModeSelect,
  kModeSense,
  kStartStop,
  kSendDiagnostic,
  kReadCapacity10,
  kReadCapacity16,
  kGetLbaStatus,
  kReportOpcodes,
  kRead,
  kWrite,
  kWriteAndVerify,
  kVerify,
  kCompareAndWrite,
  kPreFetch,
  kSynchronizeCache,
  kWriteSame,
  kUnmap,
};

// How much data belongs to it.
enum class DataUse : uint8_t {
  kNone,
  kAllocation,     // data-in, at most what the length field says
  kEightIn,        // data-in, 8 bytes
  kBlocksIn,       // data-in, the length field's blocks
  kBlocksOut,      // data-out, likewise
  kParameters,     // data-out, the length field's bytes
  kBlockOrNone,    // data-out: one block, none with NDOB
  kByteCheck,      // data-out: as BYTCHK says
  kTwiceBlocksOut  // data-out: what to compare, then what to write
};

struct Field {
  uint8_t at = 0;
  uint8_t bytes = 0;
};

struct CommandInfo {
  Opcode opcode;
  int16_t service_action = -1;  // in byte 1, bits 0 to 4; -1: the opcode has none
  uint8_t cdb_bytes;
  Action action;
  DataUse data = DataUse::kNone;
  Field lba{};
  Field length{};
  bool writes_medium = false;
  bool needs_discard = false;     // known only to a disk that can discard
  bool passes_attention = false;  // not refused for a unit attention (SAM-5 5.14.1)
  std::array<uint8_t, 16> usage;  // bits that may be set; of byte 0 and the service action: their value
};

std::span<const CommandInfo> AllCommands();

// nullptr when the opcode or its service action is not known.
const CommandInfo* FindCommand(const Cdb& cdb);
// Whether an opcode has service actions here.
bool HasServiceActions(uint8_t opcode);

// The first byte and bit of the CDB that is set and must not be; byte -1: none.
struct BadField {
  int byte = -1;
  int bit = -1;
};
// `info` is of AllCommands().
BadField CheckUsage(const CommandInfo& info, const Cdb& cdb);

// The reply to REPORT SUPPORTED OPERATION CODES, `known` leaving out what this disk does not have. Returns its
// length, 0 when the CDB's reporting options don't go with the opcode (`bad` says where).
inline constexpr size_t kOpcodesReplyMax = 1024;
size_t WriteSupportedOpcodes(const Cdb& cdb, bool discard, std::span<uint8_t, kOpcodesReplyMax> out,
                             BadField& bad);

}  // namespace cleat::scsi
