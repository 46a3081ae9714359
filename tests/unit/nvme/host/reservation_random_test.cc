// SPDX-License-Identifier: Apache-2.0
// Random schedules of lives that join, die and are shut out, over two processes of a target that keep their reservations to themselves.
// What a dead life left in its sockets - writes, and commands of reservations - is read at any later moment; a process may give up
// waiting, and its operator may take the reservation away. After each event it is checked that no life that was proved dead can still write
// where the reservation has been held since, that none sends Register twice, and that no two hosts are let in by the same process.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>

#include "base/random.h"
#include "tests/unit/nvme/host/reservation_target.h"

namespace cleat::nvme::host::reservation_test {
namespace {

constexpr uint32_t kRuns = 600;
constexpr uint32_t kEvents = 80;
constexpr size_t kLivesMax = 6;

struct Life {
  Life(ReservationTarget& t, LifeId life, uint64_t f) : target(&t), party(t, life, f), family(f) {}
  ReservationTarget* target;
  Party party;
  uint64_t family;
  bool dead = false;
  bool proved = false;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  void Run() {
    for (uint32_t event = 0; event < kEvents && !testing::Test::HasFatalFailure(); ++event) {
      Event();
      Check();
    }
  }
  uint32_t proofs() const { return proofs_; }
  uint32_t refused() const { return refused_; }

 private:
  Life* AnyLife(bool dead) {
    std::vector<Life*> found;
    for (const auto& life : lives_) {
      if (life->dead == dead) found.push_back(life.get());
    }
    return found.empty() ? nullptr : found[random_.Below(found.size())];
  }

  void Event() {
    switch (random_.Below(18)) {
      case 0:
      case 1:
        Begin();
        break;
      case 2:
      case 3:
        ShutOut();
        break;
      case 4:
        if (Life* const life = AnyLife(false)) Die(*life);
        break;
      case 5:
        ReadSocket();
        break;
      case 6:
        Land();
        break;
      case 7:
        targets_[random_.Below(2)].gives_up = random_.Chance(1, 3);
        break;
      case 8:
        Disturb();
        break;
      default:
        Serve();
    }
  }

  void Begin() {
    if (lives_.size() == kLivesMax) return;
    const uint64_t family = random_.Chance(1, 6) ? kOtherFamily : kFamily;
    lives_.push_back(std::make_unique<Life>(targets_[random_.Below(2)], ++last_life_, family));
    lives_.back()->party.reservation.Join(0);
  }

  // A life tries to prove that another one, which is dead, is over.
  void ShutOut() {
    Life* const life = AnyLife(false);
    Life* const dead = AnyLife(true);
    if (life == nullptr || dead == nullptr || life->family != dead->family) return;
    if (life->party.reservation.busy()) return;
    life->party.shut_out.reset();
    life->party.reservation.ShutOut(dead->party.life);
  }

  void Die(Life& life) {
    for (LeftCommand& command : life.party.Die()) ghosts_.emplace_back(life.target, std::move(command));
    life.dead = true;
    if (!life.party.joined || !life.party.joined->ok()) return;
    // A life writes only once it has joined.
    life.target->unread[life.party.host] = static_cast<uint32_t>(random_.Below(3));
    life.target->under_way[life.party.host] = static_cast<uint32_t>(random_.Below(2));
  }

  // The writes of a dead life are read, as late as that.
  void ReadSocket() {
    if (Life* const dead = AnyLife(true)) dead->target->ReadSocket(dead->party.host);
  }

  // A reservation command that a dead life left is executed.
  void Land() {
    if (ghosts_.empty()) return;
    const size_t at = random_.Below(ghosts_.size());
    const auto [target, command] = ghosts_[at];
    ghosts_.erase(ghosts_.begin() + static_cast<ptrdiff_t>(at));
    std::array<uint8_t, kReportBytes> room{};
    uint64_t bytes = 0;
    (void)target->Execute(command.host, command.entry, command.data, room, bytes);
  }

  void Disturb() {
    if (!random_.Chance(1, 4)) return;
    ReservationTarget& target = targets_[random_.Below(2)];
    if (random_.Chance(1, 2)) target.Clear();
    target.type = ReservationType::kNone;
    // Nothing that was proved here holds any more: the reservation was given up.
    for (const auto& life : lives_) {
      if (life->target == &target) life->proved = false;
    }
  }

  void Serve() {
    Life* life = AnyLife(false);
    for (const auto& other : lives_) {
      if (life != nullptr && life->party.queue.empty() && !other->party.queue.empty()) life = other.get();
    }
    if (life == nullptr || !life->party.ServeOne() || !life->party.shut_out) return;
    const ShutOutResult result = *std::exchange(life->party.shut_out, std::nullopt);
    if (result.end != ShutOutEnd::kProved) {
      ++refused_;
      return;
    }
    for (const auto& dead : lives_) {
      if (dead->party.life != life->party.shut_out_life) continue;
      ASSERT_EQ(dead->target, life->target) << "a process says nothing of another one's";
      dead->proved = true;
      ++proofs_;
    }
  }

  void Check() {
    for (const auto& life : lives_) {
      const bool writes = life->target->MayStillWrite(life->party.host);
      ASSERT_FALSE(life->proved && writes) << life->party.life;
    }
    for (ReservationTarget& target : targets_) {
      for (const auto& [host, times] : target.came_in)
        ASSERT_LE(times, 1U) << "a second Register may come late";
      std::set<uint64_t> families;
      for (const auto& life : lives_) {
        const bool writes = !life->dead && life->party.reservation.joined();
        if (life->target == &target && writes && target.Has(life->party.host)) families.insert(life->family);
      }
      ASSERT_LE(families.size(), 1U) << "two hosts write to one namespace";
    }
  }

  Random random_;
  std::array<ReservationTarget, 2> targets_;
  std::vector<std::unique_ptr<Life>> lives_;
  std::vector<std::pair<ReservationTarget*, LeftCommand>> ghosts_;
  LifeId last_life_ = 0;
  uint32_t proofs_ = 0;
  uint32_t refused_ = 0;
};

TEST(ReservationRandom, ALifeThatWasProvedDeadWritesNoMore) {
  uint32_t proofs = 0;
  uint32_t refused = 0;
  for (uint64_t seed = 1; seed <= kRuns && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    world.Run();
    proofs += world.proofs();
    refused += world.refused();
  }
  EXPECT_GT(proofs, kRuns / 10);
  EXPECT_GT(refused, kRuns / 10);
}

}  // namespace
}  // namespace cleat::nvme::host::reservation_test
