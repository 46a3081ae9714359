// SPDX-License-Identifier: Apache-2.0
// A few calls at once on a host's state, in many orders of their steps: what no test with real threads would meet in a thousand runs. Each
// was wrong once. Costs 2 s.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/model/names.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/host_state.h"
#include "control/store/store.h"
#include "sim_threads.h"
#include "sync_hook.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/control/requests.h"

namespace cleat::sim::interleavings_test {
namespace {

using control::HostState;
using Call = std::function<void(HostState&)>;

// A state over a store in a folder of its own, whose syncs take their time.
class SimState {
 public:
  explicit SimState(uint64_t seed) : world_(seed, 0), random_(seed) {
    SetSyncHook([this](int /*fd*/) { return Sync(); });
    Open();
  }
  ~SimState() { SetSyncHook({}); }

  HostState& state() { return *state_; }
  void Open() {
    state_.reset();
    store_.reset();
    store_ = std::move(control::Store::Open(dir_.path()).value());
    store_->SetOnFailure([this] { write_failed_ = true; });
    state_ = std::move(HostState::Load(*store_, memory_).value());
  }
  // All at once; returns when the last one has.
  void Run(const std::vector<Call>& calls) {
    for (const Call& call : calls) threads_.Start("call", [this, &call] { call(*state_); });
    CLEAT_CHECK(world_.RunUntil([this] { return threads_.running() == 0; }, kNsPerSecond, "calls"));
  }
  // So many of the next syncs fail.
  void FailSyncs(uint64_t count) { to_fail_ = count; }
  // As cleatd's listener does it, beside the calls of Run: after a write that failed the store is looked at until it takes one.
  void WatchHealth() {
    const auto alone = [this] { return threads_.running() == 1; };
    while (!alone() || write_failed_) {
      threads_.AwaitReady([&] { return write_failed_ || alone(); }, SimThreads::kNever);
      if (!std::exchange(write_failed_, false)) continue;
      while (!state_->CheckStore()) Sleep();
    }
  }

 private:
  // At times for no time at all: others may go on before, or after.
  void Sleep() { threads_.SleepFor(random_.Chance(1, 2) ? 0 : random_.Below(kNsPerMs)); }
  bool Sync() {
    Sleep();
    if (to_fail_ == 0) return true;
    --to_fail_;
    return false;
  }

  test::TempDir dir_{test::FolderInMemory()};
  World world_;
  Random random_;
  SimThreads threads_{world_};
  uint64_t to_fail_ = 0;
  bool write_failed_ = false;  // and nobody has looked since
  control::MemfdKeeper memory_;
  std::unique_ptr<control::Store> store_;
  std::unique_ptr<HostState> state_;
};

void ConnectEngines(HostState& state) {
  v1::EngineStatus status;
  status.set_connected(true);
  status.set_protocol(control::kProtocolMoves);
  for (const char* engine : {"engine-0", "engine-1"}) state.engines().Report(engine, status);
}

class InterleavingsTest : public testing::Test {
 protected:
  static constexpr uint64_t kSeeds = 150;
  template <typename Test>
  void ForEachSeed(Test test) {
    for (uint64_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      SimState host(seed);
      test(host);
    }
  }
};

// An update that was let go on waits for nobody who came later.
TEST_F(InterleavingsTest, UpdatesAndTheDeletionOfADisk) {
  ForEachSeed([](SimState& host) {
    ASSERT_TRUE(host.state().disks().Create(control::NullDisk("d")).ok());
    const auto limit = [](uint64_t iops) {
      return [iops](HostState& state) { (void)state.disks().Update(control::LimitDisk("d", iops)); };
    };
    host.Run({limit(1), limit(2), limit(3),
              [](HostState& state) { EXPECT_TRUE(state.disks().Delete(control::DeleteDisk("d")).ok()); }});
    EXPECT_FALSE(host.state().disks().Get(control::GetDisk("d")).ok());
  });
}

// Whether a disk is for many readers is looked at when nothing of it changes any more: one that is not has one attachment.
TEST_F(InterleavingsTest, AttachmentsWhileAnotherDiskTakesTheName) {
  ForEachSeed([](SimState& host) {
    auto shared = control::NullDisk("d");
    shared.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
    ASSERT_TRUE(host.state().disks().Create(shared).ok());
    std::vector<Call> calls = {[](HostState& state) { (void)state.disks().Delete(control::DeleteDisk("d")); },
                               [](HostState& state) { (void)state.disks().Create(control::NullDisk("d")); }};
    for (const char* controller : {"a", "b"}) {
      ASSERT_TRUE(host.state().controllers().Create(control::NewController(controller)).ok());
      calls.emplace_back([controller](HostState& state) {
        (void)state.attachments().Attach(control::Attach("d", controller, true));
      });
    }
    host.Run(calls);
    const auto disk = host.state().disks().Get(control::GetDisk("d"));
    if (!disk.ok() || disk->spec().access_mode() == v1::ACCESS_MODE_MANY_READERS) return;
    v1::ListAttachmentsRequest all;
    all.set_parent("controllers/-");
    EXPECT_LE(host.state().attachments().List(all)->attachments_size(), 1);
  });
}

// The end of a recovery is not written over an upgrade that began meanwhile.
TEST_F(InterleavingsTest, AnUpgradeAtTheEndOfTheRecoveryFromTheLastOne) {
  v1::UpgradeEngineRequest upgrade;
  upgrade.set_name("engines/engine-0");
  upgrade.set_to("engines/engine-1");
  ForEachSeed([&](SimState& host) {
    ConnectEngines(host.state());
    ASSERT_TRUE(host.state().upgrades().Begin(upgrade).ok());
    host.Open();
    ConnectEngines(host.state());
    bool begun = false;
    host.Run({[](HostState& state) { state.upgrades().EndRecovery("engine-1"); },
              [&](HostState& state) { begun = state.upgrades().Begin(upgrade).ok(); }});
    ASSERT_TRUE(begun);
    host.Open();
    EXPECT_EQ(host.state().engines().Get(control::GetEngine("engine-0"))->status().upgrade().state(),
              v1::UPGRADE_STATE_INTERRUPTED)
        << "the store does not know that one was under way";
    EXPECT_EQ(host.state().upgrades().InterruptedTo("engine-0"), "engine-1");
  });
}

// A controller that could not be placed is placed by whoever finds that the store takes writes again.
TEST_F(InterleavingsTest, APlacingThatFailsWhileTheStoreRecovers) {
  uint64_t failed = 0;
  ForEachSeed([&](SimState& host) {
    ASSERT_TRUE(host.state().controllers().Create(control::NewController("c")).ok());
    host.FailSyncs(1 + failed++ % 3);
    host.Run({[](HostState& state) {
                ConnectEngines(state);
                state.controllers().Place();
              },
              [](HostState& state) { (void)state.disks().Create(control::NullDisk("d")); },
              [&](HostState& /*state*/) { host.WatchHealth(); }});
    const auto controller = host.state().controllers().Get(control::GetController("c"));
    EXPECT_NE(controller->status().engine(), "");
  });
}

}  // namespace
}  // namespace cleat::sim::interleavings_test
