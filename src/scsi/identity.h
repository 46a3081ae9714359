// SPDX-License-Identifier: Apache-2.0
// A logical unit's identity, which never changes: what INQUIRY and its vital product data say (SPC-4 6.4.2, 7.8), and
// what a guest builds its /dev/disk/by-id names from. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace cleat::scsi {

struct Identity {
  static constexpr size_t kVendorBytes = 8;
  static constexpr size_t kProductBytes = 16;
  static constexpr size_t kRevisionBytes = 4;
  static constexpr size_t kSerialBytesMax = 20;

  std::string vendor = "CLEAT";  // these three are padded with spaces
  std::string product = "DISK";
  std::string revision = "1";
  std::string serial;
  uint64_t wwn = 0;  // an 8-byte NAA designator (SPC-4 7.8.6.6); 0: none
};

// Printable ASCII (SPC-4 4.3.1) that fits its field; `name` is for the message.
Status CheckIdentity(const Identity& identity, const std::string& name);

}  // namespace cleat::scsi
