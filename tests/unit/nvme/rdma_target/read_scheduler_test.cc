// SPDX-License-Identifier: Apache-2.0
// Which READ is posted next: by queue pair in the order in which they came, never beyond the credits, with none idle; between queue pairs in turns. And
// what comes back, once each, with all of its data or not.
#include "nvme/rdma_target/read_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"

namespace cleat::nvme::rdma_target::read_scheduler_test {
namespace {

using Posted = std::vector<std::pair<const ReadRequest*, uint32_t>>;
constexpr auto kMore = ReadProgress::kMore;
constexpr auto kAllCame = ReadProgress::kAllCame;
constexpr auto kCutShort = ReadProgress::kCutShort;

Posted PostAll(ReadScheduler& scheduler) {
  Posted posted;
  for (Read read; scheduler.Next(read);) posted.emplace_back(read.request, read.index);
  return posted;
}

TEST(ReadScheduler, FillsTheCreditsAcrossRequests) {
  ReadScheduler scheduler(100);
  ReadQueue queue(scheduler, 4);
  ReadRequest first, second, third;
  queue.Add(first, 3);
  queue.Add(second, 3);
  queue.Add(third, 1);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&first, 0}, {&first, 1}, {&first, 2}, {&second, 0}}));
  EXPECT_EQ(scheduler.Completed(first, true), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&second, 1}})) << "at once, though the first one is not whole";
  EXPECT_EQ(scheduler.Completed(second, true), kMore) << "its last READ waits";
  EXPECT_EQ(scheduler.Completed(first, true), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&second, 2}, {&third, 0}}));
  EXPECT_EQ(scheduler.Completed(first, true), kAllCame);
  EXPECT_EQ(scheduler.Completed(third, true), kAllCame) << "whichever order completions come in";
  EXPECT_EQ(scheduler.Completed(second, true), kMore);
  EXPECT_EQ(scheduler.Completed(second, true), kAllCame);
  queue.Add(second, 5);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&second, 0}, {&second, 1}, {&second, 2}, {&second, 3}}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(scheduler.Completed(second, true), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&second, 4}}));
  EXPECT_EQ(scheduler.Completed(second, true), kAllCame);
}

TEST(ReadScheduler, QueuesThatShareALimitTakeTurns) {
  ReadScheduler scheduler(4);
  ReadQueue large(scheduler, 16), small(scheduler, 16), other(scheduler, 16);
  ReadRequest of_large, behind_it, of_small, of_other;
  large.Add(of_large, 100);
  large.Add(behind_it, 100);
  small.Add(of_small, 2);
  other.Add(of_other, 1);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&of_large, 0}, {&of_small, 0}, {&of_other, 0}, {&of_large, 1}}));
  EXPECT_EQ(scheduler.Completed(of_large, true), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&of_small, 1}}));
  EXPECT_EQ(scheduler.Completed(of_other, true), kAllCame);
  other.Add(of_other, 1);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&of_large, 2}}));
  EXPECT_EQ(scheduler.Completed(of_large, true), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&of_other, 0}})) << "it came after the large one's turn";
  large.End();
  EXPECT_EQ(scheduler.Completed(of_large, true), kCutShort);
  EXPECT_EQ(scheduler.Completed(of_small, true), kMore);
  EXPECT_EQ(scheduler.Completed(of_small, true), kAllCame);
  EXPECT_EQ(scheduler.Completed(of_other, true), kAllCame);
  EXPECT_EQ(large.TakeUnposted(), &behind_it);
  EXPECT_EQ(scheduler.outstanding(), 0U);
}

TEST(ReadScheduler, AnEndedQueuePostsNothingAndGivesEachRequestBackOnce) {
  ReadScheduler scheduler(100);
  ReadQueue queue(scheduler, 4), neighbour(scheduler, 4);
  ReadRequest whole, in_part, waits, waits_too, of_neighbour;
  queue.Add(whole, 2);
  queue.Add(in_part, 3);
  queue.Add(waits, 2);
  queue.Add(waits_too, 1);
  EXPECT_EQ(PostAll(scheduler).size(), 4U);
  queue.End();
  queue.End();
  EXPECT_TRUE(PostAll(scheduler).empty());
  EXPECT_EQ(queue.TakeUnposted(), &waits);
  EXPECT_EQ(scheduler.Completed(in_part, true), kMore) << "the adapter may still write to its buffer";
  EXPECT_EQ(scheduler.Completed(in_part, true), kCutShort)
      << "its third READ was never posted, though these two brought their data";
  EXPECT_TRUE(PostAll(scheduler).empty());
  EXPECT_EQ(queue.TakeUnposted(), &waits_too);
  EXPECT_EQ(queue.TakeUnposted(), nullptr);
  EXPECT_TRUE(waits.idle() && waits_too.idle() && in_part.idle());
  neighbour.Add(of_neighbour, 1);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&of_neighbour, 0}}));
  EXPECT_EQ(scheduler.Completed(of_neighbour, true), kAllCame);
  EXPECT_EQ(scheduler.Completed(whole, true), kMore);
  EXPECT_EQ(scheduler.Completed(whole, true), kAllCame) << "nothing of it is missing";
  EXPECT_EQ(scheduler.outstanding(), 0U);
}

TEST(ReadScheduler, ARequestOfWhichAReadFailedIsNeverWhole) {
  ReadScheduler scheduler(100);
  ReadQueue queue(scheduler, 2);
  ReadRequest request;
  queue.Add(request, 3);
  EXPECT_EQ(PostAll(scheduler).size(), 2U);
  EXPECT_EQ(scheduler.Completed(request, false), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&request, 2}})) << "until its queue is ended";
  EXPECT_EQ(scheduler.Completed(request, true), kMore);
  EXPECT_EQ(scheduler.Completed(request, true), kCutShort);
  queue.Add(request, 1);
  EXPECT_EQ(PostAll(scheduler).size(), 1U);
  EXPECT_EQ(scheduler.Completed(request, true), kAllCame) << "what it was before is forgotten";
}

TEST(ReadScheduler, ARequestThatLostItsTurnBetweenTwoReadsComesBackFromAnEndedQueue) {
  ReadScheduler scheduler(1);
  ReadQueue queue(scheduler, 4), neighbour(scheduler, 4);
  ReadRequest in_part, of_neighbour;
  queue.Add(in_part, 2);
  neighbour.Add(of_neighbour, 1);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&in_part, 0}}));
  EXPECT_EQ(scheduler.Completed(in_part, true), kMore);
  EXPECT_EQ(PostAll(scheduler), (Posted{{&of_neighbour, 0}}));
  queue.End();
  EXPECT_EQ(queue.TakeUnposted(), &in_part);
  EXPECT_TRUE(in_part.idle());
  EXPECT_EQ(scheduler.Completed(of_neighbour, true), kAllCame);
}

TEST(ReadSchedulerDeathTest, StopsAtWhatWouldWriteToABufferThatIsNobodysAnyMore) {
  EXPECT_DEATH(
      {
        ReadScheduler scheduler(1);
        ReadQueue queue(scheduler, 1);
        auto request = std::make_unique<ReadRequest>();
        queue.Add(*request, 1);
        PostAll(scheduler);
        request.reset();
      },
      "idle()");
  EXPECT_DEATH(
      {
        ReadScheduler scheduler(1);
        ReadQueue queue(scheduler, 1);
        ReadRequest request;
        queue.Add(request, 2);
        queue.Add(request, 1);
      },
      "request.idle()");
  EXPECT_DEATH(
      {
        ReadScheduler scheduler(1);
        ReadQueue queue(scheduler, 1);
        ReadRequest request;
        queue.Add(request, 1);
        scheduler.Completed(request, true);
      },
      "request.outstanding_ > 0");
  EXPECT_DEATH(
      {
        ReadScheduler scheduler(1);
        ReadQueue queue(scheduler, 1);
        ReadRequest request;
        queue.End();
        queue.Add(request, 1);
      },
      "!ended_");
}

// Random arrivals, completions in any order, and ends, against a book of its own.
class RandomQueues {
 public:
  explicit RandomQueues(uint64_t seed)
      : random_(seed), limit_(static_cast<uint32_t>(random_.Between(1, 24))), scheduler_(limit_) {
    for (uint64_t i = random_.Between(1, 6); i > 0; --i)
      queues_.push_back(std::make_unique<Queue>(scheduler_, static_cast<uint32_t>(random_.Between(1, 8))));
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      const uint64_t dice = random_.Below(1000);
      Queue& queue = *queues_[random_.Below(queues_.size())];
      if (dice < 150) {
        AddTo(queue);
      } else if (dice < 980) {
        CompleteOne();
      } else if (dice < 999) {
        TakeBackOne(queue);
      } else {
        End(queue);
      }
      Post();
    }
    for (const auto& queue : queues_) End(*queue);
    while (!outstanding_.empty()) CompleteOne();
    for (const auto& queue : queues_) {
      while (TakeBackOne(*queue)) {
      }
      for (const auto& entry : queue->entries) EXPECT_FALSE(entry->under_way) << "it never came back";
    }
    EXPECT_EQ(scheduler_.outstanding(), 0U);
  }

 private:
  struct Entry {
    ReadRequest request;
    uint32_t reads = 0, posted = 0, over = 0;
    bool under_way = false, failed = false;
  };
  struct Queue {
    Queue(ReadScheduler& scheduler, uint32_t granted) : credits(granted), reads(scheduler, granted) {}
    const uint32_t credits;
    std::vector<std::unique_ptr<Entry>> entries;
    ReadQueue reads;
    std::deque<Entry*> waiting;  // those of which READs are not posted, as they came
    uint32_t outstanding = 0;
    uint32_t turns_missed = 0;
  };
  struct Outstanding {
    Queue* queue;
    Entry* entry;
  };

  void AddTo(Queue& queue) {
    if (queue.reads.ended()) return;
    auto idle = std::find_if(queue.entries.begin(), queue.entries.end(),
                             [](const auto& one) { return !one->under_way; });
    if (idle == queue.entries.end()) idle = queue.entries.insert(idle, std::make_unique<Entry>());
    Entry& entry = **idle;
    entry.reads = static_cast<uint32_t>(random_.Between(1, 16));
    entry.posted = entry.over = 0;
    entry.under_way = true;
    entry.failed = false;
    queue.reads.Add(entry.request, entry.reads);
    queue.waiting.push_back(&entry);
  }

  void CompleteOne() {
    if (outstanding_.empty()) return;
    const size_t which = random_.Below(outstanding_.size());
    const auto [queue, entry] = outstanding_[which];
    outstanding_.erase(outstanding_.begin() + static_cast<ptrdiff_t>(which));
    const bool ok = !random_.Chance(1, 20);
    if (!ok) entry->failed = true;
    ++entry->over;
    --queue->outstanding;
    const bool last = entry->over == entry->posted &&
                      (queue->reads.ended() || entry->posted == entry->reads) &&
                      (queue->waiting.empty() || queue->waiting.front() != entry);
    const auto whole = entry->failed || entry->over < entry->reads ? kCutShort : kAllCame;
    EXPECT_EQ(scheduler_.Completed(entry->request, ok), last ? whole : kMore);
    if (last) entry->under_way = false;
  }

  bool TakeBackOne(Queue& queue) {
    if (!queue.reads.ended()) return false;
    ReadRequest* const request = queue.reads.TakeUnposted();
    EXPECT_EQ(request == nullptr, queue.waiting.empty());
    if (request == nullptr || queue.waiting.empty()) return false;
    EXPECT_EQ(request, &queue.waiting.front()->request);
    queue.waiting.front()->under_way = false;
    queue.waiting.pop_front();
    return true;
  }

  void End(Queue& queue) {
    if (queue.reads.ended()) return;
    queue.reads.End();
    // It comes back by its completions.
    if (!queue.waiting.empty() && queue.waiting.front()->posted > queue.waiting.front()->over)
      queue.waiting.pop_front();
  }

  static bool MayPost(const Queue& queue) {
    return !queue.reads.ended() && !queue.waiting.empty() && queue.outstanding < queue.credits;
  }

  void Post() {
    for (Read read; scheduler_.Next(read);) {
      for (const auto& queue : queues_) {
        if (&queue->reads == read.queue) continue;
        queue->turns_missed = MayPost(*queue) ? queue->turns_missed + 1 : 0;
        EXPECT_LT(queue->turns_missed, queues_.size()) << "each of the others had its turn";
      }
      const auto found = std::find_if(queues_.begin(), queues_.end(),
                                      [&](const auto& queue) { return &queue->reads == read.queue; });
      ASSERT_NE(found, queues_.end());
      NotePosted(**found, read);
      EXPECT_LE(outstanding_.size(), limit_);
    }
    if (outstanding_.size() == limit_) return;
    for (const auto& queue : queues_)
      EXPECT_FALSE(MayPost(*queue)) << "no credit is idle beside a READ that waits";
  }

  void NotePosted(Queue& queue, const Read& read) {
    queue.turns_missed = 0;
    ASSERT_TRUE(MayPost(queue)) << "within its credits";
    Entry& first = *queue.waiting.front();
    EXPECT_EQ(read.request, &first.request);
    EXPECT_EQ(read.index, first.posted++);
    if (first.posted == first.reads) queue.waiting.pop_front();
    ++queue.outstanding;
    EXPECT_EQ(queue.reads.outstanding(), queue.outstanding);
    outstanding_.push_back({&queue, &first});
  }

  Random random_;
  const uint32_t limit_;
  ReadScheduler scheduler_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<Outstanding> outstanding_;
};

TEST(ReadScheduler, KeepsItsRulesWhateverHappens) {
  for (uint64_t seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomQueues(seed).Run(1000);
  }
}

}  // namespace
}  // namespace cleat::nvme::rdma_target::read_scheduler_test
