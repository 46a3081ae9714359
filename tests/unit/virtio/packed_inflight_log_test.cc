// SPDX-License-Identifier: Apache-2.0
// The packed in-flight log: the specification's bytes, what a successor makes of it, and the claim of its header taken
// at its word - a process that serves a ring is stopped between any two machine instructions.
#include "virtio/packed_inflight_log.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "guest_ring.h"
#include "single_step.h"
#include "virtio/packed_ring.h"

namespace cleat::virtio::packed_inflight_log_test {
namespace {

// As the specification writes them.
struct DescStatePacked {
  uint8_t inflight;
  uint8_t padding;
  uint16_t next, last, num;
  uint64_t counter;
  uint16_t id, flags;
  uint32_t len;
  uint64_t addr;
};
struct QueueRegionPacked {
  uint64_t features;
  uint16_t version, desc_num, free_head, old_free_head, used_idx, old_used_idx;
  uint8_t used_wrap_counter, old_used_wrap_counter;
  uint8_t padding[7];
  DescStatePacked desc[5];
};
static_assert(sizeof(QueueRegionPacked) == PackedInflightLog::Bytes(5));

constexpr uint16_t kSize = 5;
constexpr PackedIndex kStart{3, true};  // so that the indices wrap in the middle

// Shared by the process that is stopped and the one that judges.
struct Shared {
  alignas(64) uint8_t descriptors[DescriptorBytes(kSize)];
  alignas(64) uint8_t driver_event[kEventSuppressionBytes];
  alignas(64) uint8_t device_event[kEventSuppressionBytes];
  alignas(64) QueueRegionPacked log;
  // Told by the serving process: how many requests it has submitted, and made ready to be submitted.
  std::atomic<uint32_t> submitted;

  RingMemory ring() { return {kSize, descriptors, driver_event, device_event, 0, 0}; }
  InflightMemory memory() { return {reinterpret_cast<uint8_t*>(&log), sizeof(log), nullptr}; }
};

// The guest's part: chains of these lengths with these ids, each offered when there is room, in this order...
struct Request {
  uint16_t id;
  uint16_t length;
};
constexpr Request kRequests[] = {{4, 1}, {2, 2}, {0, 1}, {4, 1}, {3, 2}, {2, 1}, {0, 1}};
// ...and so they are served: so many fetched, then these given back (positions in kRequests), some at once.
struct Step {
  uint32_t offer;
  uint32_t submit;
  std::vector<uint32_t> give_back;
};
const std::vector<Step>& Steps() {
  static const std::vector<Step> steps = {{3, 3, {2, 0}}, {2, 1, {3, 1}}, {0, 1, {4}}, {2, 2, {6, 5}}};
  return steps;
}

void Offer(Shared& shared, const Request& request, PackedIndex& at) {
  for (uint16_t i = 0; i < request.length; ++i) {
    const uint64_t flags = PackedAvailableBits(at.wrap) | (i + 1 < request.length ? kDescNext : 0);
    const uint64_t words[2] = {0x1000 + uint64_t{i}, 16 | uint64_t{request.id} << 32 | flags << 48};
    std::memcpy(shared.descriptors + kDescriptorBytes * at.index, words, sizeof(words));
    at.Advance(1, kSize);
  }
}

bool Serve(Shared& shared, PackedInflightLog& log, PackedRing& ring) {
  PackedIndex guest = kStart;
  uint32_t offered = 0;
  uint32_t submitted = 0;
  for (const Step& step : Steps()) {
    for (uint32_t i = 0; i < step.offer; ++i) Offer(shared, kRequests[offered++], guest);
    for (uint32_t i = 0; i < step.submit; ++i) {
      uint16_t id = 0;
      if (ring.Available() == 0 || !ring.TakeHead(id) || id != kRequests[submitted].id) return false;
      log.Fetched(id, ring.taken());
      shared.submitted.store(++submitted, std::memory_order_release);
    }
    for (const uint32_t position : step.give_back) ring.Push(kRequests[position].id, 1);
    ring.Publish();
  }
  return ring.fault().empty();
}

// How many chains the guest has got back: what it would find, going from used descriptor to used descriptor. Where a
// descriptor was made available again is as good as used.
std::vector<uint32_t> GivenBack() {
  std::vector<uint32_t> positions;
  for (const Step& step : Steps())
    positions.insert(positions.end(), step.give_back.begin(), step.give_back.end());
  return positions;
}

struct Successor {
  std::vector<uint16_t> in_flight;
  PackedPosition position;
};
std::optional<Successor> Succeed(Shared& copy) {
  PackedInflightLog log;
  const auto position = log.Attach(copy.memory(), copy.ring(), {});
  if (!position) return std::nullopt;
  return Successor{log.InFlight(), *position};
}

// What a successor finds, judged on a copy. It has to be the state after a whole number of steps: some requests
// submitted, some of them acknowledged in the order of GivenBack(), and the ring's used descriptors agree.
::testing::AssertionResult Judge(const Shared& shared) {
  auto copy = std::make_unique<Shared>();
  std::memcpy(static_cast<void*>(copy.get()), &shared, sizeof(Shared));
  const uint32_t submitted = shared.submitted.load(std::memory_order_acquire);
  const auto found = Succeed(*copy);
  if (!found) return ::testing::AssertionFailure() << "the successor refuses the log";
  // Cut short and begun again it comes to the same.
  const auto again = Succeed(*copy);
  if (!again || again->in_flight != found->in_flight || again->position != found->position) {
    return ::testing::AssertionFailure() << "a second successor finds something else";
  }

  // The used position says how many were acknowledged; the descriptor there must not say that one more was.
  const std::vector<uint32_t> order = GivenBack();
  PackedIndex used = kStart;
  size_t acknowledged = 0;
  while (used != found->position.used) {
    if (acknowledged == order.size())
      return ::testing::AssertionFailure() << "a used position out of the blue";
    used.Advance(kRequests[order[acknowledged++]].length, kSize);
  }
  uint16_t flags = 0;
  std::memcpy(&flags, shared.descriptors + kDescriptorBytes * used.index + 14, sizeof(flags));
  if ((flags & (kDescAvail | kDescUsed)) == PackedUsedBits(used.wrap)) {
    return ::testing::AssertionFailure() << "the guest has seen one more than the log has";
  }

  std::vector<uint16_t> expected;
  uint32_t descriptors = 0;
  const auto done_end = order.begin() + static_cast<std::ptrdiff_t>(acknowledged);
  for (uint32_t i = 0; i < submitted; ++i) {
    if (std::find(order.begin(), done_end, i) != done_end) continue;
    expected.push_back(kRequests[i].id);
    descriptors += kRequests[i].length;
  }
  // The request after the last submitted one may be in the log already (it was fetched), and nothing else.
  if (found->in_flight != expected && submitted < std::size(kRequests)) {
    expected.push_back(kRequests[submitted].id);
    descriptors += kRequests[submitted].length;
  }
  if (found->in_flight == expected && found->position.InUse(kSize) == descriptors) {
    return ::testing::AssertionSuccess();
  }
  auto failure = ::testing::AssertionFailure() << "submitted " << submitted << ", acknowledged "
                                               << acknowledged << ", in flight in the log:";
  for (const uint16_t id : found->in_flight) failure << " " << id;
  return failure;
}

TEST(PackedInflightLogKillTest, SoundBetweenAnyTwoInstructions) {
  void* mapping = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  auto& shared = *new (mapping) Shared{};
  // As if the descriptors before the first one had been used already.
  const uint16_t used = PackedUsedBits(true);
  for (uint16_t i = 0; i < kStart.index; ++i)
    std::memcpy(shared.descriptors + 16 * i + 14, &used, sizeof(used));
  PackedInflightLog log;
  ASSERT_TRUE(log.Attach(shared.memory(), shared.ring(), {kStart, kStart}).ok());
  DirtyLog dirty_log;
  PackedRing ring;
  ring.Start(shared.ring(), 0, {kStart, kStart}, &dirty_log, &log);
  Steps();
  StepThrough([&] { return Serve(shared, log, ring); }, [&] { return Judge(shared); });
  if (!::testing::Test::IsSkipped()) {
    EXPECT_EQ(shared.submitted.load(), std::size(kRequests));
  }
  munmap(mapping, sizeof(Shared));
}

// ---- The log alone

class PackedInflightLogTest : public ::testing::Test {
 protected:
  Result<PackedPosition> Attach(PackedPosition position = {kStart, kStart}) {
    return log.Attach(shared.memory(), shared.ring(), position);
  }
  void Fetch(uint16_t id, uint16_t length) {
    const std::vector<Descriptor> chain(length,
                                        {0x1234, 16 | uint64_t{id} << 32 | uint64_t{kDescWrite} << 48});
    log.Fetched(id, chain);
  }
  std::string RefusalOf(const std::function<void(QueueRegionPacked&)>& spoil) {
    shared.log = {};
    CLEAT_CHECK(Attach().ok());
    Fetch(1, 2);
    spoil(shared.log);
    const auto attached = Attach();
    EXPECT_FALSE(log.enabled() && !attached.ok());
    return attached.ok() ? "taken" : attached.error().message;
  }
  Shared shared{};
  PackedInflightLog log;
};

TEST_F(PackedInflightLogTest, PreparesAFreshOne) {
  const auto position = Attach();
  ASSERT_TRUE(position.ok());
  EXPECT_EQ(*position, (PackedPosition{kStart, kStart}));
  EXPECT_EQ(shared.log.version, 1);
  EXPECT_EQ(shared.log.desc_num, kSize);
  EXPECT_EQ(shared.log.free_head, 0);
  EXPECT_EQ(shared.log.used_idx, 3);
  EXPECT_EQ(shared.log.old_used_idx, 3);
  EXPECT_EQ(shared.log.used_wrap_counter, 1);
  EXPECT_EQ(shared.log.old_used_wrap_counter, 1);
  EXPECT_EQ(shared.log.desc[0].next, 1);
}

TEST_F(PackedInflightLogTest, WritesTheSpecificationsFields) {
  ASSERT_TRUE(Attach().ok());
  Fetch(4, 2);
  Fetch(1, 1);
  const DescStatePacked& head = shared.log.desc[0];
  EXPECT_EQ(head.inflight, 1);
  EXPECT_EQ(head.num, 2);
  EXPECT_EQ(head.last, 1);
  EXPECT_EQ(head.counter, 0U);
  EXPECT_EQ(head.addr, 0x1234U);
  EXPECT_EQ(head.len, 16U);
  EXPECT_EQ(head.flags, kDescWrite);
  EXPECT_EQ(shared.log.desc[1].id, 4);
  EXPECT_EQ(shared.log.desc[2].counter, 1U);
  EXPECT_EQ(shared.log.free_head, 3);
  EXPECT_EQ(shared.log.old_free_head, 3);
  EXPECT_EQ(log.InFlight(), (std::vector<uint16_t>{4, 1}));

  log.Using(4, {0, false});
  EXPECT_EQ(shared.log.used_idx, 0);
  EXPECT_EQ(shared.log.used_wrap_counter, 0);
  EXPECT_EQ(shared.log.old_used_idx, 3);
  EXPECT_EQ(shared.log.old_used_wrap_counter, 1);
  EXPECT_EQ(shared.log.free_head, 0);
  EXPECT_EQ(shared.log.desc[1].next, 3);
  EXPECT_EQ(shared.log.old_free_head, 3);
  log.Used(4);
  EXPECT_EQ(shared.log.old_used_idx, 0);
  EXPECT_EQ(shared.log.old_used_wrap_counter, 0);
  EXPECT_EQ(shared.log.old_free_head, 0);
  EXPECT_EQ(shared.log.desc[0].inflight, 0);
  EXPECT_EQ(log.InFlight(), (std::vector<uint16_t>{1}));
}

TEST_F(PackedInflightLogTest, TheSuccessorGoesOnBehindWhatIsInFlight) {
  ASSERT_TRUE(Attach().ok());
  Fetch(4, 2);
  Fetch(1, 1);
  PackedInflightLog successor;
  const auto position = successor.Attach(shared.memory(), shared.ring(), {});
  ASSERT_TRUE(position.ok()) << position.error().message;
  EXPECT_EQ(*position, (PackedPosition{{1, false}, kStart}));
  EXPECT_EQ(successor.InFlight(), (std::vector<uint16_t>{4, 1}));
}

TEST_F(PackedInflightLogTest, RefusesWhatMakesNoSense) {
  using Log = QueueRegionPacked;
  EXPECT_EQ(RefusalOf([](Log&) {}), "taken");
  EXPECT_NE(RefusalOf([](Log& l) { l.version = 9; }).find("version 9"), std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.desc_num = 4; }).find("made for a queue of 4"), std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.old_used_idx = 5; }).find("outside of the ring"), std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.desc[0].num = 0; }).find("lists are broken"), std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.desc[0].num = 3; }).find("lists are broken"), std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.desc[1].next = l.desc[0].next = 0; }).find("lists are broken"),
            std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.desc[3].next = 2; }).find("lists are broken"), std::string::npos);
  EXPECT_NE(RefusalOf([](Log& l) { l.desc[1].id = 77; }).find("buffer id 77"), std::string::npos);
  const InflightMemory small{reinterpret_cast<uint8_t*>(&shared.log), 32 + 32 * 4, nullptr};
  EXPECT_FALSE(log.Attach(small, shared.ring(), {}).ok());
}

}  // namespace
}  // namespace cleat::virtio::packed_inflight_log_test
