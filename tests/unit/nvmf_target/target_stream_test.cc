// SPDX-License-Identifier: Apache-2.0
// One connection's stream on a clock of the test's own: what it does with the first byte, with a host that owes a part of a record, and with
// memory while nothing moves.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "nvme/tcp/pdu.h"
#include "nvmf_target/socket/target_stream.h"
#include "tests/unit/nvme/tcp_target/target_owner.h"
#include "tests/unit/nvme/tls/server.h"

namespace cleat::nvmf_target::target_stream_test {
namespace {

using test::TlsClient;
using test::TlsKey;

using Bytes = std::vector<uint8_t>;

class Scene final : public StreamOwner {
 public:
  Scene() {
    int fds[2];
    CLEAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    host.Reset(fds[0]);
    const auto key_of = [this](std::string_view identity) -> Result<nvme::target::SecuredKey> {
      nvme::tls::ConnectionKey key = TlsKey();
      if (identity != key.identity) return Error(ErrorCode::kPermissionDenied, "nobody");
      ++found;
      return nvme::target::SecuredKey{std::move(key), {test::kTlsHost, test::kTlsSubsystem, nullptr}};
    };
    stream = std::make_unique<TargetStream>(UniqueFd(fds[1]), "10.0.0.7:4711", connection, key_of);
    CLEAT_CHECK(stream->Start(*reactor, *this, {}).ok());
  }
  std::span<uint8_t> ReceiveBuffer() override { return buffer; }
  void EndTurn() override {
    if (connection.ended()) stream->Close();
  }

  // Descriptors are looked at as time goes by.
  void Turn(int turns = 20) {
    for (int turn = 0; turn < turns; ++turn) {
      clock.AdvanceBy(100 * kNsPerUs);
      reactor->RunOnce();
    }
  }
  void Send(const Bytes& bytes) {
    CLEAT_CHECK(send(host.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()));
    Turn();
  }
  Bytes Receive() {
    Bytes bytes(64 * 1024);
    const ssize_t some = recv(host.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(some, 0)));
    return bytes;
  }
  void ShakeHands(TlsClient& client) {
    for (int turn = 0; turn < 5 && !client.Handshake(); ++turn) {
      Send(client.Take());
      client.Give(Receive());
    }
    Send(client.Take());
  }

  ManualClock clock;
  std::unique_ptr<Reactor> reactor = std::move(Reactor::Make(clock, {})).value();
  nvme::tcp::test::TargetOwner owner;
  nvme::tcp::TargetConnection connection{{.name = "10.0.0.7:4711"}, owner};
  Bytes buffer = Bytes(64 * 1024);
  UniqueFd host;
  std::unique_ptr<TargetStream> stream;
  int found = 0;
};

Bytes IcRequest() {
  nvme::tcp::IcReq request;
  request.header = {nvme::tcp::PduType::kIcReq, 0, sizeof(request), 0, sizeof(request)};
  const auto* const at = reinterpret_cast<const uint8_t*>(&request);
  return {at, at + sizeof(request)};
}

TEST(TargetStreamTest, TheFirstByteSaysWhetherItIsTls) {
  Scene plain;
  plain.Send(IcRequest());
  EXPECT_TRUE(plain.connection.connected());
  EXPECT_EQ(plain.stream->secured(), nullptr);
  EXPECT_EQ(plain.stream->buffer_bytes(), 0U);

  Scene secured;
  TlsClient client(TlsKey());
  secured.ShakeHands(client);
  client.Write(IcRequest());
  secured.Send(client.Take());
  EXPECT_TRUE(secured.connection.connected());
  ASSERT_NE(secured.stream->secured(), nullptr);
  EXPECT_EQ(secured.stream->secured()->host_nqn, test::kTlsHost);
  EXPECT_EQ(secured.stream->secured()->subsystem_nqn, test::kTlsSubsystem);
  client.Give(secured.Receive());
  EXPECT_EQ(client.Read()->size(), sizeof(nvme::tcp::IcResp));

  for (const uint8_t first : {uint8_t{0x15}, uint8_t{0x17}, uint8_t{0x80}, uint8_t{'G'}}) {
    Scene other;
    other.Send(Bytes(128, first));
    ASSERT_TRUE(other.owner.ended) << int{first};
    EXPECT_EQ(other.found, 0);
  }
}

TEST(TargetStreamTest, AHostThatLeavesARecordUnfinishedIsDroppedInTimeAndASlowOneIsNot) {
  Scene scene;
  TlsClient client(TlsKey());
  scene.ShakeHands(client);
  client.Write(IcRequest());
  scene.Send(client.Take());
  client.Write(Bytes(100, 4));
  Bytes record = client.Take();
  record.resize(record.size() - 1);
  scene.Send(record);
  scene.clock.AdvanceBy(TargetStream::kStallNs - kNsPerSecond);
  scene.Turn();
  EXPECT_FALSE(scene.owner.ended);
  scene.clock.AdvanceBy(2 * kNsPerSecond);
  scene.Turn();
  ASSERT_TRUE(scene.owner.ended);
  EXPECT_NE(scene.owner.ended->find("does not send the data"), std::string::npos) << *scene.owner.ended;

  Scene idle;
  TlsClient quiet(TlsKey());
  idle.ShakeHands(quiet);
  quiet.Write(IcRequest());
  idle.Send(quiet.Take());
  idle.clock.AdvanceBy(10 * TargetStream::kStallNs);
  idle.Turn();
  EXPECT_FALSE(idle.owner.ended) << "a whole record is no debt";
}

TEST(TargetStreamTest, AnIdleConnectionHasNoBuffersAndGoesOnWithWhatComes) {
  Scene scene;
  TlsClient client(TlsKey());
  scene.ShakeHands(client);
  client.Write(IcRequest());
  scene.Send(client.Take());
  client.Give(scene.Receive());
  ASSERT_TRUE(client.Read());
  EXPECT_GT(scene.stream->buffer_bytes(), 0U);
  scene.clock.AdvanceBy(TargetStream::kReleaseNs + kNsPerMs);
  scene.Turn();
  scene.clock.AdvanceBy(TargetStream::kReleaseNs + kNsPerMs);
  scene.Turn();
  EXPECT_EQ(scene.stream->buffer_bytes(), 0U);
  client.UpdateKey(false);
  scene.Send(client.Take());
  EXPECT_FALSE(scene.owner.ended) << *scene.owner.ended;
  EXPECT_GT(scene.stream->buffer_bytes(), 0U);
}

// A command that reads, or one without data.
Bytes CommandOf(uint16_t cid, uint32_t data_bytes) {
  nvme::tcp::CapsuleCmd capsule;
  capsule.header = {nvme::tcp::PduType::kCapsuleCmd, 0, sizeof(capsule), 0, sizeof(capsule)};
  capsule.entry.opcode = 2;
  capsule.entry.cid = cid;
  capsule.entry.data.type = nvme::fabrics::kSglByTransport;
  capsule.entry.data.length_bytes = data_bytes;
  const auto* const at = reinterpret_cast<const uint8_t*>(&capsule);
  return {at, at + sizeof(capsule)};
}

// Of a queue whose reads are answered at once.
struct BusyScene {
  BusyScene() {
    scene.Send(IcRequest());
    CLEAT_CHECK(scene.Receive().size() == sizeof(nvme::tcp::IcResp));
    scene.connection.BecomeQueue(1024, true, 0);
    scene.owner.run = [this](nvme::tcp::test::OwnedCommand& command) {
      command.Give(command.data_bytes);
      scene.connection.Answer(command, nvme::Status(0), 0, command.data_bytes);
    };
  }
  // One command at each turn, with a turn that finds nothing now and then.
  void Hurry(int commands, uint32_t data_bytes = 0) {
    for (int i = 0; i < commands; ++i) {
      const Bytes command = CommandOf(static_cast<uint16_t>(i), data_bytes);
      CLEAT_CHECK(send(scene.host.get(), command.data(), command.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(command.size()));
      scene.reactor->RunOnce();
      scene.clock.AdvanceBy(kNsPerUs);
      if (i % 5 == 0) scene.reactor->RunOnce();
    }
  }
  bool in_epoll() const { return scene.stream->in_epoll(); }

  Scene scene;
};

TEST(TargetStreamTest, ABusyConnectionLeavesEpollAndIsBackBeforeItSleeps) {
  BusyScene busy;
  Scene& scene = busy.scene;
  EXPECT_TRUE(busy.in_epoll());
  for (int i = 0; i < 3; ++i) {
    busy.Hurry(200);
    EXPECT_FALSE(busy.in_epoll());
    EXPECT_EQ(scene.Receive().size(), 200 * sizeof(nvme::tcp::CapsuleResp));
    scene.Turn();
    EXPECT_TRUE(busy.in_epoll());
    scene.Send(CommandOf(1, 0));  // it sleeps by now, and is woken
    EXPECT_EQ(scene.Receive().size(), sizeof(nvme::tcp::CapsuleResp));
  }
  busy.Hurry(200);
  scene.host.Reset();
  scene.Turn();
  EXPECT_TRUE(scene.owner.ended) << "the host's end is found without an event";
}

TEST(TargetStreamTest, ABusyConnectionThatHasNoRoomToSendIsToldWhenThereIs) {
  BusyScene busy;
  Scene& scene = busy.scene;
  constexpr uint32_t kBytes = 32 * 1024;
  busy.Hurry(100);
  ASSERT_FALSE(busy.in_epoll());
  size_t received = scene.Receive().size();
  busy.Hurry(40, kBytes);  // more than the socket takes
  EXPECT_TRUE(busy.in_epoll());
  const size_t all = 140 * sizeof(nvme::tcp::CapsuleResp) + 40 * (sizeof(nvme::tcp::C2hData) + kBytes);
  // It goes on with what comes meanwhile, and never sleeps.
  int turns = 0;
  for (; received < all && turns < 1000; ++turns) {
    received += scene.Receive().size();
    scene.clock.AdvanceBy(20 * kNsPerUs);
    scene.reactor->RunOnce();
  }
  EXPECT_EQ(received, all);
}

TEST(TargetStreamTest, AnEndIsToldInTheWordsOfTls) {
  Scene scene;
  TlsClient client(TlsKey());
  scene.ShakeHands(client);
  client.Write(IcRequest());
  scene.Send(client.Take());
  client.Give(scene.Receive());
  ASSERT_TRUE(client.Read());
  scene.connection.Abort({ErrorCode::kUnavailable, "over"});
  scene.stream->Close();
  client.Give(scene.Receive());
  EXPECT_EQ(client.Read(), std::nullopt);
  EXPECT_TRUE(scene.Receive().empty());
}

}  // namespace
}  // namespace cleat::nvmf_target::target_stream_test
