// SPDX-License-Identifier: Apache-2.0
// Data of reads that the kernel sends from where it is, over real sockets. Loopback copies it all the same, but only when the host's end takes
// it: until then it is read from the target's memory, as on its way to any network card.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"
#include "tests/unit/nvmf_target/two_engines.h"

namespace cleat::nvmf_target::zero_copy_test {
namespace {

using nvme::Opcode;
using test::Association;
using test::BlocksEntry;
using test::RandomLoad;
using test::TargetRig;
using test::TestDisk;
using test::TwoEngines;

// Else nothing here is tested.
bool KernelCanZeroCopy() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  return setsockopt(fd.get(), SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
}

constexpr StreamTuning kAll{.zero_copy = ZeroCopy::kAll};
constexpr uint32_t kBytes = 64 * 1024;
constexpr uint32_t kBlocks = kBytes / 512;

TEST(ZeroCopyTest, UnderLoadAllDataIsRightAndAllMemoryComesBack) {
  for (const bool digests : {false, true}) {
    SCOPED_TRACE(digests);
    ASSERT_TRUE(KernelCanZeroCopy());
    TargetRig rig({.commands = 64, .data_slabs = 4, .capsule_slabs = 4}, 1, kAll);
    ASSERT_NO_FATAL_FAILURE(rig.OpenHost(digests, digests));
    RandomLoad load(*rig.disk, 17, 0, TargetRig::kBytes);
    load.Run(3000);
    EXPECT_EQ(std::vector<uint8_t>(rig.storage->content), load.reference());
    EXPECT_TRUE(rig.broken.empty()) << rig.broken.front();
  }
}

// The kernel numbers the sends of a socket from its first one on, whoever has it: were the next engine to begin anew, no memory would come back
// there.
TEST(ZeroCopyTest, ItGoesOnInTheNextEngine) {
  ASSERT_TRUE(KernelCanZeroCopy());
  constexpr int kMoves = 5;
  TwoEngines engines({.commands = 64, .data_slabs = 4, .capsule_slabs = 4}, kAll);
  TargetRig& rig = engines.rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  bool moved = true, in_next = false;
  int moves = 0, turns = 0;
  const auto move = [&](TargetRig& r) -> Task<void> {
    TargetService& from = in_next ? *engines.next : *r.service;
    TargetService& to = in_next ? *r.service : *engines.next;
    auto associations = co_await from.HandOver(TargetRig::kNqn, r.control->now_ns() + 60 * kNsPerSecond);
    in_next = !in_next;
    ++moves;
    (void)to.Serve(TargetRig::kNqn, TargetService::Addresses::kOwn, std::move(associations).value());
  };
  TestDisk disk(*rig.host, *rig.io[0], [&] {
    rig.Turn();
    if (!moved || moves == kMoves || ++turns % 50 != 0) return;
    moved = false;
    rig.Begin(move, moved);
  });
  RandomLoad load(disk, 19, 0, TargetRig::kBytes);
  load.Run(3000);
  rig.Until([&] { return moved; });
  EXPECT_EQ(std::vector<uint8_t>(rig.storage->content), load.reference());
  EXPECT_TRUE(rig.broken.empty()) << rig.broken.front();
  EXPECT_EQ(moves, kMoves) << "and far from the load's end";
  EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).connections, 1U) << "the host has come once";
}

// Three hosts on two reactors. The first has asked for 2 MiB of sevens, and takes nothing of what it is sent: most of that is still in the memory
// that its commands had, from where the kernel sends it.
class HostThatTakesNothing : public ::testing::Test {
 protected:
  static constexpr uint32_t kReads = 32;
  static constexpr uint64_t kOthersAt = uint64_t{kReads} * kBlocks;

  HostThatTakesNothing() {
    CLEAT_CHECK(KernelCanZeroCopy());
    std::ranges::fill(rig_.storage->content, uint8_t{9});
    std::fill_n(rig_.storage->content.begin(), uint64_t{kReads} * kBytes, uint8_t{7});
    for (int i = 0; i < 3; ++i) hosts_.emplace_back(rig_);
    for (uint32_t i = 0; i < kReads; ++i)
      first().Send(BlocksEntry(Opcode::kRead, uint64_t{i} * kBlocks, kBlocks, false));
    Turns();
  }
  test::RawHost& first() { return hosts_[0].queue; }
  void Turns() {
    for (int turn = 0; turn < 1000; ++turn) rig_.Turn();
  }
  // The other hosts read nines, as many at a time as the first has asked for.
  void ReadNines() {
    for (size_t host = 1; host < hosts_.size(); ++host) {
      for (uint32_t i = 0; i < kReads; ++i)
        hosts_[host].queue.Send(BlocksEntry(Opcode::kRead, kOthersAt, kBlocks, false));
      for (uint32_t i = 0; i < kReads; ++i) {
        EXPECT_TRUE(hosts_[host].queue.Answer()->status().ok());
        EXPECT_EQ(hosts_[host].queue.data(), std::vector<uint8_t>(kBytes, 9));
      }
    }
  }
  // The first host takes all that it gets now. Returns how many answers that are.
  uint32_t TakeSevens() {
    uint32_t answers = 0;
    while (answers < kReads && first().Answer()) {
      ++answers;
      EXPECT_EQ(first().data(), std::vector<uint8_t>(kBytes, 7)) << "answer " << answers;
    }
    return answers;
  }

  // The connections of all hosts go to that engine.
  void MoveTo(TargetService& to, TargetService& from) {
    const Status served = rig_.Await<Status>([&](TargetRig& r) -> Task<Status> {
      auto associations = co_await from.HandOver(TargetRig::kNqn, r.control->now_ns() + 60 * kNsPerSecond);
      if (!associations.ok() || associations->size() != hosts_.size())
        co_return Error(ErrorCode::kInternal, "not all have gone along");
      co_return to.Serve(TargetRig::kNqn, TargetService::Addresses::kOwn, std::move(*associations));
    });
    ASSERT_TRUE(served.ok()) << served.error().message;
  }

  TwoEngines engines_{{}, kAll};
  TargetRig& rig_ = engines_.rig;
  std::deque<Association> hosts_;
};

TEST_F(HostThatTakesNothing, GetsNothingOfWhatOthersRead) {
  ReadNines();
  EXPECT_EQ(TakeSevens(), kReads);
  ReadNines();
}

// The kernel still sends from the memory of the engine that had the connections before, which has them again now.
TEST_F(HostThatTakesNothing, GetsNothingOfWhatOthersReadAfterItsConnectionHasMoved) {
  MoveTo(*engines_.next, *rig_.service);
  MoveTo(*rig_.service, *engines_.next);
  ReadNines();
  EXPECT_EQ(TakeSevens(), kReads);
  ReadNines();
}

// Nor when the target has ended its association, and uses the memory for others: the kernel still sends what it has.
TEST_F(HostThatTakesNothing, GetsNothingOfWhatOthersReadAfterItsEnd) {
  hosts_[0].admin.Close();
  Turns();
  ReadNines();
  EXPECT_LT(TakeSevens(), kReads) << "what the kernel still had was dropped";
  ReadNines();
}

}  // namespace
}  // namespace cleat::nvmf_target::zero_copy_test
