// SPDX-License-Identifier: Apache-2.0
// What both formats of the in-flight log share: the word that says whose requests a ring's log has, and the `counter` of an entry. The
// specification leaves the first, `features`, 0, and asks of the second only that it tells the order of requests; here
//
//   features  DiskIdentity of the disk that the ring's requests are for, or Several(). 0: an engine wrote it that knew of none
//   counter   bits 31..0  a serial number, which wraps around
//             bits 63..32 DiskIdentity::tag of the disk that the request was submitted to; 0: to none yet, or not known
#pragma once

#include <cstdint>
#include <vector>

#include "base/disk_identity.h"
#include "base/result.h"
#include "virtio/guest_access.h"

namespace cleat::virtio {

inline constexpr uint64_t kInflightOwnerAt = 0;     // in the header, both formats
inline constexpr uint64_t kInflightVersionAt = 8;   // likewise
inline constexpr uint64_t kInflightDescNumAt = 10;  // likewise; 0 until a ring is served with it
inline constexpr uint64_t kCounterTagAt = 4;  // within `counter`: the machine is little-endian, as the log is

constexpr uint64_t CounterOf(uint32_t serial, uint32_t tag) {
  return uint64_t{tag} << 32 | serial;
}

// A request that a predecessor left in flight.
struct InflightRequest {
  uint32_t serial = 0;
  uint16_t head = 0;  // of a packed ring: the buffer id
};

// Whose requests a ring's log has, or for which disk's guest it was made; and whether a ring was ever served with it. `base`: of the log;
// 8-byte aligned, and its header is there.
struct InflightOwner {
  DiskIdentity disk;
  bool used = false;
};
InflightOwner OwnerOf(const uint8_t* base);

// OK when a log may have requests to `disk`: it has none to another disk of the same store. `base`: likewise.
Status CheckInflightOwner(const uint8_t* base, DiskIdentity disk);

// In the order in which they were fetched. Serial numbers wrap around; those of requests that are in flight together lie close to one
// another, so that the order begins behind the widest gap. Whatever a peer has put there: some order.
void SortByAge(std::vector<InflightRequest>& requests);

}  // namespace cleat::virtio
