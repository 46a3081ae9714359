// SPDX-License-Identifier: Apache-2.0
// One guest or peer misbehaves in every way there is: its device says so, and the others notice nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "hostile_rig.h"
#include "perf/hostile/hostile.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::system_test::hostile_test {
namespace {

using perf::RingOutcome;

constexpr uint64_t kLookNs = 20 * kNsPerMs;  // a ring that breaks calls nobody

// What the guest sees of an abuse: a completion with an error, or nothing ever again on that ring.
enum class Seen : uint8_t { kOk, kError, kBroken };

Seen Look(Api& api, perf::BlkDriver& driver, uint64_t scratch_gpa, std::string* message) {
  perf::DriverRing& ring = driver.ring(0);
  const perf::Deadline deadline(kWaitTimeoutNs);
  while (!deadline.passed()) {
    perf::UsedEntry used;
    while (ring.Pop(&used) == perf::PopResult::kDone) {
      if (used.token != perf::kAbuseToken) continue;
      const uint8_t status = *driver.memory().At(scratch_gpa + perf::kAbuseStatusOffset, 1);
      return status == perf::wire::kBlkOk ? Seen::kOk : Seen::kError;
    }
    const auto controller = api.GetController(kVictim);
    if (controller.value.status().state() == v1::CONTROLLER_STATE_BROKEN) {
      *message = controller.value.status().message();
      return Seen::kBroken;
    }
    (void)ring.WaitUsed(kLookNs);
  }
  ADD_FAILURE() << "neither a completion nor a broken ring";
  return Seen::kOk;
}

bool Allowed(RingOutcome outcome, Seen seen) {
  switch (outcome) {
    case RingOutcome::kErrorStatus:
      return seen == Seen::kError;
    case RingOutcome::kRingBroken:
      return seen == Seen::kBroken;
    case RingOutcome::kErrorOrBroken:
      return seen != Seen::kOk;
    case RingOutcome::kTolerated:
      return true;
  }
  return false;
}

// Each case on a ring of its own, with its outcome.
class HostileRing : public Hostile {
 protected:
  void AbuseRings(std::span<const perf::RingAbuseCase> cases, bool packed);
};

void HostileRing::AbuseRings(std::span<const perf::RingAbuseCase> cases, bool packed) {
  for (const perf::RingAbuseCase& abuse : cases) {
    SCOPED_TRACE(abuse.name);
    auto peer = Peer::Start(Socket(), {.packed = packed});
    ASSERT_OK(peer);
    perf::BlkDriver& driver = (*peer)->driver();
    ASSERT_TRUE(host_.WaitController(kVictim, v1::CONTROLLER_STATE_READY));
    ASSERT_TRUE(driver.has(perf::wire::kFeatureIndirectDesc) && driver.has(perf::wire::kBlkDiscard));
    const auto scratch = driver.AllocateBuffer(perf::kAbuseScratchBytes);
    ASSERT_OK(scratch);
    ASSERT_OK(perf::Apply(abuse.abuse, driver.ring(0), driver.memory(), *scratch,
                          driver.config().capacity_sectors));
    std::string message;
    const Seen seen = Look(host_.api(), driver, *scratch, &message);
    EXPECT_TRUE(Allowed(abuse.outcome, seen)) << "seen: " << static_cast<int>(seen) << " " << message;
    if (seen == Seen::kBroken) {
      EXPECT_NE(message.find("ring 0"), std::string::npos)
          << "the message does not name the ring: " << message;
      EXPECT_GT(message.size(), 20U) << "the message does not name the cause: " << message;
    }
    peer->reset();
    ExpectServed(abuse.name);
  }
}

TEST_F(HostileRing, EveryAbuseOfASplitRing) {
  AbuseRings(perf::RingAbuseCases(), false);
}

TEST_F(HostileRing, EveryAbuseOfAPackedRing) {
  AbuseRings(perf::PackedRingAbuseCases(), true);
}

TEST_F(Hostile, EveryAbuseOfTheSetUp) {
  for (const perf::SetupAbuseCase& abuse : perf::SetupAbuseCases()) {
    SCOPED_TRACE(abuse.name);
    {
      auto frontend = perf::Frontend::Listen(Socket());
      ASSERT_OK(frontend);
      ASSERT_OK((*frontend)->Accept());
      ASSERT_OK((*frontend)->Open());
      (*frontend)->set_ack(perf::AckMode::kAlways);
      auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
      ASSERT_OK(memory);
      ASSERT_OK((*frontend)->SetMemTable(**memory));
      const Status applied = perf::Apply(abuse.abuse, **frontend, **memory);
      fmt::print("{}: {}\n", abuse.name, applied.ok() ? "not refused" : applied.error().message);
    }
    ExpectServed(abuse.name);
  }
}

TEST_F(Hostile, EveryAbuseOfTheSocket) {
  for (const perf::SocketAbuseCase& abuse : perf::SocketAbuseCases()) {
    SCOPED_TRACE(abuse.name);
    {
      auto frontend = perf::Frontend::Listen(Socket());
      ASSERT_OK(frontend);
      ASSERT_OK((*frontend)->Accept());
      const Status applied = perf::Apply(abuse.abuse, **frontend);
      fmt::print("{}: {}\n", abuse.name, applied.ok() ? "sent" : applied.error().message);
      for (const auto& load : loads_) EXPECT_TRUE(load->WaitProgress(20));
    }
    ExpectServed(abuse.name);
  }
}

// What ended a connection badly stands in the controller's status while it waits for the next one.
TEST_F(Hostile, StatusNamesWhatThePeerDid) {
  auto frontend = perf::Frontend::Listen(Socket());
  ASSERT_OK(frontend);
  ASSERT_OK((*frontend)->Accept());
  (void)perf::Apply(perf::SocketAbuse::kOversizePayload, **frontend);
  Model last;
  EXPECT_TRUE(host_.api().WaitUntil(
      [](const Model& model) {
        return model.ControllerMessage(kVictim).find("1048576") != std::string::npos;
      },
      &last))
      << "the status does not name the size: " << last.ToString();
}

// 50 peers, one of which stalls in the middle of a message: the others come and work meanwhile.
TEST(HostileOneOfMany, OneOfFiftyStallsInTheMiddleOfAMessage) {
  constexpr int kPeers = 50;
  constexpr uint64_t kSmallDisk = uint64_t{8} << 20;
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  const auto name = [](int i) { return fmt::format("vm{}", i); };
  for (int i = 0; i < kPeers; ++i) ASSERT_TRUE(host.AttachNew(name(i), MemoryDisk(kSmallDisk)));
  auto stalled = perf::Frontend::Listen(host.SocketPath(name(0)));
  ASSERT_OK(stalled);
  ASSERT_OK((*stalled)->Accept());
  ASSERT_OK((*stalled)->Open());
  ASSERT_OK(perf::Apply(perf::SocketAbuse::kHalfPayload, **stalled));

  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 1; i < kPeers; ++i) {
    auto peer = Peer::Start(host.SocketPath(name(i)), {.queue_size = 32});
    ASSERT_OK(peer);
    peers.push_back(std::move(*peer));
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    perf::StampedBlocks blocks(kSmallDisk, 512, i);
    IoLoad load(peers[i]->driver(), blocks, {.depth = 4, .bytes_max = 16384});
    EXPECT_OK(load.Run(100));
  }
  EXPECT_FALSE((*stalled)->PeerGone()) << "it was to be stalling all the time";
  for (const auto& peer : peers) EXPECT_OK(peer->ShutDown());
}

}  // namespace
}  // namespace cleat::system_test::hostile_test
