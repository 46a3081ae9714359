// SPDX-License-Identifier: Apache-2.0
// Anything at any time, from seeds: requests of all kinds, limits that change, recalls, queues that drain, disks that
// come and go. Each request ends once and in order, and when all is over nothing is left. And with real threads, where
// limits change a million times.
#include <atomic>
#include <thread>

#include "base/random.h"
#include "tests/unit/qos/rig.h"

namespace cleat::qos::test::stress_test {
namespace {

using cleat::test::VirtualReactors;

Limits RandomLimits(Random& random) {
  Limits limits;
  for (size_t meter = 0; meter < kMeters; ++meter) {
    if (!random.Chance(1, 3)) continue;
    const bool bytes = meter >= static_cast<size_t>(Meter::kBytes);
    Rate& rate = limits.rates[meter];
    rate.per_second = random.Between(1, random.Between(1, 100'000)) * (bytes ? 4096 : 1);
    if (random.Chance(1, 3)) {
      rate.burst_per_second = rate.per_second * random.Between(2, 20);
      rate.burst_ms = static_cast<uint32_t>(random.Between(1, 3000));
    }
  }
  return limits;
}

void Shape(Random& random, block::Request& request) {
  constexpr block::Op kOps[] = {block::Op::kRead,  block::Op::kRead,    block::Op::kWrite,
                                block::Op::kFlush, block::Op::kDiscard, block::Op::kWriteZeroes,
                                block::Op::kRead,  block::Op::kWrite};
  request.op = kOps[random.Below(std::size(kOps))];
  request.length_bytes =
      request.op == block::Op::kFlush ? 0 : 512 * random.Between(1, random.Between(1, 2048));
}

class World {
 public:
  explicit World(uint64_t seed) : random_(seed), groups_(reactors_[0]) {
    for (uint32_t i = 0; i < 2; ++i) Put(i);
    for (auto& place : places_) Open(place);
  }
  ~World() {
    for (auto& place : places_) Close(place);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Step() {
    Place& place = places_[random_.Below(std::size(places_))];
    block::Channel& channel = place.guests[random_.Below(2)]->channel();
    switch (random_.Below(8)) {
      case 0:
        reactors_[0].PostCall([&place, limits = RandomLimits(random_)] { place.disk->SetLimits(limits); });
        break;
      case 1:
        Put(static_cast<uint32_t>(random_.Below(2)));
        break;
      case 2:
        channel.AbortQueued(nullptr);
        break;
      case 3:
        channel.throttle()->SetBypass(true);
        channel.throttle()->SetBypass(false);
        break;
      case 4:
        Close(place);
        Open(place);
        break;
      case 5:
        ASSERT_TRUE(groups_.UseTable(GroupTable::Make().value()->Duplicate().value()).ok());
        break;
      default:
        break;
    }
    // Not unlimited for long: guests without limits never let virtual time go on.
    for (int turn = 0; turn < 20; ++turn) {
      reactors_.clock().AdvanceBy(random_.Below(random_.Chance(1, 20) ? kNsPerSecond : 20 * kNsPerUs));
      for (size_t i = 0; i < 2; ++i) reactors_[i].RunOnce();
    }
  }
  uint64_t passed() const { return passed_; }

 private:
  struct Place {
    std::unique_ptr<LimitedDevice> disk;
    std::unique_ptr<Guest> guests[2];
  };

  void Put(uint32_t group) {
    ASSERT_TRUE(groups_.Put({"groups/" + std::to_string(group), group, RandomLimits(random_)}).ok());
  }
  void Open(Place& place) {
    const uint64_t group = random_.Below(3);  // or none
    place.disk = MakeDisk(RandomLimits(random_), groups_.Find("groups/" + std::to_string(group)));
    for (size_t i = 0; i < 2; ++i) {
      place.guests[i] =
          std::make_unique<Guest>(reactors_[i], *place.disk, random_.Between(1, 64), 512, block::Op::kRead,
                                  [this](block::Request& request) { Shape(random_, request); });
    }
  }
  void Close(Place& place) {
    for (auto& guest : place.guests) {
      guest->Stop();
      if (random_.Chance(1, 2)) {
        guest->channel().AbortQueued(nullptr);
      } else {
        guest->channel().throttle()->SetBypass(true);
      }
      EXPECT_EQ(guest->in_flight(), 0U);
      EXPECT_TRUE(guest->in_order());
      EXPECT_EQ(guest->passed() + guest->aborted(), guest->submitted());
      passed_ += guest->passed();
      guest.reset();
    }
    place.disk.reset();
  }

  Random random_;
  VirtualReactors reactors_{2};
  Groups groups_;
  Place places_[5];
  uint64_t passed_ = 0;
};

TEST(Stress, NothingIsLostWhateverHappens) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int step = 0; step < 300 && !testing::Test::HasFailure(); ++step) world.Step();
  }
}

// Two reactors in threads of their own, with a disk on both and a group; limits change as fast as they can.
TEST(Stress, AMillionChangesUnderLoadAndTheLastOneHolds) {
  constexpr int kChanges = 1'000'000;
  const MonotonicClock clock;
  std::vector<std::unique_ptr<Reactor>> reactors;
  for (uint32_t i = 0; i < 3; ++i) {
    Reactor::Options options;
    options.index = i;
    reactors.push_back(Reactor::Make(clock, options).value());
  }
  std::unique_ptr<Groups> groups;
  std::unique_ptr<LimitedDevice> disk;
  groups = std::make_unique<Groups>(*reactors[0]);
  ASSERT_TRUE(groups->Put({"groups/vm", 0, Iops(50'000)}).ok());
  disk = MakeDisk(Iops(100'000), groups->Find("groups/vm"));
  std::unique_ptr<Guest> guests[2];
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    guests[i] = std::make_unique<Guest>(*reactors[i + 1], *disk, 32, 4096);
    threads.emplace_back([&, i] { reactors[i + 1]->Run(); });
  }
  threads.emplace_back([&] { reactors[0]->Run(); });

  const auto on = [&](size_t reactor, const std::function<void()>& what) {
    std::atomic<bool> done{false};
    reactors[reactor]->PostCall([&] {
      what();
      done.store(true);
      done.notify_one();
    });
    done.wait(false);
  };
  // Both have had a core before the changes begin.
  for (size_t i = 0; i < 2; ++i) {
    for (bool passes = false; !passes;) on(i + 1, [&] { passes = guests[i]->passed() > 0; });
  }
  on(0, [&] {
    for (uint64_t n = 0; n < kChanges; ++n) {
      const Limits limits = Iops(10'000 + n % 1000);
      if (n % 2 == 0) {
        disk->SetLimits(limits);
      } else {
        ASSERT_TRUE(groups->Put({"groups/vm", 0, limits}).ok());
      }
    }
    disk->SetLimits(Iops(1));
    ASSERT_TRUE(groups->Put({"groups/vm", 0, {}}).ok());
  });
  // Mail is in order, so what these say comes after the last change.
  const uint64_t begin_ns = clock.NowNs();
  uint64_t before = 0;
  for (size_t i = 0; i < 2; ++i) on(i + 1, [&] { before += guests[i]->passed(); });
  for (int looks = 0; looks < 200; ++looks) {
    for (size_t i = 0; i < 2; ++i) on(i + 1, [] {});
  }
  uint64_t after = 0;
  for (size_t i = 0; i < 2; ++i) on(i + 1, [&] { after += guests[i]->passed(); });
  const double seconds = static_cast<double>(clock.NowNs() - begin_ns) / 1e9;
  EXPECT_GT(before, 0U);
  EXPECT_LE(static_cast<double>(after - before), seconds + 3);
  // And one that lets go reaches what waits.
  on(0, [&] { disk->SetLimits({}); });
  for (size_t i = 0; i < 2; ++i) {
    on(i + 1, [&] {
      guests[i]->Stop();
      guests[i]->channel().throttle()->SetBypass(true);
      EXPECT_EQ(guests[i]->in_flight(), 0U);
      EXPECT_TRUE(guests[i]->in_order());
      guests[i].reset();
    });
  }
  for (auto& reactor : reactors) reactor->Stop();
  for (auto& thread : threads) thread.join();
  disk.reset();
}

// Against the wall clock, on a machine that may be busy: never more than was promised.
TEST(Stress, NeverMoreThanPromisedInRealTime) {
  const MonotonicClock clock;
  const auto reactor = Reactor::Make(clock, {}).value();
  const auto disk = MakeDisk(Iops(20'000));
  const uint64_t begin_ns = clock.NowNs();
  Guest guest(*reactor, *disk, 64, 4096);
  while (clock.NowNs() < begin_ns + 300 * kNsPerMs || guest.passed() == 0) reactor->RunOnce();
  const double seconds = static_cast<double>(clock.NowNs() - begin_ns) / 1e9;
  EXPECT_GT(guest.passed(), 0U);
  EXPECT_LE(static_cast<double>(guest.passed()), 20'000 * (seconds + 0.012) + 1);
  guest.End();
}

}  // namespace
}  // namespace cleat::qos::test::stress_test
