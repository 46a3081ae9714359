// SPDX-License-Identifier: Apache-2.0
// A disk over NVMe/TCP against a target of the tests' own, in real time: a control reactor and I/O reactors on the test's own thread, which
// Turn lets go on in turn.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "nvmf/rdma/adapters.h"
#include "reactor/blocking.h"
#include "tests/unit/modules/nvmf_target.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::test {

class NvmfRig {
 public:
  static constexpr uint64_t kBytes = uint64_t{4} << 20;  // of the disk; the namespace has more

  explicit NvmfRig(const NvmfTarget::Options& options = {}) : target(options) {
    subsystem.name = "subsystems/s";
    subsystem.nqn = NvmfTarget::kSubsystem;
    subsystem.addresses = {{AddressOf(target)}};
    subsystem.host = nvme::fabrics::HostIdentityOfUuid({7, 7, 7});
    for (auto& reactor : io) reactor = MakeReactor();
  }
  // Another way to the target's namespace, at the end of the addresses.
  NvmfTarget& AddPath(const NvmfTarget::Options& options = {}) {
    others.push_back(std::make_unique<NvmfTarget>(options, &target));
    subsystem.addresses.push_back({AddressOf(*others.back())});
    return *others.back();
  }
  ~NvmfRig() {
    pipeline.reset();
    for (int turn = 0; turn < 100; ++turn) Turn();  // mail that is on its way
  }

  // Naps where nothing happens for a while: what waits for a deadline takes no core from other tests.
  void Turn() {
    bool worked = control->RunOnce();
    for (auto& reactor : io) {
      if (reactor.get() != still) worked |= reactor->RunOnce();
    }
    idle_turns_ = worked ? 0 : idle_turns_ + 1;
    if (idle_turns_ > kIdleTurnsMax) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  void Until(const std::function<bool()>& done) {
    while (!done()) Turn();
  }
  // As long as whatever goes on has a chance to be seen: for what must not happen.
  void ForSomeTurns() {
    const uint64_t until_ns = clock.NowNs() + 150 * kNsPerMs;
    Until([&] { return clock.NowNs() >= until_ns; });
  }

  template <typename T>
  T Await(Task<T> task) {
    std::optional<T> result;
    const auto held = std::make_shared<Task<T>>(std::move(task));
    control->PostCall([held, &result] { Spawn(Keep(std::move(*held), result)); });
    Until([&] { return result.has_value(); });
    return std::move(*result);
  }

  // The secrets that a target with Options::chap has; without the subsystem's own the host alone proves itself.
  static std::shared_ptr<const nvme::auth::ChapSecrets> Secrets(bool with_own) {
    using nvme::auth::ChapSecret;
    std::optional<ChapSecret> own;
    if (with_own) own = std::move(ChapSecret::Parse(NvmfTarget::kOwnSecret, "it")).value();
    return std::make_shared<const nvme::auth::ChapSecrets>(
        nvme::auth::ChapSecrets{.host = std::move(ChapSecret::Parse(NvmfTarget::kHostSecret, "it")).value(),
                                .controller = std::move(own)});
  }

  modules::NvmfOptions Options(uint64_t bytes = kBytes) {
    modules::NvmfOptions options(block::DiskShape("disks/n", bytes, NvmfTarget::kBlockBytes, 4096),
                                 std::make_shared<modules::NvmfSubsystem>(subsystem), NvmfTarget::kUuid,
                                 block::AccessMode::kReadWrite);
    options.arithmetic = &arithmetic;
    options.events.connected = [this] { ++connected; };
    options.events.broken = [this](const Error& why) { broken.push_back(why.message); };
    options.events.resized = [this](uint64_t size_bytes) { resized.push_back(size_bytes); };
    return options;
  }
  Result<std::unique_ptr<block::Device>> TryOpen(modules::NvmfOptions options) {
    return Await(modules::OpenNvmf(std::move(options)));
  }
  // Makes `pipeline` of it.
  void Open(modules::NvmfOptions options) {
    const block::AccessMode mode = options.access;
    auto opened = TryOpen(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    device = static_cast<modules::NvmfDevice*>(opened->get());
    pipeline = block::Pipeline::Make(std::move(opened).value(), mode).value();
  }
  void Open() { Open(Options()); }
  std::unique_ptr<TestDisk> Channel(size_t reactor = 0) {
    return std::make_unique<TestDisk>(*pipeline, *io[reactor], [this] { Turn(); });
  }
  void Close() {
    const Status closed = Await(pipeline->Close());
    EXPECT_TRUE(closed.ok()) << closed.error().message;
  }
  // Waits until the path is as the events say for the `times`-th time.
  void UntilBroken(size_t times = 1) {
    Until([&] { return broken.size() >= times; });
  }
  void UntilConnected(int times = 1) {
    Until([&] { return connected >= times; });
  }
  // As soon as all channels have closed their sockets.
  void ConfirmDead() {
    Until([&] { return device->ConfirmDead().ok(); });
  }

  const MonotonicClock clock;
  NvmfTarget target;
  std::vector<std::unique_ptr<NvmfTarget>> others;
  modules::NvmfSubsystem subsystem;
  std::unique_ptr<Reactor> control = MakeReactor();
  std::array<std::unique_ptr<Reactor>, 2> io;
  nvmf::RdmaAdapters adapters{*control};
  modules::RdmaPorts rdma{adapters};
  nvmf::LoginLine arithmetic{[this](std::function<void()> turn) { threads.Post(std::move(turn)); }};
  BlockingPool threads{1};                // of arithmetic
  const Reactor* still = nullptr;         // gets no turn
  modules::NvmfDevice* device = nullptr;  // the pipeline's
  std::unique_ptr<block::Pipeline> pipeline;
  int connected = 0;
  std::vector<std::string> broken;
  std::vector<uint64_t> resized;

 private:
  static constexpr int kIdleTurnsMax = 100;

  static nvme::fabrics::TransportAddress AddressOf(const NvmfTarget& of) {
    return nvme::fabrics::ParseTransportAddress("127.0.0.1:" + std::to_string(of.port())).value();
  }
  std::unique_ptr<Reactor> MakeReactor() { return std::move(Reactor::Make(clock, {})).value(); }

  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }

  int idle_turns_ = 0;  // one after another
};

// One request on memory of its own.
struct OneWrite {
  OneWrite(uint64_t offset, uint32_t bytes, uint8_t fill)
      : offset_bytes(offset), length_bytes(bytes), arena(bytes) {
    std::memset(arena.data(), fill, bytes);
    io.segments = {{&arena.region(), 0, bytes}};
  }
  void Start(TestDisk& disk) { disk.Start(io, block::Op::kWrite, offset_bytes, length_bytes); }

  const uint64_t offset_bytes;
  const uint32_t length_bytes;
  Arena arena;
  Io io;
};

}  // namespace cleat::test
