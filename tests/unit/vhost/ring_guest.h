// SPDX-License-Identifier: Apache-2.0
// A guest's memory with virtio-blk rings in it, driven by hand: one request a ring at a time. The test's thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host.h"
#include "perf/ring/driver_ring.h"
#include "perf/vhost_user/guest_memory.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::vhost::test {

inline constexpr uint64_t kRegionBytes = 1 << 20;
inline constexpr uint32_t kBlockBytes = 4096;

class Guest {
 public:
  explicit Guest(uint32_t count, uint16_t ring_size = 64, bool packed = false) {
    const std::array<perf::RegionSpec, 2> regions{{{0, kRegionBytes, 0}, {1ULL << 32, kRegionBytes, 4096}}};
    auto made = perf::GuestMemory::Create(regions);
    CLEAT_CHECK(made.ok());
    memory = std::move(made).value();
    for (uint32_t i = 0; i < count; ++i) {
      perf::RingOptions options;
      options.size = ring_size;
      options.packed = packed;
      auto ring = perf::DriverRing::Create(*memory, options);
      CLEAT_CHECK(ring.ok());
      rings.push_back(std::move(ring).value());
      requests.push_back(Allocate(0, kBlockBytes));
    }
  }

  uint64_t Allocate(uint64_t region, uint64_t bytes) {
    auto gpa = memory->AllocateIn(region, bytes, kBlockBytes);
    CLEAT_CHECK(gpa.ok());
    return *gpa;
  }

  // Header and status lie in the ring's page of `requests`; one request a ring at a time.
  void Submit(uint32_t ring, uint32_t type, uint64_t block, uint64_t data_gpa) {
    const uint64_t at = requests[ring];
    *memory->At<perf::wire::BlkHeader>(at) = {type, 0, block * (kBlockBytes / perf::wire::kSectorBytes)};
    *memory->At(at + 64, 1) = 0xff;
    const bool read = type == perf::wire::kBlkIn;
    const std::array<perf::Segment, 3> chain{
        {{at, 16, false}, {data_gpa, kBlockBytes, read}, {at + 64, 1, true}}};
    ASSERT_TRUE(rings[ring]->Add(chain, false, block).has_value());
    rings[ring]->Submit();
  }
  // The status, or 0xff when nothing comes.
  uint8_t Complete(uint32_t ring) {
    if (!rings[ring]->WaitUsed(kTestTimeoutNs)) return 0xff;
    perf::UsedEntry used;
    if (rings[ring]->Pop(&used) != perf::PopResult::kDone) return 0xff;
    return *memory->At(requests[ring] + 64, 1);
  }
  uint8_t Write(uint32_t ring, uint64_t block, uint64_t gpa, uint8_t value) {
    std::ranges::fill(memory->Span(gpa, kBlockBytes), value);
    Submit(ring, perf::wire::kBlkOut, block, gpa);
    return Complete(ring);
  }
  uint8_t Read(uint32_t ring, uint64_t block, uint64_t gpa) {
    std::ranges::fill(memory->Span(gpa, kBlockBytes), 0);
    Submit(ring, perf::wire::kBlkIn, block, gpa);
    return Complete(ring);
  }
  bool Holds(uint64_t gpa, uint8_t value) {
    return std::ranges::all_of(memory->Span(gpa, kBlockBytes),
                               [value](uint8_t byte) { return byte == value; });
  }

  std::unique_ptr<perf::GuestMemory> memory;
  std::vector<std::unique_ptr<perf::DriverRing>> rings;
  std::vector<uint64_t> requests;
};

}  // namespace cleat::vhost::test
