// SPDX-License-Identifier: Apache-2.0
// An export with a second path by the engine that stands by for it. Its host, another engine of the same machine, resends by that path what the first
// one left unanswered, as hosts do: no write that the first engine had, wherever it was, lands behind a newer one.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>
#include <memory>
#include <string>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "perf/vhost_user/deadline.h"
#include "tests/support/free_address.h"
#include "tests/support/paths.h"
#include "throttled_disk.h"
#include "upgrade_rig.h"

namespace cleat::system_test::export_standby_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{64} << 20;
constexpr char kNqn[] = "nqn.2024-01.com.example:export";
constexpr char kServes[] = "serves";
constexpr char kStandsBy[] = "standsby";
constexpr uint64_t kRequests = kSanitized ? 300 : 2000;
constexpr uint32_t kWriteBytes = 4096;
constexpr int kLookMs = 5;  // no event tells that a line was logged or a block has landed

bool Until(const std::function<bool()>& done) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  while (!done()) {
    if (deadline.passed()) return false;
    poll(nullptr, 0, kLookMs);
  }
  return true;
}

// cleatd kills an engine that is silent for a second, if its standby answers.
HostOptions WithLimit() {
  return {.cleatd_arguments = {"--kill-silent-engine-seconds", "1"}};
}

// A disk that one engine exports and another one stands by for, and a guest's disk over it that has both paths.
class Scene {
 public:
  Scene(const HostOptions& options, const std::string& path) : host(options) { Begin(path); }
  ~Scene() {
    if (peer_ == nullptr) return;
    EXPECT_OK(peer_->ShutDown());
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  bool ok() const { return peer_ != nullptr; }
  perf::BlkDriver& driver() { return peer_->driver(); }
  Peer& peer() { return *peer_; }
  pid_t engine() { return host.engine(kServes).pid(); }
  void Kill() { host.engine(kServes).Kill(); }
  // Until cleatd has killed the engine.
  void StopUntilItIsKilled() {
    kill(engine(), SIGSTOP);
    EXPECT_TRUE(host.WaitCleatdLog(fmt::format("engines/{}: killed", kServes)));
    Kill();  // it is dead; its exit status is to be had
  }
  bool IsServedByTheStandby() {
    return Until([&] {
      return host.api().GetController("e").value.status().engine() == std::string("engines/") + kStandsBy;
    });
  }
  bool WaitLog(const std::string& engine, const std::string& text) {
    return Until([&] { return ReadTextFile(host.Path(engine + ".log")).find(text) != std::string::npos; });
  }
  // What that engine has counted of the disk that is exported.
  v1::DiskStats StatsOf(const std::string& engine) {
    grpc::ClientContext context;
    v1::GetStatsRequest request;
    request.set_name("disks/inner");
    v1::GetStatsResponse stats;
    EXPECT_OK(host.api().stub().GetStats(&context, request, &stats));
    for (const v1::DiskStats& disk : stats.disks()) {
      if (disk.engine() == "engines/" + engine) return disk;
    }
    return {};
  }
  uint64_t CountOf(const std::string& engine) {
    const v1::DiskStats stats = StatsOf(engine);
    uint64_t count = 0;
    for (const v1::OperationStats& operation : stats.operations()) count += operation.count();
    return count;
  }

  Host host;

 private:
  void Begin(const std::string& path) {
    ASSERT_TRUE(host.ok());
    host.AddEngine(kServes);
    host.AddEngine(kStandsBy, {"--standby-for", kServes});
    const std::string address = test::FreeAddress(), standby_address = test::FreeAddress();
    v1::SubsystemSpec subsystem;
    subsystem.set_nqn(kNqn);
    subsystem.add_addresses(address);
    subsystem.add_addresses(standby_address);
    subsystem.set_keep_alive_ms(2000);
    const auto known = host.api().CreateSubsystem("s", subsystem);
    ASSERT_OK(known.status);
    ASSERT_OK(host.api()
                  .CreateDisk("inner", FileDisk(kDiskBytes, path.empty() ? host.Path("inner.img") : path,
                                                path.empty()))
                  .status);
    v1::ControllerSpec spec;
    spec.set_type(v1::CONTROLLER_TYPE_NVMF);
    spec.set_engine(std::string("engines/") + kServes);
    spec.mutable_exported()->set_nqn(kNqn);
    spec.mutable_exported()->add_addresses(address);
    spec.mutable_exported()->add_standby_addresses(standby_address);
    spec.mutable_exported()->add_hosts()->set_nqn(known.value.spec().host_nqn());
    ASSERT_OK(host.api().CreateController("e", spec).status);
    ASSERT_OK(host.api().Attach("e", "inner").status);
    ASSERT_OK(host.api().WaitReady("controllers/e/attachments/inner"));
    ASSERT_EQ(UpgradeRig(host, kServes, kStandsBy, 1).WaitStandingBy(kStandsBy, 1), "");
    ASSERT_NO_FATAL_FAILURE(UseIt());
  }
  void UseIt() {
    v1::DiskSpec disk;
    disk.set_size_bytes(kDiskBytes);
    auto& backend = *disk.mutable_nvme_tcp();
    backend.set_subsystem("subsystems/s");
    backend.set_namespace_uuid(host.api().GetAttachment("e", "inner").value.status().namespace_uuid());
    // What a broken path left is sent again by the other one at once.
    disk.mutable_in_doubt()->set_policy(v1::IN_DOUBT_POLICY_ACCEPT);
    ASSERT_OK(host.api().CreateDisk("a", disk).status);
    v1::ControllerSpec spec;
    spec.set_type(v1::CONTROLLER_TYPE_BLK);
    spec.set_socket_path(host.SocketPath("a"));
    spec.set_engine(kEngineName);
    ASSERT_OK(host.api().CreateController("a", spec).status);
    ASSERT_OK(host.api().Attach("a", "a").status);
    ASSERT_TRUE(WaitLog(kStandsBy, "has connected from")) << "no second path";
    auto peer = Peer::Start(host.SocketPath("a"));
    ASSERT_OK(peer);
    peer_ = std::move(peer).value();
  }

  std::unique_ptr<Peer> peer_;
};

class LoadedScene {
 public:
  LoadedScene(const HostOptions& options, uint64_t seed) : scene(options, {}) {
    if (!scene.ok()) return;
    load = std::make_unique<IoLoad>(scene.driver(), blocks, IoLoadOptions{.seed = seed});
    load->Start();
    EXPECT_TRUE(load->WaitProgress(kRequests / 4));
  }
  void GoesOnAndIsWhole() {
    ASSERT_TRUE(load->WaitProgress(kRequests / 4));
    EXPECT_OK(load->Stop());
    EXPECT_OK(load->Verify());
  }

  Scene scene;
  perf::StampedBlocks blocks{kDiskBytes, 512, 1, /*initially_zero=*/true};
  std::unique_ptr<IoLoad> load;
};

TEST(ExportStandbyTest, ALoadGoesOnByTheSecondPathWhenTheEngineIsKilled) {
  LoadedScene loaded({}, 5);
  ASSERT_TRUE(loaded.scene.ok());
  loaded.scene.Kill();
  EXPECT_TRUE(loaded.scene.IsServedByTheStandby());
  const uint64_t counted = loaded.scene.CountOf(kStandsBy);
  loaded.GoesOnAndIsWhole();
  EXPECT_TRUE(Until([&] { return loaded.scene.CountOf(kStandsBy) >= counted + kRequests / 4; }))
      << "an engine that has taken an export counts what it does";
}

TEST(ExportStandbyTest, ALoadWaitsWhileTheEngineIsStoppedAndGoesOnByTheSecondPathOnceItIsKilled) {
  LoadedScene loaded(WithLimit(), 6);
  ASSERT_TRUE(loaded.scene.ok());
  loaded.scene.StopUntilItIsKilled();
  loaded.GoesOnAndIsWhole();
  EXPECT_TRUE(loaded.scene.IsServedByTheStandby());
}

// It finds writes in its sockets that are older than what its host has been answered by no one: they are not executed.
TEST(ExportStandbyTest, ALoadGoesOnByTheFirstPathWhenTheEngineGoesOn) {
  LoadedScene loaded({}, 7);
  ASSERT_TRUE(loaded.scene.ok());
  const pid_t engine = loaded.scene.engine();
  kill(engine, SIGSTOP);
  EXPECT_TRUE(loaded.scene.host.WaitEngineLog("disks/a: path broken"));
  kill(engine, SIGCONT);
  loaded.GoesOnAndIsWhole();
  EXPECT_FALSE(ReadTextFile(loaded.scene.host.Path("standsby.log")).find("controllers/e: taken") !=
               std::string::npos);
}

// The first path's connections come to the engine that has the second one's, and all go back.
TEST(ExportStandbyTest, ALoadGoesOnByBothPathsOverUpgrades) {
  LoadedScene loaded({}, 8);
  ASSERT_TRUE(loaded.scene.ok());
  Host& host = loaded.scene.host;
  UpgradeRig upgrades(host, kServes, kStandsBy, 1);
  ASSERT_EQ(upgrades.Upgrade(), "");
  ASSERT_TRUE(loaded.load->WaitProgress(kRequests / 4));
  ASSERT_EQ(upgrades.Upgrade(), "");
  loaded.GoesOnAndIsWhole();
  EXPECT_EQ(host.CountInEngineLog("connection lost"), 0U);
}

// ---- A write that the first engine has in its storage, which stands still for that engine alone.

class WriteInTheStorage {
 public:
  WriteInTheStorage(const HostOptions& options, ThrottledDisk& disk)
      : scene(options, disk.path()), disk_(disk) {}

  // The write of 'A' is in the storage, and its host waits for the answer.
  void Hold() {
    const auto buffer = scene.driver().AllocateBuffer(kWriteBytes);
    ASSERT_OK(buffer);
    gpa_ = *buffer;
    ASSERT_OK(disk_.Hold(scene.engine()));
    ASSERT_NO_FATAL_FAILURE(Submit('A'));
    ASSERT_TRUE(Until([&] { return scene.StatsOf(kServes).in_flight() == 1; }));
  }
  void Submit(uint8_t value) {
    std::ranges::fill(scene.peer().memory().Span(gpa_, kWriteBytes), value);
    ASSERT_TRUE(scene.driver().Submit(
        0, {.op = perf::BlkOp::kWrite, .offset_bytes = 0, .length_bytes = kWriteBytes, .data_gpa = gpa_}));
    scene.driver().Kick(0);
  }
  bool IsAnswered() {
    std::array<perf::BlkCompletion, 1> completion;
    const size_t answers = scene.driver().Poll(0, completion);
    if (answers == 0) return false;
    EXPECT_EQ(completion[0].status, 0);
    return true;
  }
  uint8_t Content() const { return static_cast<uint8_t>(disk_.Content().front()); }

  Scene scene;

 private:
  ThrottledDisk& disk_;
  uint64_t gpa_ = 0;
};

class WriteInTheStorageTest : public testing::TestWithParam<bool> {};

TEST_P(WriteInTheStorageTest, IsOverBeforeTheSecondPathExecutesAnything) {
  auto disk = ThrottledDisk::Make(kDiskBytes);
  if (!disk) GTEST_SKIP() << disk.error().message << ": NOTHING was tested here";
  WriteInTheStorage write(GetParam() ? WithLimit() : HostOptions{}, **disk);
  ASSERT_TRUE(write.scene.ok());
  ASSERT_NO_FATAL_FAILURE(write.Hold());
  if (GetParam()) {
    write.scene.StopUntilItIsKilled();
  } else {
    write.scene.Kill();
  }
  ASSERT_TRUE(write.scene.WaitLog(kStandsBy, "waiting for the lock"));
  EXPECT_FALSE(write.IsAnswered());
  EXPECT_EQ(write.Content(), 0);
  ASSERT_OK((*disk)->Release());
  ASSERT_TRUE(Until([&] { return write.IsAnswered(); }));
  EXPECT_EQ(write.Content(), 'A');
  ASSERT_NO_FATAL_FAILURE(write.Submit('B'));
  ASSERT_TRUE(Until([&] { return write.IsAnswered(); }));
  EXPECT_EQ(write.Content(), 'B');
  EXPECT_TRUE(write.scene.IsServedByTheStandby());
}

INSTANTIATE_TEST_SUITE_P(All, WriteInTheStorageTest, testing::Bool(), [](const auto& instance) {
  return instance.param ? "OfAStoppedEngine" : "OfAKilledEngine";
});

// Negative control: with engines to which every lock seems to be theirs the old write lands behind the newer one.
TEST(WriteInTheStorageControl, WithoutALockItLandsLast) {
  if (kSanitized)
    GTEST_SKIP() << "sanitizers don't share a process with preloaded libraries: NOTHING was tested";
  auto disk = ThrottledDisk::Make(kDiskBytes);
  if (!disk) GTEST_SKIP() << disk.error().message << ": NOTHING was tested here";
  WriteInTheStorage write({.engine_preload = test::BuiltForTests("libcleat_no_lock.so")}, **disk);
  ASSERT_TRUE(write.scene.ok());
  ASSERT_NO_FATAL_FAILURE(write.Hold());
  write.scene.Kill();
  ASSERT_TRUE(Until([&] { return write.IsAnswered(); }));
  ASSERT_NO_FATAL_FAILURE(write.Submit('B'));
  ASSERT_TRUE(Until([&] { return write.IsAnswered(); }));
  EXPECT_EQ(write.Content(), 'B');
  ASSERT_OK((*disk)->Release());
  EXPECT_TRUE(Until([&] { return write.Content() == 'A'; }));
}

}  // namespace
}  // namespace cleat::system_test::export_standby_test
