// SPDX-License-Identifier: Apache-2.0
// A disk in a namespace of Linux' own target, which goes and comes back under load. Run in the guest of test_nvmf.py, as nvmf_namespace.cc,
// with besides
//   CLEAT_NVMF_SUBSYSTEM  the subsystem's folder in configfs; its namespace 1 is that of CLEAT_NVMF_PLAIN
//   CLEAT_NVMF_LINK       the link by which a port offers the subsystem
//   CLEAT_NVMF_PSK        if it is set, the pre-shared key of TLS
// CLEAT_NVMF_ADDRESS may be one over RDMA ("rdma://192.0.2.1:4420"), for these tests alone.
// Disk.AgreesWithTheReference and Discovery.TheTargetSaysWhereItsSubsystemIs need neither folder nor link, and so can be run by hand beside any
// other target.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/nvmf_discovery.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "nvmf/rdma/adapters.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::modules::nvmf_disk {
namespace {

constexpr uint64_t kBytes = 8 << 20;  // of the namespace that are used
constexpr int kStops = 3;
constexpr uint32_t kTurnsBetween = 500;  // of the reactors, before the target goes again

std::string Setting(const char* variable) {
  const char* value = std::getenv(variable);
  CLEAT_CHECK(value != nullptr);
  return value;
}

class Host {
 public:
  Host() = default;
  ~Host() { Await(Closed()); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void Turn() {
    control_->RunOnce();
    io_->RunOnce();
  }
  template <typename T>
  T Await(Task<T> task) {
    std::optional<T> result;
    const auto held = std::make_shared<Task<T>>(std::move(task));
    control_->PostCall([held, &result] { Spawn(Keep(std::move(*held), result)); });
    while (!result) Turn();
    return std::move(*result);
  }
  Reactor& io() { return *io_; }
  RdmaPorts& rdma() { return rdma_; }

 private:
  Task<bool> Closed() {
    co_await rdma_.Close();
    co_return true;
  }
  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }

  const MonotonicClock clock_;
  std::unique_ptr<Reactor> control_ = std::move(Reactor::Make(clock_, {})).value();
  std::unique_ptr<Reactor> io_ = std::move(Reactor::Make(clock_, {})).value();
  nvmf::RdmaAdapters adapters_{*control_};
  RdmaPorts rdma_{adapters_};
};

// The kernel's target, as its administrator has it.
class Target {
 public:
  // Ends all associations, and then waits for what is under way at the namespace: nothing of it is executed later.
  void Stop() {
    CLEAT_CHECK(unlink(link_.c_str()) == 0);
    Enable("0");
  }
  void Start() {
    Enable("1");
    CLEAT_CHECK(symlink(subsystem_.c_str(), link_.c_str()) == 0);
  }

 private:
  void Enable(const char* value) {
    const UniqueFd fd(open((subsystem_ + "/namespaces/1/enable").c_str(), O_WRONLY | O_CLOEXEC));
    CLEAT_CHECK(write(fd.get(), value, 1) == 1);
  }
  const std::string subsystem_ = Setting("CLEAT_NVMF_SUBSYSTEM");
  const std::string link_ = Setting("CLEAT_NVMF_LINK");
};

// Another subsystem, without namespaces, which the same port offers or does not.
class Neighbour {
 public:
  static constexpr const char* kNqn = "nqn.2026-11.example:neighbour";

  Neighbour() {
    CLEAT_CHECK(mkdir(folder_.c_str(), 0755) == 0);
    const UniqueFd fd(open((folder_ + "/attr_allow_any_host").c_str(), O_WRONLY | O_CLOEXEC));
    CLEAT_CHECK(write(fd.get(), "1", 1) == 1);
  }
  ~Neighbour() {
    Withdraw();
    rmdir(folder_.c_str());
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  void Offer() const { CLEAT_CHECK(symlink(folder_.c_str(), link_.c_str()) == 0); }
  void Withdraw() const { unlink(link_.c_str()); }

 private:
  static std::string Beside(const std::string& path) { return path.substr(0, path.rfind('/') + 1) + kNqn; }
  const std::string folder_ = Beside(Setting("CLEAT_NVMF_SUBSYSTEM"));
  const std::string link_ = Beside(Setting("CLEAT_NVMF_LINK"));
};

nvme::fabrics::HostIdentity ThisHost() {
  nvme::fabrics::Uuid id{};
  id.fill(0x43);
  return nvme::fabrics::HostIdentityOfUuid(id);
}

nvme::fabrics::TransportAddress TargetsAddress() {
  return nvme::fabrics::ParseAddressOfAnyTransport(Setting("CLEAT_NVMF_ADDRESS")).value();
}

NvmfOptions OptionsOf(Host& host, int& broken, int& connected) {
  NvmfSubsystem subsystem;
  subsystem.name = "subsystems/guest";
  subsystem.nqn = Setting("CLEAT_NVMF_NQN");
  subsystem.addresses = {{TargetsAddress()}};
  subsystem.host = ThisHost();
  if (const char* const psk = std::getenv("CLEAT_NVMF_PSK"))
    subsystem.psk =
        std::make_shared<const nvme::tls::Psk>(nvme::tls::Psk::Parse(psk, "CLEAT_NVMF_PSK").value());
  NvmfOptions options(block::DiskShape("disks/guest", kBytes, 512, 4096),
                      std::make_shared<NvmfSubsystem>(std::move(subsystem)),
                      nvme::fabrics::ParseUuid(Setting("CLEAT_NVMF_PLAIN")).value(),
                      block::AccessMode::kReadWrite);
  options.rdma = &host.rdma();
  options.events.broken = [&broken](const Error&) { ++broken; };
  options.events.connected = [&connected] { ++connected; };
  return options;
}

TEST(Discovery, TheTargetSaysWhereItsSubsystemIs) {
  Host host;
  NvmfDiscovery options;
  options.address = TargetsAddress();
  options.host = ThisHost();
  options.rdma = &host.rdma();
  const auto log = host.Await(DiscoverNvmf(options));
  ASSERT_TRUE(log.ok()) << log.error().message;
  EXPECT_EQ(log->skipped, 0U) << log->why_skipped;
  int found = 0;
  for (const auto& record : log->records) {
    const bool is_wanted = record.kind == nvme::fabrics::DiscoveredKind::kSubsystem &&
                           record.subsystem_nqn == Setting("CLEAT_NVMF_NQN");
    if (is_wanted && record.address == options.address) ++found;
  }
  EXPECT_EQ(found, 1) << "of " << log->records.size();
}

TEST(Discovery, AServiceThatIsWatchedTellsOfItsChanges) {
  Host host;
  const Neighbour neighbour;
  CancelToken cancel;
  std::vector<bool> seen;  // whether it was there
  NvmfDiscovery options;
  options.address = TargetsAddress();
  options.host = ThisHost();
  options.rdma = &host.rdma();
  options.cancel = &cancel;
  options.seen = [&](const nvme::fabrics::DiscoveryLog& log) {
    seen.push_back(std::ranges::any_of(
        log.records, [](const auto& record) { return record.subsystem_nqn == Neighbour::kNqn; }));
    if (seen.size() == 1) neighbour.Offer();
    if (seen.size() == 2) neighbour.Withdraw();
    if (seen.size() == 3) cancel.Cancel();
  };
  const auto ended = host.Await(DiscoverNvmf(options));
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled) << ended.error().message;
  EXPECT_EQ(seen, (std::vector<bool>{false, true, false}));
}

TEST(Disk, AgreesWithTheReference) {
  Host host;
  int broken = 0;
  int connected = 0;
  auto opened = host.Await(OpenNvmf(OptionsOf(host, broken, connected)));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  auto pipeline = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
  test::TestDisk disk(*pipeline, host.io(), [&] { host.Turn(); });
  ASSERT_EQ(disk.Do(block::Op::kWriteZeroes, 0, kBytes), block::IoStatus::kOk);
  test::RandomLoad load(disk, 4, 0, kBytes, test::RandomLoad::Discards::kNone);
  load.Run(400);
  EXPECT_EQ(broken, 0);
  disk.CloseChannel();
  EXPECT_TRUE(host.Await(pipeline->Close()).ok());
}

TEST(Disk, LosesNothingWhenItsTargetGoesAndComesBackUnderLoad) {
  Host host;
  Target target;
  int broken = 0;
  int connected = 0;
  auto opened = host.Await(OpenNvmf(OptionsOf(host, broken, connected)));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  auto* const device = static_cast<NvmfDevice*>(opened->get());
  auto pipeline = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
  int stops = 0;
  uint32_t turns = 0;
  test::TestDisk* under_load = nullptr;
  test::TestDisk disk(*pipeline, host.io(), [&] {
    host.Turn();
    if (stops == kStops || connected < stops || ++turns < kTurnsBetween ||
        under_load->channel().in_flight() < 8)
      return;
    turns = 0;
    ++stops;
    target.Stop();
    while (broken < stops || !device->ConfirmDead().ok()) host.Turn();
    target.Start();
  });
  under_load = &disk;
  // The namespace begins as the reference does.
  ASSERT_EQ(disk.Do(block::Op::kWriteZeroes, 0, kBytes), block::IoStatus::kOk);
  test::RandomLoad load(disk, 3, 0, kBytes, test::RandomLoad::Discards::kNone);
  while (stops < kStops && !HasFailure()) load.Run(200);
  load.Run(200);
  test::Arena arena(kBytes);
  ASSERT_EQ(disk.Do(block::Op::kRead, 0, kBytes, &arena), block::IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), load.reference().data(), kBytes), 0);
  disk.CloseChannel();
  EXPECT_TRUE(host.Await(pipeline->Close()).ok());
}

}  // namespace
}  // namespace cleat::modules::nvmf_disk
