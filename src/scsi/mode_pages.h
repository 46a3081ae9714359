// SPDX-License-Identifier: Apache-2.0
// MODE SENSE and MODE SELECT (SPC-4 6.11 to 6.14, 7.5): the caching page (SBC-4 6.5.6) and the control page (SPC-4
// 7.5.8). Pure functions on bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace cleat::scsi {

struct ModeView {
  ModeParameters current;
  bool write_cache = false;  // WCE: there is a cache, and somebody may write
  bool read_only = false;
  uint64_t blocks = 0;
  uint32_t block_bytes = 512;
};

inline constexpr size_t kModeBytesMax = 64;
struct ModeReply {
  size_t bytes = 0;  // 0: refused
  BadField bad{};
  bool saved_values = false;  // refused: they were asked for, and there are none
};
ModeReply WriteModeSense(const Cdb& cdb, const ModeView& view, std::span<uint8_t, kModeBytesMax> out);

// What a parameter list asks for. Nothing is changed unless all of it makes sense.
struct ModeSelection {
  enum class Outcome : uint8_t { kOk, kListLength, kBadParameter };
  Outcome outcome = Outcome::kOk;
  BadField bad{};  // of the parameter list
  ModeParameters parameters;
};
ModeSelection ReadModeSelect(bool ten, std::span<const uint8_t> list, const ModeView& view);

}  // namespace cleat::scsi
