// SPDX-License-Identifier: Apache-2.0
// A controller's end of a connection that goes on in another process, at every byte of a conversation: the host's end notices nothing, each read has
// its data and each write arrives once. And what another process hands over that can't be.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "block/segments.h"
#include "nvme/tcp_host/host_connection.h"
#include "nvme/tcp_target/target_connection.h"
#include "tests/unit/nvme/tcp_target/target_owner.h"

namespace cleat::nvme::tcp::hand_over_test {
namespace {

constexpr uint32_t kDepth = 8;
constexpr uint32_t kInCapsuleBytes = 256;

using Bytes = std::vector<uint8_t>;

uint8_t ContentOf(uint64_t cookie, uint32_t at) {
  return static_cast<uint8_t>(cookie * 31 + at * 7 + at / 251);
}

struct Command {
  bool reads = false;
  Bytes bytes;
  std::shared_ptr<block::MemoryRegion> region;
  block::Segment segment;
  bool back = false;
  uint16_t status = 0;
};

// A controller's end with its owner, in one process of several. Commands that it has stay with it for some turns.
struct End {
  test::TargetOwner owner;
  std::unique_ptr<TargetConnection> connection =
      std::make_unique<TargetConnection>(TargetConnectionOptions{.name = "controller"}, owner);
  std::vector<test::OwnedCommand*> waiting;
};

// What the moved bytes may be cut into, and when the controller's end moves on.
struct Script {
  Digests digests;
  std::function<size_t()> step = [] { return SIZE_MAX; };
  // Asked before each answer, and each time that some bytes have moved, of which there were so many by now.
  std::function<bool(uint64_t moved)> moves_on = [](uint64_t) { return false; };
  uint64_t stop_at = UINT64_MAX;  // a step ends there
  bool forgets_received = false;  // what a process would do that is broken
  bool forgets_unsent = false;
};

class MovingEnds final : public fabrics::QueuePairOwner {
 public:
  MovingEnds(Script script, std::vector<std::pair<bool, uint32_t>> commands)
      : script_(std::move(script)),
        asked_(std::move(commands)),
        host_({.name = "host",
               .depth = kDepth,
               .in_capsule_bytes = kInCapsuleBytes,
               .digests = script_.digests},
              *this) {
    Begin();
    host_.Start();
  }
  ~MovingEnds() {
    if (!ended_) host_.Abort(Error(ErrorCode::kCancelled, "the test's end"));
    end_->connection->Abort(Error(ErrorCode::kCancelled, "the test's end"));
    for (const auto& command : end_->owner.pool) {
      if (command->state == TargetCommand::State::kRunning) end_->connection->Answer(*command, Status(0));
    }
    EXPECT_EQ(end_->connection->commands(), 0U);
  }
  MovingEnds(const MovingEnds&) = delete;
  MovingEnds& operator=(const MovingEnds&) = delete;

  void Connected() override {}
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes) override {
    Command& command = commands_[cookie];
    wrong_ |= command.back;
    command.back = true;
    command.status = entry.status().field();
    if (!command.reads || !entry.status().ok()) return;
    wrong_ |= data_bytes != command.bytes.size();
    for (uint32_t i = 0; i < command.bytes.size(); ++i) wrong_ |= command.bytes[i] != ContentOf(cookie, i);
  }
  void Unanswered(uint64_t /*cookie*/, fabrics::Reached /*reached*/) override { wrong_ = true; }
  void Ended(const Error& reason) override { ended_ = reason.message; }

  // Whether all commands have come back as they should.
  bool Talk() {
    constexpr int kIdleTurnsMax = 20;
    int idle_turns = 0;
    for (int turns = 0; idle_turns < kIdleTurnsMax && !wrong_ && !ended_; ++turns) {
      const uint64_t moved_before = moved_;
      while (commands_.size() < asked_.size() && host_.room() > 0) Submit();
      ToController();
      for (size_t i = end_->waiting.size(); i-- > 0 && turns % 2 == 1;) {
        MaybeMove();
        // What was with the owner is with the next one, or comes anew.
        if (i >= end_->waiting.size()) continue;
        test::OwnedCommand& command = *end_->waiting[i];
        end_->waiting.erase(end_->waiting.begin() + static_cast<ptrdiff_t>(i));
        Answer(command);
      }
      ToHost();
      wrong_ |= end_->owner.ended.has_value();
      if (back() == asked_.size()) break;
      idle_turns = moved_ == moved_before ? idle_turns + 1 : 0;
    }
    for (const auto& [cookie, command] : commands_) wrong_ |= command.status != 0;
    for (const auto& [cookie, times] : written_) wrong_ |= times != 1;
    return !wrong_ && !ended_ && back() == asked_.size();
  }
  uint64_t moved() const { return moved_; }
  uint32_t moves() const { return moves_; }

 private:
  size_t back() const {
    return static_cast<size_t>(std::count_if(commands_.begin(), commands_.end(),
                                             [](const auto& known) { return known.second.back; }));
  }

  void Begin() {
    end_ = std::make_unique<End>();
    end_->owner.run = [this](test::OwnedCommand& command) { Run(command); };
    end_->owner.data_came = [this](test::OwnedCommand& command) { end_->waiting.push_back(&command); };
  }

  void MaybeMove() {
    if (!end_->connection->connected() || !script_.moves_on(moved_)) return;
    if (first_) end_->connection->BecomeQueue(kDepth + 1, true, kInCapsuleBytes);
    first_ = false;
    ++moves_;
    SavedConnection saved = end_->connection->Save();
    wrong_ |= end_->connection->commands() != 0 || end_->owner.ended.has_value();
    if (script_.forgets_received) saved.received.clear();
    if (script_.forgets_unsent) saved.unsent.clear();
    wrong_ |= !Check(saved, kDepth + 1, kInCapsuleBytes).ok();
    const std::unique_ptr<End> before = std::move(end_);
    Begin();
    // Tags of the two processes have nothing to do with one another.
    end_->owner.pool.front()->in_use = moves_ % 2 == 1;
    end_->connection->Restore(saved);
    for (SavedCommand& command : saved.commands) {
      auto* const taken = static_cast<test::OwnedCommand*>(end_->owner.Take(command.entry, 0));
      end_->connection->TakeBack(*taken, command);
      if (taken->state == TargetCommand::State::kRunning) Run(*taken);
    }
    end_->connection->Resume();
  }

  void Submit() {
    const uint64_t cookie = commands_.size();
    Command& command = commands_[cookie];
    const auto [reads, size] = asked_[cookie];
    command.reads = reads;
    command.bytes.resize(size);
    for (uint32_t i = 0; i < size && !reads; ++i) command.bytes[i] = ContentOf(cookie, i);
    command.region = block::MemoryRegion::Borrow(command.bytes.data(), size);
    command.segment = {command.region.get(), 0, size};
    fabrics::QueuedCommand queued{.entry = {}, .to_target = {}, .from_target = {}, .cookie = cookie};
    queued.entry.opcode = reads ? 2 : 1;
    queued.entry.cdw10 = static_cast<uint32_t>(cookie);
    if (size > 0) (reads ? queued.from_target : queued.to_target) = {&command.segment, 1};
    host_.Submit(queued);
  }

  void Run(test::OwnedCommand& command) {
    const bool reads = command.entry.opcode == 2;
    if (!reads && command.data.empty() && command.data_bytes > 0) {
      command.Give(command.data_bytes);
      return end_->connection->Ask(command);
    }
    if (reads) command.Give(command.data_bytes);
    end_->waiting.push_back(&command);
  }
  void Answer(test::OwnedCommand& command) {
    const uint64_t cookie = command.entry.cdw10;
    if (command.entry.opcode == 2) {
      for (uint32_t i = 0; i < command.data_bytes; ++i) command.bytes[i] = ContentOf(cookie, i);
      return end_->connection->Answer(command, Status(0), 0, command.data_bytes);
    }
    Bytes data(command.data_bytes);
    if (!data.empty()) block::Gather(command.data, 0, data.data(), data.size());
    for (uint32_t i = 0; i < data.size(); ++i) wrong_ |= data[i] != ContentOf(cookie, i);
    ++written_[cookie];
    end_->connection->Answer(command, Status(0));
  }

  // So many bytes as the next step has, of `most`.
  size_t StepOf(size_t most) {
    const uint64_t left = script_.stop_at > moved_ ? script_.stop_at - moved_ : UINT64_MAX;
    return static_cast<size_t>(std::min<uint64_t>({script_.step(), most, left}));
  }

  // The socket: what the host has sent, and this end has not read.
  void ToController() {
    std::array<iovec, 7> iovecs;
    while (const uint32_t count = host_.FillSend(iovecs)) {
      size_t sent = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const auto* const from = static_cast<const uint8_t*>(iovecs[i].iov_base);
        to_controller_.insert(to_controller_.end(), from, from + iovecs[i].iov_len);
        sent += iovecs[i].iov_len;
      }
      host_.Sent(sent);
    }
    while (!to_controller_.empty() && !end_->connection->ended()) {
      const auto step = static_cast<ptrdiff_t>(StepOf(to_controller_.size()));
      test::ReceiveAll(*end_->connection, Bytes(to_controller_.begin(), to_controller_.begin() + step));
      to_controller_.erase(to_controller_.begin(), to_controller_.begin() + step);
      moved_ += static_cast<uint64_t>(step);
      BecomeQueueOnce();
      MaybeMove();
    }
  }
  // As a Connect does, which the conversation leaves out.
  void BecomeQueueOnce() {
    if (!first_ || !end_->connection->connected()) return;
    first_ = false;
    end_->connection->BecomeQueue(kDepth + 1, true, kInCapsuleBytes);
  }

  void ToHost() {
    for (;;) {
      std::array<iovec, 1> iovec_;
      if (end_->connection->FillSend(iovec_) == 0) break;
      const size_t step = StepOf(iovec_[0].iov_len);
      const auto* const from = static_cast<const uint8_t*>(iovec_[0].iov_base);
      to_host_.insert(to_host_.end(), from, from + step);
      end_->connection->Sent(step);
      moved_ += step;
      MaybeMove();
    }
    // The host sends 4096 bytes at a time, so that data comes by several H2CData.
    if (!patched_ && to_host_.size() >= sizeof(IcResp)) {
      IcResp response;
      std::memcpy(static_cast<void*>(&response), to_host_.data(), sizeof(response));
      response.h2c_data_max_bytes = kH2cDataLeastBytes;
      std::memcpy(to_host_.data(), &response, sizeof(response));
      patched_ = true;
    }
    for (size_t at = 0; patched_ && at < to_host_.size();) {
      std::array<iovec, 3> iovecs;
      const uint32_t count = host_.ReceiveSpace(iovecs);
      size_t came = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min(iovecs[i].iov_len, to_host_.size() - at);
        if (part > 0) std::memcpy(iovecs[i].iov_base, to_host_.data() + at, part);
        at += part;
        came += part;
      }
      host_.Received(came);
      if (ended_) return;
    }
    if (patched_) to_host_.clear();
  }

  const Script script_;
  const std::vector<std::pair<bool, uint32_t>> asked_;  // reads, and how much
  std::map<uint64_t, Command> commands_;
  HostConnection host_;
  std::unique_ptr<End> end_;
  Bytes to_controller_;
  Bytes to_host_;
  bool patched_ = false;
  bool first_ = true;
  uint64_t moved_ = 0;
  uint32_t moves_ = 0;
  std::map<uint64_t, uint32_t> written_;
  bool wrong_ = false;
  std::optional<std::string> ended_;
};

const std::vector<std::pair<bool, uint32_t>> kConversation = {
    {false, 64}, {false, kH2cDataLeastBytes + 100}, {true, 100}, {false, 0}, {false, 300}, {true, 0}};

// Where the conversation was cut so that it did not go on. `every`: so many bytes.
std::vector<uint64_t> CutAtEachByte(Script script, uint64_t every = 1) {
  MovingEnds whole(script, kConversation);
  EXPECT_TRUE(whole.Talk());
  std::vector<uint64_t> wrong;
  for (uint64_t at = 1; at <= whole.moved(); at += every) {
    bool moved = false;
    script.stop_at = at;
    script.moves_on = [&moved, at](uint64_t bytes) { return bytes == at && !std::exchange(moved, true); };
    MovingEnds ends(script, kConversation);
    if (!ends.Talk()) wrong.push_back(at);
  }
  return wrong;
}

// Sanitizers make a byte some ten times as dear. Steps of 7 meet each kind of PDU at many places.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStep = 7;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr uint64_t kStep = 7;
#else
constexpr uint64_t kStep = 1;
#endif
#else
constexpr uint64_t kStep = 1;
#endif

TEST(ConnectionHandOverTest, TheHostNoticesNothingAtWhicheverByteItsConnectionMovesOn) {
  for (const bool digests : {false, true}) {
    SCOPED_TRACE(digests);
    EXPECT_EQ(CutAtEachByte({.digests = {.header = digests, .data = digests}}, kStep),
              std::vector<uint64_t>());
  }
}

// The test above finds what is left out.
TEST(ConnectionHandOverTest, WithoutWhatHasComeOrWhatIsNotSentConnectionsBreak) {
  EXPECT_GT(CutAtEachByte({.digests = {}, .forgets_received = true}, 7).size(), 150U);
  EXPECT_GT(CutAtEachByte({.digests = {}, .forgets_unsent = true}, 7).size(), 15U);
}

TEST(ConnectionHandOverTest, AConnectionMovesOnAgainAndAgainUnderLoadHoweverTheBytesAreCut) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::pair<bool, uint32_t>> commands;
    static constexpr uint32_t kSizes[] = {0, 12, 256, 512, 4096, 5000, 20'000};
    for (int i = 0; i < 80; ++i)
      commands.emplace_back(random() % 2 == 0, kSizes[random() % std::size(kSizes)]);
    MovingEnds ends({.digests = {.header = seed % 2 == 1, .data = seed % 4 >= 2},
                     .step = [&random] { return 1 + random() % 3000; },
                     .moves_on = [&random](uint64_t) { return random() % 8 == 0; }},
                    commands);
    EXPECT_TRUE(ends.Talk());
    EXPECT_GT(ends.moves(), 20U);
  }
}

// ---- What another process hands over

SavedConnection Good() {
  SavedConnection saved;
  saved.entries = 4;
  saved.in_capsule_bytes = 4096;
  return saved;
}
SavedCommand CommandOf(SavedCommand::Next next, uint32_t length, size_t has) {
  SavedCommand command;
  command.next = next;
  command.entry.data.length_bytes = length;
  command.data.resize(has);
  return command;
}

TEST(ConnectionHandOverTest, WhatNoConnectionCanHaveIsRefused) {
  using Next = SavedCommand::Next;
  EXPECT_TRUE(Check(Good(), 4, 4096).ok());
  const std::vector<std::function<void(SavedConnection&)>> wrongs = {
      [](SavedConnection& saved) { saved.entries = 0; },
      [](SavedConnection& saved) { saved.entries = 1; },
      [](SavedConnection& saved) { saved.entries = 5; },
      [](SavedConnection& saved) { saved.sq_head = 4; },
      [](SavedConnection& saved) { saved.in_capsule_bytes = 4097; },
      [](SavedConnection& saved) { saved.data_align_bytes = 0; },
      [](SavedConnection& saved) { saved.data_align_bytes = 6; },
      [](SavedConnection& saved) { saved.data_align_bytes = 132; },
      [](SavedConnection& saved) { saved.received.resize(kSavedReceivedBytesMax + 1); },
      [](SavedConnection& saved) { saved.commands.resize(5); },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kRun, 512, 512)}; },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kHold, 512, 1)}; },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kAwaitData, 512, 512)}; },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kAwaitData, 512, 513)}; },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kAwaitData, 0, 0)}; },
      [](SavedConnection& saved) {
        saved.commands = {CommandOf(Next::kAwaitData, fabrics::kTransferBytesMax + 1, 0)};
      },
      [](SavedConnection& saved) {
        saved.commands = {CommandOf(Next::kAwaitData, 512, 0), CommandOf(Next::kAwaitData, 512, 0)};
      },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kRunWithData, 512, 0)}; },
      [](SavedConnection& saved) { saved.commands = {CommandOf(Next::kRunWithData, 512, 511)}; },
      [](SavedConnection& saved) {
        saved.commands = {CommandOf(Next::kRunWithData, 512, 513)};
        saved.commands[0].in_capsule = true;
      },
      [](SavedConnection& saved) {
        saved.commands = {CommandOf(Next::kRunWithData, 4097, 4097)};
        saved.commands[0].in_capsule = true;
      },
      [](SavedConnection& saved) {
        saved.commands = {
            CommandOf(Next::kRunWithData, fabrics::kTransferBytesMax + 1, fabrics::kTransferBytesMax + 1)};
      },
      [](SavedConnection& saved) { saved.commands = {CommandOf(static_cast<Next>(9), 0, 0)}; },
  };
  for (size_t i = 0; i < wrongs.size(); ++i) {
    SavedConnection saved = Good();
    wrongs[i](saved);
    EXPECT_EQ(Check(saved, 4, 4096).error().code, ErrorCode::kInvalidArgument) << i;
  }
}

// Values at random that pass, and bytes at random behind them: an answer or the end, and nothing else.
TEST(ConnectionHandOverTest, WhateverPassesTheChecksDoesNoHarm) {
  using Next = SavedCommand::Next;
  uint32_t passed = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    SavedConnection saved = Good();
    saved.entries = 2 + random() % 20;
    saved.sq_head = static_cast<uint16_t>(random() % 20);
    saved.header_digest = random() % 2 == 0;
    saved.data_digest = random() % 2 == 0;
    saved.data_align_bytes = 4 * (1 + random() % 32);
    saved.received.resize(random() % 300);
    for (uint8_t& byte : saved.received) byte = static_cast<uint8_t>(random());
    if (saved.received.size() > 24 && random() % 2 == 0) {
      const H2cData pdu = {.header = {PduType::kH2cData, static_cast<uint8_t>(random() % 8), 24, 24, 124},
                           .cid = static_cast<uint16_t>(random() % 3),
                           .ttag = static_cast<uint16_t>(random() % 3),
                           .data_bytes = 100};
      std::memcpy(saved.received.data(), &pdu, sizeof(pdu));
    }
    saved.unsent.resize(random() % 50);
    for (uint32_t i = random() % 6; i > 0; --i) {
      const uint32_t length = random() % 300, has = random() % 2 == 0 ? length : random() % 300;
      SavedCommand& command =
          saved.commands.emplace_back(CommandOf(static_cast<Next>(random() % 4), length, has));
      command.in_capsule = random() % 4 == 0;
      command.tag = static_cast<uint16_t>(random() % 3);
      command.entry.cid = static_cast<uint16_t>(random() % 3);
      if (command.next == Next::kRun || command.next == Next::kHold) command.data.clear();
    }
    if (!Check(saved, 21, 4096).ok()) continue;
    ++passed;
    End end;
    const auto answer = [&end](test::OwnedCommand& command) { end.waiting.push_back(&command); };
    end.owner.run = end.owner.data_came = answer;
    end.connection->Restore(saved);
    for (SavedCommand& command : saved.commands) {
      TargetCommand& taken = *end.owner.Take(command.entry, 0);
      end.connection->TakeBack(taken, command);
      if (taken.state == TargetCommand::State::kRunning)
        end.waiting.push_back(static_cast<test::OwnedCommand*>(&taken));
    }
    end.connection->Resume();
    if (random() % 3 == 0 && !end.connection->ended()) {
      SavedConnection again = end.connection->Save();
      EXPECT_TRUE(Check(again, 21, 4096).ok()) << seed;
    } else {
      for (test::OwnedCommand* const command : std::exchange(end.waiting, {}))
        end.connection->Answer(*command, Status(0));
      (void)test::SendAll(*end.connection);
      end.connection->Abort(Error(ErrorCode::kCancelled, "the test's end"));
    }
    EXPECT_EQ(end.connection->commands(), 0U) << seed;
  }
  EXPECT_GT(passed, 300U);
}

TEST(ConnectionHandOverTest, WhatIsHandedOverIsCountedAndTheRoomForWhatIsAwaitedBesideIt) {
  SavedConnection saved = Good();
  saved.received.resize(10);
  saved.unsent.resize(100);
  const uint64_t without = BytesOf(saved);
  EXPECT_EQ(without, 110U);
  EXPECT_EQ(RoomOf(saved), 0U);
  saved.commands = {CommandOf(SavedCommand::Next::kAwaitData, 1 << 20, 512)};
  EXPECT_GE(BytesOf(saved), without + 512);
  EXPECT_LT(BytesOf(saved), without + 1024);
  EXPECT_EQ(RoomOf(saved), 1U << 20);
}

}  // namespace
}  // namespace cleat::nvme::tcp::hand_over_test
