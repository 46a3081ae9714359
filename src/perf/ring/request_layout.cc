// SPDX-License-Identifier: Apache-2.0
#include "perf/ring/request_layout.h"

#include <algorithm>
#include <cstring>

namespace cleat::perf {
namespace {

static_assert(offsetof(RequestArea, head_bounce) == kBlkShape.header_bytes, "the head follows the header");
static_assert(kBlkShape.answer_offset == offsetof(RequestArea, tail_bounce) + kBounceBytes,
              "the status follows the tail");
constexpr uint32_t kHeaderPiecesMax = 3;
constexpr uint32_t kDataPiecesMax = 6;

}  // namespace

void Unbounce(const GuestMemory& memory, const RequestLayout::Bounce& bounce) {
  if (bounce.bytes == 0) return;
  std::memcpy(memory.Span(bounce.to_gpa, bounce.bytes).data(),
              memory.Span(bounce.from_gpa, bounce.bytes).data(), bounce.bytes);
}

LayoutPlanner::LayoutPlanner(LayoutPolicy policy, uint64_t seed, bool indirect_allowed,
                             const LayoutLimits& limits)
    : policy_(policy), indirect_allowed_(indirect_allowed), limits_(limits), random_(seed) {
  CLEAT_CHECK(limits_.piece_bytes_max > 0 && limits_.piece_alignment_bytes > 0);
}

bool LayoutPlanner::Plan(const GuestMemory& memory, uint64_t area_gpa, std::span<const Segment> data,
                         RequestLayout* layout) {
  const bool in = !data.empty() && data[0].writable;
  const std::span<const Segment> none;
  return Plan(memory, area_gpa, kBlkShape, in ? none : data, in ? data : none, layout);
}

bool LayoutPlanner::Plan(const GuestMemory& memory, uint64_t area_gpa, const RequestShape& shape,
                         std::span<const Segment> out, std::span<const Segment> in, RequestLayout* layout) {
  const Request request{area_gpa, shape, out, in};
  layout->chain.clear();
  layout->bounce = {};
  layout->indirect = indirect_allowed_ && policy_ == LayoutPolicy::kIndirect;
  if (policy_ == LayoutPolicy::kAnyLayout) {
    layout->indirect = indirect_allowed_ && random_.Chance(1, 2);
    PlanAny(memory, request, layout);
    if (layout->chain.size() <= limits_.descriptors_max) return true;
    layout->chain.clear();
    layout->bounce = {};
  }
  return PlanClassic(request, layout);
}

bool LayoutPlanner::PlanClassic(const Request& request, RequestLayout* layout) const {
  std::vector<Segment>& chain = layout->chain;
  const auto add_data = [&](std::span<const Segment> data) {
    for (Segment segment : data) {
      while (segment.len > limits_.piece_bytes_max) {
        chain.push_back({segment.gpa, limits_.piece_bytes_max, segment.writable});
        segment.gpa += limits_.piece_bytes_max;
        segment.len -= limits_.piece_bytes_max;
      }
      chain.push_back(segment);
    }
  };
  const RequestShape& shape = request.shape;
  const Segment answer{request.area_gpa + shape.answer_offset, shape.answer_bytes, true};
  if (shape.header_bytes > 0) chain.push_back({request.area_gpa, shape.header_bytes, false});
  add_data(request.out);
  if (shape.answer_first && answer.len > 0) chain.push_back(answer);
  add_data(request.in);
  if (!shape.answer_first && answer.len > 0) chain.push_back(answer);
  return !chain.empty() && chain.size() <= limits_.descriptors_max;
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

// The data without so many bytes of its first and of its last segment, which are elsewhere.
void LayoutPlanner::AddData(std::span<const Segment> data, uint32_t skip_first, uint32_t skip_last,
                            std::vector<Segment>* chain) {
  for (size_t i = 0; i < data.size(); ++i) {
    Segment segment = data[i];
    if (i == 0) {
      segment.gpa += skip_first;
      segment.len -= skip_first;
    }
    if (i + 1 == data.size()) segment.len -= skip_last;
    const auto pieces = static_cast<uint32_t>(random_.Between(1, kDataPiecesMax));
    AddPieces(segment, pieces, limits_.piece_alignment_bytes, chain);
  }
}

// How many bytes of data stand behind the header.
uint32_t LayoutPlanner::JoinHead(const GuestMemory& memory, const Request& request) {
  if (request.out.empty() || request.shape.header_bytes == 0 || limits_.piece_alignment_bytes != 1 ||
      !random_.Chance(1, 2)) {
    return 0;
  }
  const Segment& first = request.out.front();
  const auto bytes = static_cast<uint32_t>(random_.Between(1, std::min(first.len, kBounceBytes)));
  std::memcpy(memory.Span(request.area_gpa + request.shape.header_bytes, bytes).data(),
              memory.Span(first.gpa, bytes).data(), bytes);
  return bytes;
}

// Which bytes the device writes beside its answer instead of where they belong.
void LayoutPlanner::JoinAnswer(const Request& request, RequestLayout* layout) {
  const RequestShape& shape = request.shape;
  if (request.in.empty() || shape.answer_bytes == 0 || limits_.piece_alignment_bytes != 1 ||
      !random_.Chance(1, 2)) {
    return;
  }
  const uint64_t answer_gpa = request.area_gpa + shape.answer_offset;
  const Segment& neighbour = shape.answer_first ? request.in.front() : request.in.back();
  const auto bytes = static_cast<uint32_t>(random_.Between(1, std::min(neighbour.len, kBounceBytes)));
  layout->bounce.bytes = bytes;
  layout->bounce.from_gpa = shape.answer_first ? answer_gpa + shape.answer_bytes : answer_gpa - bytes;
  layout->bounce.to_gpa = neighbour.gpa + (shape.answer_first ? 0 : neighbour.len - bytes);
}

void LayoutPlanner::PlanAny(const GuestMemory& memory, const Request& request, RequestLayout* layout) {
  std::vector<Segment>& chain = layout->chain;
  const RequestShape& shape = request.shape;
  const uint32_t head_bytes = JoinHead(memory, request);
  JoinAnswer(request, layout);
  const uint32_t beside = layout->bounce.bytes;
  const auto header_pieces = static_cast<uint32_t>(random_.Between(1, kHeaderPiecesMax));
  AddPieces({request.area_gpa, shape.header_bytes + head_bytes, false}, header_pieces, 1, &chain);
  AddData(request.out, head_bytes, 0, &chain);
  const auto add_answer = [&] {
    const uint64_t answer_gpa = request.area_gpa + shape.answer_offset;
    const auto pieces = static_cast<uint32_t>(random_.Between(1, 2));
    AddPieces({shape.answer_first ? answer_gpa : answer_gpa - beside, shape.answer_bytes + beside, true},
              pieces, 1, &chain);
  };
  if (shape.answer_first) add_answer();
  AddData(request.in, shape.answer_first ? beside : 0, shape.answer_first ? 0 : beside, &chain);
  if (!shape.answer_first) add_answer();
}

}  // namespace cleat::perf
