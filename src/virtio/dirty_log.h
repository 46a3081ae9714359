// SPDX-License-Identifier: Apache-2.0
// The dirty log of a live migration (vhost-user specification, "Migration"; VHOST_F_LOG_ALL): one bit for
// each 4 KiB page of guest-physical memory that the device has written. The migration's source copies a page
// again when its bit is set, so a bit comes after its write and before the ring is given up. Other threads
// and QEMU use the same bytes.
//
// Belongs to one queue, on its reactor. Without a log everything here is one predictable branch.
#pragma once

#include <cstdint>
#include <span>

#include "block/memory.h"
#include "virtio/device_queue.h"

namespace cleat::virtio {

class DirtyLog {
 public:
  static constexpr uint32_t kPageShift = 12;

  void Attach(const DirtyLogMemory& memory) {
    memory_ = memory;
    overrun_ = false;
  }
  bool enabled() const { return memory_.base != nullptr; }

  // After the write.
  void Mark(uint64_t guest_address, uint64_t length_bytes) {
    if (enabled()) [[unlikely]]
      MarkPages(guest_address, length_bytes);
  }
  // The same for segments of `map`.
  void Mark(const block::MemoryMap& map, std::span<const block::Segment> segments) {
    if (enabled()) [[unlikely]]
      MarkSegments(map, segments);
  }

  // A page was written that the log has no bit for: the migration would lose it, so the queue must not go on.
  bool overrun() const { return overrun_; }
  uint64_t overrun_address() const { return overrun_address_; }
  uint64_t size_bytes() const { return memory_.size_bytes; }

 private:
  void MarkPages(uint64_t guest_address, uint64_t length_bytes);
  void MarkSegments(const block::MemoryMap& map, std::span<const block::Segment> segments);

  DirtyLogMemory memory_;
  bool overrun_ = false;
  uint64_t overrun_address_ = 0;
};

}  // namespace cleat::virtio
