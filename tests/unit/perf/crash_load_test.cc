// SPDX-License-Identifier: Apache-2.0
// The judge of crashes, itself judged: a pretend disk that dies and comes back, correctly or with one fault, which has
// to be found under its right name.
#include "perf/crash/crash_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <vector>

namespace cleat::perf::crash_load_test {
namespace {

constexpr uint64_t kDiskBytes = 256 * 1024;
constexpr uint32_t kBlockBytes = 512;
constexpr uint64_t kBufferBytes = 4 * 1024 * 1024;
constexpr uint64_t kWaitNs = 60 * kNsPerSecond;

enum class Wrong : uint8_t {
  kNothing,
  kLoses,         // a request in flight is forgotten
  kForgets,       // an acknowledged write is undone
  kTears,         // a block is half of one write and half of another
  kRunsAgain,     // an acknowledged write lands once more, over newer ones
  kAnswersTwice,  // a request
  kFails,         // a request is answered with an error
  kKeepsPages,    // memory that was given back goes on to be used, as if it were pinned
  kStopsEarly,    // a stopped device has a request left
};

// Everything happens in Wait, on the load's thread, but for Crash.
class PretendPort final : public DiskPort {
 public:
  PretendPort(Wrong wrong, uint64_t seed) : wrong_(wrong), random_(seed) {}

  void Crash() { crash_ = true; }  // any thread

  uint16_t queues() const override { return 2; }
  Result<uint64_t> AllocateBuffer(uint64_t size_bytes) override {
    CLEAT_CHECK(allocated_ + size_bytes <= kBufferBytes);
    allocated_ += size_bytes;
    return allocated_ - size_bytes;
  }
  std::span<uint8_t> Buffer(uint64_t gpa, uint64_t size_bytes) override {
    return std::span(memory_).subspan(gpa, size_bytes);
  }
  bool Submit(uint16_t queue, const DiskRequest& request) override {
    pending_.push_back({queue, request});
    return true;
  }
  void Kick(uint16_t /*queue*/) override {}
  size_t Poll(uint16_t queue, std::span<DiskAnswer> answers) override {
    size_t count = 0;
    for (auto it = answers_.begin(); it != answers_.end() && count < answers.size();) {
      if (it->queue == queue) {
        answers[count++] = it->answer;
        it = answers_.erase(it);
      } else {
        ++it;
      }
    }
    return count;
  }
  Status Wait(uint64_t /*timeout_ns*/) override {
    if (crash_.exchange(false)) {
      ++reconnects_;
      if (reconnects_ == kFaultAt) Misbehave();
    }
    if (pending_.empty()) return Error(ErrorCode::kDeadlineExceeded, "nothing is in flight");
    for (uint64_t i = random_.Between(1, pending_.size()); i > 0; --i) AnswerOne();
    return Ok{};
  }
  Status Stop() override {
    const size_t left = wrong_ == Wrong::kStopsEarly ? 1 : 0;
    while (pending_.size() > left) AnswerOne();
    return Ok{};
  }
  Status StartAnew() override {
    return pending_.empty() ? Status(Ok{}) : Error(ErrorCode::kFailedPrecondition, "a request is left");
  }
  Status GiveBack(uint64_t gpa, uint64_t size_bytes) override {
    const std::span<uint8_t> buffer = Buffer(gpa, size_bytes);
    if (wrong_ == Wrong::kKeepsPages) pinned_.try_emplace(gpa, buffer.begin(), buffer.end());
    std::fill(buffer.begin(), buffer.end(), uint8_t{0});
    return Ok{};
  }
  Status Health() const override { return Ok{}; }
  std::string Describe(uint16_t /*queue*/) const override { return "pretended"; }
  uint64_t reconnects() const override { return reconnects_; }

  static constexpr uint64_t kFaultAt = 2;

 private:
  struct Pending {
    uint16_t queue;
    DiskRequest request;
  };
  struct Answer {
    uint16_t queue;
    DiskAnswer answer;
  };
  struct Written {
    uint64_t offset_bytes;
    std::vector<uint8_t> before, after;
  };

  std::span<uint8_t> On(const DiskRequest& request) {
    return std::span(disk_).subspan(request.offset_bytes, request.length_bytes);
  }

  // The memory that the device has for the request's.
  std::span<uint8_t> Reached(const DiskRequest& request) {
    const auto pinned = pinned_.find(request.data_gpa);
    return pinned == pinned_.end() ? Buffer(request.data_gpa, request.length_bytes)
                                   : std::span(pinned->second).first(request.length_bytes);
  }

  // Any of them: out of order.
  void AnswerOne() {
    const size_t which = random_.Below(pending_.size());
    const auto [queue, request] = pending_[which];
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(which));
    const std::span<uint8_t> blocks = On(request);
    const std::span<uint8_t> buffer = Reached(request);
    if (request.op == DiskOp::kRead) std::copy(blocks.begin(), blocks.end(), buffer.begin());
    if (request.op == DiskOp::kWrite || request.op == DiskOp::kZero) {
      Written written{request.offset_bytes, {blocks.begin(), blocks.end()}, {}};
      if (request.op == DiskOp::kZero) std::fill(blocks.begin(), blocks.end(), uint8_t{0});
      if (request.op == DiskOp::kWrite) std::copy(buffer.begin(), buffer.end(), blocks.begin());
      written.after.assign(blocks.begin(), blocks.end());
      if (request.op == DiskOp::kWrite) writes_.push_back(std::move(written));
    }
    answers_.push_back({queue, {request.token, DiskAnswer::Outcome::kDone, 0}});
  }

  void Misbehave() {
    switch (wrong_) {
      case Wrong::kNothing:
        break;
      case Wrong::kLoses:
        CLEAT_CHECK(!pending_.empty());
        pending_.pop_back();
        break;
      case Wrong::kForgets: {
        const Written& last = LastThatStays();
        std::copy(last.before.begin(), last.before.end(), Place(last));
        break;
      }
      case Wrong::kTears: {
        const Written& last = LastThatStays();
        std::copy_n(last.before.begin(), kBlockBytes / 2, Place(last));
        break;
      }
      case Wrong::kRunsAgain: {
        const auto old = std::find_if(writes_.begin(), writes_.end(), [&](const Written& written) {
          return Stays(written) && !std::equal(written.after.begin(), written.after.end(), Place(written));
        });
        CLEAT_CHECK(old != writes_.end());
        std::copy(old->after.begin(), old->after.end(), Place(*old));
        break;
      }
      case Wrong::kAnswersTwice:
        AnswerOne();
        answers_.push_back(answers_.back());
        break;
      case Wrong::kFails:
        AnswerOne();
        answers_.back().answer.outcome = DiskAnswer::Outcome::kFailed;
        break;
      case Wrong::kKeepsPages:  // all the time
      case Wrong::kStopsEarly:
        break;
    }
  }
  // Nothing that is in flight would cover up what is done to its blocks.
  bool Stays(const Written& written) const {
    return std::none_of(pending_.begin(), pending_.end(), [&](const Pending& pending) {
      const DiskRequest& request = pending.request;
      return request.op != DiskOp::kRead &&
             request.offset_bytes < written.offset_bytes + written.after.size() &&
             written.offset_bytes < request.offset_bytes + request.length_bytes;
    });
  }
  // Blocks that are as this write left them.
  const Written& LastThatStays() {
    const auto last = std::find_if(writes_.rbegin(), writes_.rend(), [&](const Written& written) {
      return Stays(written) && std::equal(written.after.begin(), written.after.end(), Place(written));
    });
    CLEAT_CHECK(last != writes_.rend());
    return *last;
  }
  std::vector<uint8_t>::iterator Place(const Written& written) {
    return disk_.begin() + static_cast<ptrdiff_t>(written.offset_bytes);
  }

  const Wrong wrong_;
  Random random_;
  std::atomic<bool> crash_{false};
  uint64_t reconnects_ = 0;
  std::vector<uint8_t> disk_ = std::vector<uint8_t>(kDiskBytes);
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(kBufferBytes);
  uint64_t allocated_ = 0;
  std::map<uint64_t, std::vector<uint8_t>> pinned_;  // by the buffer's address
  std::vector<Pending> pending_;
  std::vector<Answer> answers_;
  std::vector<Written> writes_;
};

struct Judged {
  std::vector<CrashFinding> findings;
  CrashLoad::Counts counts;
};

// Three deaths, of which the second is followed by the fault. Between them the guest resets the device, and its balloon is at work.
Judged Judge(Wrong wrong, uint64_t seed) {
  PretendPort port(wrong, seed);
  StampedBlocks blocks(kDiskBytes, kBlockBytes, 1);
  CrashLoad load(port, blocks, {.seed = seed, .give_back_percent = 20, .lost_after_ns = kNsPerSecond / 2});
  EXPECT_TRUE(load.Start().ok());
  for (int death = 0; death < 3; ++death) {
    EXPECT_TRUE(load.WaitProgress(250, kWaitNs));
    load.AskReset();
    EXPECT_TRUE(load.WaitProgress(250, kWaitNs));
    const uint64_t mark = load.Mark();
    port.Crash();
    EXPECT_TRUE(load.WaitRecovered(mark, kWaitNs)) << "death " << death;
  }
  load.Stop();
  return {load.findings(), load.counts()};
}

TEST(CrashLoadTest, ADiskThatIsRightIsFoundRight) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Judged judged = Judge(Wrong::kNothing, seed);
    for (const CrashFinding& finding : judged.findings)
      ADD_FAILURE() << "seed " << seed << ": " << finding.text;
    EXPECT_EQ(judged.counts.reconnects, 3U);
    EXPECT_GT(judged.counts.in_flight, 0U);
    EXPECT_EQ(judged.counts.resets, 3U);
    EXPECT_GT(judged.counts.given_back, 0U);
    EXPECT_GE(judged.counts.blocks_compared, 4 * kDiskBytes / kBlockBytes)
        << "after each death and in the end";
  }
}

struct Fault {
  Wrong wrong;
  CrashFault expected;
  const char* name;
};

class CrashLoadFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(CrashLoadFaultTest, IsFoundUnderItsName) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Judged judged = Judge(GetParam().wrong, seed);
    ASSERT_FALSE(judged.findings.empty()) << "seed " << seed;
    EXPECT_EQ(judged.findings.front().fault, GetParam().expected)
        << "seed " << seed << ": " << judged.findings.front().text;
  }
}

INSTANTIATE_TEST_SUITE_P(CrashLoadTest, CrashLoadFaultTest,
                         testing::Values(Fault{Wrong::kLoses, CrashFault::kLost, "Lost"},
                                         Fault{Wrong::kForgets, CrashFault::kData, "Forgotten"},
                                         Fault{Wrong::kTears, CrashFault::kData, "Torn"},
                                         Fault{Wrong::kRunsAgain, CrashFault::kData, "RunAgain"},
                                         Fault{Wrong::kAnswersTwice, CrashFault::kRings, "AnsweredTwice"},
                                         Fault{Wrong::kFails, CrashFault::kFailed, "Failed"},
                                         Fault{Wrong::kKeepsPages, CrashFault::kData, "FromAnOldPage"}),
                         [](const auto& fault) { return fault.param.name; });

// The load ends there: what is left may still come.
TEST(CrashLoadTest, ARequestThatAResetLeavesIsFound) {
  PretendPort port(Wrong::kStopsEarly, 1);
  StampedBlocks blocks(kDiskBytes, kBlockBytes, 1);
  CrashLoad load(port, blocks);
  ASSERT_TRUE(load.Start().ok());
  ASSERT_TRUE(load.WaitProgress(100, kWaitNs));
  load.AskReset();
  EXPECT_FALSE(load.WaitProgress(UINT64_MAX / 2, kWaitNs));
  ASSERT_FALSE(load.findings().empty());
  EXPECT_EQ(load.findings().front().fault, CrashFault::kRings) << load.findings().front().text;
}

TEST(GapMeterTest, KeepsTheLongestSilenceSinceTheLastLook) {
  GapMeter gaps;
  EXPECT_EQ(gaps.TakeLongestNs(), 0U);
  for (const uint64_t now_ns : {100U, 110U, 150U, 155U}) gaps.Completed(now_ns);
  EXPECT_EQ(gaps.TakeLongestNs(), 40U);
  EXPECT_EQ(gaps.TakeLongestNs(), 0U);
  gaps.Completed(1155);
  gaps.Completed(1156);
  EXPECT_EQ(gaps.TakeLongestNs(), 1000U) << "it began before the last look and ended after it";
}

}  // namespace
}  // namespace cleat::perf::crash_load_test
