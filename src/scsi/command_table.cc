// SPDX-License-Identifier: Apache-2.0
#include "scsi/command_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "scsi/bytes.h"

namespace cleat::scsi {
namespace {

// Bits of byte 1.
constexpr uint8_t kDpoFua = 0x18;
constexpr uint8_t kDpoBytchk = 0x16;
constexpr uint8_t kImmediate = 0x02;
constexpr uint8_t kImmediateNv = 0x06;  // SYNC_NV, obsolete: a flush is more than it asks for
constexpr uint8_t kGroup = 0x3f;        // GROUP NUMBER: accepted, there is no grouping

constexpr Field kLba32{2, 4};
constexpr Field kLba64{2, 8};
constexpr Field kLength16{7, 2};
constexpr Field kLength32{10, 4};

// In order of opcode and service action. SBC-4 5, SPC-4 6.
constexpr CommandInfo kCommands[] = {
    {.opcode = kTestUnitReady, .cdb_bytes = 6, .action = Action::kTestUnitReady, .usage = {0x00}},
    {.opcode = kRequestSense,
     .cdb_bytes = 6,
     .action = Action::kRequestSense,
     .data = DataUse::kAllocation,
     .length = {4, 1},
     .passes_attention = true,
     .usage = {0x03, 0x01, 0, 0, 0xff}},
    {.opcode = kRead6,
     .cdb_bytes = 6,
     .action = Action::kRead,
     .data = DataUse::kBlocksIn,
     .lba = {1, 3},
     .length = {4, 1},
     .usage = {0x08, 0x1f, 0xff, 0xff, 0xff}},
    {.opcode = kWrite6,
     .cdb_bytes = 6,
     .action = Action::kWrite,
     .data = DataUse::kBlocksOut,
     .lba = {1, 3},
     .length = {4, 1},
     .writes_medium = true,
     .usage = {0x0a, 0x1f, 0xff, 0xff, 0xff}},
    {.opcode = kInquiry,
     .cdb_bytes = 6,
     .action = Action::kInquiry,
     .data = DataUse::kAllocation,
     .length = {3, 2},
     .passes_attention = true,
     .usage = {0x12, 0x01, 0xff, 0xff, 0xff}},
    {.opcode = kModeSelect6,
     .cdb_bytes = 6,
     .action = Action::kModeSelect,
     .data = DataUse::kParameters,
     .length = {4, 1},
     .usage = {0x15, 0x10, 0, 0, 0xff}},
    {.opcode = kModeSense6,
     .cdb_bytes = 6,
     .action = Action::kModeSense,
     .data = DataUse::kAllocation,
     .length = {4, 1},
     .usage = {0x1a, 0x08, 0xff, 0xff, 0xff}},
    {.opcode = kStartStopUnit,
     .cdb_bytes = 6,
     .action = Action::kStartStop,
     .usage = {0x1b, 0x01, 0, 0, 0x05}},
    // SPC-4 6.42: the default self-test, or nothing; no other self-test and no diagnostic page.
    {.opcode = kSendDiagnostic, .cdb_bytes = 6, .action = Action::kSendDiagnostic, .usage = {0x1d, 0x04}},
    {.opcode = kReadCapacity10,
     .cdb_bytes = 10,
     .action = Action::kReadCapacity10,
     .data = DataUse::kEightIn,
     .usage = {0x25}},
    {.opcode = kRead10,
     .cdb_bytes = 10,
     .action = Action::kRead,
     .data = DataUse::kBlocksIn,
     .lba = kLba32,
     .length = kLength16,
     .usage = {0x28, kDpoFua, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kWrite10,
     .cdb_bytes = 10,
     .action = Action::kWrite,
     .data = DataUse::kBlocksOut,
     .lba = kLba32,
     .length = kLength16,
     .writes_medium = true,
     .usage = {0x2a, kDpoFua, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kWriteAndVerify10,
     .cdb_bytes = 10,
     .action = Action::kWriteAndVerify,
     .data = DataUse::kBlocksOut,
     .lba = kLba32,
     .length = kLength16,
     .writes_medium = true,
     .usage = {0x2e, kDpoBytchk, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kVerify10,
     .cdb_bytes = 10,
     .action = Action::kVerify,
     .data = DataUse::kByteCheck,
     .lba = kLba32,
     .length = kLength16,
     .usage = {0x2f, kDpoBytchk, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kPreFetch10,
     .cdb_bytes = 10,
     .action = Action::kPreFetch,
     .lba = kLba32,
     .length = kLength16,
     .usage = {0x34, kImmediate, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kSynchronizeCache10,
     .cdb_bytes = 10,
     .action = Action::kSynchronizeCache,
     .lba = kLba32,
     .length = kLength16,
     .usage = {0x35, kImmediateNv, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kWriteSame10,
     .cdb_bytes = 10,
     .action = Action::kWriteSame,
     .data = DataUse::kBlockOrNone,
     .lba = kLba32,
     .length = kLength16,
     .writes_medium = true,
     .usage = {0x41, 0x08, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff}},
    {.opcode = kUnmap,
     .cdb_bytes = 10,
     .action = Action::kUnmap,
     .data = DataUse::kParameters,
     .length = kLength16,
     .writes_medium = true,
     .needs_discard = true,
     .usage = {0x42, 0, 0, 0, 0, 0, kGroup, 0xff, 0xff}},
    {.opcode = kModeSelect10,
     .cdb_bytes = 10,
     .action = Action::kModeSelect,
     .data = DataUse::kParameters,
     .length = kLength16,
     .usage = {0x55, 0x10, 0, 0, 0, 0, 0, 0xff, 0xff}},
    {.opcode = kModeSense10,
     .cdb_bytes = 10,
     .action = Action::kModeSense,
     .data = DataUse::kAllocation,
     .length = kLength16,
     .usage = {0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff}},
    {.opcode = kRead16,
     .cdb_bytes = 16,
     .action = Action::kRead,
     .data = DataUse::kBlocksIn,
     .lba = kLba64,
     .length = kLength32,
     .usage = {0x88, kDpoFua, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               kGroup}},
    {.opcode = kCompareAndWrite,
     .cdb_bytes = 16,
     .action = Action::kCompareAndWrite,
     .data = DataUse::kTwiceBlocksOut,
     .lba = kLba64,
     .length = {13, 1},
     .writes_medium = true,
     .usage = {0x89, kDpoFua, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, kGroup}},
    {.opcode = kWrite16,
     .cdb_bytes = 16,
     .action = Action::kWrite,
     .data = DataUse::kBlocksOut,
     .lba = kLba64,
     .length = kLength32,
     .writes_medium = true,
     .usage = {0x8a, kDpoFua, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               kGroup}},
    {.opcode = kWriteAndVerify16,
     .cdb_bytes = 16,
     .action = Action::kWriteAndVerify,
     .data = DataUse::kBlocksOut,
     .lba = kLba64,
     .length = kLength32,
     .writes_medium = true,
     .usage = {0x8e, kDpoBytchk, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               kGroup}},
    {.opcode = kVerify16,
     .cdb_bytes = 16,
     .action = Action::kVerify,
     .data = DataUse::kByteCheck,
     .lba = kLba64,
     .length = kLength32,
     .usage = {0x8f, kDpoBytchk, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               kGroup}},
    {.opcode = kPreFetch16,
     .cdb_bytes = 16,
     .action = Action::kPreFetch,
     .lba = kLba64,
     .length = kLength32,
     .usage = {0x90, kImmediate, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               kGroup}},
    {.opcode = kSynchronizeCache16,
     .cdb_bytes = 16,
     .action = Action::kSynchronizeCache,
     .lba = kLba64,
     .length = kLength32,
     .usage = {0x91, kImmediateNv, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               kGroup}},
    {.opcode = kWriteSame16,
     .cdb_bytes = 16,
     .action = Action::kWriteSame,
     .data = DataUse::kBlockOrNone,
     .lba = kLba64,
     .length = kLength32,
     .writes_medium = true,
     .usage = {0x93, 0x09, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, kGroup}},
    {.opcode = kServiceActionIn16,
     .service_action = kReadCapacity16Action,
     .cdb_bytes = 16,
     .action = Action::kReadCapacity16,
     .data = DataUse::kAllocation,
     .length = kLength32,
     .usage = {0x9e, kReadCapacity16Action, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}},
    {.opcode = kServiceActionIn16,
     .service_action = kGetLbaStatusAction,
     .cdb_bytes = 16,
     .action = Action::kGetLbaStatus,
     .data = DataUse::kAllocation,
     .lba = kLba64,
     .length = kLength32,
     .usage = {0x9e, kGetLbaStatusAction, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
               0xff}},
    {.opcode = kReportLuns,
     .cdb_bytes = 12,
     .action = Action::kReportLuns,
     .data = DataUse::kAllocation,
     .length = {6, 4},
     .passes_attention = true,
     .usage = {0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}},
    {.opcode = kMaintenanceIn,
     .service_action = kReportSupportedOpcodesAction,
     .cdb_bytes = 12,
     .action = Action::kReportOpcodes,
     .data = DataUse::kAllocation,
     .length = {6, 4},
     .usage = {0xa3, kReportSupportedOpcodesAction, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
    {.opcode = kRead12,
     .cdb_bytes = 12,
     .action = Action::kRead,
     .data = DataUse::kBlocksIn,
     .lba = kLba32,
     .length = {6, 4},
     .usage = {0xa8, kDpoFua, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, kGroup}},
    {.opcode = kWrite12,
     .cdb_bytes = 12,
     .action = Action::kWrite,
     .data = DataUse::kBlocksOut,
     .lba = kLba32,
     .length = {6, 4},
     .writes_medium = true,
     .usage = {0xaa, kDpoFua, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, kGroup}},
};
constexpr uint8_t kUnknown = 0xff;
static_assert(std::size(kCommands) < kUnknown);

// Opcode -> its first entry.
constexpr auto kIndex = [] {
  std::array<uint8_t, 256> index{};
  index.fill(kUnknown);
  for (size_t i = std::size(kCommands); i-- > 0;) index[kCommands[i].opcode] = static_cast<uint8_t>(i);
  return index;
}();

constexpr uint8_t kServiceActionBits = 0x1f;

constexpr uint8_t AllowedBits(const CommandInfo& info, int byte) {
  const bool action = byte == 1 && info.service_action >= 0;
  return static_cast<uint8_t>(info.usage[byte] | (action ? kServiceActionBits : 0));
}

// The bits that must not be set, of each command, as two words over its CDB; the opcode's byte is left out.
constexpr auto kForbidden = [] {
  std::array<std::array<uint64_t, 2>, std::size(kCommands)> forbidden{};
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    for (int byte = 1; byte < kCommands[i].cdb_bytes; ++byte) {
      const auto bits = static_cast<uint8_t>(~AllowedBits(kCommands[i], byte));
      forbidden[i][byte / 8] |= uint64_t{bits} << (byte % 8 * 8);
    }
  }
  return forbidden;
}();

const CommandInfo* FindIn(uint8_t opcode, int service_action) {
  for (size_t i = kIndex[opcode]; i < std::size(kCommands) && kCommands[i].opcode == opcode; ++i) {
    if (kCommands[i].service_action < 0 || kCommands[i].service_action == service_action)
      return &kCommands[i];
  }
  return nullptr;
}

// ---- REPORT SUPPORTED OPERATION CODES

constexpr size_t kTimeoutsBytes = 12;
constexpr uint32_t kRecommendedTimeoutSeconds = 60;
static_assert(4 + std::size(kCommands) * (8 + kTimeoutsBytes) <= kOpcodesReplyMax);

// SPC-4 6.35.4
size_t WriteTimeouts(uint8_t* at) {
  StoreBig(at, kTimeoutsBytes - 2, 2);
  StoreBig(at + 8, kRecommendedTimeoutSeconds, 4);
  return kTimeoutsBytes;
}

size_t WriteAllOpcodes(bool timeouts, bool discard, uint8_t* out) {
  size_t end = 4;
  for (const CommandInfo& info : kCommands) {
    if (info.needs_discard && !discard) continue;
    uint8_t* at = out + end;
    at[0] = info.opcode;
    if (info.service_action >= 0) StoreBig(at + 2, static_cast<uint16_t>(info.service_action), 2);
    at[5] = static_cast<uint8_t>((timeouts ? 0x02 : 0) | (info.service_action >= 0 ? 0x01 : 0));
    StoreBig(at + 6, info.cdb_bytes, 2);
    end += 8;
    if (timeouts) end += WriteTimeouts(out + end);
  }
  StoreBig(out, end - 4, 4);
  return end;
}

size_t WriteOneOpcode(const CommandInfo* info, bool timeouts, uint8_t* out) {
  constexpr uint8_t kNotSupported = 0x01;
  constexpr uint8_t kSupported = 0x03;
  out[1] = kNotSupported;
  if (info == nullptr) return 4;
  out[1] = static_cast<uint8_t>(kSupported | (timeouts ? 0x80 : 0));
  StoreBig(out + 2, info->cdb_bytes, 2);
  std::copy_n(info->usage.begin(), info->cdb_bytes, out + 4);
  const size_t end = 4 + info->cdb_bytes;
  return timeouts ? end + WriteTimeouts(out + end) : end;
}

}  // namespace

std::span<const CommandInfo> AllCommands() {
  return kCommands;
}

const CommandInfo* FindCommand(const Cdb& cdb) {
  const uint8_t first = kIndex[cdb[0]];
  if (first == kUnknown) return nullptr;
  const CommandInfo& info = kCommands[first];
  if (info.service_action < 0) [[likely]]
    return &info;
  return FindIn(cdb[0], cdb[1] & kServiceActionBits);
}

bool HasServiceActions(uint8_t opcode) {
  return kIndex[opcode] != kUnknown && kCommands[kIndex[opcode]].service_action >= 0;
}

BadField CheckUsage(const CommandInfo& info, const Cdb& cdb) {
  static_assert(std::endian::native == std::endian::little);
  std::array<uint64_t, 2> words;
  std::memcpy(words.data(), cdb.data(), sizeof(words));
  const auto& forbidden = kForbidden[static_cast<size_t>(&info - kCommands)];
  if (((words[0] & forbidden[0]) | (words[1] & forbidden[1])) == 0) [[likely]]
    return {};
  for (int i = 1;; ++i) {
    const auto bad = static_cast<uint8_t>(cdb[i] & ~AllowedBits(info, i));
    if (bad != 0) return {i, std::bit_width(bad) - 1};
  }
}

size_t WriteSupportedOpcodes(const Cdb& cdb, bool discard, std::span<uint8_t, kOpcodesReplyMax> out,
                             BadField& bad) {
  std::ranges::fill(out, uint8_t{0});
  const bool timeouts = (cdb[2] & 0x80) != 0;
  const uint8_t opcode = cdb[3];
  const auto action = static_cast<int>(LoadBig(&cdb[4], 2));
  const bool has_actions = HasServiceActions(opcode);
  const CommandInfo* info = FindIn(opcode, action);
  if (info != nullptr && info->needs_discard && !discard) info = nullptr;
  switch (cdb[2] & 0x07) {
    case 0:
      return WriteAllOpcodes(timeouts, discard, out.data());
    case 1:  // the opcode alone
      if (has_actions) break;
      return WriteOneOpcode(info, timeouts, out.data());
    case 2:  // with a service action
      if (info != nullptr && !has_actions) break;
      return WriteOneOpcode(info, timeouts, out.data());
    case 3:  // either
      return WriteOneOpcode(!has_actions && action != 0 ? nullptr : info, timeouts, out.data());
    default:
      break;
  }
  bad = {2, 2};
  return 0;
}

}  // namespace cleat::scsi
