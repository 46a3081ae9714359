// SPDX-License-Identifier: Apache-2.0
// A process that serves a ring, or takes one over, is stopped between any two machine instructions. Whenever a store
// has changed what a successor would find, one is let loose on a copy: it has to run exactly the requests for which the
// guest has no answer, in their order, and the guest has to have one answer to each in the end.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "blk_rig.h"
#include "kill.h"
#include "single_step.h"

namespace cleat::virtio::replay_step_test {
namespace {

constexpr uint32_t kRequests = 6;
constexpr size_t kMemoryBytes = GuestLayout::kLowBytes + GuestLayout::kHighBytes + (64 << 10);
constexpr size_t kLogBytes = 32 + 32 * BlkRig::kSize;

class ReplayStepTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
#ifdef CLEAT_TSAN
    GTEST_SKIP() << "one thread, single-stepped: minutes for ThreadSanitizer, and nothing that it could find";
#endif
  }

  ReplayStepTest() {
    void* mapped =
        mmap(nullptr, kMemoryBytes + kLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CLEAT_CHECK(mapped != MAP_FAILED);
    memory_ = static_cast<uint8_t*>(mapped);
  }
  ~ReplayStepTest() override { munmap(memory_, kMemoryBytes + kLogBytes); }
  bool packed() const { return GetParam(); }
  uint8_t* log() { return memory_ + kMemoryBytes; }

  std::unique_ptr<BlkRig> Rig(uint8_t* memory) {
    auto rig = std::make_unique<BlkRig>(BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr,
                                        packed(), memory);
    rig->storage->hold = true;
    return rig;
  }
  // The guest begins near the end of its indices, and asks for all that it will ask for.
  void PlayGuest(BlkRig& rig) {
    if (packed()) {
      rig.packed_guest.StartAt({BlkRig::kSize - 7, true});
    } else {
      rig.guest.StartAt(65533);
    }
    for (uint32_t slot = 0; slot < kRequests; ++slot) rig.Write(slot, slot, 512, 1);
  }
  QueueSetup SetupOf(BlkRig& rig, uint8_t* log_bytes) {
    QueueSetup setup = rig.Setup();
    setup.inflight = {log_bytes, kLogBytes, nullptr};
    constexpr PackedIndex kPackedAt{BlkRig::kSize - 7, true};
    setup.next_available = packed() ? PackedPosition{kPackedAt, kPackedAt}.word() : rig.guest.used_index();
    return setup;
  }
  static void CompleteOne(BlkRig& rig, uint32_t which) {
    while (which-- > 0) rig.storage->held.PushBack(*rig.storage->held.PopFront());
    rig.storage->CompleteOne();
  }
  // Answers out of order, alone and in batches.
  static bool Serve(BlkRig& rig) {
    rig.queue->Poll();
    CompleteOne(rig, 3);
    CompleteOne(rig, 1);
    rig.queue->Poll();
    CompleteOne(rig, 1);
    rig.queue->Poll();
    while (rig.storage->CompleteOne()) {
    }
    rig.queue->Poll();
    return rig.queue->in_flight() == 0;
  }

  // Whether anything that a successor goes by has changed since the last time.
  bool Changed(BlkRig& rig) {
    const RingMemory ring = packed() ? rig.packed_guest.memory() : rig.guest.memory();
    std::vector<uint8_t> now(log(), log() + kLogBytes);
    now.insert(now.end(), ring.descriptors, ring.descriptors + DescriptorBytes(BlkRig::kSize));
    if (!packed()) now.insert(now.end(), ring.used, ring.used + UsedBytes(BlkRig::kSize));
    const bool changed = now != last_;
    last_ = std::move(now);
    return changed;
  }
  static std::set<uint32_t> Answered(BlkRig& rig) {
    std::set<uint32_t> slots;
    for (const Used& used : rig.TakeAllUsed()) slots.insert(used.id / 3);
    return slots;
  }
  ::testing::AssertionResult Judge(BlkRig& served) {
    if (!Changed(served)) return ::testing::AssertionSuccess();
    ++judged_;
    auto rig = Rig(nullptr);
    PlayGuest(*rig);
    const auto from = served.memory.map()->entries();
    const auto to = rig->memory.map()->entries();
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i].region->base(), from[i].region->base(), from[i].region->size_bytes());
    }
    LogMemory log_copy(BlkRig::kSize);
    std::memcpy(log_copy.bytes(), log(), kLogBytes);
    std::set<uint32_t> answered = Answered(*rig);

    QueueSetup setup = SetupOf(*rig, log_copy.bytes());
    rig->Start(setup);
    rig->Turn();
    std::vector<uint64_t> expected;
    for (uint32_t slot = 0; slot < kRequests; ++slot) {
      if (!answered.contains(slot)) expected.push_back(slot);
    }
    std::vector<uint64_t> seen;
    for (const auto& request : rig->storage->seen) seen.push_back(request.offset / 512);
    if (!rig->broken.empty()) return ::testing::AssertionFailure() << rig->broken.front();
    if (seen != expected) {
      return ::testing::AssertionFailure() << "unanswered: " << ::testing::PrintToString(expected)
                                           << ", run: " << ::testing::PrintToString(seen);
    }
    rig->storage->CompleteAll();
    rig->Turn();
    const std::set<uint32_t> now = Answered(*rig);
    if (now.size() != expected.size()) return ::testing::AssertionFailure() << now.size() << " answers";
    for (const uint32_t slot : now) {
      if (!answered.insert(slot).second) return ::testing::AssertionFailure() << "answered twice: " << slot;
    }
    return ::testing::AssertionSuccess();
  }

  uint8_t* memory_ = nullptr;
  std::vector<uint8_t> last_;
  uint32_t judged_ = 0;
};

TEST_P(ReplayStepTest, ServingCanBeCutShortAnywhere) {
  auto rig = Rig(memory_);
  PlayGuest(*rig);
  rig->Start(SetupOf(*rig, log()));
  StepThrough([&] { return Serve(*rig); }, [&] { return Judge(*rig); });
  if (!IsSkipped()) {
    EXPECT_GT(judged_, 25U);
  }
}

TEST_P(ReplayStepTest, TakingOverCanBeCutShortAnywhere) {
  {
    auto rig = Rig(nullptr);
    PlayGuest(*rig);
    rig->Start(SetupOf(*rig, log()));
    rig->queue->Poll();
    CompleteOne(*rig, 2);
    rig->queue->Poll();
    CompleteOne(*rig, 0);  // not yet shown
    uint8_t* at = memory_;
    for (const block::MemoryMap::Entry& entry : rig->memory.map()->entries()) {
      const uint64_t bytes = entry.region->size_bytes();
      std::memcpy(at, entry.region->base(), bytes);
      at += (bytes + 63) / 64 * 64;
    }
    const std::vector<uint8_t> log_then(log(), log() + kLogBytes);
    rig->StopAndDrain();
    std::ranges::copy(log_then, log());
  }
  auto rig = Rig(memory_);
  StepThrough(
      [&] {
        rig->Start(SetupOf(*rig, log()));
        return Serve(*rig);
      },
      [&] { return Judge(*rig); });
  if (!IsSkipped()) {
    EXPECT_GT(judged_, 25U);
  }
}

INSTANTIATE_TEST_SUITE_P(Rings, ReplayStepTest, ::testing::Bool(),
                         [](const auto& ring) { return ring.param ? "Packed" : "Split"; });

}  // namespace
}  // namespace cleat::virtio::replay_step_test
