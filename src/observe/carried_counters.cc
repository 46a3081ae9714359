// SPDX-License-Identifier: Apache-2.0
#include "observe/carried_counters.h"

#include <algorithm>
#include <utility>

namespace cleat::observe {
namespace {

bool SameNames(const std::vector<std::string>& names, const char (*ours)[kLabelBytes], size_t count) {
  return names.size() == count && std::equal(names.begin(), names.end(), ours);
}

void Add(CarriedCounters& carried, const CellSeen& cell,
         const std::vector<std::vector<Histogram>>& histograms) {
  if (carried.ops.empty()) {
    carried.disk = cell.disk;
    carried.since_ns = cell.since_ns;
    carried.ops.resize(kOpCount);
    carried.histograms.assign(kOpCount, std::vector<Histogram>(kStageCount));
  }
  carried.since_ns = std::min(carried.since_ns, cell.since_ns);
  for (size_t op = 0; op < kOpCount; ++op) {
    carried.ops[op].requests += cell.ops[op].requests;
    carried.ops[op].bytes += cell.ops[op].bytes;
    carried.ops[op].errors += cell.ops[op].errors;
    for (size_t stage = 0; stage < kStageCount && !histograms.empty(); ++stage) {
      carried.histograms[op][stage].Add(histograms[op][stage]);
    }
  }
}

}  // namespace

void CarriedCounters::AddTo(DiskCounters& counters) const {
  for (uint32_t op = 0; op < ops.size(); ++op) {
    const auto column = static_cast<OpColumn>(op);
    counters.Count(column, ops[op].requests, ops[op].bytes, ops[op].errors);
    for (uint32_t stage = 0; stage < histograms[op].size(); ++stage) {
      histograms[op][stage].ForEach([&](BucketAt at, uint64_t count) {
        counters.Record(column, static_cast<RequestStage>(stage), BucketMiddleNs(at), count);
      });
    }
  }
  counters.SetSince(since_ns);
}

Result<std::map<uint32_t, CarriedCounters>> ReadCarriedCounters(UniqueFd counters,
                                                                const std::string& controller,
                                                                std::span<const uint64_t> cells) {
  CLEAT_ASSIGN(auto reader, SegmentReader::Open(std::move(counters)));
  if (!SameNames(reader->op_names(), kOpNames, kOpCount) ||
      !SameNames(reader->stage_names(), kStageNames, kStageCount)) {
    return Error(ErrorCode::kFailedPrecondition, "the counters of " + reader->engine() +
                                                     " have other operations or stages than this engine's");
  }
  std::map<uint32_t, CarriedCounters> carried;
  for (const CellSeen& cell : reader->CellsOf(controller, cells))
    Add(carried[cell.target], cell, reader->Histograms(cell));
  return carried;
}

}  // namespace cleat::observe
