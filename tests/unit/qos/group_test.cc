// SPDX-License-Identifier: Apache-2.0
// Groups: the limits of many disks over reactors and engines, and how the disks share them.
#include <optional>

#include "tests/unit/qos/rig.h"

namespace cleat::qos::test::group_test {
namespace {

using cleat::test::VirtualReactors;

constexpr uint64_t kTenSeconds = 10 * kNsPerSecond;

// An engine's groups, with some disks of its one group.
class Engine {
 public:
  Engine(VirtualReactors& reactors, const Limits& limits, GroupTable* table = nullptr)
      : reactors_(reactors), groups_(reactors[0]) {
    if (table != nullptr) CLEAT_CHECK(groups_.UseTable(table->Duplicate().value()).ok());
    Put(limits);
  }
  ~Engine() {
    for (auto& guest : guests_) guest->End();
    guests_.clear();
    disks_.clear();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Put(const Limits& limits) { EXPECT_TRUE(groups_.Put({"groups/vm", 3, limits}).ok()); }
  Guest& AddDisk(size_t reactor, uint32_t depth, uint64_t bytes, block::Op op = block::Op::kRead,
                 const Limits& own = {}) {
    disks_.push_back(MakeDisk(own, groups_.Find("groups/vm")));
    guests_.push_back(std::make_unique<Guest>(reactors_[reactor], *disks_.back(), depth, bytes, op));
    return *guests_.back();
  }
  Groups& groups() { return groups_; }
  std::vector<std::unique_ptr<Guest>>& guests() { return guests_; }
  uint64_t passed() const {
    uint64_t sum = 0;
    for (const auto& guest : guests_) sum += guest->passed();
    return sum;
  }
  uint64_t passed_bytes() const {
    uint64_t sum = 0;
    for (const auto& guest : guests_) sum += guest->passed_bytes();
    return sum;
  }
  std::vector<double> Shares(bool bytes = false) const {
    std::vector<double> shares;
    for (const auto& guest : guests_) {
      shares.push_back(static_cast<double>(bytes ? guest->passed_bytes() : guest->passed()));
    }
    return shares;
  }

 private:
  VirtualReactors& reactors_;
  Groups groups_;
  std::vector<std::unique_ptr<LimitedDevice>> disks_;
  std::vector<std::unique_ptr<Guest>> guests_;
};

TEST(Group, DeliversWithinOnePercent) {
  for (const uint64_t iops : {1, 100, 6'000, 1'000'000}) {
    VirtualReactors reactors;
    Engine engine(reactors, Iops(iops));
    for (int i = 0; i < 8; ++i) engine.AddDisk(0, 16, 4096);
    RunFor(reactors, SecondsFor(iops) * kNsPerSecond);
    ExpectWithinOnePercent(engine.passed(), static_cast<double>(iops), static_cast<double>(SecondsFor(iops)));
    if (iops >= 100) {
      EXPECT_GE(Jain(engine.Shares()), 0.99) << iops;
    }
    for (const auto& guest : engine.guests()) EXPECT_TRUE(guest->in_order());
  }
}

// Five disks on one reactor, one on the other.
TEST(Group, OverTwoReactorsDeliversWithinOnePercentAndEvenly) {
  for (const uint64_t iops : {1, 100, 6'000, 1'000'000}) {
    VirtualReactors reactors(2);
    Engine engine(reactors, Iops(iops));
    for (int i = 0; i < 5; ++i) engine.AddDisk(0, 16, 4096);
    engine.AddDisk(1, 16, 4096);
    RunFor(reactors, SecondsFor(iops) * kNsPerSecond);
    ExpectWithinOnePercent(engine.passed(), static_cast<double>(iops), static_cast<double>(SecondsFor(iops)));
    if (iops >= 100) {
      EXPECT_GE(Jain(engine.Shares()), 0.99) << iops;
    }
  }
}

TEST(Group, OverTwoEnginesDeliversWithinOnePercentAndEvenly) {
  for (const uint64_t iops : {1, 100, 6'000, 1'000'000}) {
    VirtualReactors reactors(2);
    const auto table = GroupTable::Make().value();
    Engine blue(reactors, Iops(iops), table.get());
    Engine green(reactors, Iops(iops), table.get());
    for (int i = 0; i < 3; ++i) blue.AddDisk(0, 16, 4096);
    green.AddDisk(1, 16, 4096);
    RunFor(reactors, SecondsFor(iops) * kNsPerSecond);
    ExpectWithinOnePercent(blue.passed() + green.passed(), static_cast<double>(iops),
                           static_cast<double>(SecondsFor(iops)));
    std::vector<double> shares = blue.Shares();
    shares.push_back(green.Shares()[0]);
    if (iops >= 100) {
      EXPECT_GE(Jain(shares), 0.99) << iops;
    }
  }
}

TEST(Group, SharesBytesEvenlyWhateverTheRequestsSizes) {
  for (const uint64_t bytes : {uint64_t{10'000'000}, uint64_t{200'000'000}}) {
    VirtualReactors reactors(2);
    Engine engine(reactors, Bytes(bytes));
    const uint64_t sizes[] = {4096, 65'536, 1 << 20, 512, 16'384, 262'144};
    for (size_t i = 0; i < 6; ++i) engine.AddDisk(i < 4 ? 0 : 1, 1024, sizes[i]);
    RunFor(reactors, 4 * kTenSeconds);
    ExpectWithinOnePercent(engine.passed_bytes(), static_cast<double>(bytes), 40, 1 << 20);
    EXPECT_GE(Jain(engine.Shares(true)), 0.99) << bytes;
  }
}

TEST(Group, SharesRequestsEvenlyWhateverTheirSizes) {
  VirtualReactors reactors;
  Engine engine(reactors, Iops(6000));
  const uint64_t sizes[] = {4096, 65'536, 1 << 20, 512};
  for (const uint64_t size : sizes) engine.AddDisk(0, 32, size);
  RunFor(reactors, kTenSeconds);
  EXPECT_GE(Jain(engine.Shares()), 0.99);
}

TEST(Group, BothLevelsHoldAtOnce) {
  VirtualReactors reactors;
  Engine engine(reactors, Iops(1000));
  Guest& limited = engine.AddDisk(0, 32, 4096, block::Op::kRead, Iops(100));
  Guest& free = engine.AddDisk(0, 32, 4096);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(engine.passed(), 1000, 10);
  ExpectWithinOnePercent(limited.passed(), 100, 10);
  ExpectWithinOnePercent(free.passed(), 900, 10);
}

// A round of eight waiting disks is eight requests.
TEST(Group, DeepQueueDelaysAShallowOneByTwoRoundsAtMost) {
  for (const size_t reactor_of_shallow : {0, 1}) {
    VirtualReactors reactors(2);
    Engine engine(reactors, Iops(1000));
    for (int i = 0; i < 7; ++i) engine.AddDisk(0, 128, 4096);
    Guest& shallow = engine.AddDisk(reactor_of_shallow, 1, 4096);
    RunFor(reactors, kTenSeconds);
    EXPECT_GT(shallow.passed(), 1000U);
    EXPECT_LE(shallow.worst_wait_ns(), 2 * 8 * kNsPerMs + kNsPerMs / 10);
  }
}

TEST(Group, ReadsDoNotWaitForALimitOfWrites) {
  VirtualReactors reactors;
  Limits limits;
  limits[Meter::kIops] = {1000, 0, 0};
  limits[Meter::kWriteIops] = {10, 0, 0};
  Engine engine(reactors, limits);
  Guest& writer = engine.AddDisk(0, 32, 4096, block::Op::kWrite);
  Guest& reader = engine.AddDisk(0, 32, 4096);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(writer.passed(), 10, 10);
  ExpectWithinOnePercent(reader.passed(), 990, 10);
}

// The timer was set for reads alone when the write came.
TEST(Group, AWriteThatComesDoesNotWaitForAReadsTime) {
  VirtualReactors reactors;
  constexpr uint64_t kMiB = 1 << 20;
  Limits limits;
  limits[Meter::kReadBytes] = {kMiB, 0, 0};
  limits[Meter::kWriteBytes] = {kMiB, 0, 0};
  Engine engine(reactors, limits);
  Guest& writer = engine.AddDisk(0, 1, 20 * kMiB, block::Op::kWrite);  // the next one may pass after 20 s
  const auto disk = MakeDisk({}, engine.groups().Find("groups/vm"));
  uint64_t read_bytes = 5 * kMiB;
  Guest reader(reactors[0], *disk, 1, 0, block::Op::kRead,
               [&](block::Request& request) { request.length_bytes = std::exchange(read_bytes, 60 * kMiB); });
  RunFor(reactors, kNsPerSecond);
  writer.End();
  RunFor(reactors, 5 * kNsPerSecond);
  EXPECT_EQ(reader.passed(), 2U);  // the next one after 65 s
  writer.Start();
  RunFor(reactors, 15 * kNsPerSecond);
  EXPECT_EQ(writer.passed(), 2U);
  reader.End();
}

TEST(Group, NewLimitsHoldAtOnce) {
  VirtualReactors reactors(2);
  Engine engine(reactors, Iops(1));
  engine.AddDisk(0, 32, 4096);
  engine.AddDisk(1, 32, 4096);
  RunFor(reactors, kTenSeconds);
  uint64_t before = engine.passed();
  engine.Put(Iops(10'000));
  RunFor(reactors, kNsPerSecond);
  EXPECT_NEAR(static_cast<double>(engine.passed() - before), 10'000, 100);
  EXPECT_GE(Jain(engine.Shares()), 0.99);
  before = engine.passed();
  engine.Put(Iops(2));
  RunFor(reactors, kTenSeconds);
  EXPECT_NEAR(static_cast<double>(engine.passed() - before), 20, 2);
}

// Each is told, one after the other; what was owed becomes shorter once.
TEST(Group, NewLimitsOverTwoEnginesCountOnce) {
  VirtualReactors reactors(2);
  const auto table = GroupTable::Make().value();
  Engine blue(reactors, Bytes(1 << 10), table.get());
  Engine green(reactors, Bytes(1 << 10), table.get());
  blue.AddDisk(0, 4, 1 << 20);
  green.AddDisk(1, 4, 1 << 20);
  RunFor(reactors, kNsPerSecond);  // 1,023 s are owed
  blue.Put(Bytes(1 << 20));
  RunFor(reactors, kNsPerMs);
  green.Put(Bytes(1 << 20));
  const uint64_t before = blue.passed() + green.passed();
  RunFor(reactors, 2 * kTenSeconds);
  EXPECT_NEAR(static_cast<double>(blue.passed() + green.passed() - before), 20, 1);
  EXPECT_GE(blue.passed(), 9U);
  EXPECT_GE(green.passed(), 9U);
}

// An engine that does not come back has taken at most its turn along.
TEST(Group, AnEngineThatHangsTakesItsTurnAlongAndNoMore) {
  VirtualReactors reactors(1);
  const auto table = GroupTable::Make().value();
  VirtualReactors other(1);  // its time stands still after a second
  Engine blue(other, Iops(1000), table.get());
  Engine green(reactors, Iops(1000), table.get());
  blue.AddDisk(0, 64, 4096);
  green.AddDisk(0, 64, 4096);
  for (int ms = 0; ms < 1000; ++ms) {
    RunFor(other, kNsPerMs);
    RunFor(reactors, kNsPerMs);
  }
  const uint64_t before = green.passed();
  EXPECT_NEAR(static_cast<double>(before), 500, 10);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(green.passed() - before, 1000, 10);
}

// The engine that comes finds what was used, and no burst.
TEST(Group, HandOverGivesNoBurstAnew) {
  VirtualReactors reactors;
  Limits limits;
  limits[Meter::kIops] = {100, 1000, 2000};
  const auto table = GroupTable::Make().value();
  std::optional<Engine> blue;
  blue.emplace(reactors, limits, table.get());
  blue->AddDisk(0, 64, 4096);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(blue->passed(), 100, 10);
  blue.reset();
  Engine green(reactors, limits, table.get());
  green.AddDisk(0, 64, 4096);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(green.passed(), 100, 10);
}

// Its accounts are ahead of the clock for ever, because others always want more.
TEST(Group, OthersDoNotPutOffWhatADiskOwes) {
  VirtualReactors reactors;
  Engine engine(reactors, Iops(100));
  Guest& owing = engine.AddDisk(0, 100, 4096);
  RunFor(reactors, kNsPerMs);
  owing.Stop();
  const uint64_t now_ns = reactors.clock().NowNs();
  owing.channel().throttle()->SetBypass(true);
  owing.channel().throttle()->SetBypass(false);
  const uint64_t until_ns = owing.channel().throttle()->DebtUntilNs();
  EXPECT_NEAR(static_cast<double>(until_ns - now_ns), 1e9, 2e7);
  Guest& other = engine.AddDisk(0, 100, 4096);
  RunFor(reactors, 500 * kNsPerMs);
  other.channel().throttle()->SetBypass(true);  // and this one owes a second more
  other.channel().throttle()->SetBypass(false);
  EXPECT_EQ(owing.channel().throttle()->DebtUntilNs(), until_ns);
  EXPECT_GT(other.channel().throttle()->DebtUntilNs(), until_ns + kNsPerSecond / 2);
  RunFor(reactors, 520 * kNsPerMs);
  EXPECT_EQ(owing.channel().throttle()->DebtUntilNs(), 0U);
  EXPECT_NE(other.channel().throttle()->DebtUntilNs(), 0U);
}

TEST(Groups, AreKeptByNameAndSlot) {
  VirtualReactors reactors;
  Groups groups(reactors[0]);
  EXPECT_TRUE(groups.Put({"groups/a", 1, Iops(10)}).ok());
  EXPECT_TRUE(groups.Put({"groups/a", 1, Iops(20)}).ok());
  EXPECT_EQ(groups.Put({"groups/a", 2, Iops(20)}).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(groups.Put({"groups/b", 1, Iops(20)}).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(groups.Put({"groups/b", kGroupsMax, Iops(20)}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(groups.Put({"", 2, Iops(20)}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(groups.Put({"groups/b", 2, Iops(kIopsMax + 1)}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_EQ(groups.Report().size(), 1U);
  EXPECT_EQ(groups.Report()[0], (GroupSpec{"groups/a", 1, Iops(20)}));
  {
    const auto disk = MakeDisk({}, groups.Find("groups/a"));
    EXPECT_EQ(groups.Drop("groups/a").error().code, ErrorCode::kFailedPrecondition);
  }
  EXPECT_TRUE(groups.Drop("groups/a").ok());
  EXPECT_TRUE(groups.Drop("groups/a").ok());
  EXPECT_EQ(groups.Find("groups/a"), nullptr);
}

}  // namespace
}  // namespace cleat::qos::test::group_test
