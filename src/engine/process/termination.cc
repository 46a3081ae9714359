// SPDX-License-Identifier: Apache-2.0
#include "engine/process/termination.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/clock.h"

namespace cleat::engine {
namespace {

constexpr int kNotDrained = 1;  // exit status

sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void Termination::BlockSignals() {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Status Termination::Start() {
  const sigset_t set = TerminationSignals();
  fd_.Reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) return ErrnoError(errno, "signalfd");
  return watch_.Start(control_, fd_.get(), EPOLLIN);
}

void Termination::OnSignal() {
  signalfd_siginfo info{};
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (std::exchange(terminating_, true)) Leave("second signal");
    spdlog::info("cleat-engine: draining on signal {}: for {} s at most; a second signal ends it at once",
                 info.ssi_signo, drain_s_);
    control_.AddTimer(limit_, control_.now_ns() + drain_s_ * kNsPerSecond);
    drain_();
  }
}

void Termination::Limit::Fire(Timer& timer) {
  Termination& termination = static_cast<Limit&>(timer).termination;
  termination.Leave(fmt::format("{} s have passed", termination.drain_s_));
}

void Termination::Leave(const std::string& why) {
  spdlog::warn("cleat-engine: not drained: {}; {} left to a successor, which runs again what is in flight",
               why, left_());
  spdlog::default_logger()->flush();
  _exit(kNotDrained);
}

}  // namespace cleat::engine
