// SPDX-License-Identifier: Apache-2.0
#include "perf/vhost_user/frontend.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "fake_backend.h"

namespace cleat::perf::frontend_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct TempDir {
  TempDir() {
    std::string pattern = ::testing::TempDir() + "cleat-perf-XXXXXX";
    CLEAT_CHECK(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~TempDir() { rmdir(path.c_str()); }
  std::string path;
};

TEST(FrontendTest, HandshakeAsQemuDoesIt) {
  FakeDisk disk(kMiB);
  auto [ours, theirs] = SocketPair();
  FakeBackend backend(std::move(theirs), disk);
  auto frontend = Frontend::Wrap(std::move(ours));
  ASSERT_TRUE(frontend->Open().ok());
  EXPECT_EQ(frontend->offered_features(), kDefaultBlkFeatures | wire::kFeatureProtocolFeatures);
  EXPECT_EQ(frontend->queues_max(), 1);
  Result<wire::BlkConfig> config = frontend->GetBlkConfig();
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->capacity_sectors, kMiB / 512);

  auto memory = GuestMemory::CreateWithHole(8 * kMiB).value();
  auto ring = DriverRing::Create(*memory, {.size = 64}).value();
  const RingSetup setup{.size = 64,
                        .base = 3,
                        .desc_user = memory->UserAddress(ring->desc_gpa()),
                        .avail_user = memory->UserAddress(ring->avail_gpa()),
                        .used_user = memory->UserAddress(ring->used_gpa()),
                        .kick_fd = ring->kick_fd(),
                        .call_fd = ring->call_fd()};
  ASSERT_TRUE(frontend->Start(wire::kFeatureVersion1, *memory, {&setup, 1}).ok());
  ASSERT_NE(frontend->inflight(), nullptr);
  uint32_t base = 0;
  ASSERT_TRUE(frontend->Stop({&base, 1}).ok());
  EXPECT_EQ(base, 3U);
  frontend->Disconnect();
  backend.Join();
  const std::vector<uint32_t> expected = {
      wire::kGetFeatures,    wire::kGetProtocolFeatures, wire::kSetProtocolFeatures,
      wire::kGetQueueNum,    wire::kSetBackendReqFd,     wire::kSetOwner,
      wire::kGetConfig,      wire::kSetVringCall,        wire::kSetFeatures,
      wire::kGetInflightFd,  wire::kSetInflightFd,       wire::kSetMemTable,
      wire::kSetVringNum,    wire::kSetVringBase,        wire::kSetVringAddr,
      wire::kSetVringKick,   wire::kSetVringCall,        wire::kSetVringEnable,
      wire::kSetVringEnable, wire::kGetVringBase};
  EXPECT_EQ(backend.requests(), expected);
}

TEST(FrontendTest, ListensAcceptsAndLeavesNoSocketBehind) {
  const TempDir dir;
  const std::string path = dir.path + "/vm.sock";
  FakeDisk disk(kMiB);
  {
    auto frontend = Frontend::Listen(path).value();
    for (int i = 0; i < 3; ++i) {
      FakeBackend backend(ConnectUnix(path, kNsPerSecond).value(), disk);
      ASSERT_TRUE(frontend->Accept().ok());
      ASSERT_TRUE(frontend->Open().ok()) << "connection " << i;
    }
    EXPECT_TRUE(frontend->WaitPeerGone(kDefaultMessageTimeoutNs).ok());
  }
  struct stat status {};
  EXPECT_NE(stat(path.c_str(), &status), 0);
}

TEST(FrontendTest, ConnectsToABackEndThatListens) {
  const TempDir dir;
  const std::string path = dir.path + "/engine.sock";
  FakeDisk disk(kMiB);
  const UniqueFd listener = ListenUnix(path).value();
  auto frontend = Frontend::Connect(path).value();
  FakeBackend backend(AcceptUnix(listener.get(), kDefaultAcceptTimeoutNs).value(), disk);
  EXPECT_TRUE(frontend->Open().ok());
  unlink(path.c_str());
}

TEST(FrontendTest, EveryWaitEnds) {
  const TempDir dir;
  const FrontendOptions impatient{.accept_timeout_ns = kNsPerMs, .message_timeout_ns = kNsPerMs};
  auto listening = Frontend::Listen(dir.path + "/vm.sock", impatient).value();
  const Status accepted = listening->Accept();
  ASSERT_FALSE(accepted.ok());
  EXPECT_EQ(accepted.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(Frontend::Connect(dir.path + "/nobody.sock", impatient).ok());
  auto [ours, theirs] = SocketPair();
  auto frontend = Frontend::Wrap(std::move(ours), impatient);
  const Status opened = frontend->Open();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kDeadlineExceeded) << "a back end that says nothing";
  EXPECT_EQ(frontend->WaitPeerGone(kNsPerMs).error().code, ErrorCode::kDeadlineExceeded);
  theirs.Reset();
  EXPECT_TRUE(frontend->WaitPeerGone(kDefaultMessageTimeoutNs).ok());
  EXPECT_EQ(frontend->GetFeatures().error().code, ErrorCode::kUnavailable);
}

TEST(FrontendTest, LongPathsAreRefused) {
  EXPECT_EQ(Frontend::Listen("/tmp/" + std::string(200, 'x')).error().code, ErrorCode::kInvalidArgument);
}

TEST(FrontendTest, RefusalsComeBackAsErrorsWhenAcknowledged) {
  FakeDisk disk(kMiB);
  auto [ours, theirs] = SocketPair();
  FakeBackend backend(std::move(theirs), disk);
  auto frontend = Frontend::Wrap(std::move(ours), {.ack = AckMode::kAlways});
  ASSERT_TRUE(frontend->Open().ok());
  EXPECT_TRUE(frontend->SetVringNum(0, 128).ok());
  EXPECT_EQ(frontend->SetVringNum(0, 0).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(frontend->GetConfig(200, 100).error().code, ErrorCode::kFailedPrecondition);
}

TEST(FrontendTest, UnofferedFeaturesAreNotAcknowledged) {
  FakeDisk disk(kMiB);
  auto [ours, theirs] = SocketPair();
  FakeBackend backend(std::move(theirs), disk);
  auto frontend = Frontend::Wrap(std::move(ours));
  ASSERT_TRUE(frontend->Open().ok());
  auto memory = GuestMemory::CreateWithHole(kMiB).value();
  EXPECT_EQ(frontend->Start(1ULL << 60, *memory, {}).error().code, ErrorCode::kFailedPrecondition);
}

TEST(FrontendTest, DisconnectsAtAnyMessageOfTheHandshake) {
  FakeDisk disk(kMiB);
  uint64_t reached = 0;
  bool complete = false;
  for (uint64_t count = 0; !complete; ++count) {
    ASSERT_LT(count, 100U);
    auto memory = GuestMemory::CreateWithHole(8 * kMiB).value();
    auto [ours, theirs] = SocketPair();
    FakeBackend backend(std::move(theirs), disk);
    auto frontend = Frontend::Wrap(std::move(ours));
    frontend->DisconnectAfter(count);
    Status status = frontend->Open();
    if (status) {
      auto driver = BlkDriver::Start(*frontend, *memory);
      complete = driver.ok();
      if (!complete) status = driver.error();
    }
    if (!complete) {
      ASSERT_EQ(status.error().code, ErrorCode::kCancelled);
      EXPECT_FALSE(frontend->connected());
      EXPECT_EQ(frontend->messages_sent(), count);
    }
    frontend->Disconnect();
    backend.Join();
    reached = std::max<uint64_t>(reached, backend.requests().size());
  }
  EXPECT_GT(reached, 15U);
}

TEST(FrontendTest, BackEndsOwnRequestsAreTakenAndAcknowledged) {
  auto [ours, theirs] = SocketPair();
  auto frontend = Frontend::Wrap(std::move(ours));
  MessageSocket peer(std::move(theirs));
  ASSERT_TRUE(frontend->SetBackendReqFd().ok());
  Result<Message> given = peer.Receive(kDefaultMessageTimeoutNs);
  ASSERT_TRUE(given.ok());
  ASSERT_EQ(given->fds.size(), 1U);
  MessageSocket channel(std::move(given->fds[0]));
  ASSERT_TRUE(channel
                  .Send(wire::kBackendConfigChange, wire::kVersion | wire::kFlagNeedReply, {}, {},
                        kDefaultMessageTimeoutNs)
                  .ok());
  Result<Message> request = frontend->ReceiveBackendRequest(kDefaultMessageTimeoutNs);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->header.request, wire::kBackendConfigChange);
  Result<Message> reply = channel.Receive(kDefaultMessageTimeoutNs);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->As<uint64_t>().value(), 0U);
}

}  // namespace
}  // namespace cleat::perf::frontend_test
