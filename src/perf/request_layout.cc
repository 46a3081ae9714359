// SPDX-License-Identifier: Apache-2.0
#include "perf/request_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace cleat::perf {
namespace {

constexpr uint64_t kHeadGpaOffset = offsetof(RequestArea, head_bounce);
constexpr uint64_t kStatusGpaOffset = offsetof(RequestArea, status);
static_assert(kHeadGpaOffset == sizeof(wire::BlkHeader), "the head follows the header");
static_assert(kStatusGpaOffset == offsetof(RequestArea, tail_bounce) + RequestArea::kBounceBytes,
              "the status follows the tail");
constexpr uint32_t kHeaderPiecesMax = 3;
constexpr uint32_t kDataPiecesMax = 6;

}  // namespace

LayoutPlanner::LayoutPlanner(LayoutPolicy policy, uint64_t seed, bool indirect_allowed,
                             const LayoutLimits& limits)
    : policy_(policy), indirect_allowed_(indirect_allowed), limits_(limits), random_(seed) {
  CLEAT_CHECK(limits_.piece_bytes_max > 0 && limits_.piece_alignment_bytes > 0);
}

bool LayoutPlanner::Plan(const GuestMemory& memory, uint64_t area_gpa, std::span<const Segment> data,
                         RequestLayout* layout) {
  layout->chain.clear();
  layout->tail_bytes = 0;
  layout->indirect = indirect_allowed_ && policy_ == LayoutPolicy::kIndirect;
  if (policy_ == LayoutPolicy::kAnyLayout) {
    layout->indirect = indirect_allowed_ && random_.Chance(1, 2);
    PlanAny(memory, area_gpa, data, layout);
    if (layout->chain.size() <= limits_.descriptors_max) return true;
    layout->chain.clear();
    layout->tail_bytes = 0;
  }
  return PlanClassic(area_gpa, data, layout);
}

bool LayoutPlanner::PlanClassic(uint64_t area_gpa, std::span<const Segment> data,
                                RequestLayout* layout) const {
  std::vector<Segment>& chain = layout->chain;
  chain.push_back({area_gpa, sizeof(wire::BlkHeader), false});
  for (Segment segment : data) {
    while (segment.len > limits_.piece_bytes_max) {
      chain.push_back({segment.gpa, limits_.piece_bytes_max, segment.writable});
      segment.gpa += limits_.piece_bytes_max;
      segment.len -= limits_.piece_bytes_max;
    }
    chain.push_back(segment);
  }
  chain.push_back({area_gpa + kStatusGpaOffset, 1, true});
  return chain.size() <= limits_.descriptors_max;
}

void LayoutPlanner::AddPieces(Segment whole, uint32_t pieces, uint32_t alignment_bytes,
                              std::vector<Segment>* chain) {
  while (whole.len > 0) {
    uint32_t bytes = whole.len;
    if (pieces > 1) bytes = static_cast<uint32_t>(random_.Between(1, whole.len));
    bytes = std::min(bytes, limits_.piece_bytes_max);
    if (bytes < whole.len) bytes = std::max(bytes / alignment_bytes, 1U) * alignment_bytes;
    bytes = std::min(bytes, whole.len);
    chain->push_back({whole.gpa, bytes, whole.writable});
    whole.gpa += bytes;
    whole.len -= bytes;
    if (pieces > 1) --pieces;
  }
}

void LayoutPlanner::PlanAny(const GuestMemory& memory, uint64_t area_gpa, std::span<const Segment> data,
                            RequestLayout* layout) {
  std::vector<Segment>& chain = layout->chain;
  const bool has_data = !data.empty();
  const bool writable = has_data && data[0].writable;
  const bool may_join = has_data && limits_.piece_alignment_bytes == 1;
  uint32_t head_bytes = 0;
  if (may_join && !writable && random_.Chance(1, 2)) {
    head_bytes =
        static_cast<uint32_t>(random_.Between(1, std::min(data.front().len, RequestArea::kBounceBytes)));
    std::memcpy(memory.Span(area_gpa + kHeadGpaOffset, head_bytes).data(),
                memory.Span(data.front().gpa, head_bytes).data(), head_bytes);
  }
  if (may_join && writable && random_.Chance(1, 2)) {
    layout->tail_bytes =
        static_cast<uint32_t>(random_.Between(1, std::min(data.back().len, RequestArea::kBounceBytes)));
    layout->tail_gpa = data.back().gpa + data.back().len - layout->tail_bytes;
  }
  const auto header_pieces = static_cast<uint32_t>(random_.Between(1, kHeaderPiecesMax));
  AddPieces({area_gpa, static_cast<uint32_t>(sizeof(wire::BlkHeader)) + head_bytes, false}, header_pieces, 1,
            &chain);
  for (size_t i = 0; i < data.size(); ++i) {
    Segment segment = data[i];
    if (i == 0) {
      segment.gpa += head_bytes;
      segment.len -= head_bytes;
    }
    if (i + 1 == data.size()) segment.len -= layout->tail_bytes;
    const auto pieces = static_cast<uint32_t>(random_.Between(1, kDataPiecesMax));
    AddPieces(segment, pieces, limits_.piece_alignment_bytes, &chain);
  }
  const uint32_t tail_bytes = layout->tail_bytes;
  const auto tail_pieces = static_cast<uint32_t>(random_.Between(1, 2));
  AddPieces({area_gpa + kStatusGpaOffset - tail_bytes, tail_bytes + 1, true}, tail_pieces, 1, &chain);
}

}  // namespace cleat::perf
