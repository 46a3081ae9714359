// SPDX-License-Identifier: Apache-2.0
// Front ends that hold up nobody but themselves: those that read no answer, that come and go, and whose files are slow to close.
// What others notice is a matter of events here, not of time.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

  // A guest of the same engine comes, and is served.
  void ExpectOthersServed(int i) {
    auto memory = Memory();
    auto front_end = Frontend::Listen(Path(i)).value();
    RunningEndpoint endpoint(host, *factory, host.AddModel(1), Path(i));
    auto driver = BlkDriver::Start(*front_end, *memory, OneQueue());
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    EXPECT_TRUE((*driver)->FlushSync().ok());
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

// ---- Those whose files are slow to close

// A TCP socket whose close waits until the other end has taken what was sent, or for longer than the test does.
class LingeringSocket {
 public:
  LingeringSocket() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    CLEAT_CHECK(bind(listener.get(), generic, size) == 0 && listen(listener.get(), 1) == 0);
    CLEAT_CHECK(getsockname(listener.get(), generic, &size) == 0);
    CLEAT_CHECK(connect(lingering_.get(), generic, size) == 0);
    other_end_.Reset(accept(listener.get(), nullptr, nullptr));
    const std::vector<uint8_t> data(uint64_t{64} << 10);
    while (send(lingering_.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wait{.l_onoff = 1, .l_linger = kLingerSeconds};
    CLEAT_CHECK(setsockopt(lingering_.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait) == 0);
  }
  int fd() const { return lingering_.get(); }
  // In flight, or the engine's: no wait here.
  void GiveUp() { lingering_.Reset(); }
  // Its close goes on.
  void LetGo() {
    std::vector<uint8_t> data(uint64_t{1} << 20);
    while (recv(other_end_.get(), data.data(), data.size(), 0) > 0) {
    }
  }

 private:
  static constexpr int kLingerSeconds = 20;  // how long a close in the wrong place keeps this test
  UniqueFd lingering_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd other_end_;
};

constexpr std::array<uint8_t, 12> kGetFeatures{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
constexpr std::array<uint8_t, 12> kUnknown{99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
constexpr std::array<uint8_t, 20> kSetVringErr{14, 0, 0, 0, 1, 0, 0, 0, 8, 0};
constexpr std::array<uint8_t, 12> kSetBackendFd{21, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};

struct FileCase {
  const char* name;
  SocketMode mode;
  std::function<void(perf::MessageSocket& socket, int fd)> send;
};
constexpr uint64_t kSendNs = 10 * kNsPerSecond;
void Send(perf::MessageSocket& socket, std::span<const uint8_t> bytes, std::span<const int> fds) {
  const Status sent = socket.SendBytes(bytes, fds, kSendNs);
  ASSERT_TRUE(sent.ok()) << sent.error().message;
}

class SlowFilesTest : public PeersTest, public testing::WithParamInterface<FileCase> {};

TEST_P(SlowFilesTest, AreClosedWhereNobodyWaits) {
  LingeringSocket file;
  RunningEndpoint endpoint(host, *factory, host.AddModel(1), Path(), GetParam().mode);
  const bool listens = GetParam().mode == SocketMode::kClient;
  auto front_end = listens ? Frontend::Listen(Path()).value() : Frontend::Connect(Path()).value();
  auto memory = Memory();
  if (listens) {
    ASSERT_TRUE(front_end->Accept().ok());
    host.control_thread().Call([&] {  // the engine's is the last one to be closed
      GetParam().send(front_end->socket(), file.fd());
      file.GiveUp();
    });
    front_end->Disconnect();
  } else {
    // One is served, a second one refused.
    ASSERT_TRUE(front_end->Open().ok());
    auto driver = BlkDriver::Start(*front_end, *memory, OneQueue());
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    ASSERT_TRUE(endpoint.WaitState(EndpointState::kReady));
    host.control_thread().Call([&] {
      // The control reactor stands still meanwhile: the connection is not refused before the file is on its way.
      auto second = Frontend::Connect(Path()).value();
      GetParam().send(second->socket(), file.fd());
      file.GiveUp();
    });
    EXPECT_TRUE((*driver)->Stop().ok());
  }
  ASSERT_TRUE(WaitFor([&] { return factory->closing_files() > 0; })) << "it is not known to be slow";
  ExpectOthersServed(1);
  EXPECT_GT(factory->closing_files(), 0U) << "the others were served after its time";
  // Nor does the next peer of that controller wait.
  if (listens) {
    auto driver = BlkDriver::Start(*front_end, *memory, OneQueue());
    EXPECT_TRUE(driver.ok()) << driver.error().message;
    EXPECT_GT(factory->closing_files(), 0U);
  }
  file.LetGo();
  EXPECT_TRUE(WaitFor([&] { return factory->closing_files() == 0; }));
}

const FileCase kFileCases[] = {
    {"WhereAnEventfdBelongs", SocketMode::kClient,
     [](auto& socket, int fd) { Send(socket, kSetVringErr, std::array{fd}); }},
    {"WhereNothingBelongs", SocketMode::kClient,
     [](auto& socket, int fd) { Send(socket, kUnknown, std::array{fd}); }},
    {"OneOfTooMany", SocketMode::kClient,
     [](auto& socket, int fd) {
       std::array<int, 20> fds{};
       fds.fill(fd);
       Send(socket, kGetFeatures, fds);
     }},
    {"InHalfAMessage", SocketMode::kClient,
     [](auto& socket, int fd) { Send(socket, std::span(kGetFeatures).first(1), std::array{fd}); }},
    {"InAMessageThatNobodyReads", SocketMode::kClient,
     [](auto& socket, int fd) {
       std::vector<uint8_t> bytes(kUnknown.begin(), kUnknown.end());
       Send(socket, bytes, {});
       Send(socket, kGetFeatures, std::array{fd});
     }},
    {"InASocketOfItsOwn", SocketMode::kClient,
     [](auto& socket, int fd) {
       int ends[2];
       ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
       const UniqueFd ours(ends[0]);
       const UniqueFd channel(ends[1]);
       perf::MessageSocket hiding{UniqueFd(dup(ours.get()))};
       Send(hiding, kGetFeatures, std::array{fd});
       Send(socket, kSetBackendFd, std::array{channel.get()});
     }},
    {"OfASecondPeer", SocketMode::kServer,
     [](auto& socket, int fd) { Send(socket, kGetFeatures, std::array{fd}); }},
};
INSTANTIATE_TEST_SUITE_P(All, SlowFilesTest, testing::ValuesIn(kFileCases),
                         [](const auto& test) { return std::string(test.param.name); });

// As many as one controller may leave behind: then it is out, and nobody else.
TEST_F(PeersTest, TooManySlowFilesKeepTheirOwnControllerOut) {
  LingeringSocket file;
  RunningEndpoint endpoint(host, *factory, host.AddModel(1), Path());
  auto front_end = Frontend::Listen(Path()).value();
  ASSERT_TRUE(front_end->Accept().ok());
  std::array<int, PeerFiles::kFilesMax> fds{};
  fds.fill(STDERR_FILENO);
  fds.front() = file.fd();
  host.control_thread().Call([&] {
    Send(front_end->socket(), kGetFeatures, fds);
    file.GiveUp();
  });
  EXPECT_TRUE(endpoint.WaitMessage("files that front ends have sent can't be closed"));
  EXPECT_EQ(factory->closing_files(), PeerFiles::kFilesMax);
  ExpectOthersServed(1);
  EXPECT_EQ(endpoint.status().connections, 1U);
  file.LetGo();
  front_end->Disconnect();
  auto memory = Memory();
  auto driver = BlkDriver::Start(*front_end, *memory, OneQueue());
  EXPECT_TRUE(driver.ok()) << driver.error().message;
}

// Where the engine listens they come one by one, from peers that have hung up: there is no room when the last of these was accepted,
// and the next peer stands in the queue, of which the listener says nothing again.
TEST_F(PeersTest, APeerThatCameWhileThereWasNoRoomIsLetInAfterwards) {
  constexpr size_t kAtOnce = 8;  // the listener's queue has room for so many
  static_assert(PeerFiles::kFilesMax % kAtOnce == 0);
  LingeringSocket file;
  RunningEndpoint endpoint(host, *factory, host.AddModel(1), Path(), SocketMode::kServer);
  for (size_t left = 0; left < PeerFiles::kFilesMax; left += kAtOnce) {
    host.control_thread().Call([&] {  // none is accepted before all have hung up
      for (size_t i = 0; i < kAtOnce; ++i) {
        auto front_end = Frontend::Connect(Path()).value();
        const bool first = left + i == 0;
        Send(front_end->socket(), std::span(kGetFeatures).first(1),
             first ? std::vector{file.fd()} : std::vector<int>{});
        if (first) file.GiveUp();
      }
    });
    ASSERT_TRUE(WaitFor([&] { return factory->closing_files() == left + kAtOnce; }));
  }
  auto front_end = Frontend::Connect(Path()).value();
  EXPECT_TRUE(endpoint.WaitMessage("64 files that front ends have sent can't be closed"));
  EXPECT_EQ(endpoint.status().connections, 0U);
  file.LetGo();
  auto memory = Memory();
  const Status opened = front_end->Open();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  auto driver = BlkDriver::Start(*front_end, *memory, OneQueue());
  EXPECT_TRUE(driver.ok()) << driver.error().message;
}

}  // namespace
}  // namespace cleat::vhost::test::peers_test
