// SPDX-License-Identifier: Apache-2.0
#include "ctl/top.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/table.h"
#include "stats/disk_stats.h"
#include "stats/slow_request.h"

namespace cleat::ctl {
namespace {

// The sums and the header.
constexpr size_t kHeadLines = 2;

struct Sums {
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t errors = 0;
  uint64_t answered = 0;  // that the histograms have
  uint64_t total_ns = 0;
  std::map<std::string, uint64_t> stages_ns;
};

Sums SumsOf(const v1::DiskStats& disk) {
  Sums sums;
  for (const v1::OperationStats& operation : disk.operations()) {
    sums.requests += operation.count();
    sums.bytes += operation.bytes();
    sums.errors += operation.errors();
    for (const v1::StageStats& stage : operation.stages()) {
      if (stage.stage() == "total") {
        sums.answered += stage.count();
        sums.total_ns += stage.sum_ns();
      } else if (stats::IsPart(stage.stage())) {
        sums.stages_ns[stage.stage()] += stage.sum_ns();
      }
    }
  }
  return sums;
}

uint64_t Less(uint64_t now, uint64_t before) {
  return now > before ? now - before : 0;
}

// Another attach, or another start of the engine: another disk to us.
auto KeyOf(const v1::DiskStats& disk) {
  return std::make_tuple(disk.engine(), disk.controller(), disk.target(), disk.disk(), disk.since_ns());
}

void SetSlowStage(const v1::DiskStats& disk, const Sums& before, const Sums& now, TopRow* row) {
  uint64_t most_ns = 0;
  uint64_t all_ns = 0;
  for (const auto& [stage, sum_ns] : now.stages_ns) {
    const auto then = before.stages_ns.find(stage);
    const uint64_t spent_ns = Less(sum_ns, then == before.stages_ns.end() ? 0 : then->second);
    all_ns += spent_ns;
    if (spent_ns <= most_ns) continue;
    most_ns = spent_ns;
    row->slow_stage = stage;
  }
  if (all_ns > 0) row->slow_part = static_cast<double>(most_ns) / static_cast<double>(all_ns);
  if (!disk.has_oldest() || (all_ns > 0 && !disk.stuck())) return;
  row->slow_stage = disk.oldest().stage();
  row->slow_part = 0;
}

bool ComesFirst(const TopRow& a, const TopRow& b, TopOrder order) {
  const auto key = [order](const TopRow& row) {
    switch (order) {
      case TopOrder::kIops:
        return row.iops;
      case TopOrder::kBytes:
        return row.bytes_per_s;
      case TopOrder::kLatency:
        return static_cast<double>(row.latency_ns);
      case TopOrder::kInFlight:
        return static_cast<double>(row.in_flight);
      case TopOrder::kOldest:
        break;
    }
    return static_cast<double>(row.oldest_ns);
  };
  if (key(a) != key(b)) return key(a) > key(b);
  return std::tie(a.controller, a.target, a.disk) < std::tie(b.controller, b.target, b.disk);
}

std::string Rate(double per_s) {
  return per_s == 0 ? "0" : per_s < 10 ? fmt::format("{:.1f}", per_s) : fmt::format("{:.0f}", per_s);
}

std::string MiB(double bytes_per_s) {
  return fmt::format("{:.1f}", bytes_per_s / (1 << 20));
}

std::string Time(uint64_t ns) {
  return ns == 0 ? std::string() : stats::TimeInWords(ns);
}

std::string Where(const TopRow& row) {
  if (row.slow_stage.empty()) return {};
  if (row.stuck) return fmt::format("{} STUCK, waits {}", row.slow_stage, stats::WaitsFor(row.slow_stage));
  if (row.slow_part == 0)
    return fmt::format("{} (waits {})", row.slow_stage, stats::WaitsFor(row.slow_stage));
  return fmt::format("{} {:.0f} %", row.slow_stage, row.slow_part * 100);
}

std::string SumsLine(const std::vector<TopRow>& rows) {
  double iops = 0;
  double bytes_per_s = 0;
  uint64_t in_flight = 0;
  size_t active = 0;
  size_t stuck = 0;
  for (const TopRow& row : rows) {
    iops += row.iops;
    bytes_per_s += row.bytes_per_s;
    in_flight += row.in_flight;
    active += row.active() ? 1 : 0;
    stuck += row.stuck ? 1 : 0;
  }
  return fmt::format("{} disks, {} active, {} stuck; {} operations/s, {} MiB/s, {} in flight\n", rows.size(),
                     active, stuck, Rate(iops), MiB(bytes_per_s), in_flight);
}

}  // namespace

std::vector<TopRow> TopRows(const v1::GetStatsResponse& before, const v1::GetStatsResponse& now,
                            TopOrder order) {
  std::map<decltype(KeyOf(v1::DiskStats())), const v1::DiskStats*> earlier;
  for (const v1::DiskStats& disk : before.disks()) earlier.emplace(KeyOf(disk), &disk);
  const double seconds = std::max<double>(1, static_cast<double>(Less(now.time_ns(), before.time_ns()))) /
                         static_cast<double>(kNsPerSecond);
  std::vector<TopRow> rows;
  for (const v1::DiskStats& disk : now.disks()) {
    const auto found = earlier.find(KeyOf(disk));
    const Sums then = found == earlier.end() ? Sums() : SumsOf(*found->second);
    const Sums sums = SumsOf(disk);
    TopRow row;
    row.disk = IdOf(disk.disk());
    row.controller = IdOf(disk.controller());
    row.target = disk.target();
    row.iops = static_cast<double>(Less(sums.requests, then.requests)) / seconds;
    row.bytes_per_s = static_cast<double>(Less(sums.bytes, then.bytes)) / seconds;
    row.errors_per_s = static_cast<double>(Less(sums.errors, then.errors)) / seconds;
    if (const uint64_t answered = Less(sums.answered, then.answered); answered > 0) {
      row.latency_ns = Less(sums.total_ns, then.total_ns) / answered;
    }
    row.in_flight = disk.in_flight();
    row.oldest_ns = disk.oldest().age_ns();
    row.stuck = disk.stuck();
    SetSlowStage(disk, then, sums, &row);
    rows.push_back(std::move(row));
  }
  std::ranges::sort(rows, [order](const TopRow& a, const TopRow& b) { return ComesFirst(a, b, order); });
  return rows;
}

std::string TopText(const std::vector<TopRow>& rows, bool idle_too, size_t lines_max) {
  Table table({{"DISK"},
               {"CONTROLLER"},
               {"TARGET"},
               {"OPS/S"},
               {"MIB/S"},
               {"ERRORS/S"},
               {"LATENCY"},
               {"IN FLIGHT"},
               {"OLDEST"},
               {"SLOWEST STAGE"}});
  size_t lines = kHeadLines;
  for (const TopRow& row : rows) {
    if (lines >= lines_max) break;
    if (!idle_too && !row.active()) continue;
    ++lines;
    table.Add({row.disk, row.controller, std::to_string(row.target), Rate(row.iops), MiB(row.bytes_per_s),
               row.errors_per_s > 0 ? Rate(row.errors_per_s) : "", Time(row.latency_ns),
               std::to_string(row.in_flight), Time(row.oldest_ns), Where(row)});
  }
  return SumsLine(rows) + table.Rows();
}

google::protobuf::Struct TopMessage(const std::vector<TopRow>& rows, bool idle_too) {
  google::protobuf::Struct message;
  auto& disks = *(*message.mutable_fields())["disks"].mutable_list_value();
  for (const TopRow& row : rows) {
    if (!idle_too && !row.active()) continue;
    auto& fields = *disks.add_values()->mutable_struct_value()->mutable_fields();
    fields["disk"].set_string_value("disks/" + row.disk);
    fields["controller"].set_string_value("controllers/" + row.controller);
    fields["target"].set_number_value(row.target);
    fields["operations_per_second"].set_number_value(row.iops);
    fields["bytes_per_second"].set_number_value(row.bytes_per_s);
    fields["errors_per_second"].set_number_value(row.errors_per_s);
    fields["latency_ns"].set_number_value(static_cast<double>(row.latency_ns));
    fields["in_flight"].set_number_value(static_cast<double>(row.in_flight));
    fields["oldest_age_ns"].set_number_value(static_cast<double>(row.oldest_ns));
    fields["stuck"].set_bool_value(row.stuck);
    fields["slowest_stage"].set_string_value(row.slow_stage);
    fields["slowest_stage_part"].set_number_value(row.slow_part);
  }
  return message;
}

}  // namespace cleat::ctl
