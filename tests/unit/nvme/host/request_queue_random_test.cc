// SPDX-License-Identifier: Apache-2.0
// Random schedules of two request queues, their ledger, and a target whose commands linger beyond the end of their life. After each event
// it is checked that no attempt of a write that was answered changes a byte; and, of a guest that has no two overlapping writes under way
// at once, that a block which nobody writes holds what was answered last; and that the log of doubt has whatever the target may still
// execute, as the engine may be killed at any moment; and that each command goes by a path that the rule allows, while none waits that
// could go. Paths change their state, refuse commands, and give answers that only a host may give. What becomes of writes that wait for
// doubt is a world's own: they wait, or fail after a time, by turns; or they do not wait, where an older write may win, and no proof is
// ever needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
constexpr size_t kLivesMax = 7;
static_assert(kLivesMax < RequestQueue::kPathsMax, "and one more in the end");
constexpr size_t kPathsMax = 3;
constexpr uint32_t kDepthMax = 3;
constexpr size_t kWritesMax = 24;
constexpr uint64_t kFailAfterNs = 3 * RequestQueue::kPauseNs;

using Version = uint64_t;  // of a block: 1 + the write's place; 0: before all writes

struct Write {
  Write(uint32_t r, uint64_t first, uint64_t count)
      : io(Op::kWrite, first, count), range{first, count}, reactor(r) {}
  Io io;
  BlockRange range;
  uint32_t reactor;
  uint64_t submitted_ns = 0;
  bool counted = false;  // its end is in allowed_
};

// What a write command does to the blocks.
struct Effect {
  LifeId life = 0;
  Version version = 0;
  BlockRange range;
};

// What a reactor's queue knows of a life's path, or should.
struct Standing {
  PathState state = PathState::kUnusable;
  bool breaks = false;
  bool ended = false;
  bool refused = false;
  uint64_t refused_until_ns = 0;  // 0: the next tick says
  bool is_open() const { return state != PathState::kUnusable && !breaks && !ended && !refused; }
};

struct Life {
  explicit Life(LifeId l) : pairs{FakePair(l, DepthOf(l)), FakePair(l, DepthOf(l))} {}
  static uint32_t DepthOf(LifeId life) { return 1 + static_cast<uint32_t>(life % kDepthMax); }
  std::array<FakePair, kReactors> pairs;
  std::array<std::set<uint64_t>, kReactors> executed;  // cookies of commands that were, and are not answered
  std::array<Standing, kReactors> standings;
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
  void PathRefused(LifeId life) override { refusals.push_back(life); }
  void Conflicted(LifeId life) override { ADD_FAILURE() << "life " << life << " met no reservation"; }

  RequestQueue queue;
  std::vector<LifeId> refusals;
  std::deque<std::function<void()>> mail;  // to the ledger
  std::deque<DoubtTable> tables;           // from it

 private:
  DoubtLedger& ledger_;
};

class World {
 public:
  World(uint64_t seed, bool overlapping, block::InDoubt::Policy policy)
      : random_(seed),
        overlapping_(overlapping),
        policy_(policy),
        slow_reactor_(static_cast<uint32_t>(seed % (kReactors + 1))),
        small_transfers_(seed % 2 == 0) {
    for (uint32_t i = 0; i < kReactors; ++i) reactors_.emplace_back(ledger_.Joined(), ledger_, log_.log());
    for (auto& allowed : allowed_) allowed = {0};
    told_ = 0;
    Publish();
    for (Reactor& reactor : reactors_) reactor.queue.SetInDoubt(rule_);
  }

  void Step() {
    using Event = void (World::*)();
    static constexpr std::array<Event, 19> kEvents = {
        &World::Submit,   &World::Submit,      &World::Execute,     &World::Execute,   &World::Answer,
        &World::Answer,   &World::Answer,      &World::ToLedger,    &World::ToLedger,  &World::ToView,
        &World::ToView,   &World::EndLife,     &World::ExecuteLate, &World::Prove,     &World::Tick,
        &World::OpenLife, &World::ExecuteLate, &World::ChangeState, &World::ChangeRule};
    // The last one is of a rule that changes.
    const size_t events = kEvents.size() - (policy_ == block::InDoubt::Policy::kFailAfter ? 0 : 1);
    (this->*kEvents[random_.Below(events)])();
    Check();
  }

  // Nothing breaks any more: every request ends.
  void Finish() {
    finishes_ = true;
    for (Life& life : lives_) {
      for (uint32_t r = 0; life.over && r < kReactors; ++r) EndLifeOn(life, r);
    }
    AddLife();
    for (uint32_t r = 0; r < kReactors; ++r) SetState(lives_.back(), r, PathState::kOptimized);
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
  uint64_t refusals() const { return refusals_; }
  uint64_t passed_over() const { return passed_over_; }
  uint64_t too_late() const { return too_late_; }
  uint64_t undone() const { return undone_; }

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
    write.submitted_ns = now_ns_;
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
      const bool undoes =
          blocks_[block] != effect.version && write.io.done && write.io.status == IoStatus::kOk;
      if (undoes) ++undone_;
      EXPECT_TRUE(!undoes || accepts()) << "a write that was answered changes block " << block;
      blocks_[block] = effect.version;
    }
  }

  Life* AnyLife(uint32_t reactor) {
    if (lives_.empty()) return nullptr;
    Life& life = lives_[random_.Below(lives_.size())];
    return life.standings[reactor].ended ? nullptr : &life;
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
  // A refusal is of a command that was not executed; what a controller says of a path of its own, or another host says, may be of either.
  uint16_t StatusFor(bool executed) {
    if (!finishes_ && random_.Chance(1, 48)) return requests_test::kAbortedByHost;
    if (random_.Chance(1, 32)) return requests_test::kInternalPath;
    if (executed) return 0;
    static constexpr std::array<uint16_t, 4> kFailures = {
        requests_test::kOutOfRange, requests_test::kNotReady, requests_test::kInaccessible,
        requests_test::kInaccessible};
    return kFailures[random_.Below(kFailures.size())];
  }
  void Answer() {
    const auto r = static_cast<uint32_t>(random_.Below(kReactors));
    Life* const life = AnyLife(r);
    if (life == nullptr || life->pairs[r].sent.empty()) return;
    FakePair& pair = life->pairs[r];
    const uint64_t index = random_.Below(pair.sent.size());
    const bool executed = life->executed[r].contains(pair.sent[index].cookie);
    if (!executed && !random_.Chance(1, 8)) return;
    AnswerWith(*life, r, index, StatusFor(executed));
  }
  void AnswerWith(Life& life, uint32_t r, uint64_t index, uint16_t status) {
    Standing& standing = life.standings[r];
    Reactor& reactor = reactors_[r];
    const fabrics::QueuedCommand command = life.pairs[r].Take(index);
    const bool executed = life.executed[r].erase(command.cookie) > 0;
    const bool is_refusal = status == requests_test::kInaccessible || status == requests_test::kInternalPath;
    std::vector<LifeId> told;
    if (is_refusal && !std::exchange(standing.refused, true)) {
      standing.refused_until_ns = 0;
      told.push_back(life.pairs[r].life);
      ++refusals_;
    }
    if (status == requests_test::kAbortedByHost) {
      standing.breaks = true;
      if (!executed) late_effects_.push_back(EffectOf(life.pairs[r].life, command));
    }
    reactor.refusals.clear();
    reactor.queue.Completed(life.pairs[r].life, command.cookie, EntryOfStatus(status), 0);
    EXPECT_EQ(reactor.refusals, told);
    EXPECT_EQ(standing.ended, status == requests_test::kAbortedByHost);
  }

  void EndLife() {
    if (!random_.Chance(1, 4)) return;
    const auto r = static_cast<uint32_t>(random_.Below(kReactors));
    if (Life* const life = AnyLife(r)) EndLifeOn(*life, r);
  }
  void EndLifeOn(Life& life, uint32_t r) {
    Standing& standing = life.standings[r];
    if (standing.ended) return;
    FakePair& pair = life.pairs[r];
    if (!std::exchange(life.over, true)) ledger_.Over(pair.life);
    while (!pair.sent.empty()) {
      const fabrics::QueuedCommand command = pair.Take(0);
      const bool executed = life.executed[r].contains(command.cookie);
      const bool is_sent = executed || random_.Chance(3, 4);
      standing.breaks = true;
      if (is_sent && !executed) late_effects_.push_back(EffectOf(pair.life, command));
      reactors_[r].queue.Unanswered(pair.life, command.cookie,
                                    is_sent ? Reached::kPerhapsAll : Reached::kNoData);
      if (random_.Chance(1, 4)) ToView();
      CheckLog();
    }
    standing.ended = true;
    reactors_[r].queue.PathEnded(pair.life);
  }
  void OpenLife() {
    const auto open =
        std::count_if(lives_.begin(), lives_.end(), [](const Life& life) { return !life.over; });
    if (lives_.size() < kLivesMax && static_cast<size_t>(open) < kPathsMax) AddLife();
  }
  void AddLife() {
    Life& life = lives_.emplace_back(1000 + lives_.size());
    for (uint32_t r = 0; r < kReactors; ++r) {
      FakePair& pair = life.pairs[r];
      pair.on_submit = [this, &life, r](const fabrics::QueuedCommand& command) {
        SeeSubmission(life, r, command);
      };
      pair.on_abort = [this, &life, r](const Error&) { EndLifeOn(life, r); };
      life.standings[r].state = AnyState();
      reactors_[r].queue.PathReady(pair.life, pair, FormatOf(pair.life), life.standings[r].state);
    }
  }
  // Every other life has commands of one block, if any has.
  PathFormat FormatOf(LifeId life) const {
    return MakeFormat({.transfer_bytes_max = small_transfers_ && life % 2 == 0 ? kBlockBytes : 0});
  }

  // Mostly usable.
  PathState AnyState() { return static_cast<PathState>((random_.Below(5) + 1) / 2); }
  void ChangeState() {
    const auto r = static_cast<uint32_t>(random_.Below(kReactors));
    if (Life* const life = AnyLife(r)) SetState(*life, r, AnyState());
  }
  void SetState(Life& life, uint32_t r, PathState state) {
    life.standings[r].state = state;
    reactors_[r].queue.SetState(life.pairs[r].life, state);
  }

  void SeeSubmission(const Life& life, uint32_t r, const fabrics::QueuedCommand& command) {
    const Effect effect = EffectOf(0, command);
    const std::vector<BlockRange> logged = log_.Found();
    EXPECT_NE(std::find(logged.begin(), logged.end(), effect.range), logged.end())
        << "block " << effect.range.first << " is written before the log has it";
    SeePath(life, r, effect.version);
  }
  // Whether the rule of paths lets the write's next command go by this one.
  void SeePath(const Life& life, uint32_t r, Version version) {
    const Standing& standing = life.standings[r];
    EXPECT_TRUE(standing.is_open()) << "a command goes by a path that may not be used";
    bool is_first = true;
    for (const Life& other : lives_) {
      for (const fabrics::QueuedCommand& sent : other.pairs[r].sent) {
        if (EffectOf(0, sent).version != version) continue;
        is_first = false;
        EXPECT_EQ(&other, &life) << "a write has commands under way on two paths";
      }
    }
    for (const Life& other : lives_) {
      const Standing& others = other.standings[r];
      if (!is_first || !others.is_open()) continue;
      EXPECT_LE(others.state, standing.state) << "there is a better path";
      const FakePair& pair = other.pairs[r];
      EXPECT_FALSE(others.state == standing.state && pair.room() > 0 &&
                   pair.sent.size() < life.pairs[r].sent.size())
          << "one as good has fewer under way";
      if (others.state < standing.state) ++passed_over_;
    }
  }
  // Nothing waits for a path while one that is as good as any has room.
  void CheckNoneWaitsInVain(uint32_t r) {
    PathState best = PathState::kUnusable;
    bool has_room = false;
    for (const Life& life : lives_) {
      const Standing& standing = life.standings[r];
      if (!standing.is_open() || standing.state < best) continue;
      has_room = (has_room && standing.state == best) || life.pairs[r].room() > 0;
      best = standing.state;
    }
    EXPECT_TRUE(!has_room || reactors_[r].queue.counts().for_path == 0) << "a request waits in vain";
    const bool refused = std::any_of(lives_.begin(), lives_.end(), [r](const Life& life) {
      return life.standings[r].refused && !life.standings[r].ended;
    });
    const RequestQueue::Counts counts = reactors_[r].queue.counts();
    EXPECT_EQ(reactors_[r].queue.wants_tick(), refused || counts.paused > 0 || counts.for_doubt > 0);
  }

  void ExecuteLate() {
    // Where nothing waits for it, it takes long to meet something newer.
    if (late_effects_.empty() || !random_.Chance(1, accepts() ? 32 : 4)) return;
    const auto at = late_effects_.begin() + static_cast<std::ptrdiff_t>(random_.Below(late_effects_.size()));
    const Effect effect = *at;
    late_effects_.erase(at);
    ++late_;
    Apply(effect);
  }
  void Prove() {
    if (lives_.empty() || accepts() || !random_.Chance(1, 8)) return;
    const LifeId life = lives_[random_.Below(lives_.size())].pairs[0].life;
    if (!ledger_.Proved(life, Proof::kControllerReset).ok()) return;
    std::erase_if(late_effects_, [life](const Effect& effect) { return effect.life == life; });
    Publish();
  }
  void Tick() {
    now_ns_ += RequestQueue::kPauseNs;
    for (Life& life : lives_) {
      for (Standing& standing : life.standings) {
        if (!standing.refused) continue;
        standing.refused = standing.refused_until_ns == 0 || standing.refused_until_ns > now_ns_;
        if (standing.refused_until_ns == 0) standing.refused_until_ns = now_ns_ + RequestQueue::kPauseNs;
      }
    }
    for (Reactor& reactor : reactors_) reactor.queue.Tick(now_ns_);
  }

  bool accepts() const { return policy_ == block::InDoubt::Policy::kAccept; }
  void ChangeRule() {
    rule_.policy = random_.Chance(1, 2) ? policy_ : block::InDoubt::Policy::kHold;
    for (Reactor& reactor : reactors_) reactor.queue.SetInDoubt(rule_);
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
    log_.log().Store(ledger_.ranges(), DoubtLog::Number::kNew);
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
    for (uint32_t r = 0; r < kReactors; ++r) CheckNoneWaitsInVain(r);
    for (Version version = 1; version <= writes_.size(); ++version) {
      Write& write = writes_[version - 1];
      if (!write.io.done || std::exchange(write.counted, true)) continue;
      if (write.io.request.error_number == ETIME) {
        ++too_late_;
        EXPECT_GE(now_ns_ - write.submitted_ns, kFailAfterNs);
      }
      for (uint64_t block = write.range.first; block < write.range.end(); ++block) {
        if (write.io.status == IoStatus::kOk) allowed_[block].clear();
        allowed_[block].insert(version);
      }
    }
    for (uint64_t block = 0; !overlapping_ && !accepts() && block < kBlocks; ++block) {
      const bool is_written = std::any_of(writes_.begin(), writes_.end(), [block](const Write& write) {
        return !write.io.done && write.range.Overlaps({block, 1});
      });
      EXPECT_TRUE(is_written || allowed_[block].contains(blocks_[block]))
          << "block " << block << " has version " << blocks_[block];
    }
  }

  Random random_;
  const bool overlapping_;
  const block::InDoubt::Policy policy_;
  block::InDoubt rule_{.policy = policy_, .fail_after_ns = kFailAfterNs};
  // Whose commands are executed late, so that they meet much that was sent after them; kReactors: nobody's.
  const uint32_t slow_reactor_;
  const bool small_transfers_;
  bool finishes_ = false;  // no path breaks any more
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
  uint64_t refusals_ = 0;     // that began a pause
  uint64_t passed_over_ = 0;  // worse paths that a command did not take
  uint64_t too_late_ = 0;     // writes that failed since they had waited too long
  uint64_t undone_ = 0;       // blocks that an attempt of an answered write has changed
};

struct Seen {
  uint64_t too_late = 0;
  uint64_t undone = 0;
};

// AddressSanitizer takes ten times as long for a seed, and the release build has them all.
#ifdef CLEAT_ASAN
constexpr uint64_t kSeeds = 50;
#else
constexpr uint64_t kSeeds = 200;
#endif

Seen RunSeeds(bool overlapping, block::InDoubt::Policy policy, uint64_t seeds = kSeeds) {
  constexpr int kSteps = 400;
  uint64_t late = 0;
  uint64_t refusals = 0;
  uint64_t passed_over = 0;
  Seen seen;
  for (uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, overlapping, policy);
    for (int i = 0; i < kSteps && !testing::Test::HasFailure(); ++i) world.Step();
    world.Finish();
    late += world.late();
    refusals += world.refusals();
    passed_over += world.passed_over();
    seen.too_late += world.too_late();
    seen.undone += world.undone();
  }
  const uint64_t enough = seeds / 2;
  if (policy != block::InDoubt::Policy::kAccept) {
    EXPECT_GT(late, enough) << "the schedules have what they are about";
  }
  EXPECT_GT(refusals, enough);
  EXPECT_GT(passed_over, enough);
  return seen;
}

TEST(RandomRequests, NoAnsweredWriteIsUndoneForAGuestWithoutOverlappingWrites) {
  EXPECT_EQ(RunSeeds(false, block::InDoubt::Policy::kHold).too_late, 0U);
}

TEST(RandomRequests, NoAttemptOfAnAnsweredWriteChangesAByteWhereWritesOverlap) {
  EXPECT_EQ(RunSeeds(true, block::InDoubt::Policy::kHold).too_late, 0U);
}

TEST(RandomRequests, NoAnsweredWriteIsUndoneWhereWritesFailThatWaitTooLong) {
  EXPECT_GT(RunSeeds(false, block::InDoubt::Policy::kFailAfter, 80).too_late, 20U);
  EXPECT_GT(RunSeeds(true, block::InDoubt::Policy::kFailAfter, 60).too_late, 20U);
}

// The log has what a killed engine would leave all the same (CheckLog).
TEST(RandomRequests, WhereDoubtIsAcceptedNoRequestNeedsAProofAndOldWritesWin) {
  EXPECT_GT(RunSeeds(false, block::InDoubt::Policy::kAccept, 60).undone, 0U);
}

}  // namespace
}  // namespace cleat::nvme::host::requests_random_test
