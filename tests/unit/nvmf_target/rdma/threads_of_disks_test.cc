// SPDX-License-Identifier: Apache-2.0
// Disks over RDMA, and their target, with reactors on threads of their own, as an engine has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "modules/nvmf/rdma/rdma_queue.h"
#include "tests/unit/nvmf_target/rdma/rdma_disk.h"
#include "tests/unit/nvmf_target/rdma/reactor_load.h"

namespace cleat::test::threads_of_disks {
namespace {

using nvmf_target::PortLimits;

// A disk with a load on each of the two I/O reactors. Several of them are in the same namespace, and have parts of it.
class LoadedDisk {
 public:
  static constexpr uint64_t kBytes = 2 * ReactorLoad::kBytes;

  LoadedDisk(TargetRig& rig, uint64_t from) : rig_(rig) {
    auto opened = rig.TryOpen();
    CLEAT_CHECK(opened.ok());
    device_ = static_cast<modules::NvmfDevice*>(opened->get());
    pipeline_ = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
    for (size_t i = 0; i < loads_.size(); ++i)
      loads_[i].emplace(*pipeline_, *rig.io[i], from + i * ReactorLoad::kBytes);
  }
  ~LoadedDisk() {
    rig_.Until([this] { return loads_[0]->over() && loads_[1]->over(); });
    rig_.Await<bool>([this](TargetRig&) -> Task<bool> {
      (void)co_await pipeline_->Close();
      co_return true;
    });
  }
  LoadedDisk(const LoadedDisk&) = delete;
  LoadedDisk& operator=(const LoadedDisk&) = delete;

  uint32_t Optimized() const { return device_->paths()->optimized; }
  bool ConfirmDead() { return device_->ConfirmDead().ok(); }
  // Until both loads have read as often from now on.
  void Load(uint64_t reads) {
    const std::array<uint64_t, 2> until{loads_[0]->checked() + reads, loads_[1]->checked() + reads};
    rig_.Until([&] { return loads_[0]->checked() >= until[0] && loads_[1]->checked() >= until[1]; });
  }
  void End() {
    for (auto& load : loads_) load->End();
  }
  uint64_t wrong() const { return loads_[0]->wrong() + loads_[1]->wrong(); }

 private:
  TargetRig& rig_;
  modules::NvmfDevice* device_ = nullptr;  // the pipeline's
  std::unique_ptr<block::Pipeline> pipeline_;
  std::array<std::optional<ReactorLoad>, 2> loads_;
};
static_assert(2 * LoadedDisk::kBytes <= TargetRig::kBytes);

struct ThreadsOfDisks : RdmaDiskTest {
  static PortLimits SmallLimits() {
    return {.commands = 1024, .data_slabs = 4, .capsule_slabs = 4, .registered_slabs = 16};
  }
  // Threads have few turns on a busy machine, so that time passes by a timer's tick; faster where it alone is waited for.
  static constexpr uint64_t kTurnNs = kNsPerMs;
  static constexpr uint64_t kIdleTurnNs = 20 * kNsPerMs;

  void MakeWithThreads(uint32_t paths) {
    Make(paths, SmallLimits());
    rig->turn_ns = kTurnNs;
    rig->RunIoReactors();
  }
  void AwaitBothPaths(const LoadedDisk& disk) {
    rig->turn_ns = kIdleTurnNs;
    rig->Until([&] { return disk.Optimized() == 2; });
    rig->turn_ns = kTurnNs;
  }
  // The target has let go of what came by that path, so that the word for the host is a true one.
  void ConfirmDead(LoadedDisk& disk, uint32_t path) {
    rig->Until([&] { return disk.Optimized() == 1; });
    rig->Until([&] { return fabric.queue_pairs("target" + std::to_string(path)) == 0; });
    rig->Until([&] { return disk.ConfirmDead(); });
  }
};

TEST_F(ThreadsOfDisks, DisksComeLoadAndGoBesideOthers) {
  MakeWithThreads(2);
  LoadedDisk stays(*rig, 0);
  for (int round = 0; round < 4; ++round) {
    LoadedDisk other(*rig, LoadedDisk::kBytes);
    other.Load(6);
    other.End();
    EXPECT_EQ(other.wrong(), 0U);
  }
  stays.Load(6);
  stays.End();
  EXPECT_EQ(stays.wrong(), 0U);
}

TEST_F(ThreadsOfDisks, PathsAreCutAndComeBackUnderLoad) {
  MakeWithThreads(2);
  LoadedDisk disk(*rig, 0);
  for (const uint32_t path : {0, 1}) {
    for (const std::string end : {"host", "target"}) {
      AwaitBothPaths(disk);
      disk.Load(3);
      fabric.RemoveAdapter(end + std::to_string(path));
      ConfirmDead(disk, path);
      disk.Load(3);
      rig->AddAdapter(fabric, end, path);
    }
  }
  disk.End();
  EXPECT_EQ(disk.wrong(), 0U);
  EXPECT_TRUE(rig->broken.empty());
}

// A disk is closed as soon as the other path has answered its requests, while the queues of the one that was cut may still wait for what they have posted.
TEST_F(ThreadsOfDisks, DisksAreClosedAsTheirAdaptersGo) {
  MakeWithThreads(2);
  for (const std::string end : {"host", "target", "host", "target"}) {
    {
      LoadedDisk disk(*rig, 0);
      AwaitBothPaths(disk);
      disk.Load(3);
      fabric.RemoveAdapter(end + "0");
      disk.End();
      ConfirmDead(disk, 0);
      EXPECT_EQ(disk.wrong(), 0U);
    }
    rig->AddAdapter(fabric, end, 0);
  }
}

// ---- Queues

// One on its reactor, given up at some time by its owner, or by its adapter.
struct OwnedQueue final : nvme::fabrics::QueuePairOwner {
  OwnedQueue(TargetRig& rig, Reactor& on) : reactor(on) {
    options.transport.address = rig.addresses.at(0);
    options.transport.rdma = rig.ports.get();
    options.name = "queue";
    options.entries = 32;
    reactor.PostCall([this] {
      queue = std::make_unique<modules::RdmaQueue>(std::move(options), reactor, *this);
      queue->Start();
    });
  }
  void GiveUp() {
    reactor.PostCall([this] {
      queue->Abort({ErrorCode::kCancelled, "enough"});
      queue.reset();
      over = true;
    });
  }
  void Connected() override { connected = true; }
  void Completed(uint64_t /*cookie*/, const nvme::fabrics::CompletionEntry& /*entry*/,
                 uint64_t /*data_bytes*/) override {}
  void Unanswered(uint64_t /*cookie*/, nvme::fabrics::Reached /*reached*/) override {}
  void Ended(const Error& /*reason*/) override {}

  Reactor& reactor;
  modules::TransportQueueOptions options;
  std::unique_ptr<modules::RdmaQueue> queue;
  std::atomic<bool> connected = false;
  std::atomic<bool> over = false;
};

TEST_F(ThreadsOfDisks, QueuesAreGivenUpAtAnyTimeOfTheirWay) {
  MakeWithThreads(1);
  bool were_connected = false;
  for (int turns = 0; !were_connected; turns += 1 + turns / 4) {
    ASSERT_LT(turns, 100'000);
    for (const bool adapter_goes : {false, true}) {
      std::array<std::unique_ptr<OwnedQueue>, 4> queues;
      for (size_t i = 0; i < queues.size(); ++i)
        queues[i] = std::make_unique<OwnedQueue>(*rig, *rig->io[i % 2]);
      for (int turn = 0; turn < turns; ++turn) rig->Turn();
      were_connected = std::ranges::all_of(queues, [](const auto& one) { return one->connected.load(); });
      if (adapter_goes) fabric.RemoveAdapter("host0");
      for (const auto& one : queues) one->GiveUp();
      rig->Until(
          [&] { return std::ranges::all_of(queues, [](const auto& one) { return one->over.load(); }); });
      if (adapter_goes) rig->AddAdapter(fabric, "host", 0);
    }
  }
}

}  // namespace
}  // namespace cleat::test::threads_of_disks
