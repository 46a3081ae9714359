// SPDX-License-Identifier: Apache-2.0
// The arithmetic alone: exactness over all rates and over the wrap of time, debts, changes of price, and many users of
// one account, some of which die.
#include "qos/token_bucket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <thread>
#include <vector>

#include "qos/group_table.h"

namespace cleat::qos::token_bucket_test {
namespace {

// One user of one account, always wanting more.
struct User {
  explicit User(Account& a, uint64_t price, uint64_t tolerance = kToleranceUnits) : account(a) {
    lease.price = price;
    lease.tolerance = tolerance;
    lease.paid = lease.end = a.paid_until.load();
  }
  // How many requests of `cost` pass now.
  uint64_t TakeAll(uint64_t cost, uint64_t now) {
    uint64_t count = 0;
    while (lease.Covers(cost, now) || lease.Extend(account, cost, kLeaseUnits, now, behind) == 0) {
      lease.Use(cost);
      ++count;
    }
    return count;
  }
  Account& account;
  Lease lease;
  bool behind = false;
};

TEST(TokenBucket, CostsAreExactEnoughAtAnyRate) {
  const struct {
    uint64_t amount, per_second;
    double tolerated;
  } cases[] = {{512, 100'000'000'000, 0.002},
               {4096, 100'000'000'000, 0.0005},
               {1, 100'000'000, 0.001},
               {1, 1'000'000, 1e-5},
               {1, 1, 1e-9},
               {512, 512, 1e-9},
               {1 << 30, 512, 1e-9},
               {4096, 1'000'000'000'000, 0.005}};
  for (const auto& c : cases) {
    const double exact = static_cast<double>(c.amount) / static_cast<double>(c.per_second) * 64e9;
    EXPECT_NEAR(static_cast<double>(CostOf(c.amount, PriceOf(c.per_second))) / exact, 1, c.tolerated)
        << c.per_second;
  }
  EXPECT_LE(CostOf(kAmountMax, PriceOf(512)), kCostUnitsMax);
}

// Looked at in steps of 3 ms, i.e. by a reactor that is always late: nothing of the rate is lost, also while time wraps.
TEST(TokenBucket, DeliversItsRateThoughItIsLookedAtLateAndTimeWraps) {
  for (const uint64_t start : {UnitsOf(kNsPerSecond), uint64_t{0} - UnitsOf(5 * kNsPerSecond)}) {
    for (const uint64_t rate : {1, 100, 6'000, 1'000'000}) {
      Account account;
      account.SetPrice(PriceOf(rate), start);
      User user(account, PriceOf(rate));
      uint64_t passed = 0;
      for (uint64_t ms = 0; ms < 10'000; ms += 3) {
        passed += user.TakeAll(CostOf(1, PriceOf(rate)), start + UnitsOf(ms * kNsPerMs));
      }
      const double promised = static_cast<double>(rate) * 9.999;
      EXPECT_NEAR(static_cast<double>(passed), promised, std::max(1.0, promised * 0.001)) << rate;
    }
  }
}

// What the test of accuracy would say of a bucket that forgets its debts.
TEST(TokenBucket, ABucketThatForgetsDebtWouldBeNoticed) {
  Account account;
  const uint64_t price = PriceOf(100);
  account.SetPrice(price, 0);
  uint64_t passed = 0;
  for (uint64_t ms = 0; ms < 10'000; ms += 3) {
    const uint64_t now = UnitsOf(kNsPerSecond + ms * kNsPerMs);
    account.paid_until.store(std::min(account.paid_until.load(), now));  // the defect
    User user(account, price);
    passed += user.TakeAll(CostOf(1, price), now);
  }
  EXPECT_GT(passed, 2 * 1000U);
}

TEST(TokenBucket, NothingIsSavedAtFirstAndTheToleranceAtMostLater) {
  Account account;
  const uint64_t start = UnitsOf(kNsPerSecond);
  const uint64_t price = PriceOf(1000);
  account.SetPrice(price, start);
  User user(account, price);
  EXPECT_EQ(user.TakeAll(CostOf(1, price), start), 1U);  // into debt for a millisecond
  EXPECT_EQ(user.TakeAll(CostOf(1, price), start + UnitsOf(kNsPerMs / 2)), 0U);
  // Ten in 10 ms, the one that may always pass, and the one that was waited for.
  EXPECT_EQ(user.TakeAll(CostOf(1, price), start + UnitsOf(kNsPerSecond)), 12U);
}

TEST(TokenBucket, AChangeOfPriceKeepsTheWorkThatIsOwedOrSaved) {
  Account account;
  const uint64_t now = UnitsOf(100 * kNsPerSecond);
  account.SetPrice(PriceOf(10), now);
  account.ChargeDebt(CostOf(100, PriceOf(10)), kToleranceUnits, now);
  EXPECT_EQ(account.paid_until.load() - now, UnitsOf(10 * kNsPerSecond));
  account.SetPrice(PriceOf(1000), now);
  EXPECT_NEAR(static_cast<double>(account.paid_until.load() - now),
              static_cast<double>(UnitsOf(kNsPerSecond / 10)), 64);
  account.SetPrice(PriceOf(1000), now);  // the second one to say so changes nothing
  EXPECT_NEAR(static_cast<double>(account.paid_until.load() - now),
              static_cast<double>(UnitsOf(kNsPerSecond / 10)), 64);
  account.SetPrice(PriceOf(10), now + UnitsOf(kNsPerSecond));  // 900 ms saved: 900 requests
  EXPECT_NEAR(static_cast<double>(now + UnitsOf(kNsPerSecond) - account.paid_until.load()),
              static_cast<double>(UnitsOf(90 * kNsPerSecond)), 6400);
}

TEST(TokenBucket, APriceIsChangedOnceByManyWhoSayTheSame) {
  for (int round = 0; round < 200; ++round) {
    Account account;
    const uint64_t now = UnitsOf(100 * kNsPerSecond);
    account.SetPrice(PriceOf(1000), now);
    account.ChargeDebt(UnitsOf(kNsPerSecond), kToleranceUnits, now);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] { account.SetPrice(PriceOf(2000), now); });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_NEAR(static_cast<double>(account.paid_until.load() - now),
                static_cast<double>(UnitsOf(kNsPerSecond / 2)), 64);
  }
}

TEST(TokenBucket, ThreadsShareAnAccountWithoutLosingAnything) {
  Account account;
  const uint64_t start = UnitsOf(kNsPerSecond);
  account.SetPrice(PriceOf(1'000'000), start);
  constexpr uint64_t kTakes = 100'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < kTakes; ++n) {
        const auto stretch = account.Reserve(1000, 0, kSpanUnitsMax, start);
        if (n % 2 == 0) account.GiveBack(stretch.end - stretch.begin);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.paid_until.load(), start + 3 * kTakes / 2 * 1000);
}

// Processes that share a slot are killed in the middle of what they do. Those that go on find it good.
TEST(TokenBucket, AProcessThatDiesTakesAtMostItsLeaseAlong) {
  const auto table = GroupTable::Make().value();
  const auto slot = table->Slot(7);
  Account& account = slot->accounts[0];
  const uint64_t start = UnitsOf(kNsPerSecond);
  account.SetPrice(PriceOf(1000), start);
  for (int round = 0; round < 20; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      User user(account, PriceOf(1000));
      [[maybe_unused]] const ssize_t told = write(ready[1], "", 1);
      for (;;) {  // reserves and gives back as fast as it can
        user.lease.Extend(account, kLeaseUnits, kLeaseUnits, start, user.behind);
        user.lease.End(account, user.lease.price);
      }
    }
    char told;
    ASSERT_EQ(read(ready[0], &told, 1), 1);
    User user(account, PriceOf(1000));
    for (int n = 0; n < 1000; ++n) {
      user.lease.Extend(account, kLeaseUnits, kLeaseUnits, start, user.behind);
      user.lease.End(account, user.lease.price);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    EXPECT_LE(account.paid_until.load() - start, static_cast<uint64_t>(round + 1) * kLeaseUnits);
  }
}

// ---- The memory of the groups

TEST(GroupTable, IsTheSameForAllWhoMapIt) {
  const auto table = GroupTable::Make().value();
  const auto other = GroupTable::Map(table->Duplicate().value()).value();
  table->Slot(1023)->accounts[3].ChargeDebt(5, kToleranceUnits, UnitsOf(kNsPerSecond));
  EXPECT_EQ(other->Slot(1023)->accounts[3].paid_until.load(),
            table->Slot(1023)->accounts[3].paid_until.load());
  EXPECT_NE(other->Slot(1023)->accounts[3].paid_until.load(), 0U);
}

TEST(GroupTable, RefusesWhatIsNone) {
  UniqueFd empty(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(GroupTable::Map(std::move(empty)).error().code, ErrorCode::kInvalidArgument);
  // Zeroes become a table; somebody else's memory does not, wherever it is not zero.
  for (const off_t at : {off_t{0}, off_t{200}}) {
    UniqueFd other(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(other.get(), 1 << 20), 0);
    ASSERT_EQ(pwrite(other.get(), "x", 1, at), 1);
    ASSERT_EQ(fcntl(other.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    const auto refused = GroupTable::Map(std::move(other));
    ASSERT_FALSE(refused.ok()) << at;
    EXPECT_NE(refused.error().message.find("begins with something else"), std::string::npos);
  }
}

// A disk goes on in another process: what it owes there is what it owed here, whatever it costs by now.
TEST(Accounts, GoOnInAnotherProcess) {
  constexpr uint64_t kNow = UnitsOf(1000 * kNsPerSecond);
  Limits limits;
  limits[Meter::kIops] = {.per_second = 100};
  limits[Meter::kBytes] = {.per_second = 1 << 20, .burst_per_second = 1 << 22, .burst_ms = 500};
  Accounts before;
  SetPrices(before, limits, kNow, nullptr);
  Account& iops = before.accounts[AccountOf(Meter::kIops)];
  iops.ChargeDebt(CostOf(300, PriceOf(100)), kToleranceUnits, kNow);
  const std::vector<uint64_t> words = SaveAccounts(before);

  Accounts after;
  SetPrices(after, limits, kNow + 5, nullptr);
  RestoreAccounts(after, words, kNow + 5);
  EXPECT_EQ(SaveAccounts(after), words);

  Limits doubled = limits;
  doubled[Meter::kIops].per_second = 200;
  doubled[Meter::kBytes] = {};
  Accounts changed;
  SetPrices(changed, doubled, kNow, nullptr);
  RestoreAccounts(changed, words, kNow);
  const uint64_t owed = changed.accounts[AccountOf(Meter::kIops)].paid_until.load() - kNow;
  EXPECT_NEAR(static_cast<double>(owed), static_cast<double>(iops.paid_until.load() - kNow) / 2, 1000);
  EXPECT_EQ(changed.accounts[AccountOf(Meter::kBytes)].price.load(), 0U);

  Accounts untouched;
  RestoreAccounts(untouched, std::vector<uint64_t>(7, 99), kNow);
  EXPECT_EQ(SaveAccounts(untouched), std::vector<uint64_t>(2 * kAccounts));
}

}  // namespace
}  // namespace cleat::qos::token_bucket_test
