// SPDX-License-Identifier: Apache-2.0
#include "engine/link/heartbeats.h"

#include <spdlog/spdlog.h>

namespace cleat::engine {

void Heartbeats::Begin() {
  silent_looks_ = 0;
  look_.Cancel();
  control_.AddTimer(look_, control_.now_ns() + kLookNs);
}

void Heartbeats::End() {
  silent_looks_ = 0;
  look_.Cancel();
}

void Heartbeats::OnHeartbeat() {
  if (cleatd_is_silent()) spdlog::info("cleatd: answers again");
  silent_looks_ = 0;
}

void Heartbeats::OnLook() {
  control_.AddTimer(look_, control_.now_ns() + kLookNs);
  if (cleatd_is_silent() || ++silent_looks_ < kSilentLooksMax) return;
  spdlog::warn(
      "cleatd: not answering: no heartbeat for {} s; what is attached is served on, and nothing is changed "
      "until it goes on: look whether its process is stopped or hangs",
      kSilentLooksMax * kLookNs / kNsPerSecond);
}

std::vector<ReactorProgress> Heartbeats::Progress() const {
  std::vector<ReactorProgress> progress;
  for (const Reactor* reactor : reactors_)
    progress.push_back({.name = reactor->name(), .turns = reactor->turns(), .asleep = reactor->asleep()});
  return progress;
}

}  // namespace cleat::engine
