// SPDX-License-Identifier: Apache-2.0
// A host's and a controller's end of a connection with each other, with all that each may ask for: whatever way the bytes are cut, each read
// has its data and each write arrives.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nvme/tcp_host/host_connection.h"
#include "nvme/tcp_target/target_connection.h"
#include "tests/unit/nvme/tcp_target/target_owner.h"

namespace cleat::nvme::tcp {
namespace {

constexpr uint32_t kDepth = 16;
constexpr uint32_t kInCapsuleBytes = 4096;

uint8_t ContentOf(uint64_t cookie, uint32_t at) {
  return static_cast<uint8_t>(cookie * 31 + at * 7 + at / 251);
}

struct Command {
  bool reads = false;
  std::vector<uint8_t> bytes;
  std::shared_ptr<block::MemoryRegion> region;
  std::vector<block::Segment> segments;
  bool back = false;
  uint16_t status = 0;
};

class BothEnds final : public fabrics::QueuePairOwner {
 public:
  BothEnds(Digests digests, bool flow_control, uint32_t seed)
      : random_(seed),
        host_({.name = "host", .depth = kDepth, .in_capsule_bytes = kInCapsuleBytes, .digests = digests},
              *this) {
    owner_.run = [this](test::OwnedCommand& command) { Run(command); };
    owner_.data_came = [this](test::OwnedCommand& command) { Answer(command); };
    controller_.BecomeQueue(kDepth + 1, flow_control, kInCapsuleBytes);
    host_.Start();
  }

  void Connected() override {}
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes) override {
    Command& command = commands_[cookie];
    ASSERT_FALSE(command.back);
    command.back = true;
    command.status = entry.status().field();
    if (command.reads && entry.status().ok()) {
      EXPECT_EQ(data_bytes, command.bytes.size());
      for (uint32_t i = 0; i < command.bytes.size(); ++i) ASSERT_EQ(command.bytes[i], ContentOf(cookie, i));
    }
  }
  void Unanswered(uint64_t /*cookie*/, fabrics::Reached /*reached*/) override { FAIL(); }
  void Ended(const Error& reason) override { ended_ = reason.message; }

  void Talk(uint64_t commands) {
    for (int turns = 0; turns < 100'000 && (back() < commands || commands_.size() < commands); ++turns) {
      while (commands_.size() < commands && host_.room() > 0) Submit();
      const size_t step = 1 + random_() % 9000;
      test::ReceiveAll(controller_, SendOfHost(), step);
      for (size_t i = waiting_.size(); i-- > 0;) {
        if (random_() % 2 == 0) continue;
        test::OwnedCommand& command = *waiting_[i];
        waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
        Answer(command);
      }
      ReceiveOfHost(test::SendAll(controller_, 1 + random_() % 5000), step);
      ASSERT_EQ(owner_.ended.value_or(""), "");
      ASSERT_EQ(ended_, "");
    }
    EXPECT_EQ(back(), commands);
    for (const auto& [cookie, command] : commands_) EXPECT_EQ(command.status, 0);
    EXPECT_EQ(written_, writes_);
    host_.Abort(Error(ErrorCode::kCancelled, "the test's end"));
    controller_.Abort(Error(ErrorCode::kCancelled, "the test's end"));
    EXPECT_EQ(controller_.commands(), 0U);
  }

 private:
  size_t back() const {
    return static_cast<size_t>(std::count_if(commands_.begin(), commands_.end(),
                                             [](const auto& known) { return known.second.back; }));
  }

  void Submit() {
    const uint64_t cookie = commands_.size();
    Command& command = commands_[cookie];
    static constexpr uint32_t kSizes[] = {512, 4096, 4100, 70'000, 0, 12};
    const uint32_t size = kSizes[random_() % std::size(kSizes)];
    command.reads = random_() % 2 == 0;
    command.bytes.resize(size);
    if (!command.reads) {
      for (uint32_t i = 0; i < size; ++i) command.bytes[i] = ContentOf(cookie, i);
      ++writes_;
    }
    command.region = block::MemoryRegion::Borrow(command.bytes.data(), size);
    const uint32_t first = size / 3;
    command.segments = {{command.region.get(), 0, first}, {command.region.get(), first, size - first}};
    fabrics::QueuedCommand queued{.entry = {}, .to_target = {}, .from_target = {}, .cookie = cookie};
    queued.entry.opcode = command.reads ? 2 : 1;
    queued.entry.cdw10 = static_cast<uint32_t>(cookie);
    if (size > 0) (command.reads ? queued.from_target : queued.to_target) = command.segments;
    host_.Submit(queued);
  }

  void Run(test::OwnedCommand& command) {
    const bool reads = command.entry.opcode == 2;
    if (!reads && !command.in_capsule && command.data_bytes > 0) {
      command.Give(command.data_bytes);
      return controller_.Ask(command);
    }
    if (reads) command.Give(command.data_bytes);
    waiting_.push_back(&command);
  }
  void Answer(test::OwnedCommand& command) {
    const uint64_t cookie = command.entry.cdw10;
    if (command.entry.opcode == 2) {
      for (uint32_t i = 0; i < command.data_bytes; ++i) command.bytes[i] = ContentOf(cookie, i);
      return controller_.Answer(command, Status(0), 0, command.data_bytes);
    }
    for (uint32_t i = 0; i < command.data_bytes; ++i) ASSERT_EQ(command.bytes[i], ContentOf(cookie, i));
    ++written_;
    controller_.Answer(command, Status(0));
  }

  std::vector<uint8_t> SendOfHost() {
    std::vector<uint8_t> out;
    std::array<iovec, 7> iovecs;
    while (const uint32_t count = host_.FillSend(iovecs)) {
      size_t sent = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const auto* const from = static_cast<const uint8_t*>(iovecs[i].iov_base);
        out.insert(out.end(), from, from + iovecs[i].iov_len);
        sent += iovecs[i].iov_len;
      }
      host_.Sent(sent);
    }
    return out;
  }
  void ReceiveOfHost(const std::vector<uint8_t>& bytes, size_t step) {
    std::array<iovec, 3> iovecs;
    for (size_t at = 0; at < bytes.size();) {
      const uint32_t count = host_.ReceiveSpace(iovecs);
      ASSERT_GT(count, 0U);
      size_t came = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min({iovecs[i].iov_len, bytes.size() - at, step - came});
        if (part > 0) std::memcpy(iovecs[i].iov_base, bytes.data() + at, part);
        at += part;
        came += part;
      }
      host_.Received(came);
    }
  }

  std::mt19937 random_;
  std::map<uint64_t, Command> commands_;
  HostConnection host_;
  test::TargetOwner owner_;
  TargetConnection controller_{{.name = "controller"}, owner_};
  std::vector<test::OwnedCommand*> waiting_;
  uint64_t writes_ = 0;
  uint64_t written_ = 0;
  std::string ended_;
};

TEST(BothEndsTest, EachReadHasItsDataAndEachWriteArrivesHoweverTheBytesAreCut) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    BothEnds ends({.header = seed % 2 == 1, .data = seed % 4 >= 2}, seed % 3 == 0, seed);
    ends.Talk(120);
  }
}

}  // namespace
}  // namespace cleat::nvme::tcp
