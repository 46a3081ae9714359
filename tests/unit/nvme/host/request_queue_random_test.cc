// SPDX-License-Identifier: Apache-2.0
// Random schedules of two request queues, their ledger, and a target whose commands linger beyond the end of their life. After each event
// it is checked that no attempt of a write that was answered changes a byte; and, of a guest that has no two overlapping writes under way
// at once, that a block which nobody writes holds what was answered last; and that the log of doubt has whatever the target may still
// execute, as the engine may be killed at any moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/random.h"
#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::requests_random_test {
namespace {

using block::IoStatus;
using block::Op;
using fabrics::Reached;
using requests_test::EntryOfStatus;
using requests_test::FakePair;
using requests_test::Io;
using requests_test::kBlockBytes;
using requests_test::MakeFormat;

constexpr uint32_t kReactors = 2;
constexpr uint64_t kBlocks = 4;
constexpr size_t kLivesMax = 6;
constexpr size_t kPathsMax = 2;
constexpr size_t kWritesMax = 24;

using Version = uint64_t;  // of a block: 1 + the write's place; 0: before all writes

struct Write {
  Write(uint32_t r, uint64_t first, uint64_t count)
      : io(Op::kWrite, first, count), range{first, count}, reactor(r) {}
  Io io;
  BlockRange range;
  uint32_t reactor;
  bool counted = false;  // its end is in allowed_
};

// What a write command does to the blocks.
struct Effect {
  LifeId life = 0;
  Version version = 0;
  BlockRange range;
};

struct Life {
  explicit Life(LifeId l) : pairs{FakePair(l, 6), FakePair(l, 6)} {}
  std::array<FakePair, kReactors> pairs;
  std::array<std::set<uint64_t>, kReactors> executed;  // cookies of commands that were, and are not answered
  std::array<bool, kReactors> ended{};
  bool over = false;
};

class Reactor final : public RequestQueueOwner {
 public:
  Reactor(uint32_t number, DoubtLedger& ledger, const DoubtLog& log)
      : queue({.reactor = number, .first_origin = uint64_t{number} << 48, .write_cache = false, .log = log},
              *this),
        ledger_(ledger) {}
  void Report(LifeReport report) override {
    mail.emplace_back([this, report = std::move(report)] { ledger_.Take(report); });
  }
  void Acked(DoubtAck ack) override {
    mail.emplace_back([this, ack = std::move(ack)] { ledger_.Take(ack); });
  }
  void BarrierOver(BarrierEnded ended) override {
    mail.emplace_back([this, ended] { ledger_.Take(ended); });
  }
  void GivenUp(OriginId origin) override {
    mail.emplace_back([this, origin] { ledger_.Disown(origin); });
  }
  void PathRefused(LifeId /*life*/) override {}

  RequestQueue queue;
  std::deque<std::function<void()>> mail;  // to the ledger
  std::deque<DoubtTable> tables;           // from it

 private:
  DoubtLedger& ledger_;
};

class World {
 public:
  World(uint64_t seed, bool overlapping)
      : random_(seed),
        overlapping_(overlapping),
        slow_reactor_(static_cast<uint32_t>(seed % (kReactors + 1))) {
    format_ = MakeFormat({.transfer_bytes_max = seed % 2 == 0 ? kBlockBytes : 0});
    for (uint32_t i = 0; i < kReactors; ++i) reactors_.emplace_back(ledger_.Joined(), ledger_, log_.log());
    for (auto& allowed : allowed_) allowed = {0};
    told_ = 0;
    Publish();
  }

  void Step() {
    using Event = void (World::*)();
    static constexpr std::array<Event, 17> kEvents = {
        &World::Submit,   &World::Submit,     &World::Execute,     &World::Execute,  &World::Answer,
        &World::Answer,   &World::Answer,     &World::ToLedger,    &World::ToLedger, &World::ToView,
        &World::ToView,   &World::EndLife,    &World::ExecuteLate, &World::Prove,    &World::Tick,
        &World::OpenLife, &World::ExecuteLate};
    (this->*kEvents[random_.Below(kEvents.size())])();
    Check();
  }

  // Nothing breaks any more: every request ends.
  void Finish() {
    for (Life& life : lives_) {
      for (uint32_t r = 0; life.over && r < kReactors; ++r) EndLifeOn(life, r);
    }
    if (std::all_of(lives_.begin(), lives_.end(), [](const Life& life) { return life.over; })) AddLife();
    for (int i = 0; i < 20000 && !IsDone(); ++i) {
      Execute();
      Answer();
      ToLedger();
      ToView();
      ExecuteLate();
      Prove();
      Tick();
      Check();
    }
    EXPECT_TRUE(IsDone()) << "a request waits for ever";
  }
  bool IsDone() const {
    return std::all_of(writes_.begin(), writes_.end(), [](const Write& write) { return write.io.done; });
  }
  uint64_t late() const { return late_; }

 private:
  void Submit() {
    if (writes_.size() == kWritesMax) return;
    // Overlapping ones on fewer blocks, so that more of them meet.
    const uint64_t room = overlapping_ ? kBlocks / 2 : kBlocks;
    const uint64_t first = random_.Below(room);
    const uint64_t blocks = random_.Between(1, std::min<uint64_t>(2, room - first));
    const BlockRange range{first, blocks};
    const bool is_free = std::none_of(writes_.begin(), writes_.end(), [&](const Write& write) {
      return !write.io.done && write.range.Overlaps(range);
    });
    if (!overlapping_ && !is_free) return;
    Write& write = writes_.emplace_back(static_cast<uint32_t>(random_.Below(kReactors)), first, blocks);
    const Version version = writes_.size();
    for (uint64_t i = 0; i < blocks; ++i)
      std::memcpy(&write.io.memory[i * kBlockBytes], &version, sizeof(version));
    reactors_[write.reactor].queue.Submit(write.io.request);
  }

  static Effect EffectOf(LifeId life, const fabrics::QueuedCommand& command) {
    Effect effect{.life = life, .range = {command.entry.cdw10, (command.entry.cdw12 & 0xffff) + 1}};
    block::Gather(command.to_target, 0, &effect.version, sizeof(effect.version));
    return effect;
  }
  void Apply(const Effect& effect) {
    const Write& write = writes_[effect.version - 1];
    for (uint64_t block = effect.range.first; block < effect.range.end(); ++block) {
      EXPECT_TRUE(blocks_[block] == effect.version || !write.io.done || write.io.status != IoStatus::kOk)
          << "a write that was answered changes block " << block;
      blocks_[block] = effect.version;
    }
  }

  Life* AnyLife(uint32_t reactor) {
    if (lives_.empty()) return nullptr;
    Life& life = lives_[random_.Below(lives_.size())];
    return life.ended[reactor] ? nullptr : &life;
  }
  void Execute() {
    for (uint32_t r = 0; r < kReactors; ++r) {
      if (r == slow_reactor_ && !random_.Chance(1, 8)) continue;
      Life* const life = AnyLife(r);
      if (life == nullptr || life->pairs[r].sent.empty()) continue;
      const auto& command = life->pairs[r].sent[random_.Below(life->pairs[r].sent.size())];
      if (life->executed[r].insert(command.cookie).second) Apply(EffectOf(life->pairs[r].life, command));
    }
  }
  void Answer() {
    const auto r = static_cast<uint32_t>(random_.Below(kReactors));
    Life* const life = AnyLife(r);
    if (life == nullptr || life->pairs[r].sent.empty()) return;
    FakePair& pair = life->pairs[r];
    const uint64_t index = random_.Below(pair.sent.size());
    const uint64_t cookie = pair.sent[index].cookie;
    uint16_t status = 0;
    if (life->executed[r].erase(cookie) == 0) {
      if (!random_.Chance(1, 8)) return;
      status = random_.Chance(1, 2) ? requests_test::kOutOfRange : requests_test::kNotReady;
    }
    pair.Take(index);
    reactors_[r].queue.Completed(pair.life, cookie, EntryOfStatus(status), 0);
  }

  void EndLife() {
    if (!random_.Chance(1, 4)) return;
    const auto r = static_cast<uint32_t>(random_.Below(kReactors));
    if (Life* const life = AnyLife(r)) EndLifeOn(*life, r);
  }
  void EndLifeOn(Life& life, uint32_t r) {
    if (life.ended[r]) return;
    life.ended[r] = true;
    FakePair& pair = life.pairs[r];
    if (!std::exchange(life.over, true)) ledger_.Over(pair.life);
    while (!pair.sent.empty()) {
      const fabrics::QueuedCommand command = pair.Take(0);
      const bool executed = life.executed[r].contains(command.cookie);
      const bool is_sent = executed || random_.Chance(3, 4);
      if (is_sent && !executed) late_effects_.push_back(EffectOf(pair.life, command));
      reactors_[r].queue.Unanswered(pair.life, command.cookie,
                                    is_sent ? Reached::kPerhapsAll : Reached::kNoData);
      if (random_.Chance(1, 4)) ToView();
      CheckLog();
    }
    reactors_[r].queue.PathEnded(pair.life);
  }
  void OpenLife() {
    const auto open =
        std::count_if(lives_.begin(), lives_.end(), [](const Life& life) { return !life.over; });
    if (lives_.size() < kLivesMax && static_cast<size_t>(open) < kPathsMax) AddLife();
  }
  void AddLife() {
    Life& life = lives_.emplace_back(1000 + lives_.size());
    for (FakePair& pair : life.pairs) {
      pair.on_submit = [this](const fabrics::QueuedCommand& command) { SeeSubmission(command); };
    }
    for (uint32_t r = 0; r < kReactors; ++r)
      reactors_[r].queue.PathReady(life.pairs[r].life, life.pairs[r], format_, PathState::kOptimized);
  }

  void SeeSubmission(const fabrics::QueuedCommand& command) {
    const BlockRange range = EffectOf(0, command).range;
    const std::vector<BlockRange> logged = log_.Found();
    EXPECT_NE(std::find(logged.begin(), logged.end(), range), logged.end())
        << "block " << range.first << " is written before the log has it";
  }

  void ExecuteLate() {
    if (late_effects_.empty() || !random_.Chance(1, 4)) return;
    const auto at = late_effects_.begin() + static_cast<std::ptrdiff_t>(random_.Below(late_effects_.size()));
    const Effect effect = *at;
    late_effects_.erase(at);
    ++late_;
    Apply(effect);
  }
  void Prove() {
    if (lives_.empty() || !random_.Chance(1, 8)) return;
    const LifeId life = lives_[random_.Below(lives_.size())].pairs[0].life;
    if (!ledger_.Proved(life, Proof::kControllerReset).ok()) return;
    std::erase_if(late_effects_, [life](const Effect& effect) { return effect.life == life; });
    Publish();
  }
  void Tick() {
    now_ns_ += RequestQueue::kPauseNs;
    for (Reactor& reactor : reactors_) reactor.queue.Tick(now_ns_);
  }

  void ToLedger() {
    Reactor& reactor = reactors_[random_.Below(kReactors)];
    if (reactor.mail.empty()) return;
    const auto take = std::move(reactor.mail.front());
    reactor.mail.pop_front();
    take();
    Publish();
  }
  void ToView() {
    Reactor& reactor = reactors_[random_.Below(kReactors)];
    if (reactor.tables.empty()) return;
    DoubtTable table = std::move(reactor.tables.front());
    reactor.tables.pop_front();
    reactor.queue.Adopt(std::move(table));
  }
  void Publish() {
    if (told_ == ledger_.version()) return;
    told_ = ledger_.version();
    log_.log().Store(ledger_.ranges());
    for (uint32_t r = 0; r < kReactors; ++r) reactors_[r].tables.push_back(ledger_.TableFor(r));
  }

  // Called between two commands that come back, too.
  void CheckLog() {
    const std::vector<BlockRange> logged = log_.Found();
    const auto expect = [&logged](const Effect& effect) {
      for (uint64_t block = effect.range.first; block < effect.range.end(); ++block) {
        EXPECT_TRUE(std::any_of(logged.begin(), logged.end(),
                                [block](const BlockRange& range) {
                                  return range.Overlaps({block, 1});
                                }))
            << "the log does not have block " << block << ", of life " << effect.life;
      }
    };
    for (const Life& life : lives_)
      for (const FakePair& pair : life.pairs)
        for (const fabrics::QueuedCommand& command : pair.sent) expect(EffectOf(pair.life, command));
    for (const Effect& effect : late_effects_) expect(effect);
  }
  void Check() {
    CheckLog();
    for (Version version = 1; version <= writes_.size(); ++version) {
      Write& write = writes_[version - 1];
      if (!write.io.done || std::exchange(write.counted, true)) continue;
      for (uint64_t block = write.range.first; block < write.range.end(); ++block) {
        if (write.io.status == IoStatus::kOk) allowed_[block].clear();
        allowed_[block].insert(version);
      }
    }
    for (uint64_t block = 0; !overlapping_ && block < kBlocks; ++block) {
      const bool is_written = std::any_of(writes_.begin(), writes_.end(), [block](const Write& write) {
        return !write.io.done && write.range.Overlaps({block, 1});
      });
      EXPECT_TRUE(is_written || allowed_[block].contains(blocks_[block]))
          << "block " << block << " has version " << blocks_[block];
    }
  }

  Random random_;
  const bool overlapping_;
  // Whose commands are executed late, so that they meet much that was sent after them; kReactors: nobody's.
  const uint32_t slow_reactor_;
  PathFormat format_;
  DoubtLedger ledger_{{.controller_reset = true}};
  requests_test::LogMemory log_;
  uint64_t told_ = 0;
  uint64_t now_ns_ = kNsPerSecond;
  std::deque<Write> writes_;
  std::deque<Life> lives_;
  std::deque<Reactor> reactors_;
  std::array<Version, kBlocks> blocks_{};
  std::array<std::set<Version>, kBlocks> allowed_;  // that a block which nobody writes may hold
  std::vector<Effect> late_effects_;                // of lives that have ended
  uint64_t late_ = 0;
};

void RunSeeds(bool overlapping) {
  constexpr uint64_t kSeeds = 200;
  constexpr int kSteps = 400;
  uint64_t late = 0;
  for (uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, overlapping);
    for (int i = 0; i < kSteps && !testing::Test::HasFailure(); ++i) world.Step();
    world.Finish();
    late += world.late();
  }
  EXPECT_GT(late, kSeeds) << "the schedules have what they are about";
}

TEST(RandomRequests, NoAnsweredWriteIsUndoneForAGuestWithoutOverlappingWrites) {
  RunSeeds(false);
}

TEST(RandomRequests, NoAttemptOfAnAnsweredWriteChangesAByteWhereWritesOverlap) {
  RunSeeds(true);
}

}  // namespace
}  // namespace cleat::nvme::host::requests_random_test
