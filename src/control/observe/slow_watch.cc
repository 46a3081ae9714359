// SPDX-License-Identifier: Apache-2.0
#include "control/observe/slow_watch.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "stats/slow_request.h"

namespace cleat::control {
namespace {

constexpr const char* kSlowLines = "slow requests (cleatctl slow)";
constexpr const char* kStuckLines = "disks that are stuck, or are no more (cleatctl top)";

int64_t UnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string NameOf(const stats::DiskSeen& disk) {
  return fmt::format("{} of {}", disk.disk, disk.controller);
}

}  // namespace

SlowWatch::SlowWatch(const Counters& counters, Say say)
    : counters_(counters), say_(say ? std::move(say) : Say(log::Write)), started_ns_(counters.NowNs()) {}

SlowWatch::~SlowWatch() {
  Stop();
}

void SlowWatch::Start() {
  thread_ = std::thread([this] { Run(); });
}

void SlowWatch::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void SlowWatch::Run() {
  pthread_setname_np(pthread_self(), "slow-watch");
  const MutexLock lock(mutex_);
  while (!stopping_) {
    {
      const MutexUnlock unlocked(mutex_);
      Turn();
    }
    const auto next = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kTurnNs);
    while (!stopping_ && stop_.WaitUntil(mutex_, next)) {
    }
  }
}

void SlowWatch::Turn() {
  std::vector<CountersOf> all = counters_.Open();
  std::erase_if(engines_, [&](const auto& engine) {
    return std::ranges::find(all, engine.first, &CountersOf::engine) == all.end();
  });
  for (CountersOf& counters : all) Follow(counters);
  const uint64_t now_ns = counters_.NowNs();
  TellLeftOut(slow_lines_, kSlowLines, now_ns);
  TellLeftOut(stuck_lines_, kStuckLines, now_ns);
  size_t stuck = 0;
  for (const auto& [id, engine] : engines_) stuck += engine.stuck.size();
  const MutexLock lock(mutex_);
  stuck_disks_ = stuck;
}

void SlowWatch::Follow(CountersOf& counters) {
  Engine& engine = engines_[counters.engine];
  const uint64_t now_ns = counters_.NowNs();
  if (engine.serial != counters.serial) {
    if (engine.reader) Collect(engine, now_ns);  // the last ones of the predecessor
    engine = Engine{};
    engine.serial = counters.serial;
    engine.reader = std::move(counters.reader);
  }
  if (!engine.reader) return;
  Collect(engine, now_ns);
  // Of a dead engine every disk is stuck, which has been said otherwise.
  if (counters.connected) {
    LookAtDisks(engine, now_ns);
  } else {
    engine.stuck.clear();
  }
}

void SlowWatch::Collect(Engine& engine, uint64_t now_ns) {
  uint64_t lost = 0;
  const std::vector<observe::SlowSeen> fresh = engine.reader->NewSlow(&lost);
  if (fresh.empty() && lost == 0) return;
  const int64_t unix_ns = UnixNs();
  for (const observe::SlowSeen& slow : fresh) {
    v1::SlowRequest request = stats::ToApi(*engine.reader, slow, now_ns, unix_ns);
    // Requests that an earlier cleatd has seen are listed, not logged again.
    if (slow.noticed_ns >= started_ns_) {
      Tell(slow_lines_, spdlog::level::warn, kSlowLines, now_ns,
           fmt::format("{} of {}: slow request: {}", request.disk(), request.controller(),
                       stats::InWords(request)));
    }
    const MutexLock lock(mutex_);
    requests_.push_back(std::move(request));
    if (requests_.size() > kRequestsMax) requests_.pop_front();
    ++collected_;
  }
  const MutexLock lock(mutex_);
  lost_ += lost;
}

void SlowWatch::LookAtDisks(Engine& engine, uint64_t now_ns) {
  // Thousands of disks are read only if one of them may be stuck, or was.
  const bool may_be_stuck = stats::MayHaveSlow(*engine.reader, now_ns);
  if (!may_be_stuck && engine.stuck.empty()) return;
  if (may_be_stuck) {
    for (const stats::DiskSeen& disk :
         stats::DisksOf(*engine.reader, now_ns, observe::SegmentReader::Which::kInFlight)) {
      LookAtDisk(engine, disk, now_ns);
    }
  }
  std::erase_if(engine.stuck, [&](const auto& entry) {
    const auto& [name, stuck] = entry;
    if (now_ns - stuck.last_old_ns < kCalmNs) return false;
    Tell(stuck_lines_, spdlog::level::info, kStuckLines, now_ns,
         fmt::format("{}: not stuck any more, after {}", name,
                     stats::TimeInWords(stuck.last_old_ns - std::min(stuck.last_old_ns, stuck.since_ns))));
    return true;
  });
}

void SlowWatch::LookAtDisk(Engine& engine, const stats::DiskSeen& disk, uint64_t now_ns) {
  if (disk.oldest.seen_ns == 0 || disk.age_ns < engine.reader->slow_after_ns()) return;
  const auto [it, fresh] = engine.stuck.try_emplace(NameOf(disk));
  it->second.last_old_ns = now_ns;
  if (!fresh) return;
  it->second.since_ns = disk.oldest.seen_ns;
  const std::string& stage = engine.reader->stage_names()[disk.oldest.stage];
  Tell(stuck_lines_, spdlog::level::warn, kStuckLines, now_ns,
       fmt::format("{}: stuck: {} waits for {} in stage {} ({}); {} in flight", it->first,
                   stats::RequestInWords(engine.reader->op_names()[disk.oldest.op], disk.oldest.length_bytes,
                                         disk.oldest.offset_bytes),
                   stats::TimeInWords(disk.age_ns), stage, stats::WaitsFor(stage), disk.in_flight));
}

void SlowWatch::TellLeftOut(Budget& budget, const char* what, uint64_t now_ns) {
  const uint64_t second = now_ns / kNsPerSecond;
  if (second == budget.second) return;
  if (budget.left_out > 0)
    say_(spdlog::level::warn, fmt::format("log: {} more lines left out: {}", budget.left_out, what));
  budget = {.second = second};
}

void SlowWatch::Tell(Budget& budget, spdlog::level::level_enum level, const char* what, uint64_t now_ns,
                     const std::string& line) {
  TellLeftOut(budget, what, now_ns);
  if (budget.lines == kLinesPerSecondMax) {
    ++budget.left_out;
  } else {
    ++budget.lines;
    say_(level, line);
  }
}

Result<v1::ListSlowRequestsResponse> SlowWatch::List(const v1::ListSlowRequestsRequest& request) const {
  CLEAT_TRY(CheckStatsName(request.name()));
  if (request.limit() < 0 || request.limit() > static_cast<int>(kRequestsMax)) {
    return Refuse(v1::REASON_INVALID_FIELD, fmt::format("limit must be from 0 to {}", kRequestsMax),
                  {{"field", "limit"}});
  }
  const size_t limit = request.limit() == 0 ? kRequestsDefault : static_cast<size_t>(request.limit());
  v1::ListSlowRequestsResponse response;
  const MutexLock lock(mutex_);
  for (auto it = requests_.rbegin();
       it != requests_.rend() && response.requests_size() < static_cast<int>(limit); ++it) {
    const std::string& name = request.name();
    if (name.empty() || name == it->disk() || name == it->controller() || name == it->engine()) {
      *response.add_requests() = *it;
    }
  }
  std::reverse(response.mutable_requests()->pointer_begin(), response.mutable_requests()->pointer_end());
  response.set_lost(lost_);
  return response;
}

size_t SlowWatch::stuck_disks() const {
  const MutexLock lock(mutex_);
  return stuck_disks_;
}

uint64_t SlowWatch::slow_requests() const {
  const MutexLock lock(mutex_);
  return collected_ + lost_;
}

}  // namespace cleat::control
