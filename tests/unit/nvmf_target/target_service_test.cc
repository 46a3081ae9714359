// SPDX-License-Identifier: Apache-2.0
// The engine's NVMe/TCP target over real sockets, with Cleat's initiator as its host, and with hosts that break the rules beside it.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "nvme/tcp/pdu.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::target_service_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::Io;
using test::RandomLoad;
using test::TargetRig;

void SendAll(int fd, const void* data, size_t bytes) {
  ASSERT_EQ(send(fd, data, bytes, 0), static_cast<ssize_t>(bytes));
}

TEST(TargetServiceTest, WhatIsWrittenIsReadWhateverItsSizeWithAndWithoutDigests) {
  for (const bool digests : {false, true}) {
    SCOPED_TRACE(digests);
    TargetRig rig;
    ASSERT_NO_FATAL_FAILURE(rig.OpenHost(digests, digests));
    RandomLoad load(*rig.disk, 1, 0, TargetRig::kBytes);
    load.Run(600);
    EXPECT_EQ(std::vector<uint8_t>(rig.storage->content), load.reference());
    EXPECT_LE(rig.storage->longest_discard, test::Storage::kPieceBytes);
    EXPECT_TRUE(rig.broken.empty());
  }
}

TEST(TargetServiceTest, FlushesAndErrorsOfTheStorageReachTheHost) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  EXPECT_EQ(rig.disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
  EXPECT_EQ(rig.storage->flushes, 1U);
  Arena arena(4096);
  rig.storage->fails = IoStatus::kIoError;
  EXPECT_EQ(rig.disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kIoError);
  EXPECT_EQ(rig.disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kIoError);
  rig.storage->fails = IoStatus::kOk;
  EXPECT_EQ(rig.disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
}

// More than there is memory for waits for it, and nothing is lost.
TEST(TargetServiceTest, CommandsWaitForMemoryAndNoneIsLost) {
  TargetRig rig({.commands = 64, .data_slabs = 2, .capsule_slabs = 1});
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  RandomLoad load(*rig.disk, 2, 0, TargetRig::kBytes);
  load.Run(300);
  EXPECT_EQ(std::vector<uint8_t>(rig.storage->content), load.reference());
}

TEST(TargetServiceTest, ANamespaceGoesOnceNothingOfItIsInTheStorage) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Arena arena(4096);
  Io write;
  write.segments = {{&arena.region(), 0, 4096}};
  rig.storage->holds = true;
  rig.disk->Start(write, Op::kWrite, 0, 4096);
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool removed = false;
  rig.Begin([](TargetRig& r) { return r.service->RemoveNamespace(TargetRig::kNqn, 1); }, removed);
  for (int turn = 0; turn < 1000; ++turn) rig.Turn();
  EXPECT_FALSE(removed);
  rig.storage->LetGo();
  rig.Until([&] { return removed; });
  EXPECT_EQ(rig.disk->Wait(write), IoStatus::kOk);
}

TEST(TargetServiceTest, AHostHearsOfANamespaceThatHasGrown) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  const uint64_t larger = 2 * TargetRig::kBytes;
  ASSERT_TRUE(rig.Await<Status>([](TargetRig& r) { return r.backing->Resize(2 * TargetRig::kBytes); }).ok());
  const Status told = rig.Await<Status>([](TargetRig& r) -> Task<Status> {
    co_return r.service->ChangeNamespace(TargetRig::kNqn, 1, r.ShapeOf(1));
  });
  ASSERT_TRUE(told.ok());
  rig.Until([&] { return !rig.resized.empty(); });
  EXPECT_EQ(rig.resized.front(), larger);
}

// A host that has one address of a network of IPv6's has all of them.
TEST(TargetServiceTest, LimitsOfOnePeerCountAddressesWithoutPortsAndNetworksOfIpv6) {
  const auto peer_of = [](const char* address) {
    return PeerOf(nvme::fabrics::ParseTransportAddress(address).value());
  };
  EXPECT_EQ(peer_of("10.0.0.7:1"), peer_of("10.0.0.7:2"));
  EXPECT_NE(peer_of("10.0.0.7:1"), peer_of("10.0.0.8:1"));
  EXPECT_EQ(peer_of("[fd00::1]:1"), peer_of("[fd00::ffff:0:0:9]:2"));
  EXPECT_NE(peer_of("[fd00::1]:1"), peer_of("[fd00:0:0:1::1]:1"));
}

TEST(TargetServiceTest, AHostThatIsNotLetInIsRefusedAndOneThatIsNoLongerLetInLosesItsConnections) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  const auto set_hosts = [&rig](std::string_view nqn) {
    const std::vector<nvme::target::HostAccess> hosts = {nvme::target::HostAccess::Named(nqn)};
    return rig.Await<Status>(
        [hosts](TargetRig& r) -> Task<Status> { co_return r.service->SetHosts(TargetRig::kNqn, hosts); });
  };
  ASSERT_TRUE(set_hosts("nqn.2024-01.com.example:another").ok());
  rig.Until([&] { return !rig.broken.empty() && rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
  rig.CloseHost();
  const auto refused = rig.TryOpen();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied) << refused.error().message;
  ASSERT_TRUE(set_hosts(TargetRig::HostNqn()).ok());
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
}

// Who serves the subsystem next finds nothing of this engine's in the storage.
TEST(TargetServiceTest, ASubsystemIsWithdrawnOnceNothingOfItsHostsIsInTheStorage) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Arena arena(4096);
  Io write;
  write.segments = {{&arena.region(), 0, 4096}};
  rig.storage->holds = true;
  rig.disk->Start(write, Op::kWrite, 0, 4096);
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool withdrawn = false;
  rig.Begin([](TargetRig& r) -> Task<void> { (void)co_await r.service->Withdraw(TargetRig::kNqn); },
            withdrawn);
  rig.Until([&] { return !rig.broken.empty(); });
  for (int turn = 0; turn < 1000; ++turn) rig.Turn();
  EXPECT_FALSE(withdrawn);
  rig.storage->LetGo();
  rig.Until([&] { return withdrawn; });
  // Its host goes on when it is served again, as the write is known to have ended by the word of somebody.
  ASSERT_TRUE(
      rig.Await<Status>([](TargetRig& r) -> Task<Status> { co_return r.service->Serve(TargetRig::kNqn); })
          .ok());
  rig.Until([&] { return rig.device->ConfirmDead().ok(); });
  EXPECT_EQ(rig.disk->Wait(write), IoStatus::kOk);
}

// An engine that is to hand its exports over, and has requests that hang, goes on with them.
TEST(TargetServiceTest, ASubsystemThatCannotBeWithdrawnInTimeIsServedOn) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Arena arena(4096);
  Io write;
  write.segments = {{&arena.region(), 0, 4096}};
  rig.storage->holds = true;
  rig.disk->Start(write, Op::kWrite, 0, 4096);
  rig.Until([&] { return !rig.storage->held.empty(); });
  const Status withdrawn = rig.Await<Status>(
      [](TargetRig& r) { return r.service->Withdraw(TargetRig::kNqn, r.control->now_ns() + 20 * kNsPerMs); });
  EXPECT_EQ(withdrawn.error().code, ErrorCode::kDeadlineExceeded);
  rig.storage->LetGo();
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 1; });
  rig.Until([&] { return rig.device->ConfirmDead().ok(); });
  EXPECT_EQ(rig.disk->Wait(write), IoStatus::kOk);
}

// Another engine of the host may listen at an address that this one has, if it takes over what is served there.
TEST(TargetServiceTest, AnAddressIsSharedOnlyWithWhoTakesOver) {
  TargetRig rig;
  Listener other(*rig.control, [](Accepted) {});
  EXPECT_FALSE(other.Listen(rig.addresses.front(), false).ok());
  EXPECT_TRUE(other.Listen(rig.addresses.front(), true).ok());
}

TEST(TargetServiceTest, TwoAddressesAreTwoPathsToOneNamespace) {
  TargetRig rig({}, 2);
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 2; });
  RandomLoad load(*rig.disk, 3, 0, TargetRig::kBytes);
  load.Run(200);
  EXPECT_EQ(std::vector<uint8_t>(rig.storage->content), load.reference());
}

// What each sends is its own ruin.
TEST(TargetServiceTest, HostsThatBreakTheRulesAreDroppedAndOthersDoNotNotice) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(rig.Connect());
  std::vector<uint8_t> bytes(200, 0xff);
  nvme::tcp::IcReq request;
  request.header = {nvme::tcp::PduType::kIcReq, 0, sizeof(request), 0, sizeof(request)};
  for (size_t i = 0; i < strangers.size(); ++i) {
    const int fd = strangers[i].get();
    // The first of four says nothing, one half of what it should, two send nonsense at once or behind it.
    if (i % 4 == 2) SendAll(fd, &request, sizeof(request) / 2);
    if (i % 4 == 3) SendAll(fd, &request, sizeof(request));
    if (i % 4 == 1 || i % 4 == 3) SendAll(fd, bytes.data(), bytes.size());
  }
  RandomLoad load(*rig.disk, 4, 0, TargetRig::kBytes);
  load.Run(200);
  EXPECT_TRUE(rig.broken.empty());
  // Those that have sent nonsense hear why, and are gone.
  for (size_t i = 0; i < strangers.size(); ++i) {
    if (i % 4 != 1 && i % 4 != 3) continue;
    const int fd = strangers[i].get();
    uint8_t answer[256];
    ssize_t got = 0;
    rig.Until([&] { return (got = recv(fd, answer, sizeof(answer), MSG_DONTWAIT)) >= 0 || errno != EAGAIN; });
    if (got > 0)
      rig.Until([&] { return recv(fd, answer, sizeof(answer), MSG_DONTWAIT) == 0 || errno == ECONNRESET; });
  }
}

TEST(TargetServiceTest, HostsComeAndGoAndLeaveNothingBehind) {
  TargetRig rig;
  for (int i = 0; i < 30; ++i) {
    ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
    rig.CloseHost();
  }
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
  EXPECT_GE(rig.service->StatusOf(TargetRig::kNqn).connections, 30U);
}

}  // namespace
}  // namespace cleat::nvmf_target::target_service_test
