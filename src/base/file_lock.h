// SPDX-License-Identifier: Apache-2.0
// Ranges of a file as fcntl(2) locks them. Values; any thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

namespace cleat {

// `type`: F_RDLCK, F_WRLCK or F_UNLCK. `length_bytes` of 0: up to any end. As OFD locks want it: l_pid is 0.
inline struct flock FileRange(short type, uint64_t start_byte, uint64_t length_bytes) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(start_byte);
  range.l_len = static_cast<off_t>(length_bytes);
  return range;
}

}  // namespace cleat
