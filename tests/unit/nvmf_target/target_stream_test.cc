// SPDX-License-Identifier: Apache-2.0
// One connection's stream on a clock of the test's own: what it does with the first byte, with a host that owes a part of a record, and with
// memory while nothing moves.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
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

std::pair<UniqueFd, UniqueFd> UnixPair() {
  int fds[2];
  CLEAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::pair<UniqueFd, UniqueFd> TcpPair() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  CLEAT_CHECK(bind(listener.get(), address, bytes) == 0 && listen(listener.get(), 1) == 0);
  CLEAT_CHECK(getsockname(listener.get(), address, &bytes) == 0);
  UniqueFd ours(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CLEAT_CHECK(connect(ours.get(), address, bytes) == 0);
  UniqueFd theirs(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  CLEAT_CHECK(theirs.valid());
  return {std::move(ours), std::move(theirs)};
}

class Scene final : public TransportOwner {
 public:
  explicit Scene(std::pair<UniqueFd, UniqueFd> sockets = UnixPair(), const StreamTuning& tuning = {})
      : host(std::move(sockets.first)) {
    const auto key_of = [this](std::string_view identity) -> Result<nvme::target::SecuredKey> {
      nvme::tls::ConnectionKey key = TlsKey();
      if (identity != key.identity) return Error(ErrorCode::kPermissionDenied, "nobody");
      ++found;
      return nvme::target::SecuredKey{std::move(key), {test::kTlsHost, test::kTlsSubsystem, nullptr}};
    };
    stream = std::make_unique<TargetStream>(std::move(sockets.second), "10.0.0.7:4711", tuning, key_of);
    connection().SetOwner(owner);
    CLEAT_CHECK(stream->Start(*reactor, *this, QueueTransport::Kind::kIo).ok());
    owner.on_give = [this](nvme::tcp::test::OwnedCommand& command) {
      if (!std::exchange(command.lent, false)) return;
      ++lent;
      if (!stream->Keep(command.segment)) return;
      kept.emplace(command.segment.region, std::pair(std::move(command.bytes), command.region));
    };
  }
  bool MayLend() override { return may_lend; }
  void GiveKept(const block::Segment& piece, bool in_kernel) override {
    EXPECT_EQ(kept.erase(piece.region), 1U);
    given_up += in_kernel ? 1 : 0;
  }
  std::span<uint8_t> ReceiveBuffer() override { return buffer; }
  void EndTurn() override {
    if (connection().ended()) stream->Close();
  }

  nvme::tcp::TargetConnection& connection() {
    return static_cast<nvme::tcp::TargetConnection&>(stream->queue());
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
  Bytes buffer = Bytes(64 * 1024);
  UniqueFd host;
  std::unique_ptr<TargetStream> stream;
  int found = 0;
  // Of commands whose data the kernel has, with what keeps it.
  std::map<const block::MemoryRegion*, std::pair<std::vector<uint8_t>, std::shared_ptr<block::MemoryRegion>>>
      kept;
  bool may_lend = true;
  int lent = 0;
  int given_up = 0;
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
  EXPECT_TRUE(plain.connection().connected());
  EXPECT_EQ(plain.stream->secured(), nullptr);
  EXPECT_EQ(plain.stream->buffer_bytes(), 0U);

  Scene secured;
  TlsClient client(TlsKey());
  secured.ShakeHands(client);
  client.Write(IcRequest());
  secured.Send(client.Take());
  EXPECT_TRUE(secured.connection().connected());
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
  explicit BusyScene(std::pair<UniqueFd, UniqueFd> sockets = UnixPair(), const StreamTuning& tuning = {})
      : scene(std::move(sockets), tuning) {
    scene.Send(IcRequest());
    CLEAT_CHECK(scene.Receive().size() == sizeof(nvme::tcp::IcResp));
    scene.connection().BecomeQueue(1024, true, 0);
    scene.owner.run = [this](nvme::tcp::test::OwnedCommand& command) {
      command.Give(command.data_bytes);
      scene.connection().Answer(command, nvme::Status(0), 0, command.data_bytes);
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
  scene.connection().Abort({ErrorCode::kUnavailable, "over"});
  scene.stream->Close();
  client.Give(scene.Receive());
  EXPECT_EQ(client.Read(), std::nullopt);
  EXPECT_TRUE(scene.Receive().empty());
}

constexpr StreamTuning kAllByZeroCopy{.zero_copy = ZeroCopy::kAll};
constexpr uint32_t kLarge = 64 * 1024;

TEST(TargetStreamTest, LargeDataIsKeptUntilTheHostHasIt) {
  BusyScene busy(TcpPair(), kAllByZeroCopy);
  Scene& scene = busy.scene;
  scene.Send(CommandOf(1, ZeroCopyChoice::kLeastBytes - 1));
  EXPECT_EQ(scene.stream->zero_copy(), nullptr) << "it is copied";
  scene.Send(CommandOf(2, kLarge));
  EXPECT_EQ(scene.lent, 1);
  size_t came = 0;
  while (came < kLarge + ZeroCopyChoice::kLeastBytes) {
    came += scene.Receive().size();
    scene.Turn();
  }
  EXPECT_TRUE(scene.kept.empty());
  EXPECT_EQ(scene.stream->zero_copy()->in_kernel(), 0U);
  scene.may_lend = false;
  scene.Send(CommandOf(3, kLarge));
  EXPECT_EQ(scene.lent, 1) << "it is copied, as enough is lent";
  scene.clock.AdvanceBy(10 * TargetStream::kStallNs);
  scene.Turn();
  EXPECT_FALSE(scene.owner.ended) << *scene.owner.ended;
}

TEST(TargetStreamTest, AHostThatTakesNothingKeepsNoMemoryForEver) {
  BusyScene busy(TcpPair(), kAllByZeroCopy);
  Scene& scene = busy.scene;
  for (uint16_t cid = 0; cid < 16; ++cid) scene.Send(CommandOf(cid, kLarge));
  EXPECT_FALSE(scene.kept.empty());
  ASSERT_FALSE(scene.stream->wants_to_send()) << "the kernel has all of it";
  scene.clock.AdvanceBy(TargetStream::kStallNs);
  scene.Turn();  // this was moved meanwhile
  scene.clock.AdvanceBy(TargetStream::kStallNs - kNsPerSecond);
  scene.Turn();
  EXPECT_FALSE(scene.owner.ended);
  const auto kept = static_cast<int>(scene.kept.size());
  scene.clock.AdvanceBy(2 * kNsPerSecond);
  scene.Turn();
  ASSERT_TRUE(scene.owner.ended);
  EXPECT_NE(scene.owner.ended->find("does not take what is sent"), std::string::npos) << *scene.owner.ended;
  EXPECT_TRUE(scene.kept.empty());
  EXPECT_EQ(scene.given_up, kept) << "the kernel has them still";
}

TEST(TargetStreamTest, WhereTheKernelCanOnlyCopyItIsTriedAFewTimes) {
  BusyScene learns(TcpPair());
  for (uint16_t cid = 0; cid < 200; ++cid) {
    learns.scene.Send(CommandOf(cid, kLarge));
    for (size_t came = 0; came < kLarge; learns.scene.Turn()) came += learns.scene.Receive().size();
  }
  EXPECT_GT(learns.scene.lent, 0);
  EXPECT_LE(learns.scene.lent, 2 * static_cast<int>(ZeroCopyChoice::kInVainMost));
  EXPECT_TRUE(learns.scene.kept.empty());

  for (const StreamTuning& tuning : {kAllByZeroCopy, StreamTuning{.zero_copy = ZeroCopy::kNone}}) {
    const bool is_tcp = tuning.zero_copy == ZeroCopy::kNone;
    BusyScene cannot(is_tcp ? TcpPair() : UnixPair(), tuning);
    cannot.scene.Send(CommandOf(1, kLarge));
    EXPECT_EQ(cannot.scene.lent, 0);
    size_t came = 0;
    for (int turn = 0; turn < 100; ++turn) came += cannot.scene.Receive().size();
    EXPECT_EQ(came, kLarge + sizeof(nvme::tcp::C2hData) + sizeof(nvme::tcp::CapsuleResp));
  }
}

}  // namespace
}  // namespace cleat::nvmf_target::target_stream_test
