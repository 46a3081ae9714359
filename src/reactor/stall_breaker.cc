// SPDX-License-Identifier: Apache-2.0
#include "reactor/stall_breaker.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace cleat {
namespace {

// By default it is ignored, so one that comes when nobody handles it does no harm.
constexpr int kSignal = SIGURG;
constexpr uint64_t kWarnNs = 10 * kNsPerSecond;  // not more often than that

void Nothing(int /*signal*/) {}

// proc_pid_stat(5): "tid (name) state ...", where S is a sleep that a signal ends.
bool WaitsInterruptibly(const UniqueFd& stat) {
  std::array<char, 128> bytes{};
  const ssize_t count = pread(stat.get(), bytes.data(), bytes.size(), 0);
  if (count <= 0) return false;
  const std::string_view text(bytes.data(), static_cast<size_t>(count));
  const size_t name_end = text.rfind(") ");
  return name_end != std::string_view::npos && text.substr(name_end + 2, 1) == "S";
}

}  // namespace

Status StallBreaker::Start(const std::vector<Watched>& reactors, uint64_t random_seed) {
  CLEAT_CHECK(!thread_.joinable());
  struct sigaction action {};
  action.sa_handler = Nothing;  // without SA_RESTART: what was interrupted is to end
  if (sigaction(kSignal, &action, nullptr) != 0) return ErrnoError(errno, "installing a handler of SIGURG");
  for (const Watched& watched : reactors) {
    const std::string path = "/proc/self/task/" + std::to_string(watched.thread) + "/stat";
    UniqueFd stat(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!stat) return ErrnoError(errno, path + ", by which a reactor that waits is found");
    seen_.push_back({watched, std::move(stat)});
  }
  random_ = Random(random_seed);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "stall-breaker");
  return Ok{};
}

void StallBreaker::Stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stop_wanted_.NotifyOne();
  thread_.join();
}

void StallBreaker::Run() {
  const MutexLock lock(mutex_);
  while (!StopsBefore(kLookMinNs + random_.Below(kLookMaxNs - kLookMinNs))) {
    for (const Seen& seen : seen_) Look(seen);
  }
}

bool StallBreaker::StopsBefore(uint64_t pause_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(pause_ns);
  while (!stop_ && stop_wanted_.WaitUntil(mutex_, until)) {
  }
  return stop_;
}

void StallBreaker::Look(const Seen& seen) {
  const Reactor& reactor = *seen.watched.reactor;
  const uint64_t turn = reactor.turns();
  if (reactor.asleep() || !WaitsInterruptibly(seen.stat)) return;
  // Its own sleep began, or ended, while we looked.
  if (reactor.asleep() || reactor.turns() != turn) return;
  tgkill(getpid(), seen.watched.thread, kSignal);
  interruptions_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t now_ns = MonotonicClock().NowNs();
  if (warned_ns_ != 0 && now_ns - warned_ns_ < kWarnNs) return;
  warned_ns_ = now_ns;
  spdlog::warn(
      "{}: interrupted in a system call that should not wait; a QEMU may have made its descriptor blocking: "
      "see the controllers' statuses",
      reactor.name());
}

}  // namespace cleat
