// SPDX-License-Identifier: Apache-2.0
// How a request is cut into descriptors. The specification leaves that free (virtio 1.2, 2.7.4: devices must
// not rely on a particular framing), and a device that assumes header, data, status breaks with some guest
// some day. Pure code on plain memory; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "perf/ring/driver_ring.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {

enum class LayoutPolicy : uint8_t {
  kClassic,   // header | data | status, in the ring
  kIndirect,  // the same in an indirect table; a device that has no indirect descriptors gets kClassic
  kAnyLayout  // from the seed: header in pieces or together with the first data, data in odd pieces, status
              // together with the data next to it, indirect or not
};

// Where a header and the data next to it share a descriptor they have to be neighbours in memory, so that
// data goes through a bounce area.
inline constexpr uint32_t kBounceBytes = 64;

// What a kind of request has besides its data, in the guest memory that is its own (its area): the header at
// the area's start with a bounce area behind it, and what the device answers. The answer stands before the
// data that the device writes (virtio-scsi; a bounce area is behind it) or after it (virtio-blk; the bounce
// area is before it). A size of 0 leaves the part out.
struct RequestShape {
  uint32_t header_bytes = 0;
  uint32_t answer_offset = 0;
  uint32_t answer_bytes = 0;
  bool answer_first = false;
};

// The area of a virtio-blk request.
struct RequestArea {
  static constexpr uint32_t kBounceBytes = perf::kBounceBytes;
  wire::BlkHeader header;
  uint8_t head_bounce[kBounceBytes];
  uint8_t tail_bounce[kBounceBytes];
  uint8_t status;
  uint8_t padding[15];
  wire::BlkRange range;
};
static_assert(sizeof(RequestArea) == 176);
inline constexpr RequestShape kBlkShape{.header_bytes = sizeof(wire::BlkHeader),
                                        .answer_offset = offsetof(RequestArea, status),
                                        .answer_bytes = 1};

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
  // Data from the device that goes through a bounce area, to be copied by the caller: see Unbounce. (Data to
  // the device is copied by Plan.)
  struct Bounce {
    uint32_t bytes = 0;
    uint64_t from_gpa = 0;
    uint64_t to_gpa = 0;
  };
  Bounce bounce;
};

// When the device has written it.
void Unbounce(const GuestMemory& memory, const RequestLayout::Bounce& bounce);

class LayoutPlanner {
 public:
  LayoutPlanner(LayoutPolicy policy, uint64_t seed, bool indirect_allowed, const LayoutLimits& limits);

  // Lays out the request whose area is at `area_gpa`; the device reads `out` and writes `in`. False when
  // limits make it impossible. Reuses `layout`'s vector.
  bool Plan(const GuestMemory& memory, uint64_t area_gpa, const RequestShape& shape,
            std::span<const Segment> out, std::span<const Segment> in, RequestLayout* layout);
  // A virtio-blk request, whose data is all readable or all writable.
  bool Plan(const GuestMemory& memory, uint64_t area_gpa, std::span<const Segment> data,
            RequestLayout* layout);

 private:
  struct Request {
    uint64_t area_gpa;
    const RequestShape& shape;
    std::span<const Segment> out;
    std::span<const Segment> in;
  };
  bool PlanClassic(const Request& request, RequestLayout* layout) const;
  void PlanAny(const GuestMemory& memory, const Request& request, RequestLayout* layout);
  uint32_t JoinHead(const GuestMemory& memory, const Request& request);
  void JoinAnswer(const Request& request, RequestLayout* layout);
  void AddData(std::span<const Segment> data, uint32_t skip_first, uint32_t skip_last,
               std::vector<Segment>* chain);
  void AddPieces(Segment whole, uint32_t pieces, uint32_t alignment_bytes, std::vector<Segment>* chain);

  const LayoutPolicy policy_;
  const bool indirect_allowed_;
  const LayoutLimits limits_;
  Random random_;
};

}  // namespace cleat::perf
