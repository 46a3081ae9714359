// SPDX-License-Identifier: Apache-2.0
// The relay between a front end and a pretend library that fails the test when it sees what it should not.
#include "vhost/relay.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"
#include "perf/hostile/hostile.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::vhost::test::relay_test {
namespace {

namespace wire = perf::wire;

class RelayTest : public testing::Test {
 protected:
  RelayTest() {
    perf::FrontendOptions options;
    options.ack = perf::AckMode::kAlways;
    auto created = perf::GuestMemory::CreateWithHole(2 << 20);
    CLEAT_CHECK(created.ok());
    memory = std::move(created).value();
    int pair[2];
    CLEAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    front_end = perf::Frontend::Wrap(UniqueFd(pair[0]), options);
    peer = UniqueFd(pair[1]);
  }
  ~RelayTest() override {
    if (!begun) return;
    front_end->Disconnect();
    Ended();
    host.control_thread().Call([&] {
      relay.reset();
      session.reset();
    });
  }

  void Begin() {
    begun = true;
    host.control_thread().Call([&] {
      Session::Options options;
      options.name = "controllers/c";
      options.io_reactors = host.io_reactors();
      virtio::DeviceModel& model = host.AddModel(2);
      session = std::make_unique<Session>(options, host.control(), host.pool(), model, [] {});
      relay = std::make_unique<Relay>(host.control(), *session, model);
      auto connected = library.Connect(session->offer());
      CLEAT_CHECK(connected.ok());
      Spawn(Run(std::move(connected).value()));
    });
  }
  Task<void> Run(UniqueFd connected) {
    auto run = relay->Run(std::move(peer), std::move(connected));
    Status result = co_await std::move(run);
    auto end = session->End();
    co_await std::move(end);
    relay->Close();
    {
      const std::lock_guard lock(mutex);
      ended = result ? "success" : result.error().message;
    }
  }
  std::string Ended() {
    EXPECT_TRUE(WaitFor([&] {
      const std::lock_guard lock(mutex);
      return ended.has_value();
    }));
    const std::lock_guard lock(mutex);
    return ended.value_or("never");
  }
  void Open() {
    Begin();
    const Status opened = front_end->Open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ASSERT_TRUE(front_end->SetFeatures(kFeatureProtocolFeatures | wire::kFeatureVersion1).ok());
  }
  perf::RingSetup RingOf(int kick, int call) {
    perf::RingSetup ring;
    ring.size = 64;
    ring.base = 17;
    const uint64_t at = *memory->Allocate(3 * 4096, 4096);
    ring.desc_user = memory->UserAddress(at);
    ring.avail_user = memory->UserAddress(at + 4096);
    ring.used_user = memory->UserAddress(at + 8192);
    // The base the ring goes on from: nothing new is available.
    memory->At<uint16_t>(at + 4096)[1] = 17;
    memory->At<uint16_t>(at + 8192)[1] = 17;
    ring.kick_fd = kick;
    ring.call_fd = call;
    return ring;
  }

  Host host{2};
  PretendLibrary library;
  std::unique_ptr<perf::GuestMemory> memory;
  std::unique_ptr<perf::Frontend> front_end;
  UniqueFd peer;
  std::unique_ptr<Session> session;
  std::unique_ptr<Relay> relay;
  bool begun = false;
  std::mutex mutex;
  std::optional<std::string> ended;
};

TEST_F(RelayTest, NegotiatesAndAnswers) {
  Open();
  EXPECT_EQ(front_end->queues_max(), 2);  // the model's, not the library's 128
  EXPECT_EQ(front_end->offered_features() & kFeatureLogAll, kFeatureLogAll);
  EXPECT_NE(front_end->protocol_features() & kProtocolConfig, 0U);
  auto config = front_end->GetBlkConfig();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->capacity_sectors, TestDisk::kBytes / 512);
  EXPECT_EQ(config->num_queues, 2);
  front_end->Disconnect();
  EXPECT_EQ(Ended(), "success");
}

TEST_F(RelayTest, ASecondBackEndChannelIsRefused) {
  Open();  // which has sent one
  (void)front_end->SetBackendReqFd();
  EXPECT_NE(Ended().find("SET_BACKEND_REQ_FD: there is a back-end channel already"), std::string::npos)
      << Ended();
}

// They would be kept, or closed, by the control reactor.
TEST_F(RelayTest, DescriptorsThatAreNotWhatTheyShouldBeAreRefused) {
  const UniqueFd tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Begin();
  const std::vector<uint8_t> number(sizeof(uint64_t));
  ASSERT_TRUE(
      front_end->Send(static_cast<uint32_t>(Request::kSetLogFd), number, std::vector{tcp.get()}).ok());
  EXPECT_NE(Ended().find("SET_LOG_FD: the file descriptor is no eventfd"), std::string::npos) << Ended();
}

TEST_F(RelayTest, ABackEndChannelIsAUnixSocket) {
  const UniqueFd tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Begin();
  ASSERT_TRUE(
      front_end->Send(static_cast<uint32_t>(Request::kSetBackendFd), {}, std::vector{tcp.get()}).ok());
  EXPECT_NE(Ended().find("SET_BACKEND_REQ_FD: the file descriptor is no unix socket"), std::string::npos)
      << Ended();
}

TEST_F(RelayTest, ConfigurationThatIsNotWritableIsRefusedWithAnAnswer) {
  Open();
  const uint8_t byte = 1;
  EXPECT_EQ(front_end->SetConfig(0, {&byte, 1}).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(front_end->GetBlkConfig().ok());  // and the connection goes on
  auto behind = front_end->GetConfig(300, 8);
  EXPECT_FALSE(behind.ok());
  EXPECT_TRUE(front_end->GetBlkConfig().ok());
}

TEST_F(RelayTest, TellsOfAChangedConfigurationWhereItCan) {
  Open();
  EXPECT_NE(front_end->protocol_features() & kProtocolBackendRequests, 0U);
  host.control_thread().Call([&] { relay->TellConfigChanged(); });
  auto told = front_end->ReceiveBackendRequest(kTestTimeoutNs);
  ASSERT_TRUE(told.ok()) << told.error().message;
  EXPECT_EQ(told->header.request, static_cast<uint32_t>(BackendRequest::kConfigChange));
  EXPECT_TRUE(told->payload.empty());
  // A front end that reads nothing hurts itself alone.
  host.control_thread().Call([&] {
    for (int i = 0; i < 10'000; ++i) relay->TellConfigChanged();
  });
  EXPECT_TRUE(front_end->GetBlkConfig().ok());
}

TEST_F(RelayTest, AnswersWithTheRingsTrueBase) {
  Open();
  const UniqueFd kick(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const UniqueFd call(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const std::array<perf::RingSetup, 2> rings{RingOf(kick.get(), call.get()), RingOf(kick.get(), call.get())};
  const uint64_t features = kFeatureProtocolFeatures | wire::kFeatureVersion1;
  for (int round = 0; round < 3; ++round) {
    const Status started = front_end->Start(features, *memory, rings);
    ASSERT_TRUE(started.ok()) << started.error().message;
    EXPECT_TRUE(WaitFor([&] {
      uint32_t up = 0;
      host.control_thread().Call([&] { up = session->rings_up(); });
      return up == 2;
    }));
    std::vector<uint32_t> bases(2);
    const Status stopped = front_end->Stop(bases);
    ASSERT_TRUE(stopped.ok()) << stopped.error().message;
    EXPECT_EQ(bases, (std::vector<uint32_t>{17, 17}));
  }
}

TEST_F(RelayTest, InFlightMemoryIsMadeHere) {
  Open();
  auto area = front_end->GetInflightFd(2, 64);
  ASSERT_TRUE(area.ok()) << area.error().message;
  EXPECT_EQ(area->size_bytes, 2 * 1088U);
  EXPECT_TRUE(front_end->SetInflightFd(*area).ok());
}

TEST_F(RelayTest, ARefusalIsAnsweredAndEndsTheConnection) {
  Open();
  EXPECT_EQ(front_end->SetVringNum(0, 3).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(Ended(), "SET_VRING_NUM: ring 0: a size of 3; it has to be a power of two up to 1024");
}

TEST_F(RelayTest, WhatTheLibraryRefusesEndsTheConnection) {
  library.RefuseRequest(Request::kSetOwner);
  Begin();
  (void)front_end->Open();  // as far as it comes: the refusal is later than the acknowledgement
  EXPECT_TRUE(Ended().starts_with("the vhost library refused a message; the last one was "));
}

TEST_F(RelayTest, WhatTheLibraryRefusesToAnswerEndsTheConnection) {
  library.RefuseRequest(Request::kGetVringBase);
  Open();
  EXPECT_FALSE(front_end->GetVringBase(0).ok());
  EXPECT_EQ(Ended(), "GET_VRING_BASE: refused by the vhost library");
}

// A library that never answers holds up nothing but what only it can say.
TEST_F(RelayTest, NothingIsAwaitedFromTheLibraryWhileAGuestConnects) {
  library.FallSilent();
  Open();
  const UniqueFd kick(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const std::array<perf::RingSetup, 1> rings{RingOf(kick.get(), kick.get())};
  ASSERT_TRUE(front_end->Start(kFeatureProtocolFeatures | wire::kFeatureVersion1, *memory, rings).ok());
  EXPECT_TRUE(WaitFor([&] {
    uint32_t up = 0;
    host.control_thread().Call([&] { up = session->rings_up(); });
    return up == 1;
  }));
}

TEST_F(RelayTest, ResetOwnerStopsTheRings) {
  Open();
  const UniqueFd kick(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const std::array<perf::RingSetup, 1> rings{RingOf(kick.get(), kick.get())};
  ASSERT_TRUE(front_end->Start(kFeatureProtocolFeatures | wire::kFeatureVersion1, *memory, rings).ok());
  ASSERT_TRUE(front_end->ResetOwner().ok());
  uint32_t up = 1;
  host.control_thread().Call([&] { up = session->rings_up(); });
  EXPECT_EQ(up, 0U);
  EXPECT_TRUE(front_end->GetFeatures().ok());  // the library has not forgotten them
}

TEST_F(RelayTest, AFloodWithoutReadingOnlyFillsItsOwnSocket) {
  Open();
  const auto messages = [&] {
    uint64_t count = 0;
    host.control_thread().Call([&] { count = relay->messages(); });
    return count;
  };
  const uint64_t before = messages();
  ASSERT_TRUE(perf::Apply(perf::SocketAbuse::kFlood, *front_end).ok());
  // It is throttled: no more is read than fits between the flood and its unread answers.
  uint64_t seen = before;
  EXPECT_TRUE(WaitFor([&] {
    const uint64_t now = messages();
    if (now == seen && now > before) return true;
    seen = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return false;
  }));
  EXPECT_GT(seen, before);
  // And can be stopped at any moment.
  host.control_thread().Call([&] { relay->Stop(); });
  EXPECT_EQ(Ended(), "success");
}

class RelayAbuseTest : public RelayTest, public testing::WithParamInterface<perf::SocketAbuseCase> {};

TEST_P(RelayAbuseTest, HurtsOnlyItself) {
  const std::vector<std::string> before = OpenDescriptors();
  Open();
  const Status applied = perf::Apply(GetParam().abuse, *front_end);
  if (GetParam().abuse == perf::SocketAbuse::kByteByByte) {
    EXPECT_TRUE(applied.ok()) << applied.error().message;  // slow, and as good as any other
    EXPECT_TRUE(front_end->GetFeatures().ok());
  } else if (!GetParam().stays_half && GetParam().abuse != perf::SocketAbuse::kFlood) {
    const std::string why = Ended();
    EXPECT_NE(why, "success");
    RecordProperty("why", why);
  }
  front_end->Disconnect();
  Ended();
  EXPECT_TRUE(WaitFor([&] { return OpenDescriptors().size() <= before.size() + 1; }))
      << testing::PrintToString(OpenDescriptors()) << " are open, " << testing::PrintToString(before)
      << " were";
}

INSTANTIATE_TEST_SUITE_P(All, RelayAbuseTest,
                         testing::ValuesIn(perf::SocketAbuseCases().begin(), perf::SocketAbuseCases().end()),
                         [](const auto& tested) {
                           std::string name;
                           for (const char c : std::string(tested.param.name)) {
                             name += isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

class RelaySetupAbuseTest : public RelayTest, public testing::WithParamInterface<perf::SetupAbuseCase> {};

TEST_P(RelaySetupAbuseTest, IsRefusedAndHurtsNobody) {
  Open();
  ASSERT_TRUE(front_end->SetMemTable(*memory).ok());
  (void)perf::Apply(GetParam().abuse, *front_end, *memory);
  front_end->Disconnect();
  RecordProperty("why", Ended());
}

INSTANTIATE_TEST_SUITE_P(All, RelaySetupAbuseTest,
                         testing::ValuesIn(perf::SetupAbuseCases().begin(), perf::SetupAbuseCases().end()),
                         [](const auto& tested) {
                           std::string name;
                           for (const char c : std::string(tested.param.name)) {
                             name += isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace cleat::vhost::test::relay_test
