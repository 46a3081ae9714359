// SPDX-License-Identifier: Apache-2.0
// The driver's side of a packed virtqueue (virtio 1.2, 2.8). Made by DriverRing::Create; see there. Buffer ids are
// used again in the order in which they come back, the last one first, so that they soon have nothing to do with where
// a chain lies.
#pragma once

#include "perf/driver_ring.h"

namespace cleat::perf {

class PackedDriverRing final : public DriverRing {
 public:
  PackedDriverRing(GuestMemory& memory, const RingOptions& options) : DriverRing(memory, options) {}

  std::optional<uint16_t> Add(std::span<const Segment> chain, bool indirect, uint64_t token) override;
  bool Publish() override;
  PopResult Pop(UsedEntry* used) override;
  bool EnableCalls() override;
  void DisableCalls() override;
  uint32_t first_base() const override { return uint32_t{kWrapBit} << 16 | kWrapBit; }
  // Behind what the device has used. What was in flight is only known to the in-flight log, which a back end has to
  // believe.
  uint32_t base_after_crash() const override;
  PackedDriverRing* AsPacked() override { return this; }

  // For misbehaviour. As Add, with descriptors as they are but for their flags' AVAIL and USED, in which what is set is
  // wrong (0: right), and their ids. The used descriptor that comes with `id` is accepted with any length.
  void AddRaw(std::span<const wire::PackedDescriptor> chain, uint16_t id, uint64_t token);

 private:
  static constexpr uint16_t kWrapBit = 0x8000;
  // An index with the wrap counter under which it is looked at.
  struct Index {
    uint16_t index = 0;
    bool wrap = true;
    uint16_t word() const { return static_cast<uint16_t>(index | (wrap ? kWrapBit : 0)); }
    void Advance(uint16_t count, uint16_t size);
  };

  Status Initialize() override;
  static uint16_t IdOf(uint64_t meta) { return static_cast<uint16_t>(meta >> 32); }
  bool UsedIsThere(const Index& at) const;
  uint16_t AvailableBits() const;
  uint32_t WriteTable(std::span<const Segment> chain, uint16_t id);
  void Put(wire::PackedDescriptor descriptor, bool first);

  wire::PackedDescriptor* desc_ = nullptr;
  uint32_t* driver_event_ = nullptr;
  uint32_t* device_event_ = nullptr;

  // Ours, never read back from memory that the device can write.
  std::vector<uint16_t> free_ids_;
  Index avail_;
  Index used_;
  uint16_t unpublished_descriptors_ = 0;
  uint16_t first_index_ = 0;  // of what is not published: its flags are held back
  uint16_t first_flags_ = 0;
};

}  // namespace cleat::perf
