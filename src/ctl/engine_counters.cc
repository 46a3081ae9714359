// SPDX-License-Identifier: Apache-2.0
#include "ctl/engine_counters.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "stats/disk_stats.h"

namespace cleat::ctl {
namespace {

constexpr const char* kLink = "/memfd:cleat-counters (deleted)";

}  // namespace

Result<std::unique_ptr<observe::SegmentReader>> OpenCountersOf(pid_t engine) {
  namespace fs = std::filesystem;
  const std::string folder = fmt::format("/proc/{}/fd", engine);
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error) return ErrnoError(error.value(), fmt::format("process {}: {}", engine, folder));
  for (; entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;  // it may be closed meanwhile
    if (fs::read_symlink(entry->path(), gone) != kLink) continue;
    UniqueFd fd(open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return ErrnoError(errno, fmt::format("the counters of process {}", engine));
    return observe::SegmentReader::Open(std::move(fd));
  }
  return Error(ErrorCode::kNotFound,
               fmt::format("process {} has no counters: is it a cleat-engine? (pgrep cleat-engine)", engine));
}

v1::GetStatsResponse StatsOf(const observe::SegmentReader& reader, const std::string& name, bool histograms) {
  v1::GetStatsResponse response;
  response.set_time_ns(MonotonicClock().NowNs());
  *response.add_engines() = stats::EngineOf(reader);
  const std::string engine = response.engines(0).engine();
  for (const stats::DiskSeen& disk : stats::DisksOf(reader, response.time_ns())) {
    if (stats::Matches(name, engine, disk) || stats::Matches("disks/" + name, engine, disk) ||
        stats::Matches("controllers/" + name, engine, disk)) {
      *response.add_disks() = stats::ToApi(reader, disk, histograms);
    }
  }
  return response;
}

}  // namespace cleat::ctl
