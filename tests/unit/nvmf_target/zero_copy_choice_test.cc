// SPDX-License-Identifier: Apache-2.0
// From which size on data is sent without a copy, on machines whose costs the tests make up; and the memory of such sends.
#include "nvmf_target/socket/zero_copy_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "nvmf_target/socket/sent_memory.h"

namespace cleat::nvmf_target::zero_copy_choice_test {
namespace {

using Way = ZeroCopyChoice::Way;

// What a send costs, and how its data goes.
struct Machine {
  std::function<uint64_t(uint32_t)> copy_ns = [](uint32_t bytes) { return 300 + bytes / 10; };
  std::function<uint64_t(uint32_t)> zero_copy_ns = [](uint32_t bytes) { return 2500 + bytes / 100; };
  uint64_t notification_ns = 500;
  bool copies = false;  // all the same, as loopback does
};

class Connection {
 public:
  explicit Connection(Machine machine) : machine_(std::move(machine)) {}

  // Returns whether it was sent without a copy.
  bool Send(uint32_t bytes) {
    now_ns += 100 * kNsPerUs;
    if (choice.AloneFrom(now_ns) > bytes) return false;
    const Way way = choice.WayOf(bytes);
    const bool is_trial = choice.tries();
    const bool is_copy = way == Way::kCopy;
    const uint64_t cost_ns = is_copy ? machine_.copy_ns(bytes) : machine_.zero_copy_ns(bytes);
    spent_ns += cost_ns;
    if (is_trial) choice.Tried(way, bytes, cost_ns, now_ns);
    if (!is_copy) choice.Notified(1, machine_.copies ? 1 : 0, machine_.notification_ns, now_ns);
    return !is_copy;
  }
  // How many of these went without a copy.
  int Send(uint32_t bytes, int count) {
    int without = 0;
    for (int i = 0; i < count; ++i) without += Send(bytes) ? 1 : 0;
    return without;
  }
  void SendAllSizes(int times) {
    for (int i = 0; i < times; ++i) {
      for (uint32_t bytes = 4096; bytes <= 1 << 20; bytes *= 2) Send(bytes);
    }
  }
  void Become(Machine machine) { machine_ = std::move(machine); }

  ZeroCopyChoice choice;
  uint64_t now_ns = kNsPerSecond;
  uint64_t spent_ns = 0;

 private:
  Machine machine_;
};

TEST(ZeroCopyChoiceTest, LearnsTheSizeFromWhichOnACopyIsDearer) {
  // 300 + b/10 against 3,000 + b/100 ns: they meet at 30,000 bytes.
  Connection connection({});
  connection.SendAllSizes(2000);
  EXPECT_EQ(connection.choice.from_bytes(), 32U * 1024);
  EXPECT_GE(connection.Send(64 * 1024, 1000), 990);
  EXPECT_LE(connection.Send(16 * 1024, 1000), 10) << "a trial now and then";
  EXPECT_EQ(connection.Send(8 * 1024, 1000), 0);

  // With dear notifications they meet at 58,000 bytes.
  Connection of_dear_news({.notification_ns = 3000});
  of_dear_news.SendAllSizes(2000);
  EXPECT_EQ(of_dear_news.choice.from_bytes(), 64U * 1024);

  Connection of_cheap_copies({.copy_ns = [](uint32_t bytes) { return 100 + bytes / 200; }});
  of_cheap_copies.SendAllSizes(2000);
  EXPECT_EQ(of_cheap_copies.choice.from_bytes(), ZeroCopyChoice::kNever);
  EXPECT_LE(of_cheap_copies.Send(1 << 20, 1000), 10);
}

TEST(ZeroCopyChoiceTest, ConnectionsOfOneSizeLearnItForThatSize) {
  Connection connection({});
  connection.Send(128 * 1024, 100);
  EXPECT_EQ(connection.choice.from_bytes(), 128U * 1024);
  EXPECT_EQ(Connection({}).choice.from_bytes(), ZeroCopyChoice::kNever) << "until it has tried";
}

TEST(ZeroCopyChoiceTest, FollowsAMachineWhoseCostsChange) {
  Connection connection({});
  connection.SendAllSizes(2000);
  ASSERT_EQ(connection.choice.from_bytes(), 32U * 1024);
  connection.Become({.zero_copy_ns = [](uint32_t bytes) { return 40'000 + bytes / 100; }});
  connection.SendAllSizes(10'000);
  EXPECT_EQ(connection.choice.from_bytes(), 512U * 1024);
  connection.Become({});
  connection.SendAllSizes(10'000);
  EXPECT_EQ(connection.choice.from_bytes(), 32U * 1024);
}

TEST(ZeroCopyChoiceTest, WhatIsKnownOfASizeIsForgottenOnceNoneIsSent) {
  // A megabyte is better copied, and 128 KiB are not.
  Connection connection(
      {.zero_copy_ns = [](uint32_t bytes) { return bytes > 512 * 1024 ? 1'000'000 : 500; }});
  connection.SendAllSizes(2000);
  EXPECT_EQ(connection.choice.from_bytes(), ZeroCopyChoice::kNever);
  for (uint64_t until_ns = connection.now_ns + 2 * ZeroCopyChoice::kForgetNs; connection.now_ns < until_ns;)
    connection.Send(128 * 1024);
  EXPECT_EQ(connection.choice.from_bytes(), 128U * 1024);
}

TEST(ZeroCopyChoiceTest, AKernelThatRefusesIsLeftAlone) {
  Connection connection({});
  connection.SendAllSizes(2000);
  ASSERT_NE(connection.choice.from_bytes(), ZeroCopyChoice::kNever);
  for (uint32_t i = 0; i < ZeroCopyChoice::kInVainMost; ++i) connection.choice.Refused(connection.now_ns);
  EXPECT_EQ(connection.choice.AloneFrom(connection.now_ns), ZeroCopyChoice::kNever);
  EXPECT_EQ(connection.choice.AloneFrom(connection.now_ns + ZeroCopyChoice::kPauseNs),
            ZeroCopyChoice::kLeastBytes);
}

TEST(ZeroCopyChoiceTest, InterruptsDoNotChangeWhatItHasLearned) {
  std::mt19937 random(5);
  const auto interrupted = [&random](uint64_t ns) { return random() % 20 == 0 ? ns + 200'000 : ns; };
  Connection connection({.copy_ns = [&](uint32_t bytes) { return interrupted(300 + bytes / 10); },
                         .zero_copy_ns = [&](uint32_t bytes) { return interrupted(1000 + bytes / 100); }});
  connection.SendAllSizes(2000);
  int without = 0;
  for (int i = 0; i < 100; ++i) {
    connection.SendAllSizes(10);
    without += connection.choice.from_bytes() <= 128 * 1024 ? 1 : 0;
  }
  EXPECT_GE(without, 80);
}

// Of four that are sent together the first pays for the packets of all.
TEST(ZeroCopyChoiceTest, WhatIsSentFirstOfSeveralDoesNotCountForItsWay) {
  int sends = 0;
  const auto first_pays = [&sends](uint64_t ns) { return ns + (sends++ % 4 == 0 ? 20'000 : 0); };
  Connection connection({.copy_ns = [&](uint32_t bytes) { return first_pays(300 + bytes / 10); },
                         .zero_copy_ns = [&](uint32_t bytes) { return first_pays(20'000 + bytes / 100); }});
  int without = 0;
  for (int i = 0; i < 100; ++i) {
    connection.Send(64 * 1024, 400);
    without += connection.choice.from_bytes() <= 64 * 1024 ? 1 : 0;
  }
  EXPECT_LE(without, 10) << "a copy is cheaper";
}

TEST(ZeroCopyChoiceTest, WhereTheKernelCopiesAllTheSameItIsLeftAloneEachTimeForLonger) {
  Connection connection({.copies = true});
  EXPECT_EQ(connection.Send(64 * 1024, 1000), static_cast<int>(ZeroCopyChoice::kInVainMost));
  EXPECT_EQ(connection.choice.from_bytes(), ZeroCopyChoice::kNever);
  for (uint64_t pause_ns = ZeroCopyChoice::kPauseNs; pause_ns <= 320 * kNsPerSecond; pause_ns *= 2) {
    SCOPED_TRACE(pause_ns);
    const uint64_t until_ns = connection.now_ns + pause_ns;
    int without = 0;
    // A trial is a copy, or is not.
    while (connection.now_ns < until_ns + kNsPerSecond) {
      connection.now_ns += kNsPerSecond;
      without += connection.Send(64 * 1024) ? 1 : 0;
      if (connection.now_ns < until_ns - 2 * kNsPerSecond) {
        EXPECT_EQ(without, 0);
      }
    }
    for (int i = 0; i < 1000 && without == 0; ++i) without += connection.Send(64 * 1024) ? 1 : 0;
    EXPECT_EQ(without, 1);
    EXPECT_EQ(connection.Send(64 * 1024, 1000), 0) << "one has said enough";
  }
  // The host has another network card now.
  connection.Become({});
  connection.now_ns += ZeroCopyChoice::kPauseMaxNs;
  connection.Send(64 * 1024, 1000);
  EXPECT_EQ(connection.choice.from_bytes(), 64U * 1024);
}

// ---- SentMemory

struct Given {
  std::vector<uint64_t> offsets;
  void operator()(const block::Segment& piece) { offsets.push_back(piece.offset_bytes); }
};

class SentMemoryTest : public ::testing::Test {
 protected:
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(1 << 16);
  std::shared_ptr<block::MemoryRegion> region_ = block::MemoryRegion::Borrow(bytes_.data(), bytes_.size());
  block::Segment Piece(uint64_t at) const { return {region_.get(), at, 1}; }
  static uint64_t Over(SentMemory& memory, uint32_t first, uint32_t last, std::vector<uint64_t>& given) {
    return memory.Over(first, last,
                       [&given](const block::Segment& piece) { given.push_back(piece.offset_bytes); });
  }
};

// In whatever order the kernel is through with sends, and whatever it calls them: a piece comes back once all of its sends are over, and once.
TEST_F(SentMemoryTest, APieceComesBackOnceItsSendsAreOver) {
  std::mt19937 random(3);
  for (const uint32_t begin : {0U, 1000U, UINT32_MAX - 20}) {
    SCOPED_TRACE(begin);
    SentMemory memory(begin);
    std::map<uint64_t, std::vector<uint32_t>> sends_of;  // by piece
    std::vector<uint32_t> in_kernel;
    std::vector<uint64_t> given;
    uint64_t pieces = 0, bytes = 0, bytes_over = 0;
    std::vector<uint32_t> of_next;
    size_t looked_at = 0;
    while (pieces < 500 || !in_kernel.empty()) {
      const uint32_t kind = random() % 3;
      if (kind == 0 && pieces < 500 && !memory.full()) {
        in_kernel.push_back(memory.next());
        of_next.push_back(memory.next());
        memory.Sent(10);
        bytes += 10;
      } else if (kind == 1 && !of_next.empty()) {
        sends_of[pieces] = std::exchange(of_next, {});
        if (!memory.Keep(Piece(pieces))) given.push_back(pieces);
        ++pieces;
      } else if (!in_kernel.empty()) {
        const size_t which = random() % std::min<size_t>(in_kernel.size(), 3);  // nearly in order
        bytes_over += Over(memory, in_kernel[which], in_kernel[which], given);
        in_kernel.erase(in_kernel.begin() + static_cast<ptrdiff_t>(which));
        Over(memory, begin - 100, begin - 1, given);  // another process' sends
      }
      for (; looked_at < given.size(); ++looked_at) {
        for (const uint32_t send : sends_of[given[looked_at]])
          EXPECT_EQ(std::ranges::find(in_kernel, send), in_kernel.end()) << "piece " << given[looked_at];
      }
      if (::testing::Test::HasFailure()) return;
    }
    if (!of_next.empty()) {
      EXPECT_FALSE(memory.Keep(Piece(pieces))) << "nothing is with the kernel";
    }
    ASSERT_EQ(given.size(), 500U);
    for (uint64_t piece = 0; piece < 500; ++piece) EXPECT_EQ(std::ranges::count(given, piece), 1);
    EXPECT_EQ(bytes_over, bytes);
    EXPECT_EQ(memory.sends(), 0U);
  }
}

TEST_F(SentMemoryTest, RangesAreOverTogetherAndTheRestIsGivenUp) {
  SentMemory memory(UINT32_MAX - 3);
  for (uint64_t piece = 0; piece < SentMemory::kSendsMax; ++piece) {
    memory.Sent(100);
    EXPECT_TRUE(memory.Keep(Piece(piece)));
  }
  EXPECT_TRUE(memory.full());
  std::vector<uint64_t> given;
  EXPECT_EQ(Over(memory, UINT32_MAX - 50, UINT32_MAX - 4, given), 0U) << "of another process";
  EXPECT_EQ(Over(memory, UINT32_MAX - 3, 3, given), 800U);
  EXPECT_EQ(given.size(), 8U);
  EXPECT_EQ(Over(memory, 5, 10, given), 0U) << "one before them is not over";
  EXPECT_EQ(Over(memory, 4, 4, given), 700U);
  EXPECT_EQ(given.size(), 15U);
  memory.GiveUp([&given](const block::Segment& piece) { given.push_back(piece.offset_bytes); });
  EXPECT_EQ(memory.sends(), 0U);
  for (uint64_t piece = 0; piece < SentMemory::kSendsMax; ++piece) EXPECT_EQ(given[piece], piece);
}

}  // namespace
}  // namespace cleat::nvmf_target::zero_copy_choice_test
