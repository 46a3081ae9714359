// SPDX-License-Identifier: Apache-2.0
// Front ends that hold up nobody but themselves: those that read no answer, that come and go, and whose files are slow to close.
// What others notice is a matter of events here, not of time.
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "host.h"
#include "other_process.h"
#include "perf/driver/blk_driver.h"
#include "perf/hostile/hostile.h"
#include "vhost/socket_endpoint.h"

namespace cleat::vhost::test::peers_test {
namespace {

using perf::BlkDriver;
using perf::Frontend;
using perf::GuestMemory;

// Fills both directions of the connection: what the engine answers finds no room any more.
void FloodUntilStuck(Frontend& front_end) {
  ASSERT_TRUE(perf::Apply(perf::SocketAbuse::kFlood, front_end).ok());
  int unread_bytes = -1;
  EXPECT_TRUE(WaitFor([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    int now_bytes = 0;
    CLEAT_CHECK(ioctl(front_end.socket().fd(), FIONREAD, &now_bytes) == 0);
    return std::exchange(unread_bytes, now_bytes) == now_bytes && now_bytes > 0;
  }));
}

class PeersTest : public testing::Test {
 protected:
  PeersTest() {
    host.control_thread().Call(
        [&] { factory = std::make_unique<SocketEndpointFactory>(host.control(), host.pool(), library); });
  }
  ~PeersTest() override {
    host.disk().LetGo();
    host.control_thread().Call([&] { factory.reset(); });
  }
  std::string Path(int i = 0) const { return directory.path() + "/vm" + std::to_string(i) + ".sock"; }
  static std::unique_ptr<GuestMemory> Memory() { return GuestMemory::CreateWithHole(16 << 20).value(); }
  static perf::BlkOptions OneQueue() {
    perf::BlkOptions options;
    options.num_queues = 1;
    return options;
  }

  Host host{2};
  PretendLibrary library;
  std::unique_ptr<SocketEndpointFactory> factory;
  TemporaryDirectory directory;
};

// ---- Those that read no answer

TEST_F(PeersTest, YieldsFromAPeerThatReadsNoAnswer) {
  constexpr uint64_t kWithinNs = 10 * kNsPerSecond;  // before, as long as the peer liked
  virtio::BlkModel& model = host.AddModel(1);
  virtio::BlkModel& served_model = host.AddModel(1);
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  RunningEndpoint endpoint(host, *factory, model, Path());
  ASSERT_TRUE(front_end->Accept().ok());
  FloodUntilStuck(*front_end);
  const Status yielded = endpoint.Yield(kWithinNs);
  EXPECT_TRUE(yielded.ok()) << "it has no ring: " << yielded.error().message;
  EXPECT_EQ(endpoint.status().state, EndpointState::kStopped);
  // One whose ring runs is drained, and no longer.
  auto served = Frontend::Listen(Path(1)).value();
  RunningEndpoint serving(host, *factory, served_model, Path(1));
  auto driver = BlkDriver::Start(*served, *memory, OneQueue());
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  host.disk().Hold();
  perf::BlkIo io;
  io.length_bytes = 4096;
  io.data_gpa = *(*driver)->AllocateBuffer(4096);
  ASSERT_TRUE((*driver)->Submit(0, io));
  (*driver)->Kick(0);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 1; }));
  FloodUntilStuck(*served);
  const Status refused = serving.Yield(20 * kNsPerMs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "1 requests are still in the storage");
  EXPECT_EQ(serving.status().state, EndpointState::kReady);
  host.disk().LetGo();
  EXPECT_TRUE(serving.Yield(kWithinNs).ok());
}

TEST_F(PeersTest, YieldsAConnectionThatWaitsForTheLibrary) {
  virtio::BlkModel& model = host.AddModel(1);
  PretendLibrary full;
  full.FailConnects(1 << 30);
  std::unique_ptr<SocketEndpointFactory> waiting;
  host.control_thread().Call(
      [&] { waiting = std::make_unique<SocketEndpointFactory>(host.control(), host.pool(), full); });
  {
    auto front_end = Frontend::Listen(Path()).value();
    RunningEndpoint endpoint(host, *waiting, model, Path());
    EXPECT_TRUE(endpoint.WaitState(EndpointState::kHandshake));
    const Status yielded = endpoint.Yield(10 * kNsPerSecond);
    EXPECT_TRUE(yielded.ok()) << yielded.error().message;
    EXPECT_EQ(endpoint.status().state, EndpointState::kStopped);
  }
  host.control_thread().Call([&] { waiting.reset(); });
}

// ---- Those that come and go

// Whoever comes and goes waits; behind it stands a front end that means well.
TEST_F(PeersTest, OneThatOnlyComesAndGoesKeepsNobodyElseWaiting) {
  constexpr int kVisits = 10;
  const OtherProcess visitor(Path());
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path(), SocketMode::kServer);
  const auto visit = [&] {
    auto front_end = Frontend::Wrap(visitor.Connect());
    (void)front_end->GetFeatures();
  };
  for (int i = 0; i < kVisits; ++i) visit();
  const UniqueFd waiting = visitor.Connect();
  auto memory = Memory();
  auto front_end = Frontend::Connect(Path()).value();
  const Status opened = front_end->Open();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  auto driver = BlkDriver::Start(*front_end, *memory, OneQueue());
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  EXPECT_TRUE((*driver)->FlushSync().ok());
}

// One after the other, as fast as they are taken: none of them costs more than a connection.
TEST_F(PeersTest, AThousandConnectionsWithoutAWordKeepNobodyOut) {
  constexpr int kConnections = 1000;
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path(), SocketMode::kServer);
  for (int i = 0; i < kConnections; ++i) ASSERT_TRUE(perf::ConnectUnix(Path(), kTestTimeoutNs).ok()) << i;
  auto memory = Memory();
  auto front_end = Frontend::Connect(Path()).value();
  const Status opened = front_end->Open();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_TRUE(BlkDriver::Start(*front_end, *memory, OneQueue()).ok());
}

}  // namespace
}  // namespace cleat::vhost::test::peers_test
