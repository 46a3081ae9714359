// SPDX-License-Identifier: Apache-2.0
// How a virtio-blk request is cut into descriptors. The specification leaves that free (virtio 1.2, 2.7.4:
// devices must not rely on a particular framing), and a device that assumes header, data, status breaks with
// some guest some day. Pure code on plain memory; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "perf/driver_ring.h"

namespace cleat::perf {

enum class LayoutPolicy : uint8_t {
  kClassic,   // header | data | status, in the ring
  kIndirect,  // the same in an indirect table; a device that has no indirect descriptors gets kClassic
  kAnyLayout  // from the seed: header in pieces or together with the first data, data in odd pieces, status
              // together with the last data, indirect or not
};

// Guest memory of a request's own, one for each that can be in flight. Where a header and the head of the
// data share a descriptor they have to be neighbours, hence the two bounce areas.
struct RequestArea {
  static constexpr uint32_t kBounceBytes = 64;
  wire::BlkHeader header;
  uint8_t head_bounce[kBounceBytes];
  uint8_t tail_bounce[kBounceBytes];
  uint8_t status;
  uint8_t padding[15];
  wire::BlkRange range;
};
static_assert(sizeof(RequestArea) == 176);

struct LayoutLimits {
  uint32_t descriptors_max = 128;         // in one chain, header and status included
  uint32_t piece_bytes_max = UINT32_MAX;  // size_max
  uint32_t piece_alignment_bytes =
      1;  // data is cut at multiples of that; above 1 it is never put with others
};

// What Plan decided, for the completion.
struct RequestLayout {
  std::vector<Segment> chain;
  bool indirect = false;
  // Data that went through the bounce areas: copied in by Plan (writes), to be copied out by the caller
  // (reads).
  uint32_t tail_bytes = 0;
  uint64_t tail_gpa = 0;
};

class LayoutPlanner {
 public:
  LayoutPlanner(LayoutPolicy policy, uint64_t seed, bool indirect_allowed, const LayoutLimits& limits);

  // Lays out the request whose area is at `area_gpa` and whose `data` is all readable or all writable. False
  // when limits make it impossible. Reuses `layout`'s vector.
  bool Plan(const GuestMemory& memory, uint64_t area_gpa, std::span<const Segment> data,
            RequestLayout* layout);

 private:
  bool PlanClassic(uint64_t area_gpa, std::span<const Segment> data, RequestLayout* layout) const;
  void PlanAny(const GuestMemory& memory, uint64_t area_gpa, std::span<const Segment> data,
               RequestLayout* layout);
  void AddPieces(Segment whole, uint32_t pieces, uint32_t alignment_bytes, std::vector<Segment>* chain);

  const LayoutPolicy policy_;
  const bool indirect_allowed_;
  const LayoutLimits limits_;
  Random random_;
};

}  // namespace cleat::perf
