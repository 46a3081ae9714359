// SPDX-License-Identifier: Apache-2.0
// The connections of an export's hosts on their way through cleatd: from the engine that lets go to the one that takes next, once, and never to
// one that knows nothing of them. Whatever becomes of the move, they are closed with it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "moves_rig.h"
#include "requests.h"
#include "segment_rig.h"

namespace cleat::control::handed_connections_test {
namespace {

// A pipe for the bundle: who has its writing end can be heard at the other one, which ends when that is closed.
class HandedConnections : public TwoEngines {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    reading_.Reset(ends[0]);
    ASSERT_NO_FATAL_FAILURE(TwoEngines::SetUp());
    v1::CreateControllerRequest request = NewExport("db");
    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "db")).ok());
    AwaitServed("db", "engine-0");
    blue_.GiveWithYield(UniqueFd(ends[1]));
  }

  void ExpectTheConnections(const UniqueFd& taken) {
    ASSERT_TRUE(taken.valid());
    const char sent = 'x';
    ASSERT_EQ(write(taken.get(), &sent, 1), 1);
    char got = 0;
    ASSERT_EQ(read(reading_.get(), &got, 1), 1);
    EXPECT_EQ(got, sent);
  }
  bool AreClosed() const {
    pollfd state{.fd = reading_.get(), .events = 0, .revents = 0};
    return poll(&state, 1, 0) == 1 && (state.revents & POLLHUP) != 0;
  }
  void AwaitClosed() {
    Await("they are closed", [this] { return AreClosed(); });
  }

  UniqueFd reading_;
};

TEST_F(HandedConnections, GoToTheEngineThatTakes) {
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().moved(), 1U);
  EXPECT_FALSE(green_.TakenWithCounters()) << "blue has none";
  UniqueFd taken = green_.TakeConnections();
  ExpectTheConnections(taken);
  taken.Reset();
  EXPECT_TRUE(AreClosed()) << "nobody else has them";
}

TEST_F(HandedConnections, GoBesideTheCounters) {
  const SegmentRig counters(clock_);
  blue_.Disconnect();
  blue_.set_counters(counters.Fd());
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("db", "engine-0");
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().moved(), 1U);
  EXPECT_TRUE(green_.TakenWithCounters());
  ExpectTheConnections(green_.TakeConnections());
}

TEST_F(HandedConnections, GoBackToTheEngineThatTakesThemBack) {
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/db");
  green_.Die();
  Await("green is gone", [&] { return !IsConnected("engine-1"); });
  blue_.Release();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1U);
  AwaitServed("db", "engine-0");
  ExpectTheConnections(blue_.TakeConnections());
}

TEST_F(HandedConnections, AreGivenOnce) {
  green_.FailTakes(1);
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1U);
  AwaitServed("db", "engine-0");
  EXPECT_FALSE(blue_.TakeConnections().valid());
  ExpectTheConnections(green_.TakeConnections());
  EXPECT_TRUE(AreClosed());
}

TEST_F(HandedConnections, AreClosedWhenTheEngineThatTakesDies) {
  green_.Hold("TakeController");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/db handed over");
  EXPECT_FALSE(AreClosed());
  green_.Die();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1U);
  AwaitServed("db", "engine-0");
  EXPECT_TRUE(AreClosed());
  EXPECT_FALSE(blue_.TakeConnections().valid());
}

TEST_F(HandedConnections, AnEngineThatIsTooOldIsNotGivenThem) {
  green_.Disconnect();
  green_.set_protocol(kProtocolHandOver - 1);
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().moved(), 1U);
  AwaitServed("db", "engine-1");
  EXPECT_FALSE(green_.TakeConnections().valid());
  EXPECT_FALSE(green_.TakenWithCounters()) << "it would take them for counters";
  AwaitClosed();
}

TEST_F(HandedConnections, AreClosedWithACleatdThatEnds) {
  green_.Hold("TakeController");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/db handed over");
  RestartCleatd();
  EXPECT_TRUE(AreClosed());
}

}  // namespace
}  // namespace cleat::control::handed_connections_test
