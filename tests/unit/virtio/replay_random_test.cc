// SPDX-License-Identifier: Apache-2.0
// Random requests, completions in any order, and deaths at any moment between two operations, from a seed. In each life
// the storage has to see exactly the requests that the guest has no answer for, in the order in which the guest made
// them - those that were in flight first, then the new ones - each once; and the guest gets each answer once.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <vector>

#include "base/random.h"
#include "blk_rig.h"
#include "kill.h"
#include "virtio/inflight_log.h"

namespace cleat::virtio::replay_random_test {
namespace {

// Sanitizers take ten to fifty times as long, and look for something else.
#if defined(CLEAT_ASAN) || defined(CLEAT_TSAN)
constexpr uint64_t kSeeds = 10;
constexpr uint64_t kBrokenLogs = 80;
#else
constexpr uint64_t kSeeds = 60;
constexpr uint64_t kBrokenLogs = 400;
#endif
constexpr uint64_t kRequestsMax = BlkRig::kSectors;  // each has a sector of its own

class Lives {
 public:
  Lives(uint64_t seed, bool packed)
      : random_(seed),
        packed_(packed),
        rig_(BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr, packed) {
    for (uint32_t slot = 0; slot < BlkRig::kSlots; ++slot) free_.push_back(slot);
    rig_.storage->hold = true;
    first_ = rig_.Setup();
    first_.inflight = log_.memory();
    if (packed_) {
      const PackedIndex start{static_cast<uint16_t>(random_.Below(BlkRig::kSize)), random_.Chance(1, 2)};
      rig_.packed_guest.StartAt(start);
      first_.next_available = PackedPosition{start, start}.word();
    } else {
      const auto start = static_cast<uint16_t>(65536 - random_.Below(300));
      rig_.guest.StartAt(start);
      first_.next_available = start;
    }
    rig_.Start(first_);
  }
  ~Lives() {
    if (rig_.running) rig_.StopAndDrain();
  }

  void Steps(int count) {
    for (int step = 0; step < count && !::testing::Test::HasFatalFailure(); ++step) Step();
    // Whatever is left comes to its end.
    for (int turn = 0; turn < 200 && !::testing::Test::HasFatalFailure() && !unanswered_.empty(); ++turn) {
      rig_.Turn(1);
      CompleteSome(BlkRig::kSlots);
      TakeUsed();
    }
    CheckSeen();
    EXPECT_TRUE(unanswered_.empty());
    EXPECT_TRUE(rig_.broken.empty()) << rig_.broken.front();
    EXPECT_GT(deaths_, 0U);
    EXPECT_GT(run_again_, 0U);
  }

 private:
  void Step() {
    switch (random_.Below(12)) {
      case 0:
      case 1:
      case 2:
        return OfferSome();
      case 3:
      case 4:
      case 5:
        rig_.Turn(1);
        return CheckSeen();
      case 6:
      case 7:
      case 8:
        return CompleteSome(random_.Below(6));
      case 9:
      case 10:
        return TakeUsed();
      default:
        return random_.Chance(1, 3) ? Die() : random_.Chance(1, 10) ? StopAndGoOn() : void();
    }
  }

  void OfferSome() {
    for (uint64_t n = random_.Below(8); n > 0 && !free_.empty() && next_ < kRequestsMax; --n) {
      const size_t pick = random_.Below(free_.size());
      const uint32_t slot = free_[pick];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(pick));
      Offer(slot, next_);
      by_slot_[slot] = next_;
      unanswered_.push_back(next_);
      to_be_seen_.push_back(next_++);
    }
  }
  void Offer(uint32_t slot, uint64_t sector) {
    if (random_.Chance(1, 2)) return rig_.Write(slot, sector, 512, 1);
    rig_.PutHeader(slot, VIRTIO_BLK_T_OUT, sector);
    std::vector<Desc> descs = {{BlkRig::HeaderAt(slot), 16}};
    uint32_t left = 512;
    for (uint64_t at = BlkRig::DataAt(slot); left > 0; at += 700) {
      const auto bytes = static_cast<uint32_t>(random_.Between(1, left));
      descs.push_back({at, bytes});
      left -= bytes;
    }
    descs.push_back({BlkRig::StatusAt(slot), 1, kDescWrite});
    rig_.SetIndirectChain(BlkRig::HeadOf(slot), BlkRig::DataAt(slot) + 16384 - 512 * 16, descs);
    rig_.OfferHead(BlkRig::HeadOf(slot));
  }

  // The storage has seen the next ones of those that it had to, and nothing else.
  void CheckSeen() {
    for (const auto& seen : rig_.storage->seen) {
      ASSERT_FALSE(to_be_seen_.empty()) << "request " << seen.offset / 512 << " is run once more";
      ASSERT_EQ(seen.offset / 512, to_be_seen_.front());
      to_be_seen_.pop_front();
    }
    rig_.storage->seen.clear();
  }
  void CompleteSome(uint64_t count) {
    for (; count > 0 && !rig_.storage->held.empty(); --count) {
      for (uint64_t turn = random_.Below(8); turn > 0; --turn) {
        rig_.storage->held.PushBack(*rig_.storage->held.PopFront());
      }
      rig_.storage->CompleteOne();
    }
  }
  void TakeUsed() {
    for (const Used& used : rig_.TakeAllUsed()) {
      const uint32_t slot = used.id / 3;
      const auto it = by_slot_.find(slot);
      ASSERT_NE(it, by_slot_.end()) << "an answer to nothing in slot " << slot;
      ASSERT_EQ(rig_.StatusOf(slot), VIRTIO_BLK_S_OK);
      ASSERT_EQ(std::erase(unanswered_, it->second), 1U);
      by_slot_.erase(it);
      free_.push_back(slot);
    }
  }

  void Die() {
    CheckSeen();
    Moment moment(rig_.memory, log_);
    rig_.StopAndDrain();
    moment.Restore();
    ++deaths_;
    rig_.storage->seen.clear();
    rig_.storage->hold = true;
    rig_.queue = rig_.model->OpenQueue(*rig_.reactor, 0).value();
    TakeUsed();  // what the dead one had shown is answered
    const size_t never_seen = to_be_seen_.size();
    to_be_seen_.assign(unanswered_.begin(), unanswered_.end());
    run_again_ += to_be_seen_.size() - never_seen;
    if (random_.Chance(1, 2)) OfferSome();  // with nobody there to see it
    QueueSetup setup = rig_.Setup();
    setup.inflight = log_.memory();
    // A split ring: the used index, as QEMU has it, or something made up. A packed one's front end knows nothing.
    setup.next_available = packed_                ? first_.next_available
                           : random_.Chance(1, 2) ? rig_.guest.used_index()
                                                  : static_cast<uint32_t>(random_.Below(65536));
    rig_.Start(setup);
  }
  // A stop in good order, perhaps in the middle of running things again.
  void StopAndGoOn() {
    rig_.StopAndDrain();
    CheckSeen();
    TakeUsed();
    ASSERT_EQ(unanswered_.size(), to_be_seen_.size());
    rig_.storage->hold = true;
    QueueSetup setup = rig_.Setup();
    setup.inflight = log_.memory();
    setup.next_available = rig_.queue->next_available();
    if (random_.Chance(1, 2)) ForgetInflight(log_.memory());
    rig_.Start(setup);
    if (packed_) first_.next_available = setup.next_available;
  }

  Random random_;
  const bool packed_;
  BlkRig rig_;
  LogMemory log_{BlkRig::kSize};
  QueueSetup first_;
  std::vector<uint32_t> free_;
  std::map<uint32_t, uint64_t> by_slot_;
  uint64_t next_ = 0;
  std::deque<uint64_t> unanswered_;  // in the order in which they were made
  std::deque<uint64_t> to_be_seen_;  // by the storage in this life
  uint64_t deaths_ = 0;
  uint64_t run_again_ = 0;
};

class ReplayRandomTest : public ::testing::TestWithParam<bool> {};

TEST_P(ReplayRandomTest, ExactlyWhatIsUnansweredIsRunAgain) {
  for (uint64_t seed = 1; seed <= kSeeds && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Lives(seed, GetParam()).Steps(1500);
  }
}

// Whatever somebody has done to the log, and to the guest's descriptors: the ring may break, nothing else does.
TEST_P(ReplayRandomTest, AnyLogIsSurvived) {
  uint32_t broken = 0;
  uint32_t served = 0;
  for (uint64_t seed = 1; seed <= kBrokenLogs; ++seed) {
    Random random(seed);
    BlkRig rig(BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr, GetParam());
    LogMemory log(BlkRig::kSize);
    QueueSetup setup = rig.Setup();
    setup.inflight = log.memory();
    rig.storage->hold = true;
    rig.Start(setup);
    for (uint32_t slot = 0; slot < 12; ++slot) rig.Write(slot, slot, 512, 1);
    rig.Turn();
    for (uint64_t n = random.Below(6); n > 0; --n) rig.storage->CompleteOne();
    rig.Turn();
    Moment moment(rig.memory, log);
    rig.StopAndDrain();
    moment.Restore();

    for (uint64_t n = random.Between(1, 6); n > 0; --n) {
      const bool descriptors = random.Chance(1, 3);
      // Mostly among the entries that are in use.
      const uint64_t bytes = descriptors ? DescriptorBytes(BlkRig::kSize) : random.Chance(1, 2) ? 32 : 600;
      uint8_t* at = descriptors ? rig.memory.At(GuestLayout::kDescriptors) : log.bytes();
      at[random.Below(bytes)] = static_cast<uint8_t>(random.Chance(1, 2) ? random.Below(4) : random.Next());
    }
    rig.queue = rig.model->OpenQueue(*rig.reactor, 0).value();
    if (!GetParam()) setup.next_available = rig.guest.used_index();
    rig.storage->hold = random.Chance(1, 2);
    rig.Start(setup);
    rig.Turn();
    rig.storage->CompleteAll();
    rig.Turn();
    ++(rig.broken.empty() ? served : broken);
    rig.StopAndDrain();
  }
  EXPECT_GT(broken, 20U);
  EXPECT_GT(served, 20U);
}

INSTANTIATE_TEST_SUITE_P(Rings, ReplayRandomTest, ::testing::Bool(),
                         [](const auto& ring) { return ring.param ? "Packed" : "Split"; });

}  // namespace
}  // namespace cleat::virtio::replay_random_test
