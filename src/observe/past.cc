// SPDX-License-Identifier: Apache-2.0
#include "observe/past.h"

#include <algorithm>
#include <utility>

namespace cleat::observe {
namespace {

bool SameNames(const std::vector<std::string>& names, const char (*ours)[kLabelBytes], size_t count) {
  return names.size() == count && std::equal(names.begin(), names.end(), ours);
}

void Add(Past& past, const CellSeen& cell, const std::vector<std::vector<Histogram>>& histograms) {
  if (past.ops.empty()) {
    past.disk = cell.disk;
    past.since_ns = cell.since_ns;
    past.ops.resize(kOpCount);
    past.histograms.assign(kOpCount, std::vector<Histogram>(kStageCount));
  }
  past.since_ns = std::min(past.since_ns, cell.since_ns);
  for (size_t op = 0; op < kOpCount; ++op) {
    past.ops[op].requests += cell.ops[op].requests;
    past.ops[op].bytes += cell.ops[op].bytes;
    past.ops[op].errors += cell.ops[op].errors;
    for (size_t stage = 0; stage < kStageCount && !histograms.empty(); ++stage) {
      past.histograms[op][stage].Add(histograms[op][stage]);
    }
  }
}

}  // namespace

void Past::AddTo(Cell& cell) const {
  for (uint32_t op = 0; op < ops.size(); ++op) {
    const auto column = static_cast<OpColumn>(op);
    cell.Count(column, ops[op].requests, ops[op].bytes, ops[op].errors);
    for (uint32_t stage = 0; stage < histograms[op].size(); ++stage) {
      histograms[op][stage].ForEach([&](BucketAt at, uint64_t count) {
        cell.Record(column, static_cast<Stage>(stage), BucketMiddleNs(at), count);
      });
    }
  }
  cell.SetSince(since_ns);
}

Result<std::map<uint32_t, Past>> ReadPast(UniqueFd counters, const std::string& controller,
                                          std::span<const uint64_t> cells) {
  CLEAT_ASSIGN(auto reader, SegmentReader::Open(std::move(counters)));
  if (!SameNames(reader->op_names(), kOpNames, kOpCount) ||
      !SameNames(reader->stage_names(), kStageNames, kStageCount)) {
    return Error(ErrorCode::kFailedPrecondition, "the counters of " + reader->engine() +
                                                     " have other operations or stages than this engine's");
  }
  std::map<uint32_t, Past> pasts;
  for (const CellSeen& cell : reader->CellsOf(controller, cells))
    Add(pasts[cell.target], cell, reader->Histograms(cell));
  return pasts;
}

}  // namespace cleat::observe
