// SPDX-License-Identifier: Apache-2.0
// A scsi unit between the time that its commands were let pass and the time that they have been paid for.
#include <array>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "repeated_reset.h"
#include "tests/unit/scsi/unit_rig.h"

namespace cleat::virtio::repeated_scsi_reset_test {
namespace {

class ScsiReset : public RepeatedReset {};
INSTANTIATE_TEST_SUITE_P(Scsi, ScsiReset, ::testing::Bool(),
                         [](const auto& how) { return how.param ? "OfAGroup" : "OfTheDisk"; });

// As many as there is memory for.
constexpr uint32_t kScsiSlots = GuestLayout::kHighBytes / ScsiSide::kSlotBytes;

// A guest that always has all its slots in the ring, each for a block of its own, counted up; what is answered BUSY is
// tried again.
class ScsiGuest {
 public:
  explicit ScsiGuest(LimitedScsi& limited) : limited_(limited) {
    limited.side().guest.TakeAllUsed();
    for (uint32_t slot = 0; slot < kScsiSlots; ++slot) free_.push_back(slot);
  }
  void Fill() {
    for (; !free_.empty(); free_.pop_front()) {
      uint8_t& lba = lba_of_[free_.front()];
      if (again_.erase(free_.front()) == 0) {
        lba = static_cast<uint8_t>(next_++);
        ++begun_;
      }
      limited_.Offer(free_.front(), WriteCdb(lba, 1));
    }
  }
  void Take() {
    for (const Used& used : limited_.side().guest.TakeAllUsed()) {
      const auto slot = static_cast<uint32_t>(used.id / 4);
      const std::string outcome = limited_.Outcome(slot);
      free_.push_back(slot);
      if (outcome == "busy") {
        again_.insert(slot);
        ++busy_;
      } else {
        EXPECT_EQ(outcome, "good");
        ++done_;
      }
    }
  }
  uint64_t begun() const { return begun_; }
  uint64_t done() const { return done_; }
  uint64_t busy() const { return busy_; }
  // Only what is to be tried again.
  void Retry() {
    std::erase_if(free_, [this](uint32_t slot) { return again_.count(slot) == 0; });
    Fill();
  }

 private:
  LimitedScsi& limited_;
  std::deque<uint32_t> free_;
  std::set<uint32_t> again_;
  std::array<uint8_t, kScsiSlots> lba_of_{};
  uint32_t next_ = 0;
  uint64_t begun_ = 0;
  uint64_t done_ = 0;
  uint64_t busy_ = 0;
};

TEST_P(ScsiReset, OfAScsiDeviceGivesNoMoreThanOneQueueBeyondTheLimits) {
  LimitedScsi limited(by(kIops));
  ScsiGuest guest(limited);
  for (uint64_t ns = 0; ns < kSeconds * kNsPerSecond; ns += kStepNs) {
    guest.Take();
    guest.Fill();
    limited.Wait(kStepNs - LimitedScsi::kTurnNs);
    if (ns % kResetNs == 0) limited.StopAndStart();
  }
  EXPECT_LE(limited.storage().seen.size(), kIops * kSeconds + kScsiSlots + kSlackRequests);
}

TEST_P(ScsiReset, AScsiQueueThatIsPausedLosesNothing) {
  LimitedScsi limited(by(kIops));
  ScsiGuest guest(limited);
  for (uint64_t ns = 0; ns < kSeconds * kNsPerSecond; ns += kStepNs) {
    guest.Take();
    guest.Fill();
    limited.Wait(kStepNs - LimitedScsi::kTurnNs);
    if (ns % (kNsPerSecond / 2) == 0) limited.StopAndStart();
  }
  ExpectHeldToLimits(limited.storage().seen.size(), kScsiSlots);
  EXPECT_GT(guest.busy(), 0U);
  for (uint32_t ms = 0; ms < 2000; ++ms) {
    guest.Take();
    guest.Retry();
    limited.Wait(kNsPerMs);
  }
  EXPECT_EQ(guest.done(), guest.begun());
  EXPECT_EQ(limited.storage().seen.size(), guest.begun());
}

class OwingScsiUnit : public ::testing::Test {
 protected:
  // Ten commands, of which nine are let pass: nine seconds.
  void SetUp() override {
    for (uint32_t slot = 0; slot < 10; ++slot) limited.Offer(slot, WriteCdb(0, 1));
    limited.Turn();
    limited.StopAndStart();
    ASSERT_EQ(Seen(), 10U);
  }
  size_t Seen() { return limited.storage().seen.size(); }

  LimitedScsi limited{{1, false}};
};

TEST_F(OwingScsiUnit, TakesOneCommandAtATime) {
  for (uint32_t slot = 10; slot < 13; ++slot) limited.Offer(slot, WriteCdb(0, 1));
  limited.Offer(13, {0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0);  // SYNCHRONIZE CACHE
  limited.Offer(14, kReadyCdb, 0);
  limited.Turn();
  EXPECT_EQ(limited.Outcome(10), "waiting");
  for (uint32_t slot = 11; slot < 14; ++slot) EXPECT_EQ(limited.Outcome(slot), "busy");
  EXPECT_EQ(limited.Outcome(14), "good");
  limited.Wait(11 * kNsPerSecond);
  EXPECT_EQ(limited.Outcome(10), "good");
  // It has paid: as many as it likes.
  limited.Wait(2 * kNsPerSecond);
  for (uint32_t slot = 1; slot < 4; ++slot) limited.Offer(slot, WriteCdb(0, 1));
  limited.Turn();
  EXPECT_EQ(limited.Outcome(1), "good");
  for (uint32_t slot = 2; slot < 4; ++slot) EXPECT_EQ(limited.Outcome(slot), "waiting");
}

TEST_F(OwingScsiUnit, GetsItsCommandBackWhenTheQueueStopsOnceMore) {
  limited.Offer(10, WriteCdb(0, 1));
  limited.Turn();
  EXPECT_EQ(limited.Outcome(10), "waiting");
  limited.Stop();
  EXPECT_EQ(limited.Outcome(10), "busy");
  EXPECT_EQ(Seen(), 10U);
}

// UNMAP of four ranges waits for the first, COMPARE AND WRITE for its read.
TEST_F(OwingScsiUnit, GetsBackAlsoCommandsOfSeveralSteps) {
  Bytes ranges(8 + 4 * 16);
  ranges[1] = 6 + 4 * 16;
  ranges[3] = 4 * 16;
  for (uint32_t i = 0; i < 4; ++i) {
    ranges[8 + 16 * i + 7] = static_cast<uint8_t>(16 * i);
    ranges[8 + 16 * i + 11] = 8;
  }
  const std::vector<std::pair<Bytes, Bytes>> commands = {
      {{0x42, 0, 0, 0, 0, 0, 0, 0, static_cast<uint8_t>(ranges.size()), 0}, ranges},
      {{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, Bytes(1024, 1)},
      {{0x2e, 0, 0, 0, 0, 0, 0, 0, 1, 0}, Bytes(512, 1)}};
  for (const auto& [cdb, out] : commands) {
    limited.side().Command(10, LunOf(0), cdb, out);
    limited.Turn();
    EXPECT_EQ(limited.Outcome(10), "waiting");
    const uint32_t drained = limited.rig.drained;
    limited.rig.Stop(2);
    limited.rig.Turn();  // COMPARE AND WRITE lets go of the disk on all reactors
    EXPECT_EQ(limited.rig.drained, drained + 1);
    EXPECT_EQ(limited.Outcome(10), "busy");
    EXPECT_EQ(Seen(), 10U);
    limited.rig.Start(2);
  }
}

TEST_F(OwingScsiUnit, IsFreeAtOnceWhenItsLimitIsLifted) {
  limited.SetLimits({});
  for (uint32_t slot = 10; slot < 14; ++slot) limited.Offer(slot, WriteCdb(0, 1));
  limited.Turn();
  for (uint32_t slot = 10; slot < 14; ++slot) EXPECT_EQ(limited.Outcome(slot), "good");
}

// Task management of what is taken back by now has nothing to do, and does not get stuck.
TEST_F(OwingScsiUnit, IsResetAsAlways) {
  limited.Offer(10, WriteCdb(0, 1));
  limited.Turn();
  limited.rig.management().Manage(9, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(0));
  limited.rig.io[0]->Activate(*limited.rig.management().queue);
  limited.rig.Turn();
  EXPECT_EQ(limited.rig.management().Result(9), 0);
  EXPECT_EQ(limited.side().Response(10).response, VIRTIO_SCSI_S_RESET);
  EXPECT_EQ(Seen(), 10U);
}

// Two queues of one reactor: one of them drains, the other one runs.
class OwingUnitChannel : public ::testing::Test {
 protected:
  OwingUnitChannel() {
    rig.unit.reset();
    rig.channel.reset();
    auto below = std::make_unique<scsi::TestDevice>(rig.disk, rig.geometry);
    rig.pipeline = block::Pipeline::Make(LimitedBy{1, false}.Over(std::move(below), rig.clock.NowNs()),
                                         block::AccessMode::kReadWrite)
                       .value();
    rig.channel = rig.pipeline->OpenChannel(*rig.reactor).value();
    rig.unit = std::make_unique<scsi::UnitChannel>(*rig.reactor, rig.logical_unit, *rig.channel, rig.geometry,
                                                   rig.memory);
    EXPECT_NE(rig.Run(kReadyCdb), "running");  // takes the unit attention
    rig.disk.hold = true;
  }
  scsi::TestCommand& Execute(const Bytes& cdb) {
    rig.unit->Execute(commands.emplace_back(cdb, Bytes(512, 1)));
    return commands.back();
  }
  size_t seen() const { return rig.disk.seen.size(); }
  static Bytes WriteAndVerify() { return {0x2e, 0, 0, 0, 0, 0, 0, 0, 1, 0}; }

  std::deque<scsi::TestCommand> commands;
  scsi::UnitRig rig;
};

TEST_F(OwingUnitChannel, LetsNothingNewPassWhileAQueueDrains) {
  for (uint32_t i = 0; i < 3; ++i) Execute(WriteCdb(0, 1));
  EXPECT_EQ(seen(), 1U);
  rig.unit->BypassLimits(true);
  EXPECT_EQ(seen(), 3U);
  EXPECT_EQ(Execute(WriteCdb(0, 1)).Outcome(), "busy");
  while (rig.disk.CompleteOne()) {
  }
  rig.unit->BypassLimits(false);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(commands[i].Outcome(), "good");
}

TEST_F(OwingUnitChannel, TakesNoFurtherStepOfWhatTheStorageHas) {
  for (uint32_t i = 0; i < 2; ++i) Execute(WriteAndVerify());
  const scsi::TestCommand& plain = Execute(WriteCdb(0, 1));
  rig.unit->BypassLimits(true);
  rig.unit->BypassLimits(false);
  EXPECT_EQ(seen(), 3U);
  rig.unit->BypassLimits(true);
  while (rig.disk.CompleteOne()) {
  }
  rig.unit->BypassLimits(false);
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(commands[i].Outcome(), "busy");
  EXPECT_EQ(plain.Outcome(), "good");  // it was carried out
  EXPECT_EQ(seen(), 3U);
}

TEST_F(OwingUnitChannel, AbortsWhatWasToBeTakenBack) {
  for (uint32_t i = 0; i < 2; ++i) Execute(WriteAndVerify());
  rig.unit->BypassLimits(true);
  rig.unit->BypassLimits(false);
  rig.unit->BypassLimits(true);
  Spawn(rig.unit->Quiesce(scsi::Abort::kReset, std::nullopt));
  while (rig.disk.CompleteOne()) {
  }
  rig.unit->BypassLimits(false);
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(commands[i].Outcome(), "aborted");
}

}  // namespace
}  // namespace cleat::virtio::repeated_scsi_reset_test
