// SPDX-License-Identifier: Apache-2.0
// cleatd without gRPC, in a folder of its own, and an engine that is played and connects when it is told to.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/paths/path_policy.h"
#include "control/reconcile/reconciler.h"
#include "fake_engine.h"
#include "keys/keyring.h"
#include "leaping_clock.h"
#include "tests/support/temp_dir.h"

namespace cleat::control {

using Requests = std::vector<std::string>;

class ReconcilerRig : public ::testing::Test {
 protected:
  ReconcilerRig() { Start(); }
  ~ReconcilerRig() override { Stop(); }

  // Without a keyring it takes no keys.
  void Start(std::unique_ptr<keys::Keyring> keyring = nullptr) {
    keyring_ = std::move(keyring);
    memory_ = std::make_unique<MemfdKeeper>();
    store_ = std::move(Store::Open(dir_.path()).value());
    state_ = std::move(HostState::Load(*store_, *memory_, WatchHub::kQueueMax, keyring_.get()).value());
    state_->engine_removal().SetFindProcess([this](const std::string&) { return process_; });
    if (paths_) state_->SetPaths(paths_.get());  // before the reconciler's thread, which reads them
    link_ = std::move(EngineLink::Listen(socket_, clock_).value());
    counters_ = std::make_unique<Counters>(clock_);
    reconciler_ = std::make_unique<Reconciler>(*state_, *memory_, *link_, clock_, options_, counters_.get());
    state_->SetWake([link = link_.get()] { link->Wake(); });
    link_->SetOpenProcess([this](pid_t pid) {
      if (stall_ == Stall::kWanted) {
        stall_ = Stall::kThere;
        stall_.notify_all();
        stall_.wait(Stall::kThere);
      }
      return FakeEngine::OpenProcess(pid);
    });
    link_->SetKillProcess([this](int) {
      ++kills_;
      return Status(Ok{});
    });
    link_->Start(*reconciler_, counters_.get());
    link_->Wake();
  }

  void Stop() {
    link_->Stop();
    reconciler_.reset();
    link_.reset();
    counters_.reset();
    state_.reset();
    store_.reset();
    memory_.reset();
  }

  // The link's thread does not run while `meanwhile` does.
  template <typename Function>
  void StallLink(Function meanwhile) {
    stall_ = Stall::kWanted;
    const auto stranger = ConnectSeqpacket(socket_);  // looking who that is takes long
    ASSERT_TRUE(stranger.ok());
    stall_.wait(Stall::kWanted);
    meanwhile();
    stall_ = Stall::kNone;
    stall_.notify_all();
  }

  // The engine serves on meanwhile.
  void RestartCleatd() {
    Stop();
    engine_.Disconnect();
    Start();
  }

  // Waits for changes until the condition holds.
  void Await(const std::string& what, const std::function<bool()>& condition) {
    const auto watcher = state_->Watch();
    ASSERT_TRUE(watcher.ok());
    for (int quiet = 0; !condition(); ++quiet) {
      ASSERT_LT(quiet, kQuietMax) << "waited in vain until " << what;
      // Most conditions change with an event; those of the played engine don't tell.
      while (*(*watcher)->Next(std::chrono::milliseconds(10)) != nullptr) {
      }
    }
  }

  enum class Stall { kNone, kWanted, kThere };
  std::atomic<Stall> stall_ = Stall::kNone;

  // So many times 10 ms without any change is what waits for a change takes for a hang.
  static constexpr int kQuietMax = 12'000;

  // No limit passes unless a test lets it (clock_).
  ReconcilerOptions options_{.retry_min_ns = 10 * kNsPerMs,
                             .retry_max_ns = 50 * kNsPerMs,
                             .prepare_ns = kHourNs,
                             .yield_grace_ns = kHourNs,
                             .take_ns = kHourNs,
                             .take_over_ns = kHourNs,
                             .recovery_ns = kHourNs,
                             .heartbeat = {.limit_ns = kHourNs},
                             .turn_ns = kHourNs / 6};
  std::optional<pid_t> process_;  // that is found where an engine's is looked for
  std::atomic<int> kills_ = 0;    // of engines' processes, which then end when the test says so
  test::TempDir dir_;
  const std::string socket_ = dir_ / "engine.sock";
  LeapingClock clock_;
  std::unique_ptr<PathPolicy> paths_;  // all, until it is set and cleatd started anew
  std::unique_ptr<keys::Keyring> keyring_;
  std::unique_ptr<MemfdKeeper> memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
  std::unique_ptr<EngineLink> link_;
  std::unique_ptr<Counters> counters_;
  std::unique_ptr<Reconciler> reconciler_;
  FakeEngine engine_{socket_};
};

}  // namespace cleat::control
