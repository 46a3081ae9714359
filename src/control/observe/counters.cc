// SPDX-License-Identifier: Apache-2.0
#include "control/observe/counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "stats/disk_stats.h"

namespace cleat::control {
namespace {

// Where a disk stands in the list, as a text that sorts the same way.
std::string KeyOf(const std::string& engine, const stats::DiskSeen& disk) {
  return fmt::format("{} {:010} {} {}", disk.controller, disk.target, disk.disk, engine);
}

Result<std::unique_ptr<observe::SegmentReader>> OpenFor(const std::string& engine, UniqueFd fd) {
  if (!fd.valid()) return Error(ErrorCode::kNotFound, "it is of a version without counters");
  auto reader = observe::SegmentReader::Open(std::move(fd));
  if (reader.ok() && (*reader)->engine() != engine) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("they are those of '{:.63}'", (*reader)->engine()));
  }
  return reader;
}

}  // namespace

void Counters::OnHello(const std::string& engine, uint64_t incarnation, UniqueFd fd) {
  const MutexLock lock(mutex_);
  Entry& entry = engines_[engine];
  entry.connected = true;
  // The same process that lost its connection: what was read of its counters stays read.
  if (entry.serial != 0 && entry.incarnation == incarnation && entry.fd.valid()) return;
  const std::string told = entry.incarnation == incarnation ? std::move(entry.why_none) : std::string();
  entry.incarnation = incarnation;
  entry.serial = ++last_serial_;
  entry.fd = fd.Duplicate();
  entry.why_none.clear();
  if (const auto reader = OpenFor(engine, std::move(fd)); !reader.ok()) {
    entry.fd.Reset();
    entry.why_none = reader.error().message;
    if (entry.why_none != told) {
      spdlog::warn("{}: no counters: {}; its disks are served without statistics", EngineName(engine),
                   entry.why_none);
    }
  }
  ForgetDead();
}

void Counters::OnGone(const std::string& engine) {
  const MutexLock lock(mutex_);
  if (const auto it = engines_.find(engine); it != engines_.end()) it->second.connected = false;
}

void Counters::ForgetDead() {
  while (engines_.size() > kEnginesMax) {
    auto oldest = engines_.end();
    for (auto it = engines_.begin(); it != engines_.end(); ++it) {
      if (it->second.connected) continue;
      if (oldest == engines_.end() || it->second.serial < oldest->second.serial) oldest = it;
    }
    if (oldest == engines_.end()) return;
    engines_.erase(oldest);
  }
}

UniqueFd Counters::Share(const std::string& engine) const {
  const MutexLock lock(mutex_);
  const auto found = engines_.find(engine);
  return found == engines_.end() || !found->second.fd.valid() ? UniqueFd() : found->second.fd.Duplicate();
}

std::vector<CountersOf> Counters::Open() const {
  const MutexLock lock(mutex_);
  std::vector<CountersOf> all;
  for (const auto& [engine, entry] : engines_) {
    CountersOf& counters = all.emplace_back();
    counters.engine = engine;
    counters.connected = entry.connected;
    counters.serial = entry.serial;
    counters.why_none = entry.why_none;
    if (!entry.fd.valid()) continue;
    auto reader = observe::SegmentReader::Open(entry.fd.Duplicate());
    if (reader.ok()) {
      counters.reader = std::move(*reader);
    } else {
      counters.why_none = reader.error().message;
    }
  }
  return all;
}

Result<v1::GetStatsResponse> Counters::Stats(const v1::GetStatsRequest& request) const {
  CLEAT_TRY(CheckStatsName(request.name()));
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  const std::vector<CountersOf> engines = Open();
  v1::GetStatsResponse response;
  response.set_time_ns(clock_.NowNs());

  struct Found {
    std::string key;
    const observe::SegmentReader* reader;
    stats::DiskSeen disk;
  };
  std::vector<Found> found;
  for (const CountersOf& engine : engines) {
    v1::EngineStats& stats = *response.add_engines();
    if (engine.reader) stats = stats::EngineOf(*engine.reader);
    stats.set_engine(EngineName(engine.engine));
    stats.set_connected(engine.connected);
    stats.set_message(engine.why_none);
    if (!engine.reader) continue;
    for (stats::DiskSeen& disk : stats::DisksOf(*engine.reader, response.time_ns())) {
      if (!stats::Matches(request.name(), stats.engine(), disk)) continue;
      std::string key = KeyOf(engine.engine, disk);
      if (key > request.page_token()) found.push_back({std::move(key), engine.reader.get(), std::move(disk)});
    }
  }
  std::ranges::sort(found, {}, &Found::key);
  for (size_t i = 0; i < found.size(); ++i) {
    v1::DiskStats stats = stats::ToApi(*found[i].reader, found[i].disk, request.histograms());
    if (!page.Take(stats.ByteSizeLong())) {
      response.set_next_page_token(found[i - 1].key);
      break;
    }
    *response.add_disks() = std::move(stats);
  }
  return response;
}

Status CheckStatsName(const std::string& name) {
  if (name.empty() || ParseDiskName(name).ok() || ParseControllerName(name).ok() ||
      ParseEngineName(name).ok()) {
    return Ok{};
  }
  return Refuse(
      v1::REASON_INVALID_NAME,
      fmt::format("'{:.200}' must be disks/ID, controllers/ID or engines/NAME, or empty for all", name));
}

}  // namespace cleat::control
