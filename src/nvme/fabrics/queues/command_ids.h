// SPDX-License-Identifier: Apache-2.0
// Command identifiers of one queue, each for the number of the command that has it: numbers are places in its owner's table of commands.
//
// CIDs are given out in turn, so that one comes back after kCidUsesLeast commands at the earliest, whatever the depth and however long other
// commands stay in flight: until then an answer that comes late, or twice, names no command.
//
// One thread: its queue's. Allocates in the constructor only. Source: NVM Express Base Specification 2.0 ("base"), 3.3.3.1.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace cleat::nvme::fabrics {

// CID FFFFh names no command (base 3.3.3.1).
inline constexpr uint16_t kNoCid = 0xffff;
// A CID's low bits are its place in an index of so many places a command. A CID whose place is taken by a command in flight is left out: an
// eighth of them at most.
inline constexpr uint32_t kPlacesPerCommand = 8;
inline constexpr uint32_t kCidUsesLeast = kNoCid - (1U << 16) / kPlacesPerCommand;

class CommandIds {
 public:
  static constexpr uint16_t kNoNumber = 0xffff;
  static constexpr uint32_t kCommandsMax = (1U << 16) / kPlacesPerCommand;

  // `commands`: in flight at once, 1 to kCommandsMax.
  explicit CommandIds(uint32_t commands) : index_(std::bit_ceil(commands * kPlacesPerCommand), kNoNumber) {
    CLEAT_CHECK(commands > 0 && commands <= kCommandsMax);
  }

  // The CID of the command with that number, which has none.
  uint16_t Take(uint16_t number) {
    while (next_ == kNoCid || PlaceOf(next_) != kNoNumber) ++next_;
    PlaceOf(next_) = number;
    return next_++;
  }
  // The number of the one command that may have this CID; kNoNumber: none has. The command itself says whether it has.
  uint16_t Find(uint16_t cid) const { return index_[cid & (index_.size() - 1)]; }
  // Take gave it.
  void Free(uint16_t cid) { PlaceOf(cid) = kNoNumber; }

 private:
  uint16_t& PlaceOf(uint16_t cid) { return index_[cid & (index_.size() - 1)]; }

  std::vector<uint16_t> index_;  // place of a CID -> number of the command
  uint16_t next_ = 0;
};

}  // namespace cleat::nvme::fabrics
