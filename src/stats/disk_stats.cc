// SPDX-License-Identifier: Apache-2.0
#include "stats/disk_stats.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cleat::stats {
namespace {

// A reactor with something in flight looks at it four times a second. One that hasn't for so long does not run - it
// hangs, or its process is gone - and what was in flight still is.
constexpr uint64_t kLookOverdueNs = 1'000'000'000;

uint64_t Since(uint64_t now_ns, uint64_t then_ns) {
  return now_ns > then_ns ? now_ns - then_ns : 0;
}

// The moment that what a reactor saw at its last look is told of.
uint64_t AsOf(uint64_t looked_ns, uint64_t now_ns) {
  return Since(now_ns, looked_ns) > kLookOverdueNs ? now_ns : looked_ns;
}

void AddCell(const observe::CellSeen& cell, uint64_t as_of_ns, DiskSeen* disk) {
  disk->since_ns = disk->cells.empty() ? cell.since_ns : std::min(disk->since_ns, cell.since_ns);
  disk->ops.resize(std::max(disk->ops.size(), cell.ops.size()));
  for (size_t op = 0; op < cell.ops.size(); ++op) {
    disk->ops[op].requests += cell.ops[op].requests;
    disk->ops[op].bytes += cell.ops[op].bytes;
    disk->ops[op].errors += cell.ops[op].errors;
  }
  disk->in_flight += cell.oldest.in_flight;
  const uint64_t age_ns = Since(as_of_ns, cell.oldest.seen_ns);
  if (cell.oldest.in_flight > 0 && (disk->oldest.seen_ns == 0 || age_ns > disk->age_ns)) {
    disk->oldest = cell.oldest;
    disk->age_ns = age_ns;
    disk->stage_age_ns = Since(as_of_ns, cell.oldest.stage_ns);
  }
  disk->cells.push_back(cell);
}

void ToApi(const observe::SegmentReader& reader, const std::vector<observe::Histogram>& stages,
           v1::OperationStats* operation) {
  for (size_t i = 0; i < stages.size(); ++i) {
    const observe::Histogram& histogram = stages[i];
    if (histogram.count() == 0) continue;
    v1::StageStats& stage = *operation->add_stages();
    stage.set_stage(reader.stage_names()[i]);
    stage.set_count(histogram.count());
    stage.set_sum_ns(static_cast<uint64_t>(histogram.SumNs()));
    stage.set_p50_ns(histogram.PercentileNs(0.5));
    stage.set_p90_ns(histogram.PercentileNs(0.9));
    stage.set_p99_ns(histogram.PercentileNs(0.99));
    stage.set_p999_ns(histogram.PercentileNs(0.999));
    stage.set_max_ns(histogram.LongestNs());
  }
}

}  // namespace

bool MayHaveSlow(const observe::SegmentReader& reader, uint64_t now_ns) {
  const std::vector<observe::ReactorSeen> reactors = reader.Reactors();
  return std::ranges::any_of(reactors, [&](const observe::ReactorSeen& reactor) {
    if (reactor.oldest_ns == observe::kNothingInFlight) return false;
    return reactor.oldest_ns == 0 ||
           Since(AsOf(reactor.scanned_ns, now_ns), reactor.oldest_ns) >= reader.slow_after_ns();
  });
}

std::vector<DiskSeen> DisksOf(const observe::SegmentReader& reader, uint64_t now_ns,
                              observe::SegmentReader::Which which) {
  std::vector<observe::CellSeen> cells = reader.Cells(which);
  const std::vector<observe::ReactorSeen> reactors = reader.Reactors();
  const auto key = [](const auto& of) { return std::tie(of.controller, of.target, of.disk); };
  std::ranges::stable_sort(cells, [&](const auto& a, const auto& b) { return key(a) < key(b); });
  std::vector<DiskSeen> disks;
  for (const observe::CellSeen& cell : cells) {
    if (disks.empty() || key(disks.back()) != key(cell)) {
      disks.emplace_back();
      disks.back().controller = cell.controller;
      disks.back().disk = cell.disk;
      disks.back().target = cell.target;
    }
    const uint64_t looked_ns = cell.reactor < reactors.size() ? reactors[cell.reactor].scanned_ns : 0;
    AddCell(cell, AsOf(looked_ns, now_ns), &disks.back());
  }
  return disks;
}

std::vector<std::vector<observe::Histogram>> HistogramsOf(const observe::SegmentReader& reader,
                                                          const DiskSeen& disk) {
  std::vector<std::vector<observe::Histogram>> sum;
  for (const observe::CellSeen& cell : disk.cells) {
    std::vector<std::vector<observe::Histogram>> histograms = reader.Histograms(cell);
    if (sum.empty()) {
      sum = std::move(histograms);
      continue;
    }
    for (size_t op = 0; op < histograms.size(); ++op) {
      for (size_t stage = 0; stage < histograms[op].size(); ++stage)
        sum[op][stage].Add(histograms[op][stage]);
    }
  }
  return sum;
}

bool Matches(std::string_view name, std::string_view engine_name, const DiskSeen& disk) {
  return name.empty() || name == disk.disk || name == disk.controller || name == engine_name;
}

v1::DiskStats ToApi(const observe::SegmentReader& reader, const DiskSeen& disk, bool histograms) {
  v1::DiskStats stats;
  stats.set_controller(disk.controller);
  stats.set_target(disk.target);
  stats.set_disk(disk.disk);
  stats.set_engine("engines/" + reader.engine());
  stats.set_since_ns(disk.since_ns);
  std::vector<std::vector<observe::Histogram>> stages;
  if (histograms) stages = HistogramsOf(reader, disk);
  for (size_t op = 0; op < disk.ops.size(); ++op) {
    if (disk.ops[op].requests == 0) continue;
    v1::OperationStats& operation = *stats.add_operations();
    operation.set_operation(reader.op_names()[op]);
    operation.set_count(disk.ops[op].requests);
    operation.set_bytes(disk.ops[op].bytes);
    operation.set_errors(disk.ops[op].errors);
    if (op < stages.size()) ToApi(reader, stages[op], &operation);
  }
  stats.set_in_flight(disk.in_flight);
  if (disk.oldest.seen_ns == 0) return stats;
  stats.set_stuck(disk.age_ns >= reader.slow_after_ns());
  v1::OldestRequest& oldest = *stats.mutable_oldest();
  oldest.set_age_ns(disk.age_ns);
  oldest.set_operation(reader.op_names()[disk.oldest.op]);
  oldest.set_offset_bytes(disk.oldest.offset_bytes);
  oldest.set_length_bytes(disk.oldest.length_bytes);
  oldest.set_stage(reader.stage_names()[disk.oldest.stage]);
  oldest.set_stage_age_ns(disk.stage_age_ns);
  return stats;
}

v1::EngineStats EngineOf(const observe::SegmentReader& reader) {
  v1::EngineStats stats;
  stats.set_engine("engines/" + reader.engine());
  stats.set_process(reader.process());
  stats.set_incarnation(reader.incarnation());
  stats.set_slow_after_ns(reader.slow_after_ns());
  return stats;
}

bool IsPart(std::string_view stage) {
  return stage != "total" && stage != "called";
}

}  // namespace cleat::stats
