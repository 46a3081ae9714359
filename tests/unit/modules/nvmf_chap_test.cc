// SPDX-License-Identifier: Apache-2.0
// A disk whose target authenticates its host, or has to authenticate itself: which queues are used, when, and what becomes of the arithmetic
// of those that are gone by then. Costs about ten seconds.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "modules/nvmf/channel/io_queue.h"
#include "nvmf/login/login_line.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_chap_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::RandomLoad;
using test::TestDisk;

constexpr uint8_t kFfdhe2048 = 1, kFfdhe8192 = 5;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

NvmfTarget::Options WithChap() {
  NvmfTarget::Options options;
  options.chap = true;
  return options;
}

void AskOnAllQueues(NvmfTarget& target) {
  target.faults.asks_on_admin = true;
  target.faults.asks_on_io = true;
}

// The threads for arithmetic have something else to do until this goes.
class Busy {
 public:
  explicit Busy(NvmfRig& rig) {
    rig.threads.Post([until = over_.get_future().share()] { until.wait(); });
  }
  ~Busy() { over_.set_value(); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::promise<void> over_;
};

class NvmfChap : public testing::Test {
 protected:
  NvmfChap() {
    rig_.subsystem.chap = NvmfRig::Secrets(true);
    AskOnAllQueues(target_);
  }
  static void WriteAndRead(TestDisk& disk) {
    OneWrite write(0, 4096, 7);
    write.Start(disk);
    ASSERT_EQ(disk.Wait(write.io), IoStatus::kOk);
    Arena arena(4096);
    ASSERT_EQ(disk.Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
    EXPECT_EQ(arena.data()[4095], 7);
  }
  void UntilChallenged(uint32_t times = 1) {
    rig_.Until([&] { return target_.counts.challenges >= times; });
  }

  NvmfRig rig_{WithChap()};
  NvmfTarget& target_ = rig_.target;
};

TEST_F(NvmfChap, BothSidesProveThemselvesOnEachQueueBeforeAnythingElse) {
  for (const uint8_t group : {uint8_t{0}, kFfdhe2048}) {
    target_.faults.chap_group = group;
    const uint32_t before = target_.counts.proofs;
    rig_.Open();
    {
      auto first = rig_.Channel(0);
      auto second = rig_.Channel(1);
      WriteAndRead(*first);
      WriteAndRead(*second);
    }
    EXPECT_EQ(target_.counts.proofs, before + 3) << "the admin queue and two I/O queues";
    EXPECT_EQ(target_.counts.accepted_hosts, target_.counts.proofs);
    EXPECT_EQ(target_.counts.too_early, 0U);
    rig_.Close();
    rig_.pipeline.reset();
  }
}

TEST_F(NvmfChap, ATargetMayAskOnOneKindOfQueueAlone) {
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  for (const bool on_io : {false, true}) {
    target_.faults.asks_on_io = on_io;
    target_.faults.asks_on_admin = !on_io;
    const uint32_t before = target_.counts.accepted_hosts;
    rig_.Open();
    WriteAndRead(*rig_.Channel());
    EXPECT_EQ(target_.counts.accepted_hosts, before + 1);
    EXPECT_EQ(target_.counts.too_early, 0U);
    rig_.pipeline.reset();
  }
}

TEST_F(NvmfChap, ASubsystemWithASecretHereProvesItselfWithoutHavingAsked) {
  target_.faults.asks_on_admin = target_.faults.asks_on_io = false;
  rig_.Open();
  WriteAndRead(*rig_.Channel());
  EXPECT_EQ(target_.counts.proofs, 2U);
}

TEST_F(NvmfChap, AHostsSecretAloneLeavesATargetAsItIs) {
  target_.faults.asks_on_admin = target_.faults.asks_on_io = false;
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  rig_.Open();
  WriteAndRead(*rig_.Channel());
  EXPECT_EQ(target_.counts.challenges, 0U);
}

TEST_F(NvmfChap, SecretsWithoutThreadsForTheirArithmeticAreRefused) {
  NvmfOptions options = rig_.Options();
  options.arithmetic = nullptr;
  const auto opened = rig_.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(target_.counts.accepted, 0U);
}

// ---- Who is not let in

struct Refusal {
  const char* name;
  void (*spoil)(NvmfRig& rig);
  ErrorCode code;
  const char* text;
};

class NvmfChapRefusal : public testing::TestWithParam<Refusal> {};

INSTANTIATE_TEST_SUITE_P(
    Each, NvmfChapRefusal,
    testing::Values(Refusal{"AHostWithoutASecret", [](NvmfRig& rig) { rig.subsystem.chap = nullptr; },
                            ErrorCode::kPermissionDenied, "no secret is configured"},
                    Refusal{"AHostWithAnotherSecret",
                            [](NvmfRig& rig) { rig.target.faults.other_host_secret = true; },
                            ErrorCode::kPermissionDenied, "does not accept the host's secret"},
                    Refusal{"ASubsystemWithAnotherSecret",
                            [](NvmfRig& rig) { rig.target.faults.other_own_secret = true; },
                            ErrorCode::kPermissionDenied, "does not have the secret of subsystem"},
                    Refusal{"ASilentTarget", [](NvmfRig& rig) { rig.target.faults.mute_chap = true; },
                            ErrorCode::kUnavailable, "no answer"},
                    Refusal{"ATargetThatCloses", [](NvmfRig& rig) { rig.target.faults.cut_in_chap = true; },
                            ErrorCode::kUnavailable, "subsystems/s at 127.0.0.1"}),
    [](const auto& refusal) { return std::string(refusal.param.name); });

TEST_P(NvmfChapRefusal, IsNamedAndNothingIsLeft) {
  NvmfRig rig(WithChap());
  rig.subsystem.chap = NvmfRig::Secrets(true);
  AskOnAllQueues(rig.target);
  GetParam().spoil(rig);
  NvmfOptions options = rig.Options();
  if (GetParam().code == ErrorCode::kUnavailable) options.open_timeout_ns = 300 * kNsPerMs;
  const auto opened = rig.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, GetParam().code) << opened.error().message;
  EXPECT_TRUE(Contains(opened.error().message, GetParam().text)) << opened.error().message;
  EXPECT_TRUE(rig.broken.empty());
}

TEST(NvmfChapOfAnotherTarget, OneThatKnowsNoAuthenticationIsNotTakenForTheSubsystem) {
  NvmfRig rig;
  rig.subsystem.chap = NvmfRig::Secrets(true);
  const auto opened = rig.TryOpen(rig.Options());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kPermissionDenied) << opened.error().message;
  EXPECT_TRUE(Contains(opened.error().message, "it has not asked for authentication"))
      << opened.error().message;
}

TEST_F(NvmfChap, ASecretThatIsChangedAtTheTargetBreaksThePathUntilItIsChangedBack) {
  rig_.Open();
  auto disk = rig_.Channel();
  WriteAndRead(*disk);
  target_.faults.other_host_secret = true;
  target_.CutAll();
  rig_.UntilBroken(2);  // that it is cut, and then that nothing will come of it
  EXPECT_TRUE(Contains(rig_.broken.back(), "does not accept the host's secret")) << rig_.broken.back();
  OneWrite write(8192, 4096, 9);
  write.Start(*disk);
  rig_.ForSomeTurns();
  EXPECT_FALSE(write.io.done);
  target_.faults.other_host_secret = false;
  rig_.UntilConnected();
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(target_.counts.too_early, 0U);
}

TEST_F(NvmfChap, ARefusedIoQueueIsNotConnectedAgainWithinItsLife) {
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  target_.faults.asks_on_admin = false;
  target_.faults.other_host_secret = true;
  rig_.Open();
  auto disk = rig_.Channel();
  OneWrite write(0, 4096, 9);
  write.Start(*disk);
  rig_.Until([&] { return target_.counts.admin_queues >= 4; });
  EXPECT_LE(target_.counts.io_queues, target_.counts.admin_queues);
  EXPECT_EQ(target_.counts.io_commands, 0U);
  EXPECT_TRUE(Contains(rig_.broken.front(), "queue 1: the target does not accept the host's secret"))
      << rig_.broken.front();
  target_.faults.other_host_secret = false;
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
}

// ---- Arithmetic whose queue is gone by then

TEST_F(NvmfChap, APathThatDiesBeforeItsArithmeticBeginsIsTriedAgain) {
  auto busy = std::make_unique<Busy>(rig_);
  NvmfOptions options = rig_.Options();
  options.open_timeout_ns = 60 * kNsPerSecond;
  bool cut = false;
  std::thread other([&] {
    while (target_.counts.challenges < 1) std::this_thread::yield();
    target_.CutAll();
    while (target_.counts.challenges < 2) std::this_thread::yield();
    cut = true;
    busy.reset();
  });
  rig_.Open(std::move(options));
  other.join();
  EXPECT_TRUE(cut);
  WriteAndRead(*rig_.Channel());
}

TEST_F(NvmfChap, APathThatDiesWhileItsArithmeticRunsIsTriedAgain) {
  target_.faults.chap_group = kFfdhe8192;
  target_.faults.cut_in_chap = true;
  std::thread other([&] {
    while (target_.counts.challenges < 3) std::this_thread::yield();
    target_.faults.chap_group = 0;
    target_.faults.cut_in_chap = false;
  });
  NvmfOptions options = rig_.Options();
  options.open_timeout_ns = 60 * kNsPerSecond;
  rig_.Open(std::move(options));
  other.join();
  WriteAndRead(*rig_.Channel());
}

TEST_F(NvmfChap, ADiskThatIsGivenUpWhileItIsOpenedLeavesItsArithmetic) {
  for (const bool runs : {false, true}) {
    target_.faults.chap_group = runs ? kFfdhe8192 : 0;
    std::unique_ptr<Busy> busy;
    if (!runs) busy = std::make_unique<Busy>(rig_);
    NvmfOptions options = rig_.Options();
    options.open_timeout_ns = runs ? 20 * kNsPerMs : 200 * kNsPerMs;
    const auto opened = rig_.TryOpen(std::move(options));
    if (runs && opened.ok()) continue;  // a fast machine
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable) << opened.error().message;
  }
}

TEST_F(NvmfChap, AChannelAndADiskAreClosedWhileAnIoQueueLogsIn) {
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  target_.faults.asks_on_admin = false;
  uint32_t challenges = 0;
  for (const bool runs : {false, true}) {
    for (const bool closes : {true, false}) {
      target_.faults.chap_group = runs ? kFfdhe8192 : 0;
      std::unique_ptr<Busy> busy;
      if (!runs) busy = std::make_unique<Busy>(rig_);
      rig_.Open();
      auto disk = rig_.Channel();
      UntilChallenged(++challenges);
      if (!runs) rig_.ForSomeTurns();
      EXPECT_EQ(target_.counts.io_commands, 0U);
      disk.reset();
      if (closes) rig_.Close();
      rig_.pipeline.reset();
      rig_.Turn();
    }
  }
}

// ---- More queues than this host computes answers for

// A target that ends connections in which this host has nothing to say yet is one whose patience is over, for all that is known.
TEST_F(NvmfChap, AQueueThatHasNoTurnEndsNoLifeHoweverOftenItsTargetGivesItUp) {
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  target_.faults.asks_on_admin = false;
  rig_.Open();
  auto sibling = rig_.Channel(0);
  WriteAndRead(*sibling);
  auto busy = std::make_unique<Busy>(rig_);
  target_.faults.cut_in_chap = true;
  auto late = rig_.Channel(1);
  OneWrite write(8192, 4096, 9);
  write.Start(*late);
  UntilChallenged(1 + IoQueue::kConnectTriesMax + 2);
  ASSERT_TRUE(rig_.broken.empty()) << rig_.broken.front();
  WriteAndRead(*sibling);
  EXPECT_FALSE(write.io.done);
  target_.faults.cut_in_chap = false;
  busy.reset();
  EXPECT_EQ(late->Wait(write.io), IoStatus::kOk);
  WriteAndRead(*sibling);
  EXPECT_TRUE(rig_.broken.empty()) << rig_.broken.front();
  EXPECT_EQ(target_.counts.admin_queues, 1U) << "the life is the same";
}

TEST_F(NvmfChap, AQueueConnectsAgainBeforeItsTargetHasWaitedForTooLong) {
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  rig_.subsystem.kato_ms = 1000;
  target_.faults.asks_on_admin = false;
  rig_.Open();
  auto busy = std::make_unique<Busy>(rig_);
  auto disk = rig_.Channel();
  OneWrite write(0, 4096, 9);
  write.Start(*disk);
  UntilChallenged(2);
  EXPECT_TRUE(rig_.broken.empty());
  busy.reset();
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(target_.counts.admin_queues, 1U);
}

TEST_F(NvmfChap, APathThatHasNoTurnSaysSo) {
  rig_.subsystem.kato_ms = 1000;
  for (const bool closes : {false, true}) {
    target_.faults.cut_in_chap = closes;
    const Busy busy(rig_);
    NvmfOptions options = rig_.Options();
    options.open_timeout_ns = closes ? 200 * kNsPerMs : 900 * kNsPerMs;
    const uint32_t before = target_.counts.accepted;
    const auto opened = rig_.TryOpen(std::move(options));
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
    EXPECT_TRUE(Contains(opened.error().message, "more queues to authenticate than it can compute"))
        << opened.error().message;
    EXPECT_LE(target_.counts.accepted - before, 3U) << "its place does not get lost: it need not hurry";
    if (closes) continue;
    EXPECT_TRUE(Contains(opened.error().message, "keep alive timeout: 1000 ms")) << opened.error().message;
  }
}

TEST_F(NvmfChap, ATargetThatLetsThisHostComputeForNothingIsAskedLessOften) {
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  target_.faults.asks_on_admin = false;
  target_.faults.cut_in_chap = true;
  rig_.Open();
  auto disk = rig_.Channel();
  const std::string path = "subsystems/s at 127.0.0.1:" + std::to_string(target_.port());
  rig_.Until([&] { return rig_.arithmetic.PauseNs(path) >= 4 * nvmf::LoginLine::kPauseMinNs; });
  target_.faults.cut_in_chap = false;
  WriteAndRead(*disk);
  EXPECT_LT(rig_.arithmetic.PauseNs(path), 4 * nvmf::LoginLine::kPauseMinNs);
  disk.reset();
  rig_.pipeline.reset();
  EXPECT_EQ(rig_.arithmetic.PauseNs(path), 0U) << "of a disk that is gone";
}

// A reactor is not held up by the arithmetic of others, and waits for its own.
TEST_F(NvmfChap, WhileOnePathComputesRequestsGoByTheOther) {
  NvmfTarget& second = rig_.AddPath();
  rig_.subsystem.chap = NvmfRig::Secrets(false);
  const Busy busy(rig_);
  rig_.Open();
  auto disk = rig_.Channel();
  UntilChallenged();
  WriteAndRead(*disk);
  EXPECT_EQ(second.counts.writes, 1U);
  disk.reset();
  rig_.pipeline.reset();
}

TEST_F(NvmfChap, ReactorsOnThreadsOfTheirOwnLogInAgainAfterLosses) {
  target_.faults.chap_group = kFfdhe2048;
  rig_.Open();
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < rig_.io.size(); ++i) {
    threads.emplace_back([this, &running, i] {
      Reactor& reactor = *rig_.io[i];
      {
        TestDisk disk(*rig_.pipeline, reactor, [&reactor] { reactor.RunOnce(); });
        RandomLoad load(disk, 40 + i, i << 21, 2 << 20);
        load.Run(200);
      }
      --running;
      while (running > 0) reactor.RunOnce();
    });
  }
  size_t cuts = 0;
  while (running > 0) {
    rig_.control->RunOnce();
    if (cuts < 3 && rig_.broken.size() == cuts && rig_.connected == static_cast<int>(cuts) &&
        target_.counts.io_commands > 40 * (cuts + 1)) {
      target_.CutAll();
      ++cuts;
    }
    if (rig_.broken.size() == cuts) (void)rig_.device->ConfirmDead().ok();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(cuts, 0U);
  EXPECT_EQ(target_.counts.too_early, 0U);
}

}  // namespace
}  // namespace cleat::modules::nvmf_chap_test
