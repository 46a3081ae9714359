// SPDX-License-Identifier: Apache-2.0
// Daemons of an older version and the present ones on one host, under guests that judge all they get: what an upgrade and the way back
// meet, and what dies meanwhile. The older version's programs are those that CLEAT_BASE_BIN names (`make test-upgrade BASE=COMMIT`);
// without it these tests are skipped.
//
// Each version reads what the other one has left: cleatd's store, the engine protocol, hand-overs, the guests' in-flight logs, disks'
// and groups' memory, counters, locks and wrapped keys. What must not be possible is refused, and that is seen as well. Controls at
// the end: a hand-over from the older version that loses something is found.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <optional>
#include <regex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "control/link/engine_link.h"
#include "control/store/migrations.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "perf/vhost_user/deadline.h"
#include "product.h"
#include "tests/environment.h"
#include "upgrade_guests.h"
#include "upgrade_rig.h"

namespace cleat::system_test::older_version_test {
namespace {

constexpr char kBlue[] = "engine-0";  // kEngineId: the one that the host begins with
constexpr char kGreen[] = "green";
constexpr uint64_t kKills = 6;
constexpr int kLookMs = 10;  // no event tells that a process has ended or a request was counted
// Of the controls' guests, who are to lose requests, and whose requests each kill is to meet.
constexpr uint64_t kControlLostNs = 2 * kNsPerSecond;
constexpr uint64_t kControlLateNs = 100 * kNsPerMs;
constexpr uint64_t kControlKillsMax = 10;

uint64_t Seed() {
  return test::FromEnvironment("CLEAT_TEST_SEED", 1);
}

bool Eventually(const std::function<bool()>& done) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  while (!done()) {
    if (deadline.passed()) return false;
    poll(nullptr, 0, kLookMs);
  }
  return true;
}

// Skipped without an older version; one that does not work is a failure.
template <typename Base>
class WithOlderVersion : public Base {
 protected:
  void SetUp() override {
    auto product = OlderProduct();
    if (!product.ok() && product.error().code == ErrorCode::kNotFound)
      GTEST_SKIP() << product.error().message;
    ASSERT_OK(product);
    older_ = std::move(*product);
  }
  const Product& older() const { return older_; }

 private:
  Product older_;
};

// A host with guests of all kinds, and one engine of two at first.
class LoadedHost {
 public:
  LoadedHost(const Product& cleatd, const Product& engine)
      : host_({.reactors = 2, .with_keys = true, .cleatd = cleatd, .engine = engine}),
        rig_(host_, Seed()),
        guests_(host_, rig_),
        upgrades_(host_, kBlue, kGreen, Seed()) {}

  Host& host() { return host_; }
  CrashRig& rig() { return rig_; }
  UpgradeGuests& guests() { return guests_; }
  UpgradeRig& upgrades() { return upgrades_; }

  Status Begin() {
    if (!host_.ok()) return Error(ErrorCode::kInternal, "the host did not come up");
    if (Status added = guests_.Add(); !added.ok()) return added;
    since_ns_ = MonotonicClock().NowNs();
    return rig_.Start();
  }

  // All controllers to the other engine, which is of another version, under load.
  void Move(const std::string& what, const std::string& to) {
    ASSERT_TRUE(rig_.Do(what, [&] { return upgrades_.Upgrade(); })) << what << ": " << rig_.FindingsText();
    ASSERT_EQ(upgrades_.from(), to) << what;
    ++began_;
    guests_.ExpectAllOn(to);
    fmt::print("{}: done\n", what);
  }

  void End(uint64_t takeovers = 0) {
    rig_.Stop();
    fmt::print("{}\n", rig_.Summary());
    EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
    guests_.ExpectLimitsHeld(since_ns_, began_ + takeovers);
  }

 private:
  Host host_;
  CrashRig rig_;
  UpgradeGuests guests_;
  UpgradeRig upgrades_;
  uint64_t since_ns_ = 0;
  uint64_t began_ = 1;  // engines that began to serve, one after the other
};

// ---- cleatd and its store, as deploy/upgrade.sh treats them

std::filesystem::path StoreDir(const Host& host) {
  return host.Path("state");
}
std::filesystem::path CopyDir(const Host& host) {
  return host.Path("before-upgrade");
}

// The files of a store: what lies beside its log goes with it.
void CopyStore(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::create_directory(to);
  for (const char* name : {"cleat.db", "cleat.db-wal"}) {
    std::filesystem::remove(to / name);
    if (std::filesystem::exists(from / name)) std::filesystem::copy_file(from / name, to / name);
  }
}

std::string WaitEngines(Host& host, std::initializer_list<std::string> engines) {
  for (const std::string& engine : engines) {
    if (!host.WaitEngine(engine)) return engine + " has not connected to the other cleatd";
  }
  return "";
}

// The schema from which a cleatd that wrote this log has migrated its store; none: it did not.
std::optional<uint64_t> MigratedFrom(const std::string& log) {
  std::smatch found;
  const std::regex migrated(fmt::format("schema migrated: {}, was ([0-9]+)", control::kSchemaVersion));
  if (!std::regex_search(log, found, migrated)) return std::nullopt;
  return std::stoull(found[1]);
}

// An older cleatd over a store that the present one has migrated: ended with status 1, and says why.
void ExpectRefused(Host& host, uint64_t its_schema) {
  ASSERT_TRUE(Eventually([&] { return !host.cleatd().Running(); }))
      << "an older cleatd runs on a newer store";
  const int status = host.cleatd().wait_status();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << "wait status " << status;
  const std::string expected = fmt::format(
      "store: '{}' was written by a newer cleatd (schema {}, this one knows {}): run that version, or "
      "restore a copy made before the upgrade",
      (StoreDir(host) / "cleat.db").string(), control::kSchemaVersion, its_schema);
  EXPECT_NE(host.cleatd_log().find(expected), std::string::npos) << expected;
}

// ---- What engines and guests have counted

uint64_t CountedRequests(Host& host, const std::string& disk) {
  grpc::ClientContext context;
  v1::GetStatsRequest request;
  request.set_name("disks/" + disk);
  v1::GetStatsResponse stats;
  EXPECT_OK(host.api().stub().GetStats(&context, request, &stats));
  uint64_t count = 0;
  for (const v1::DiskStats& one : stats.disks()) {
    for (const v1::OperationStats& operation : one.operations()) count += operation.count();
  }
  return count;
}

// Over all engines that served them: a virtio-blk guest has asked for nothing but its load. Its last answer is counted a little after
// the guest has it.
void ExpectCountersWentOn(LoadedHost& older) {
  for (const auto& guest : older.rig().guests()) {
    if (!guest->id().starts_with("blk-")) continue;
    const uint64_t answered = guest->load().counts().requests;
    EXPECT_TRUE(Eventually([&] { return CountedRequests(older.host(), guest->id()) == answered; }))
        << guest->id() << ": " << answered << " answered, " << CountedRequests(older.host(), guest->id())
        << " counted";
  }
}

// ---- An upgrade as operations.md has it, and the way back

class AnUpgrade : public LoadedHost {
 public:
  explicit AnUpgrade(const Product& older) : LoadedHost(older, older), older_(older) {}

  void Run() {
    ASSERT_OK(Begin());
    old_protocol_ = Protocol(kBlue);
    for (void (AnUpgrade::*step)() : {&AnUpgrade::PresentCleatd, &AnUpgrade::ThereAndBack,
                                      &AnUpgrade::OlderCleatd, &AnUpgrade::BackWithIt}) {
      ASSERT_NO_FATAL_FAILURE((this->*step)());
    }
    End();
    ExpectCountersWentOn(*this);
  }

 private:
  uint32_t Protocol(const std::string& engine) { return upgrades().StatusOf(engine).protocol(); }

  // The store is migrated, and the older engine is asked for nothing that it has: no guest notices.
  void PresentCleatd() {
    ASSERT_TRUE(rig().DoUnnoticed("present_cleatd", [&] {
      host().TerminateCleatd();
      CopyStore(StoreDir(host()), CopyDir(host()));
      const size_t of_before = host().cleatd_log().size();
      host().SetCleatd({});
      host().StartCleatd();
      std::string failure = WaitEngines(host(), {kBlue});
      migrated_from_ = MigratedFrom(host().cleatd_log().substr(of_before));
      return failure;
    })) << rig().FindingsText();
    EXPECT_EQ(Protocol(kBlue), old_protocol_) << "the newest that both speak";
    fmt::print("the present cleatd over the older one's store: schema {}, was {}; engine protocol {}\n",
               control::kSchemaVersion, migrated_from_.value_or(control::kSchemaVersion), old_protocol_);
  }

  // What the older engine lets go the present one takes, and the other way round.
  void ThereAndBack() {
    host().SetEngine(kGreen, {});
    host().AddEngine(kGreen);
    EXPECT_EQ(Protocol(kGreen), control::EngineLink::kProtocol);
    ASSERT_NO_FATAL_FAILURE(Move("older_to_present", kGreen));
    ASSERT_NO_FATAL_FAILURE(Move("present_to_older", kBlue));
    ASSERT_NO_FATAL_FAILURE(Move("older_to_present_again", kGreen));
  }

  // Back to the older cleatd while the present engine serves. Over a store that was migrated it does not start, and the copy of before
  // takes its place, whose rows say that the other engine serves: what engines say counts for more.
  void OlderCleatd() {
    ASSERT_TRUE(rig().DoUnnoticed("older_cleatd", [&] {
      host().TerminateCleatd();
      host().SetCleatd(older_);
      if (migrated_from_) {
        host().StartCleatd();
        ExpectRefused(host(), *migrated_from_);
        CopyStore(CopyDir(host()), StoreDir(host()));
      }
      host().StartCleatd();
      return WaitEngines(host(), {kBlue, kGreen});
    })) << rig().FindingsText();
    EXPECT_EQ(Protocol(kGreen), old_protocol_) << "the newest that both speak";
    guests().ExpectAllOn(kGreen);
  }

  // The older cleatd moves what the present engine serves, and then everything is as it was at first.
  void BackWithIt() {
    ASSERT_NO_FATAL_FAILURE(Move("present_to_older_by_older_cleatd", kBlue));
    ASSERT_NO_FATAL_FAILURE(Move("older_to_present_by_older_cleatd", kGreen));
    ASSERT_NO_FATAL_FAILURE(Move("all_is_older", kBlue));
  }

  const Product older_;
  uint32_t old_protocol_ = 0;
  std::optional<uint64_t> migrated_from_;  // the older cleatd's schema, if it is another one
};

class OlderVersion : public WithOlderVersion<testing::Test> {};

TEST_F(OlderVersion, UpgradeAndTheWayBackUnderLoad) {
  AnUpgrade(older()).Run();
}

// ---- Deaths

enum class Cleatd : uint8_t { kPresent, kOlder };

class OlderVersionDeaths : public WithOlderVersion<testing::TestWithParam<Cleatd>> {
 protected:
  Product cleatd() const { return GetParam() == Cleatd::kOlder ? older() : Product{}; }
};

// Each engine that takes a dead one's place is of the other version; the first one was of the older.
void AlternateVersions(Host& host, CrashRig& rig, const Product& older) {
  rig.SetAroundKill([] {},
                    [&host, older, present_next = true]() mutable {
                      host.SetEngine(kBlue, present_next ? Product{} : older);
                      present_next = !present_next;
                    });
}

// An engine is killed at any instant and its successor of the same name is of the other version: in-flight logs, memory that cleatd
// keeps, locks and limits are what the dead one has left.
TEST_P(OlderVersionDeaths, SuccessorsOfTheOtherVersionGoOn) {
  LoadedHost host(cleatd(), older());
  ASSERT_OK(host.Begin());
  AlternateVersions(host.host(), host.rig(), older());
  for (uint64_t kills = 0; kills < kKills; ++kills) {
    // Every third one's successor dies while it takes over.
    const CrashEvent event = kills % 3 == 2 ? CrashEvent::kEngineAgain : CrashEvent::kEngine;
    ASSERT_TRUE(host.rig().Do(event)) << host.rig().FindingsText();
  }
  host.End(host.rig().kills());
}

// Of an engine of one version, one of the other has everything ready, and takes it when that one is killed.
void StandbyTakesOver(const Product& cleatd, const Product& principal, const Product& standby) {
  LoadedHost host(cleatd, principal);
  host.host().SetEngine(kGreen, standby);
  ASSERT_TRUE(host.host().ok());
  ASSERT_OK(host.Begin());
  host.host().AddEngine(kGreen, {"--standby-for", kBlue});
  ASSERT_EQ(host.upgrades().WaitStandingBy(kGreen, host.rig().guests().size()), "");
  ASSERT_TRUE(host.rig().Do("death_of_the_principal", [&] {
    host.host().engine(kBlue).Kill();
    return std::string();
  })) << host.rig().FindingsText();
  host.guests().ExpectAllOn(kGreen);
  host.End(1);
  host.host().StartEngine(kBlue);
  EXPECT_TRUE(host.host().WaitEngine(kBlue));  // before it is told to end
}

TEST_P(OlderVersionDeaths, ThePresentEngineStandsByForAnOlderOne) {
  StandbyTakesOver(cleatd(), older(), {});
}

TEST_P(OlderVersionDeaths, AnOlderEngineStandsByForThePresentOne) {
  StandbyTakesOver(cleatd(), {}, older());
}

INSTANTIATE_TEST_SUITE_P(By, OlderVersionDeaths, testing::Values(Cleatd::kPresent, Cleatd::kOlder),
                         [](const auto& what) {
                           return what.param == Cleatd::kPresent ? "PresentCleatd" : "OlderCleatd";
                         });

// ---- Negative controls

class OlderVersionControl : public WithOlderVersion<testing::Test> {};

// The present engine gets no log of what the older one had in flight, as if it could not read it.
TEST_F(OlderVersionControl, ALogThatTheSuccessorCannotReadIsFound) {
  Host host({.engine = older()});
  ASSERT_TRUE(host.ok());
  CrashRig rig(host, Seed());
  ASSERT_OK(rig.Add({.memory = true, .delay_ns_max = kControlLateNs},
                    {.control = CrashControl::kFreshInflight, .load = {.lost_after_ns = kControlLostNs}}));
  ASSERT_OK(rig.Start());
  AlternateVersions(host, rig, older());
  while (rig.kills() < kControlKillsMax && rig.Do(CrashEvent::kEngine)) {
  }
  rig.Stop();
  fmt::print("after {} kills: {}", rig.kills(), rig.FindingsText());
  EXPECT_GT(rig.findings(), 0U);
}

// The disk has afterwards what it had before the hand-over: writes that were answered are gone.
TEST_F(OlderVersionControl, AHandOverThatLosesWritesIsFound) {
  Host host({.engine = older()});
  ASSERT_TRUE(host.ok());
  host.SetEngine(kGreen, {});
  host.AddEngine(kGreen);
  CrashRig rig(host, Seed());
  const CrashCase what{.scsi = true, .queues = 2};
  ASSERT_OK(rig.Add(what));
  ASSERT_OK(rig.Start());
  CrashGuest& guest = *rig.guests().front();
  ASSERT_TRUE(guest.load().WaitProgress(1000, kWaitTimeoutNs));
  UpgradeRig upgrades(host, kBlue, kGreen, Seed());
  const std::string disk = host.Path(what.Id() + ".img");
  const std::string before = ReadTextFile(disk);
  ASSERT_TRUE(guest.load().WaitProgress(1000, kWaitTimeoutNs));
  rig.Do("upgrade", [&] {
    std::string failure = upgrades.Upgrade();
    std::fstream(disk, std::ios::in | std::ios::out | std::ios::binary) << before;
    return failure;
  });
  rig.Stop();
  fmt::print("{}", rig.FindingsText());
  ASSERT_GT(guest.load().counts().findings, 0U);
  EXPECT_EQ(guest.load().findings().front().fault, perf::CrashFault::kData);
}

}  // namespace
}  // namespace cleat::system_test::older_version_test
