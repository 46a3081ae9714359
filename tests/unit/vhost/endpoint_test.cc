// SPDX-License-Identifier: Apache-2.0
// Whole endpoints on real sockets with virtio-blk drivers on the other side.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/random.h"
#include "host.h"
#include "library_under_test.h"
#include "other_process.h"
#include "perf/driver/blk_driver.h"
#include "perf/hostile/hostile.h"
#include "vhost/socket_endpoint.h"

namespace cleat::vhost::test {
namespace {

ProtocolLibrary& Pretend() {
  static PretendLibrary library;
  return library;
}

}  // namespace

std::vector<LibraryUnderTest>& LibrariesUnderTest() {
  static std::vector<LibraryUnderTest> libraries{{"Pretend", &Pretend}};
  return libraries;
}

namespace endpoint_test {
namespace {

using perf::BlkDriver;
using perf::Frontend;
using perf::GuestMemory;

std::vector<uint8_t> Pattern(size_t bytes, uint64_t seed) {
  std::vector<uint8_t> data(bytes);
  Random random(seed);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
  return data;
}

class EndpointTest : public testing::TestWithParam<LibraryUnderTest> {
 protected:
  EndpointTest() : library(GetParam().get()) {
    host.control_thread().Call(
        [&] { factory = std::make_unique<SocketEndpointFactory>(host.control(), host.pool(), library); });
  }
  ~EndpointTest() override {
    host.disk().LetGo();
    host.control_thread().Call([&] { factory.reset(); });
  }
  std::string Path(int i = 0) const { return directory.path() + "/vm" + std::to_string(i) + ".sock"; }
  static std::unique_ptr<GuestMemory> Memory() {
    auto memory = GuestMemory::CreateWithHole(16 << 20);
    CLEAT_CHECK(memory.ok());
    return std::move(memory).value();
  }
  static perf::BlkOptions Queues(uint16_t queues) {
    perf::BlkOptions options;
    options.num_queues = queues;
    return options;
  }
  static void WriteAndVerify(BlkDriver& driver, uint64_t seed) {
    for (uint16_t queue = 0; queue < driver.num_queues(); ++queue) {
      const auto data = Pattern(8 << 10, seed + queue);
      std::vector<uint8_t> back(data.size());
      const Status written = driver.WriteSync(queue * data.size(), data, queue);
      ASSERT_TRUE(written.ok()) << written.error().message;
      ASSERT_TRUE(driver.FlushSync(queue).ok());
      const uint16_t other = static_cast<uint16_t>((queue + 1) % driver.num_queues());
      const Status read = driver.ReadSync(queue * data.size(), back, other);
      ASSERT_TRUE(read.ok()) << read.error().message;
      ASSERT_EQ(back, data);
    }
  }

  // With all that a connection needs open: rings are served before librte_vhost has done its part of the messages that
  // started them, and it answers GET_VRING_BASE after them.
  static std::vector<std::string> DescriptorsWhileStopped(BlkDriver& driver) {
    EXPECT_TRUE(driver.Stop().ok());
    return OpenDescriptors();
  }
  // What has ended takes its time to close.
  static void ExpectNoMoreThan(const std::vector<std::string>& before, BlkDriver& driver) {
    EXPECT_TRUE(driver.Stop().ok());
    EXPECT_TRUE(WaitFor([&] { return OpenDescriptors().size() <= before.size(); }))
        << testing::PrintToString(OpenDescriptors()) << " are open, " << testing::PrintToString(before)
        << " were";
  }

  Host host{2};
  ProtocolLibrary& library;
  std::unique_ptr<SocketEndpointFactory> factory;
  TemporaryDirectory directory;
};

TEST_P(EndpointTest, ServesADiskAsClient) {
  virtio::BlkModel& model = host.AddModel(4);
  RunningEndpoint endpoint(host, *factory, model, Path());
  EXPECT_TRUE(endpoint.WaitState(EndpointState::kConnecting));
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(4));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  EXPECT_TRUE(endpoint.WaitState(EndpointState::kReady));
  EXPECT_EQ(endpoint.status().rings_up, 4U);
  // Pause and continue: every ring goes on at the base that it answered.
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE((*driver)->Stop().ok());
    EXPECT_TRUE(endpoint.WaitMessage("no ring is up (last message: GET_VRING_BASE)"));
    ASSERT_TRUE((*driver)->Resume().ok());
    WriteAndVerify(**driver, 10 + i);
  }
  endpoint.Stop();
  EXPECT_TRUE(front_end->WaitPeerGone(kTestTimeoutNs).ok());
  EXPECT_EQ(endpoint.status().state, EndpointState::kStopped);
}

TEST_P(EndpointTest, ServesADiskAsServer) {
  virtio::BlkModel& model = host.AddModel(2);
  RunningEndpoint endpoint(host, *factory, model, Path(), SocketMode::kServer);
  auto memory = Memory();
  auto front_end = Frontend::Connect(Path()).value();
  ASSERT_TRUE(front_end->Open().ok());
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(2));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  // A second one is turned away, the first one does not notice.
  auto second = Frontend::Connect(Path()).value();
  EXPECT_FALSE(second->Open().ok());
  WriteAndVerify(**driver, 2);
}

TEST_P(EndpointTest, GoesOnAfterAbruptEnds) {
  virtio::BlkModel& model = host.AddModel(2);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(2));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  for (int i = 0; i < 20; ++i) {
    WriteAndVerify(**driver, i);
    front_end->Disconnect();
    const Status again = (*driver)->Reconnect();
    ASSERT_TRUE(again.ok()) << again.error().message;
  }
  WriteAndVerify(**driver, 100);
  EXPECT_GE(endpoint.status().connections, 21U);
}

TEST_P(EndpointTest, DrainsBeforeTheNextConnection) {
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  host.disk().Hold();
  const uint64_t buffer = *(*driver)->AllocateBuffer(4096);
  perf::BlkIo io;
  io.length_bytes = 4096;
  io.data_gpa = buffer;
  for (uint64_t i = 0; i < 5; ++i) {
    io.token = i;
    ASSERT_TRUE((*driver)->Submit(0, io));
  }
  (*driver)->Kick(0);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 5; }));
  front_end->Disconnect();
  EXPECT_TRUE(endpoint.WaitState(EndpointState::kDraining));
  EXPECT_TRUE(endpoint.WaitMessage("5 requests of the last connection are still in the storage"));
  EXPECT_EQ(endpoint.status().connections, 1U);
  host.disk().LetGo();
  EXPECT_TRUE(WaitFor([&] { return endpoint.status().state != EndpointState::kDraining; }));
  ASSERT_TRUE((*driver)->Reconnect().ok());
  WriteAndVerify(**driver, 2);
}

TEST_P(EndpointTest, YieldsToAnotherUnderIo) {
  virtio::BlkModel& model = host.AddModel(1);
  virtio::BlkModel& successor_model = host.AddModel(1);
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  host.disk().Hold();
  perf::BlkIo io;
  io.length_bytes = 4096;
  io.data_gpa = *(*driver)->AllocateBuffer(4096);
  for (io.token = 0; io.token < 5; ++io.token) ASSERT_TRUE((*driver)->Submit(0, io));
  (*driver)->Kick(0);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 5; }));
  // Not now: it serves on, and the peer has not noticed.
  const Status refused = endpoint.Yield(20 * kNsPerMs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(endpoint.status().state, EndpointState::kReady);
  EXPECT_FALSE(front_end->PeerGone());
  host.disk().LetGo();
  const Status yielded = endpoint.Yield(kTestTimeoutNs);
  EXPECT_TRUE(yielded.ok()) << yielded.error().message;
  EXPECT_EQ(endpoint.status().state, EndpointState::kStopped);
  EXPECT_EQ(endpoint.status().connections, 1U) << "it must not come back";
  RunningEndpoint successor(host, *factory, successor_model, Path());
  ASSERT_TRUE((*driver)->Reconnect().ok());
  std::array<perf::BlkCompletion, 8> completions;
  EXPECT_EQ((*driver)->Poll(0, completions), 5U) << "all that was in flight had been answered";
  WriteAndVerify(**driver, 2);
  EXPECT_EQ(successor.status().connections, 1U);
}

TEST_P(EndpointTest, YieldsWhateverItIsDoing) {
  virtio::BlkModel& model = host.AddModel(1);
  auto memory = Memory();
  {
    RunningEndpoint endpoint(host, *factory, model, Path());
    EXPECT_TRUE(endpoint.Yield(kTestTimeoutNs).ok()) << "nobody was there";
    EXPECT_EQ(endpoint.status().state, EndpointState::kStopped);
  }
  auto front_end = Frontend::Listen(Path()).value();
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  host.disk().Hold();
  perf::BlkIo io;
  io.length_bytes = 4096;
  io.data_gpa = *(*driver)->AllocateBuffer(4096);
  ASSERT_TRUE((*driver)->Submit(0, io));
  (*driver)->Kick(0);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 1; }));
  // In the middle of a message that waits for the storage.
  std::thread guest([&] { EXPECT_TRUE((*driver)->Stop().ok()); });
  EXPECT_TRUE(endpoint.WaitMessage("waits for 1 requests in the storage"));
  const Status refused = endpoint.Yield(20 * kNsPerMs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "SET_VRING_ENABLE is still being answered");
  host.disk().LetGo();
  guest.join();
  EXPECT_TRUE(endpoint.Yield(kTestTimeoutNs).ok()) << "no ring was up";
  EXPECT_TRUE(front_end->WaitPeerGone(kTestTimeoutNs).ok());
}

TEST_P(EndpointTest, MemoryHotPlug) {
  virtio::BlkModel& model = host.AddModel(2);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(2));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  constexpr uint64_t kPlugged = 64ULL << 32;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(memory->AddRegion({kPlugged, 2 << 20, 0}).ok());
    ASSERT_TRUE((*driver)->UpdateMemory().ok());
    const uint64_t buffer = *memory->AllocateIn(kPlugged, 4096, 4096);
    const auto data = Pattern(4096, i);
    std::ranges::copy(data, memory->At(buffer, 4096));
    perf::BlkIo io;
    io.op = perf::BlkOp::kWrite;
    io.length_bytes = 4096;
    io.data_gpa = buffer;
    auto done = (*driver)->Execute(0, io);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->status, 0);
    std::vector<uint8_t> back(4096);
    ASSERT_TRUE((*driver)->ReadSync(0, back, 1).ok());
    EXPECT_EQ(back, data);
    memory->Free(buffer, 4096);
    ASSERT_TRUE(memory->RemoveRegion(kPlugged).ok());
    ASSERT_TRUE((*driver)->UpdateMemory().ok());
    WriteAndVerify(**driver, i);
  }
}

TEST_P(EndpointTest, ABrokenRingIsReportedAndAResetHelps) {
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  {
    auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    const uint64_t scratch = *memory->Allocate(perf::kAbuseScratchBytes, 4096);
    ASSERT_TRUE(perf::Apply(perf::RingAbuse::kHeadOutOfRange, (*driver)->ring(0), *memory, scratch, 1).ok());
    EXPECT_TRUE(endpoint.WaitState(EndpointState::kBroken));
    EXPECT_TRUE(endpoint.WaitMessage("the guest has to reset the device"));
    uint32_t base = 0;
    ASSERT_TRUE(front_end->Stop({&base, 1}).ok());
  }
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  EXPECT_TRUE(endpoint.WaitState(EndpointState::kReady));
}

TEST_P(EndpointTest, APeerThatBreaksTheProtocolIsToldOfAndTakenBack) {
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto front_end = Frontend::Listen(Path()).value();
  ASSERT_TRUE(front_end->Accept().ok());
  ASSERT_TRUE(front_end->Open().ok());
  ASSERT_TRUE(front_end->SetVringNum(7, 64).ok());  // no answer is asked for
  ASSERT_TRUE(front_end->WaitPeerGone(kTestTimeoutNs).ok());
  EXPECT_TRUE(endpoint.WaitMessage("SET_VRING_NUM: ring 7 of a device with 1 queues"));
  front_end->Disconnect();
  auto memory = Memory();
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  EXPECT_TRUE(endpoint.WaitState(EndpointState::kReady));
  EXPECT_EQ(endpoint.status().message, "");
}

TEST_P(EndpointTest, APeerMayDieAfterAnyMessageOfTheHandshake) {
  virtio::BlkModel& model = host.AddModel(2);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  std::vector<std::string> before;
  const auto visit = [&](uint64_t seed, const std::function<void(BlkDriver&)>& while_connected) {
    auto driver = BlkDriver::Start(*front_end, *memory, Queues(2));
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    WriteAndVerify(**driver, seed);
    while_connected(**driver);
    front_end->Disconnect();
    front_end->DropInflight();  // the driver's rings go with it
  };
  visit(0, [&](BlkDriver& driver) { before = DescriptorsWhileStopped(driver); });
  uint64_t count = 0;
  for (bool through = false; !through && !HasFatalFailure(); ++count) {
    SCOPED_TRACE(std::to_string(count) + " messages");
    front_end->DisconnectAfter(count);
    through = BlkDriver::Start(*front_end, *memory, Queues(2)).ok();
    front_end->DisconnectAfter(UINT64_MAX);
    front_end->Disconnect();
    front_end->DropInflight();
    visit(count, [](BlkDriver&) {});
  }
  EXPECT_GT(count, 25U);
  visit(count, [&](BlkDriver& driver) { ExpectNoMoreThan(before, driver); });
}

TEST_P(EndpointTest, APeerWithoutInFlightMemoryIsToldWhatThatMeans) {
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  perf::FrontendOptions options;
  options.protocol_features &= ~perf::wire::kProtocolInflightShmfd;
  auto front_end = Frontend::Listen(Path(), options).value();
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(1));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  WriteAndVerify(**driver, 1);
  EXPECT_TRUE(endpoint.WaitState(EndpointState::kReady));
  EXPECT_TRUE(endpoint.WaitMessage("the peer keeps no log of requests in flight"));
}

TEST_P(EndpointTest, ASilentPeerIsReportedWithTheLikelyCause) {
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto listener = perf::ListenUnix(Path());  // never accepts
  EXPECT_TRUE(endpoint.WaitMessage("QEMU before 9.1 with a vhost-user-scsi device"));
  EXPECT_EQ(endpoint.status().state, EndpointState::kHandshake);
}

// As QEMU does that is stopped before it has accepted: the kernel takes the connection for it.
TEST_P(EndpointTest, AStoppedListenerIsNoOtherBackEnd) {
  const StoppedListener listener(Path());
  virtio::BlkModel& model = host.AddModel(1);
  RunningEndpoint endpoint(host, *factory, model, Path());
  EXPECT_TRUE(endpoint.WaitMessage("process " + std::to_string(listener.pid()) + " is stopped"));
  EXPECT_EQ(endpoint.status().message.find("back end"), std::string::npos) << endpoint.status().message;
}

TEST_P(EndpointTest, FiftyPeersAndOneThatStalls) {
  constexpr int kPeers = 50;
  std::vector<std::unique_ptr<RunningEndpoint>> endpoints;
  std::vector<std::unique_ptr<GuestMemory>> memories;
  std::vector<std::unique_ptr<Frontend>> front_ends;
  std::vector<std::unique_ptr<BlkDriver>> drivers;
  for (int i = 0; i < kPeers; ++i) {
    endpoints.push_back(std::make_unique<RunningEndpoint>(host, *factory, host.AddModel(1), Path(i)));
    auto memory = GuestMemory::CreateWithHole(4 << 20);
    ASSERT_TRUE(memory.ok());
    memories.push_back(std::move(memory).value());
    front_ends.push_back(Frontend::Listen(Path(i)).value());
  }
  // One in the middle of its handshake, one with its rings up.
  ASSERT_TRUE(front_ends[0]->Accept().ok());
  ASSERT_TRUE(perf::Apply(perf::SocketAbuse::kHalfPayload, *front_ends[0]).ok());
  for (int i = 1; i < kPeers; ++i) {
    auto driver = BlkDriver::Start(*front_ends[i], *memories[i], Queues(1));
    ASSERT_TRUE(driver.ok()) << i << ": " << driver.error().message;
    drivers.push_back(std::move(driver).value());
    if (i == 1) {
      ASSERT_TRUE(perf::Apply(perf::SocketAbuse::kHalfHeader, *front_ends[1]).ok());
    }
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kPeers - 1; ++i) {
      WriteAndVerify(*drivers[i], round * kPeers + i);  // the one with half a header among them
    }
  }
  // The others' control messages are not held up either.
  for (int i = 1; i < kPeers - 1; ++i) {
    ASSERT_TRUE(drivers[i]->Stop().ok());
    ASSERT_TRUE(drivers[i]->Resume().ok());
    WriteAndVerify(*drivers[i], i);
  }
  EXPECT_EQ(endpoints[0]->status().state, EndpointState::kHandshake);
  EXPECT_EQ(endpoints[1]->status().state, EndpointState::kReady);
}

TEST_P(EndpointTest, TwoHundredConnectionsLeakNothing) {
  virtio::BlkModel& model = host.AddModel(2);
  RunningEndpoint endpoint(host, *factory, model, Path());
  auto memory = Memory();
  auto front_end = Frontend::Listen(Path()).value();
  std::vector<std::string> before;
  for (int i = 0; i < 200; ++i) {
    auto driver = BlkDriver::Start(*front_end, *memory, Queues(2));
    ASSERT_TRUE(driver.ok()) << i << ": " << driver.error().message;
    ASSERT_TRUE((*driver)->FlushSync().ok());
    if (i == 0) {
      before = DescriptorsWhileStopped(**driver);
    } else if (i % 2 == 0) {
      ASSERT_TRUE((*driver)->Stop().ok());
    }
    front_end->Disconnect();
    front_end->DropInflight();
    // The driver's rings go with it: nobody may serve them any more.
    EXPECT_TRUE(WaitFor([&] { return endpoint.status().connections > static_cast<uint64_t>(i) + 1; }));
  }
  auto driver = BlkDriver::Start(*front_end, *memory, Queues(2));
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  ASSERT_TRUE((*driver)->FlushSync().ok());
  ExpectNoMoreThan(before, **driver);
}

TEST_P(EndpointTest, APeerThatOnlyComesAndGoesIsLeftAlone) {
  virtio::BlkModel& model = host.AddModel(1);
  auto front_end = Frontend::Listen(Path()).value();
  RunningEndpoint endpoint(host, *factory, model, Path());
  const MonotonicClock clock;
  const uint64_t begin_ns = clock.NowNs();
  uint64_t delays_ns = 0;
  uint64_t delay_ns = Backoff::kDelayMinNs;
  for (uint32_t visit = 0; visit < Backoff::kUselessMax + 4; ++visit) {
    ASSERT_TRUE(front_end->Accept().ok());
    EXPECT_TRUE(front_end->GetFeatures().ok());
    front_end->Disconnect();
    if (visit < Backoff::kUselessMax) continue;
    delays_ns += delay_ns;
    delay_ns *= 2;
  }
  ASSERT_TRUE(front_end->Accept().ok());
  EXPECT_GE(clock.NowNs() - begin_ns, delays_ns) << "it was served again at once, and so for ever";
}

TEST_P(EndpointTest, StartErrorsNameTheControllerAndThePath) {
  virtio::BlkModel& model = host.AddModel(1);
  host.control_thread().Call([&] {
    EndpointOptions options;
    options.name = "controllers/c";
    options.socket_path = directory.path() + "/no/vm.sock";
    auto endpoint = factory->Make(options, model, nullptr);
    ASSERT_TRUE(endpoint.ok());
    const Status started = (*endpoint)->Start();
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.error().message, "controllers/c: socket " + options.socket_path + ": directory " +
                                           directory.path() + "/no does not exist: create it");
    EXPECT_EQ((*endpoint)->status().state, EndpointState::kStopped);
  });
}

INSTANTIATE_TEST_SUITE_P(On, EndpointTest, testing::ValuesIn(LibrariesUnderTest()),
                         [](const auto& library) { return library.param.name; });

}  // namespace
}  // namespace endpoint_test
}  // namespace cleat::vhost::test
