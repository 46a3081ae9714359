// SPDX-License-Identifier: Apache-2.0
#include "virtio/inflight_entry.h"

#include <algorithm>

namespace cleat::virtio {

InflightOwner OwnerOf(const uint8_t* base) {
  InflightOwner owner;
  owner.disk = DiskIdentity(LoadShared<uint64_t>(base + kInflightOwnerAt, std::memory_order_acquire));
  // A log that was forgotten after a stop (ForgetInflight) has version 0, but it still names its disk and the length of its table.
  owner.used =
      LoadShared<uint16_t>(base + kInflightVersionAt, std::memory_order_acquire) != 0 ||
      (owner.disk.known() && LoadShared<uint16_t>(base + kInflightDescNumAt, std::memory_order_acquire) != 0);
  return owner;
}

Status CheckInflightOwner(const uint8_t* base, DiskIdentity disk) {
  const DiskIdentity owner = OwnerOf(base).disk;
  if (!disk.known() || owner == disk) return Ok{};
  // An engine that knew of no disks leaves 0 there. Its store would be 0 as well, which is that of Several().
  if (!owner.known() || owner.store() != disk.store()) return Ok{};
  return Error(ErrorCode::kInvalidArgument,
               "in-flight log: it has requests to another disk, and none of them may run on this one");
}

void SortByAge(std::vector<InflightRequest>& requests) {
  std::sort(requests.begin(), requests.end(), [](const InflightRequest& a, const InflightRequest& b) {
    return a.serial != b.serial ? a.serial < b.serial : a.head < b.head;
  });
  if (requests.size() < 2) return;
  size_t oldest = 0;
  uint32_t widest = requests.front().serial - requests.back().serial;  // across the wrap
  for (size_t i = 1; i < requests.size(); ++i) {
    const uint32_t gap = requests[i].serial - requests[i - 1].serial;
    if (gap <= widest) continue;
    widest = gap;
    oldest = i;
  }
  std::rotate(requests.begin(), requests.begin() + static_cast<ptrdiff_t>(oldest), requests.end());
}

}  // namespace cleat::virtio
