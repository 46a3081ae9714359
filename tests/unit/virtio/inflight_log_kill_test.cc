// SPDX-License-Identifier: Apache-2.0
// The claim of inflight_log.h, taken at its word: a process that serves a ring is stopped between any two
// machine instructions, and what a successor would find is judged each time. No acknowledged request may be
// in flight in the log, and every request that was submitted and not acknowledged has to be.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <vector>

#include "guest_ring.h"
#include "single_step.h"
#include "virtio/inflight_log.h"
#include "virtio/split_ring.h"

namespace cleat::virtio::inflight_log_kill_test {
namespace {

constexpr uint16_t kSize = 8;
constexpr uint16_t kStart = 65533;  // so that the indices wrap in the middle

// Shared by the process that is stopped and the one that judges.
struct Shared {
  alignas(64) uint8_t descriptors[DescriptorBytes(kSize)];
  alignas(64) uint8_t available[AvailableBytes(kSize)];
  alignas(64) uint8_t used[UsedBytes(kSize)];
  alignas(64) uint8_t log[InflightLog::Bytes(kSize)];
  // Told by the serving process: how many requests it has submitted, in the order of `kRequests`.
  std::atomic<uint32_t> submitted;
};

// What is served: these heads are fetched in this order...
constexpr uint16_t kRequests[] = {5, 2, 7, 0, 5, 3};
// ...and given back so, a batch a row (positions in kRequests), some requests staying in flight.
struct Step {
  uint32_t submit;
  std::vector<uint32_t> give_back;
};
const std::vector<Step>& Steps() {
  static const std::vector<Step> steps = {{3, {2, 0}}, {2, {3}}, {1, {4, 5, 1}}};
  return steps;
}

void PutAvailable(Shared& shared) {
  uint16_t index = kStart;
  for (const uint16_t head : kRequests) {
    std::memcpy(shared.available + kRingElementsAt + 2 * (index % kSize), &head, sizeof(head));
    ++index;
  }
  std::memcpy(shared.available + kRingIndexAt, &index, sizeof(index));
  std::memcpy(shared.used + kRingIndexAt, &kStart, sizeof(kStart));
}

bool Serve(Shared& shared, InflightLog& log, SplitRing& ring) {
  uint32_t submitted = 0;
  for (const Step& step : Steps()) {
    for (uint32_t i = 0; i < step.submit; ++i) {
      uint16_t head = 0;
      if (ring.Available() == 0 || !ring.TakeHead(head)) return false;
      log.Fetched(head);
      shared.submitted.store(++submitted, std::memory_order_release);
    }
    for (const uint32_t position : step.give_back) {
      log.Used(kRequests[position]);
      ring.Push(kRequests[position], 1);
    }
    ring.Publish();
    log.Published(ring.shown_index());
  }
  return true;
}

std::vector<uint16_t> GivenBack() {
  std::vector<uint16_t> heads;
  for (const Step& step : Steps()) {
    for (const uint32_t position : step.give_back) heads.push_back(kRequests[position]);
  }
  return heads;
}

// What a successor finds, judged on a copy.
::testing::AssertionResult Judge(const Shared& shared) {
  alignas(64) uint8_t log_copy[sizeof(shared.log)];
  std::memcpy(log_copy, shared.log, sizeof(log_copy));
  uint16_t used_index = 0;
  std::memcpy(&used_index, shared.used + kRingIndexAt, sizeof(used_index));
  const uint32_t submitted = shared.submitted.load(std::memory_order_acquire);
  const auto acknowledged = static_cast<uint16_t>(used_index - kStart);

  InflightLog successor;
  if (!successor.Attach({log_copy, sizeof(log_copy), nullptr}, kSize, used_index)) {
    return ::testing::AssertionFailure() << "the successor refuses the log";
  }
  const std::vector<uint16_t> found = successor.InFlight();

  // Submitted and not acknowledged, in the order of fetching. The request after the last submitted one may be
  // in the log already (it was fetched), and nothing else.
  const std::vector<uint16_t> given_back = GivenBack();
  std::multiset<uint16_t> done(given_back.begin(), given_back.begin() + acknowledged);
  std::vector<uint16_t> expected;
  for (uint32_t i = 0; i < submitted; ++i) {
    const auto it = done.find(kRequests[i]);
    if (it == done.end()) {
      expected.push_back(kRequests[i]);
    } else {
      done.erase(it);
    }
  }
  std::vector<uint16_t> with_next = expected;
  if (submitted < std::size(kRequests)) with_next.push_back(kRequests[submitted]);
  if (found == expected || found == with_next) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure() << "submitted " << submitted << ", acknowledged "
                                               << acknowledged << ", in flight in the log:";
  for (const uint16_t head : found) failure << " " << head;
  return failure;
}

TEST(InflightLogKillTest, SoundBetweenAnyTwoInstructions) {
  void* mapping = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  auto& shared = *new (mapping) Shared{};
  PutAvailable(shared);
  // Everything is prepared before the fork: what is stopped is the serving alone.
  InflightLog log;
  ASSERT_TRUE(log.Attach({shared.log, sizeof(shared.log), nullptr}, kSize, kStart).ok());
  DirtyLog dirty_log;
  SplitRing ring;
  ring.Start({kSize, shared.descriptors, shared.available, shared.used, 0}, 0, kStart, &dirty_log);
  Steps();

  StepThrough([&] { return Serve(shared, log, ring); }, [&] { return Judge(shared); });
  if (!IsSkipped()) {
    EXPECT_EQ(shared.submitted.load(), std::size(kRequests));
  }
  munmap(mapping, sizeof(Shared));
}

}  // namespace
}  // namespace cleat::virtio::inflight_log_kill_test
