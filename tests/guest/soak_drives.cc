// SPDX-License-Identifier: Apache-2.0
#include "tests/guest/soak_drives.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "perf/vhost_user/deadline.h"

namespace cleat::nvme_soak {
namespace {

constexpr uint64_t kAnswerNs = 120 * kNsPerSecond;  // for what can only hang
constexpr int kLookMs = 20;                         // no event tells that another process has written a file

}  // namespace

Status Drives::Ask(const std::string& what) {
  ++asked_;
  const std::string fresh = ask_ + ".new";
  std::ofstream(fresh) << asked_ << " " << what << "\n";
  if (std::rename(fresh.c_str(), ask_.c_str()) != 0) return ErrnoError(errno, ask_);
  const perf::Deadline deadline(kAnswerNs);
  for (;;) {
    uint64_t answered = 0;
    if (std::ifstream(ask_ + ".done") >> answered && answered == asked_) return Ok{};
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "nobody makes the drives " + what);
    poll(nullptr, 0, kLookMs);
  }
}

Status Drives::Reset() {
  for (const std::string& path : paths_) {
    const std::string controller = path.substr(path.rfind('/') + 1, path.rfind('n') - path.rfind('/') - 1);
    std::ofstream reset(fmt::format("/sys/class/nvme/{}/reset_controller", controller));
    reset << "1" << std::flush;
    if (!reset) return Error(ErrorCode::kInternal, controller + " can't be reset");
  }
  return Ok{};
}

}  // namespace cleat::nvme_soak
