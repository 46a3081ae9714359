// SPDX-License-Identifier: Apache-2.0
// A disk's log of writes in doubt (docs/nvmeof.md, rule 7) over the lives of engines. An engine is killed by a copy of the log: what it
// does after that is not in the copy, which is what the next engine finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "modules/nvmf/disk/nvmf_disk.h"
#include "modules/nvmf/doubt/kept_doubt_log.h"
#include "nvme/host/doubt/doubt_log.h"
#include "tests/unit/modules/nvmf_log_file.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_log_test {
namespace {

using block::IoStatus;
using block::Op;
using nvme::host::BlockRange;
using nvme::host::DoubtLog;
using nvme::host::kDoubtLogBytes;
using nvme::host::kDoubtLogShape;
using nvme::host::LifeId;
using test::Arena;
using test::LogFile;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::TestDisk;

constexpr uint64_t kBlock = NvmfTarget::kBlockBytes;

// A disk of one engine; all of them have one target and one set of reactors.
struct Engine {
  Engine(NvmfRig& on, const LogFile& log, block::AccessMode mode = block::AccessMode::kReadWrite) : rig(on) {
    NvmfOptions options = rig.Options();
    options.doubt_log = log.Duplicate();
    options.access = mode;
    auto opened = rig.TryOpen(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    if (!opened) return;
    device = static_cast<NvmfDevice*>(opened->get());
    pipeline = block::Pipeline::Make(std::move(opened).value(), mode).value();
    for (size_t i = 0; i < disks.size(); ++i)
      disks[i] = std::make_unique<TestDisk>(*pipeline, *rig.io[i], [this] { rig.Turn(); });
  }
  ~Engine() { End(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Acquire() { EXPECT_TRUE(rig.Await(pipeline->Acquire()).ok()); }
  void Release() { EXPECT_TRUE(rig.Await(pipeline->Release()).ok()); }
  void End() {
    for (auto& disk : disks) disk.reset();
    if (pipeline == nullptr) return;
    EXPECT_TRUE(rig.Await(pipeline->Close()).ok());
    pipeline.reset();
  }
  IoStatus Write(uint64_t offset_bytes, uint8_t fill, size_t reactor = 0) {
    OneWrite write(offset_bytes, 4096, fill);
    write.Start(*disks[reactor]);
    return disks[reactor]->Wait(write.io);
  }
  void ConfirmDead() {
    rig.Until([&] { return device->ConfirmDead().ok(); });
  }

  NvmfRig& rig;
  NvmfDevice* device = nullptr;
  std::unique_ptr<block::Pipeline> pipeline;
  std::array<std::unique_ptr<TestDisk>, 2> disks;
};

class TheLogOfADisk : public testing::Test {
 protected:
  // A write that the target has, and does not answer.
  void LeaveUnanswered(Engine& engine, OneWrite& write) {
    rig_.target.faults.mute_writes = true;
    const uint32_t before = rig_.target.counts.io_commands;
    write.Start(*engine.disks[0]);
    rig_.Until([&] { return rig_.target.counts.io_commands > before; });
    rig_.target.faults.mute_writes = false;
  }
  // All paths break, and the write's retry is answered.
  void Recover(Engine& engine, OneWrite& write) {
    rig_.target.CutAll();
    EXPECT_EQ(engine.disks[0]->Wait(write.io), IoStatus::kOk);
  }
  // The engine takes the disk, and lets it go with a ghost of 4096 bytes, whose retry was answered.
  void LeaveInDoubtAndRelease(Engine& engine, uint64_t offset_bytes) {
    engine.Acquire();
    OneWrite write(offset_bytes, 4096, 1);
    LeaveUnanswered(engine, write);
    Recover(engine, write);
    engine.Release();
  }
  // The log of an engine that is killed while a write of 4096 bytes is unanswered.
  LogFile LeftByAKilledEngine(uint64_t offset_bytes) {
    Engine killed(rig_, log_);
    killed.Acquire();
    OneWrite write(offset_bytes, 4096, 1);
    LeaveUnanswered(killed, write);
    LogFile left = log_.Copy();
    Recover(killed, write);
    return left;
  }
  // On each reactor writes over the blocks wait until somebody says that the target is dead; reads and other writes do not.
  void ExpectHeld(Engine& engine, uint64_t offset_bytes) {
    Arena arena(4096);
    OneWrite here(offset_bytes + 2048, 4096, 2);
    OneWrite there(offset_bytes - 2048, 4096, 3);
    here.Start(*engine.disks[0]);
    there.Start(*engine.disks[1]);
    for (auto& disk : engine.disks) EXPECT_EQ(disk->Do(Op::kRead, offset_bytes, 4096, &arena), IoStatus::kOk);
    rig_.ForSomeTurns();
    EXPECT_FALSE(here.io.done || there.io.done);
    engine.ConfirmDead();
    EXPECT_EQ(engine.disks[0]->Wait(here.io), IoStatus::kOk);
    EXPECT_EQ(engine.disks[1]->Wait(there.io), IoStatus::kOk);
  }
  static void ExpectNothingIn(const LogFile& log) {
    const auto found = log.Found();
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_TRUE(found->empty());
  }

  NvmfRig rig_;
  LogFile log_;
};

TEST_F(TheLogOfADisk, HasNothingAfterWritesThatWereAnswered) {
  Engine engine(rig_, log_);
  engine.Acquire();
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(engine.Write(4096 * i, 7, i % 2), IoStatus::kOk);
  ExpectNothingIn(log_);
  engine.Release();
  ExpectNothingIn(log_);
}

TEST_F(TheLogOfADisk, AWriteThatAKilledEngineLeftUnansweredHoldsWhatOverlapsIt) {
  LogFile left = LeftByAKilledEngine(8192);
  const auto found = left.Found();
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(*found, (std::vector{BlockRange{.first = 8192 / kBlock, .blocks = 4096 / kBlock}}));
  Engine next(rig_, left);
  next.Acquire();
  EXPECT_EQ(next.Write(0, 4), IoStatus::kOk) << "beside it";
  ExpectHeld(next, 8192);
  ExpectNothingIn(left);
}

TEST_F(TheLogOfADisk, SoDoesTheGhostOfAWriteWhoseRetryWasAnswered) {
  LogFile left;
  {
    Engine killed(rig_, log_);
    killed.Acquire();
    OneWrite write(8192, 4096, 1);
    LeaveUnanswered(killed, write);
    Recover(killed, write);
    left = log_.Copy();
    killed.ConfirmDead();
  }
  ExpectNothingIn(log_);
  Engine next(rig_, left);
  next.Acquire();
  ExpectHeld(next, 8192);
}

TEST_F(TheLogOfADisk, NamesTheLivesThatMayHaveLeftWhatItHasUntilEachIsProved) {
  LogFile left;
  {
    Engine killed(rig_, log_);
    killed.Acquire();
    EXPECT_EQ(log_.Lives().size(), 1U) << "of the path that is live";
    OneWrite write(8192, 4096, 1);
    LeaveUnanswered(killed, write);
    Recover(killed, write);
    left = log_.Copy();
    killed.ConfirmDead();
    EXPECT_EQ(log_.Lives().size(), 1U);
  }
  const std::vector<LifeId> of_the_killed = left.Lives();
  EXPECT_EQ(of_the_killed.size(), 2U) << "the one that has ended, and the one that took its place";
  Engine next(rig_, left);
  next.Acquire();
  const std::vector<LifeId> lives = left.Lives();
  EXPECT_EQ(lives.size(), 3U);
  for (const LifeId life : of_the_killed) EXPECT_NE(std::find(lives.begin(), lives.end(), life), lives.end());
  next.ConfirmDead();
  EXPECT_EQ(left.Lives().size(), 1U);
}

// The second engine is killed too, before anybody has said anything.
TEST_F(TheLogOfADisk, WhatWasFoundOnceIsFoundAgain) {
  LogFile left = LeftByAKilledEngine(8192);
  {
    Engine second(rig_, left);
    second.Acquire();
    EXPECT_EQ(second.Write(0, 4), IoStatus::kOk);
  }
  Engine third(rig_, left);
  third.Acquire();
  ExpectHeld(third, 8192);
}

TEST_F(TheLogOfADisk, AnOperatorsWordInItEndsTheDoubtThatItIsAbout) {
  Engine engine(rig_, log_);
  engine.Acquire();
  OneWrite first(8192, 4096, 1);
  LeaveUnanswered(engine, first);
  Recover(engine, first);
  OneWrite held(8192 + 2048, 4096, 2);
  held.Start(*engine.disks[0]);
  rig_.ForSomeTurns();
  EXPECT_FALSE(held.io.done);
  log_.Confirm(log_.Number());
  EXPECT_EQ(engine.disks[0]->Wait(held.io), IoStatus::kOk);
  ExpectNothingIn(log_);
}

TEST_F(TheLogOfADisk, AnOperatorsWordWaitsForAnEngineThatTakesIt) {
  LogFile left;
  {
    Engine killed(rig_, log_);
    killed.Acquire();
    OneWrite first(8192, 4096, 1);
    LeaveUnanswered(killed, first);
    Recover(killed, first);
    OneWrite second(65536, 4096, 1);
    LeaveUnanswered(killed, second);
    left = log_.Copy();
    Recover(killed, second);
    killed.ConfirmDead();
  }
  left.Confirm(left.Number());
  Engine next(rig_, left);
  next.Acquire();
  EXPECT_EQ(next.Write(8192, 4), IoStatus::kOk) << "what the operator could see";
  ExpectHeld(next, 65536);
}

TEST_F(TheLogOfADisk, SoItDoesWhereTheLogIsLost) {
  log_.MarkLost();
  log_.Confirm(log_.Number());
  Engine engine(rig_, log_);
  engine.Acquire();
  EXPECT_EQ(engine.Write(8192, 4), IoStatus::kOk);
  ExpectNothingIn(log_);
}

// The path breaks once more after somebody looked, and before he says what he knows.
TEST_F(TheLogOfADisk, AnOperatorsWordIsNotAboutWhatComesIntoDoubtLater) {
  Engine engine(rig_, log_);
  engine.Acquire();
  OneWrite first(8192, 4096, 1);
  LeaveUnanswered(engine, first);
  Recover(engine, first);
  const uint32_t seen = log_.Number();
  OneWrite second(65536, 4096, 2);
  LeaveUnanswered(engine, second);
  Recover(engine, second);
  log_.Confirm(seen);
  const uint64_t until_ns = rig_.clock.NowNs() + 2 * DiskDoubt::kWordNs;
  rig_.Until([&] { return rig_.clock.NowNs() >= until_ns; });
  EXPECT_EQ(log_.Found()->size(), 2U);
  engine.ConfirmDead();
}

TEST_F(TheLogOfADisk, ThatIsLostPutsTheWholeDiskInDoubt) {
  log_.MarkLost();
  {
    Engine engine(rig_, log_);
    EXPECT_FALSE(log_.Found().ok()) << "opened is not acquired";
    engine.Acquire();
    EXPECT_TRUE(log_.Found().ok());
    ExpectHeld(engine, 8192);
    OneWrite last(NvmfRig::kBytes - 4096, 4096, 5);
    last.Start(*engine.disks[1]);
    EXPECT_EQ(engine.disks[1]->Wait(last.io), IoStatus::kOk);
  }
  ExpectNothingIn(log_);
}

TEST_F(TheLogOfADisk, ThatIsLostIsInDoubtToTheLastBlockAndForTheNextEngineToo) {
  log_.MarkLost();
  {
    Engine engine(rig_, log_);
    engine.Acquire();
  }
  Engine next(rig_, log_);
  next.Acquire();
  OneWrite last(NvmfRig::kBytes - 4096, 4096, 5);
  last.Start(*next.disks[1]);
  rig_.ForSomeTurns();
  EXPECT_FALSE(last.io.done);
  next.ConfirmDead();
  EXPECT_EQ(next.disks[1]->Wait(last.io), IoStatus::kOk);
}

// An upgrade: the next engine opens the disk while the one before still writes.
TEST_F(TheLogOfADisk, IsTakenWhenTheDiskIsAndNotWhenItIsOpened) {
  Engine first(rig_, log_);
  first.Acquire();
  OneWrite under_way(8192, 4096, 1);
  LeaveUnanswered(first, under_way);
  Engine second(rig_, log_);
  OneWrite early(8192, 4096, 2);
  early.Start(*second.disks[1]);
  rig_.ForSomeTurns();
  EXPECT_FALSE(early.io.done) << "written before the disk was acquired";
  Recover(first, under_way);
  first.ConfirmDead();
  ExpectNothingIn(log_);
  first.Release();
  second.Acquire();
  EXPECT_EQ(second.disks[1]->Wait(early.io), IoStatus::kOk);
  EXPECT_EQ(second.Write(8192, 3), IoStatus::kOk);
  second.Release();
  first.Acquire();
  EXPECT_EQ(first.Write(8192, 4), IoStatus::kOk);
  ExpectNothingIn(log_);
}

TEST_F(TheLogOfADisk, WhatIsInDoubtGoesOverWithTheDiskAndStaysInDoubtWhenItComesBack) {
  Engine first(rig_, log_);
  LeaveInDoubtAndRelease(first, 8192);
  Engine second(rig_, log_);
  second.Acquire();
  ExpectHeld(second, 8192);
  second.Release();
  first.Acquire();
  ExpectHeld(first, 8192);
  ExpectNothingIn(log_);
}

// The paths of an engine that takes its disk back, where an upgrade fails, have lived on.
TEST_F(TheLogOfADisk, IsTakenBackByAnEngineWhosePathsLiveOn) {
  Engine first(rig_, log_);
  LeaveInDoubtAndRelease(first, 8192);
  EXPECT_EQ(log_.Lives().size(), 1U) << "of the ghost";
  {
    Engine second(rig_, log_);
    second.Acquire();
    second.Release();
  }
  first.Acquire();
  EXPECT_EQ(log_.Lives().size(), 2U) << "and the one that lives";
  OneWrite other(65536, 4096, 2);
  LeaveUnanswered(first, other);
  Recover(first, other);
  ExpectHeld(first, 8192);
  ExpectNothingIn(log_);
}

// The log is another engine's then: its attempts must not be forgotten by what happens here.
TEST_F(TheLogOfADisk, IsLeftAloneByAnEngineThatHasReleasedTheDisk) {
  Engine first(rig_, log_);
  LeaveInDoubtAndRelease(first, 8192);
  Engine second(rig_, log_);
  second.Acquire();
  const auto before = log_.Found();
  first.ConfirmDead();
  rig_.ForSomeTurns();
  EXPECT_EQ(log_.Found().value(), before.value());
  second.ConfirmDead();
}

TEST_F(TheLogOfADisk, ChannelsThatComeAndGoHaveRowsOfTheirOwn) {
  LogFile left;
  {
    Engine killed(rig_, log_);
    killed.Acquire();
    OneWrite first(8192, 4096, 1);
    LeaveUnanswered(killed, first);
    killed.disks[1].reset();
    for (int round = 0; round < 3; ++round)
      killed.disks[1] = std::make_unique<TestDisk>(*killed.pipeline, *rig_.io[1], [this] { rig_.Turn(); });
    EXPECT_EQ(killed.Write(0, 4, 1), IoStatus::kOk);
    left = log_.Copy();
    Recover(killed, first);
  }
  EXPECT_EQ(left.Found().value(), (std::vector{BlockRange{.first = 8192 / kBlock, .blocks = 4096 / kBlock}}));
}

TEST_F(TheLogOfADisk, OfAReadOnlyDiskIsLeftAsItIs) {
  log_.MarkLost();
  Engine engine(rig_, log_, block::AccessMode::kReadOnly);
  engine.Acquire();
  Arena arena(4096);
  EXPECT_EQ(engine.disks[0]->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_FALSE(log_.Found().ok());
}

TEST_F(TheLogOfADisk, OfAnotherSizeIsRefused) {
  const LogFile small(4096);
  NvmfOptions options = rig_.Options();
  options.doubt_log = small.Duplicate();
  const auto opened = rig_.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(opened.error().message.find("disks/n: its log of writes in doubt has 4096 bytes"),
            std::string::npos)
      << opened.error().message;
}

struct PublishedCount final : DiskDoubtOwner {
  std::vector<LifeId> LivingLives() const override { return {}; }
  void DoubtPublished() override { ++published; }
  int published = 0;
};

// Each request that dies with its path may have something to say, on a reactor that all disks share.
TEST(WhatIsInDoubtOfADisk, IsPublishedOnceATurnHoweverMuchIsReported) {
  constexpr uint64_t kWrites = 128;
  const MonotonicClock clock;
  const auto control = std::move(Reactor::Make(clock, {})).value();
  const LogFile log;
  PublishedCount owner;
  DiskDoubt doubt("disks/n", {}, *control, owner);
  ASSERT_TRUE(doubt.MapLog(log.Duplicate()).ok());
  ASSERT_TRUE(doubt.TryOwn().ok());
  doubt.Take({}, NvmfRig::kBytes, false);
  const uint32_t reactor = doubt.ledger().Joined();
  nvme::host::LifeReport report{.reactor = reactor, .life = 7, .perhaps = {}};
  for (uint64_t i = 0; i < kWrites; ++i) report.perhaps.push_back({.origin = i + 1, .range = {i * 2, 1}});
  owner.published = 0;
  doubt.ledger().Take(report);
  doubt.PublishSoon();
  for (uint64_t i = 0; i < kWrites; ++i) {
    doubt.ledger().Disown(i + 1);
    doubt.PublishSoon();
  }
  EXPECT_EQ(owner.published, 0);
  while (owner.published == 0) control->RunOnce();
  for (int turn = 0; turn < 10; ++turn) control->RunOnce();
  EXPECT_EQ(owner.published, 1);
  EXPECT_EQ(log.Found()->size(), kWrites);
  // What is not yet published when another engine gets the log is in it.
  doubt.ledger().Take({.reactor = reactor, .life = 8, .perhaps = {{.origin = 1000, .range = {1000, 1}}}});
  doubt.PublishSoon();
  doubt.Yield();
  EXPECT_EQ(log.Found()->size(), kWrites + 1);
}

}  // namespace
}  // namespace cleat::modules::nvmf_log_test
