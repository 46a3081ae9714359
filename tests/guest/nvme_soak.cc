// SPDX-License-Identifier: Apache-2.0
// Engines killed and exchanged under verified load on NVMe drives: whole namespaces by commands and by the block device, and disks of a pool
// whose other disks come and go. Run in a guest with emulated drives (test_nvme_soak.py), whose paths stand in the environment:
//   CLEAT_NVME_WHOLE, CLEAT_NVME_BLOCK, CLEAT_NVME_CACHED, CLEAT_NVME_POOL   512 MiB each; the last two have blocks of 4096 bytes, and the
//                       second one's node for commands is not for the engines
//   CLEAT_SOAK_ASK      see soak_drives.h
//   CLEAT_SOAK_STEPS    kills and upgrades, at the least
//   CLEAT_SOAK_JSON     where the counts go
//   CLEAT_TEST_SEED     the same choices once more
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "perf/vhost_user/deadline.h"
#include "pool/layout.h"
#include "tests/environment.h"
#include "tests/guest/soak_drives.h"
#include "tests/guest/soak_steps.h"
#include "tests/guest/soak_tenants.h"
#include "tests/system/crash_rig.h"
#include "tests/system/expect_ok.h"
#include "tests/system/host.h"
#include "tests/system/upgrade_rig.h"

namespace cleat::nvme_soak {
namespace {

using system_test::CrashCase;
using system_test::CrashRig;
using system_test::Host;
using system_test::HostOptions;
using system_test::kEngineId;
using system_test::Model;

constexpr char kPool[] = "p";
constexpr char kOtherId[] = "green";
constexpr uint64_t kExtentBytes = pool::kExtentBytesMin;
constexpr uint64_t kSteps = 6;
// Of each guest: emulated processors start engines, too.
constexpr uint64_t kPauseNs = 10 * kNsPerMs;
// Of guests without protection, who are to lose requests; the others are not, on no machine.
constexpr uint64_t kLostNs = 120 * kNsPerSecond;
constexpr uint64_t kControlLostNs = 10 * kNsPerSecond;
constexpr char kRegistered[] = "of its memory registered with";  // in an engine's log

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
  if (value == nullptr) ADD_FAILURE() << name << " is not set: this runs in the guest of test_nvme_soak.py";
  return value == nullptr ? "" : value;
}

uint64_t Seed() {
  return test::FromEnvironment("CLEAT_TEST_SEED", 1);
}

HostOptions SoakHost() {
  HostOptions options{.reactors = 1, .as_nobody = true, .with_keys = true};
  options.cleatd.bin_dir = options.engine.bin_dir = "/bin";
  return options;
}

// A disk of the test's begins as zeroes, whatever a test before has left.
void ZeroBeginning(const std::string& path) {
  const UniqueFd drive(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const std::vector<uint8_t> zeroes(CrashRig::kDiskBytes);
  ASSERT_EQ(pwrite(drive.get(), zeroes.data(), zeroes.size(), 0), static_cast<ssize_t>(zeroes.size()))
      << path;
  ASSERT_EQ(fsync(drive.get()), 0) << path;
}

void MakePool(Host& host, const std::string& drive) {
  v1::CreatePoolRequest request;
  request.set_pool_id(kPool);
  request.mutable_pool()->mutable_spec()->set_device(drive);
  request.mutable_pool()->mutable_spec()->set_extent_bytes(kExtentBytes);
  request.set_overwrite(true);
  grpc::ClientContext context;
  v1::Pool made;
  ASSERT_OK(host.api().stub().CreatePool(&context, request, &made));
}

void AwaitErased(Host& host) {
  Model last;
  EXPECT_TRUE(host.api().WaitUntil(
      [](const Model& model) {
        const auto found = model.pools.find(std::string("pools/") + kPool);
        return found != model.pools.end() && found->second.status().state() == v1::POOL_STATE_READY &&
               found->second.status().to_erase_bytes() == 0;
      },
      &last))
      << last.ToString();
}

// ---- The guests

CrashCase NamespaceCase(const std::string& name, const std::string& path, bool scsi, uint32_t block_bytes) {
  CrashCase what{.scsi = scsi, .packed = !scsi, .queues = 2, .block_bytes = block_bytes};
  what.spec = system_test::FileDisk(CrashRig::kDiskBytes, path, false);
  what.storage = name;
  return what;
}

enum class Balloon : uint8_t { kNone, kThere };
CrashCase PoolCase(const std::string& name, bool scsi, bool encrypted, Balloon balloon = Balloon::kThere) {
  CrashCase what{.scsi = scsi, .packed = scsi, .queues = 2};
  what.spec = system_test::PoolDisk(CrashRig::kDiskBytes, kPool);
  if (encrypted) what.spec = system_test::WithEncryption(*what.spec);
  what.storage = name;
  what.memory_pinned = balloon == Balloon::kNone;
  return what;
}

void ExpectWay(Host& host, const CrashCase& what, const std::string& way) {
  const auto disk = host.api().GetDisk(what.Id());
  ASSERT_OK(disk);
  EXPECT_TRUE(disk.value.status().io_path().starts_with(way))
      << what.Id() << ": " << disk.value.status().io_path();
}

void AddGuests(Host& host, CrashRig& rig) {
  const std::string whole = Variable("CLEAT_NVME_WHOLE");
  const std::string block = Variable("CLEAT_NVME_BLOCK");
  const std::string cached = Variable("CLEAT_NVME_CACHED");
  for (const std::string& path : {whole, block, cached}) ZeroBeginning(path);
  MakePool(host, Variable("CLEAT_NVME_POOL"));
  AwaitErased(host);
  const std::vector<std::pair<CrashCase, std::string>> guests = {
      {NamespaceCase("commands", whole, false, 4096), "NVMe commands"},
      {NamespaceCase("block", block, true, 4096), "io_uring"},
      // Smaller blocks than the drive's take the block device's page cache.
      {NamespaceCase("cached", cached, false, 512), "io_uring"},
      {PoolCase("pool", true, false), "NVMe commands"},
      {PoolCase("encrypted", false, true), "NVMe commands"},
      {PoolCase("beside", false, false, Balloon::kNone), "NVMe commands"}};
  for (const auto& [what, way] : guests) {
    ASSERT_OK(rig.Add(what, {.load = {.depth = 4, .pause_ns = kPauseNs, .lost_after_ns = kLostNs}}));
    ExpectWay(host, what, way);
  }
}

// ---- The soak

nlohmann::json Counts(const Steps& steps, const Tenants& tenants, const CrashRig& rig) {
  nlohmann::json counts = nlohmann::json::parse(rig.Json());
  uint64_t resets = 0, given_back = 0;
  for (const auto& guest : rig.guests()) {
    resets += guest->load().counts().resets;
    given_back += guest->load().counts().given_back;
  }
  counts["seed"] = Seed();
  counts["kills"] = steps.kills();
  counts["upgrades"] = steps.upgrades();
  counts["steps"] = steps.counts();
  counts["guest_resets"] = resets;
  counts["buffers_given_back"] = given_back;
  counts["tenants"] = {{"made", tenants.made()}, {"purged", tenants.purged()}};
  counts["finding_count"] = rig.findings() + tenants.findings().size();
  return counts;
}

TEST(NvmeSoak, NothingIsFound) {
  Host host(SoakHost());
  ASSERT_TRUE(host.ok());
  CrashRig rig(host, Seed());
  ASSERT_NO_FATAL_FAILURE(AddGuests(host, rig));
  host.AddEngine(kOtherId);
  system_test::UpgradeRig upgrades(host, kEngineId, kOtherId, Seed());
  Drives drives(Variable("CLEAT_SOAK_ASK"), {Variable("CLEAT_NVME_WHOLE"), Variable("CLEAT_NVME_BLOCK"),
                                             Variable("CLEAT_NVME_CACHED"), Variable("CLEAT_NVME_POOL")});
  Steps steps(host, rig, upgrades, drives, Seed());
  Tenants tenants(host, kPool, kExtentBytes, Seed());
  Random comes_or_goes(Seed());
  ASSERT_OK(rig.Start());
  const uint64_t goal = test::FromEnvironment("CLEAT_SOAK_STEPS", kSteps);
  while (steps.kills() + steps.upgrades() < goal) {
    if (comes_or_goes.Chance(1, 2)) tenants.Step();
    const Step step = steps.Choose();
    fmt::print("{} kills, {} upgrades; next: {}\n", steps.kills(), steps.upgrades(), step.ToString());
    std::fflush(stdout);
    if (!steps.Do(step) || !tenants.findings().empty()) break;
  }
  rig.Stop();
  while (!tenants.empty()) tenants.PurgeOldest();
  const nlohmann::json counts = Counts(steps, tenants, rig);
  std::ofstream(Variable("CLEAT_SOAK_JSON")) << counts.dump(2) << "\n";
  fmt::print("seed {}: {}\n{}\n", Seed(), rig.Summary(), counts["steps"].dump());
  EXPECT_EQ(rig.findings(), 0U) << rig.FindingsText();
  for (const std::string& found : tenants.findings()) ADD_FAILURE() << found;
  EXPECT_GE(steps.kills() + steps.upgrades(), goal);
  EXPECT_TRUE(host.WaitEngineLog(kRegistered)) << "no guest had registered memory";
  for (const auto& guest : rig.guests())
    EXPECT_GT(guest->load().counts().in_flight, 0U) << guest->id() << ": no kill met a request in flight";
}

// ---- Negative controls

class SuccessorControl : public testing::TestWithParam<bool> {};

// Writes that a dead engine has left in the drive, and its successor writes newer ones meanwhile, or waits.
TEST_P(SuccessorControl, IsFoundUnlessItWaits) {
  const bool waits = GetParam();
  HostOptions options = SoakHost();
  if (!waits) options.engine_preload = "/no_ofd_lock.so";
  Host host(options);
  ASSERT_TRUE(host.ok());
  const std::string path = Variable("CLEAT_NVME_WHOLE");
  ZeroBeginning(path);
  CrashRig rig(host, Seed());
  const CrashCase what = NamespaceCase("control", path, false, 4096);
  ASSERT_OK(rig.Add(what, {.load = {.depth = 4,
                                    .only_reads_and_writes = true,
                                    .lost_after_ns = waits ? kLostNs : kControlLostNs}}));
  ExpectWay(host, what, "NVMe commands");
  Drives drives(Variable("CLEAT_SOAK_ASK"), {path});
  ASSERT_OK(rig.Start());
  perf::CrashLoad& load = rig.guests().front()->load();
  ASSERT_TRUE(load.WaitProgress(200, system_test::kWaitTimeoutNs));
  ASSERT_OK(drives.Hold());
  uint64_t mark = load.Mark();
  host.KillEngine();
  host.StartEngine();
  if (waits) {
    EXPECT_TRUE(host.WaitEngineLog("waiting for the lock"));
    ASSERT_OK(drives.Release());
    EXPECT_TRUE(load.WaitProgress(200, system_test::kWaitTimeoutNs));
  } else {
    // Newer ones are written, and then nobody writes until the late ones are there and all was compared.
    EXPECT_TRUE(load.WaitRecovered(mark, system_test::kWaitTimeoutNs) &&
                load.WaitProgress(2000, system_test::kWaitTimeoutNs));
    mark = load.Mark();
    host.KillEngine();
    ASSERT_OK(drives.Release());
    host.StartEngine();
    EXPECT_TRUE(load.WaitRecovered(mark, system_test::kWaitTimeoutNs) || rig.findings() > 0);
  }
  rig.Stop();
  fmt::print("{}: {}\n{}", waits ? "waits" : "does not wait", rig.Summary(), rig.FindingsText());
  if (waits) {
    EXPECT_EQ(rig.findings(), 0U) << rig.FindingsText();
  } else {
    EXPECT_GT(rig.findings(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(NvmeSoak, SuccessorControl, testing::Bool(),
                         [](const auto& waits) { return waits.param ? "Waits" : "DoesNotWait"; });

class EraseControl : public testing::TestWithParam<bool> {};

TEST_P(EraseControl, AnExtentGivenBeforeItsEraseIsFound) {
  const bool erases = GetParam();
  HostOptions options = SoakHost();
  if (!erases) options.cleatd_preload = "/false_erase.so";
  Host host(options);
  ASSERT_TRUE(host.ok());
  ASSERT_NO_FATAL_FAILURE(MakePool(host, Variable("CLEAT_NVME_POOL")));
  AwaitErased(host);
  Tenants tenants(host, kPool, kExtentBytes, Seed());
  uint64_t free = 0;  // extents: as many as there are
  while (tenants.Make(1)) ++free;
  const uint64_t before = tenants.foreign();
  while (!tenants.empty()) tenants.PurgeOldest();
  AwaitErased(host);
  EXPECT_TRUE(tenants.Make(free));
  tenants.PurgeOldest();
  fmt::print("{} extents, {} pieces of foreign data\n", free, tenants.foreign() - before);
  if (erases) {
    EXPECT_TRUE(tenants.findings().empty()) << tenants.findings().front();
  } else {
    EXPECT_GT(tenants.foreign(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(NvmeSoak, EraseControl, testing::Bool(),
                         [](const auto& erases) { return erases.param ? "Erases" : "OnlySaysSo"; });

class PinnedControl : public testing::TestWithParam<bool> {};

// Somebody vouches for a guest whose balloon works: of what it gives back and uses again, its registered memory has the old pages.
TEST_P(PinnedControl, DataFromAnOldPageIsFound) {
  const bool pinned = GetParam();
  Host host(SoakHost());
  ASSERT_TRUE(host.ok());
  const std::string path = Variable("CLEAT_NVME_WHOLE");
  ZeroBeginning(path);
  CrashRig rig(host, Seed());
  CrashCase what = NamespaceCase("pinned", path, false, 4096);
  what.memory_pinned = pinned;
  ASSERT_OK(rig.Add(what, {.load = {.depth = 4, .give_back_percent = 25, .lost_after_ns = kLostNs}}));
  ASSERT_OK(rig.Start());
  perf::CrashLoad& load = rig.guests().front()->load();
  EXPECT_TRUE(!pinned || host.WaitEngineLog(kRegistered));
  EXPECT_TRUE(load.WaitProgress(2000, system_test::kWaitTimeoutNs));
  rig.Stop();
  fmt::print("{} buffers were given back\n{}", load.counts().given_back, rig.FindingsText());
  EXPECT_GT(load.counts().given_back, 0U);
  EXPECT_EQ(rig.findings() > 0, pinned) << rig.FindingsText();
}

INSTANTIATE_TEST_SUITE_P(NvmeSoak, PinnedControl, testing::Bool(),
                         [](const auto& pinned) { return pinned.param ? "Pinned" : "AsItIs"; });

}  // namespace
}  // namespace cleat::nvme_soak

// Engines get it from this process, and have no privileges: without a limit, so that memory can be registered.
static void LiftLockLimit() {
  const rlimit none{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  CLEAT_CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
}

int main(int argc, char** argv) {
  LiftLockLimit();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
