// SPDX-License-Identifier: Apache-2.0
// What an engine says of itself when it connects anew, while something that it was asked for earlier is under way. With
// real sockets and reactors; cleatd is played, and the disk is a lock that somebody else has.
#include "engine/link/command_link.h"

#include <cleat/engine/v1/engine.pb-c.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/unix_socket.h"
#include "tests/unit/vhost/host.h"

namespace cleat::engine::command_link_test {
namespace {

using vhost::test::Host;
using vhost::test::TemporaryDirectory;

constexpr uint64_t kBytes = 1 << 20;
constexpr const char* kController = "controllers/a";

class LockDevice final : public block::Device {
 public:
  LockDevice(const block::Geometry& geometry, std::atomic<bool>& taken)
      : Device("disks/d", geometry), taken_(taken) {}

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct Nothing final : block::Channel {
      void Submit(block::Request& request) override { request.Complete(block::IoStatus::kOk); }
    };
    return std::unique_ptr<block::Channel>(std::make_unique<Nothing>());
  }
  Task<Status> Acquire(block::AccessMode /*mode*/) override {
    while (taken_) co_await Reactor::Current()->SleepFor(kNsPerMs);
    co_return Ok{};
  }

 private:
  std::atomic<bool>& taken_;
};

struct Disks final : DiskFactory {
  Task<Result<OpenDisk>> Open(const DiskSpec& disk, block::AccessMode mode, std::shared_ptr<qos::Group> group,
                              DiskEvents /*events*/) override {
    block::Geometry geometry;
    geometry.size_bytes = disk.size_bytes;
    std::unique_ptr<block::Device> device = std::make_unique<LockDevice>(geometry, taken);
    co_return MakeLimitedPipeline(device, disk.limits.limits, std::move(group), mode);
  }
  std::atomic<bool> taken{true};  // by somebody else
};

struct Endpoints final : vhost::EndpointFactory {
  struct Nowhere final : vhost::Endpoint {
    Status Start() override { return Ok{}; }
    Task<void> Stop() override { co_return; }
    Task<Status> Yield(uint64_t /*deadline_ns*/) override { co_return Ok{}; }
    void ConfigChanged() override {}
    vhost::EndpointStatus status() const override { return {}; }
  };
  Result<std::unique_ptr<vhost::Endpoint>> Make(const vhost::EndpointOptions& /*options*/,
                                                virtio::DeviceModel& /*model*/,
                                                vhost::StatusFn /*on_status*/) override {
    return std::unique_ptr<vhost::Endpoint>(std::make_unique<Nowhere>());
  }
};

struct FreeEnvelope {
  void operator()(Cleat__Engine__V1__Envelope* envelope) const {
    cleat__engine__v1__envelope__free_unpacked(envelope, nullptr);
  }
};
using PbMessage = std::unique_ptr<Cleat__Engine__V1__Envelope, FreeEnvelope>;

// cleatd's end of a connection.
class Caller {
 public:
  explicit Caller(UniqueFd socket) : socket_(std::move(socket)) {}

  PbMessage Receive() {
    std::array<uint8_t, kMessageBytesMax> bytes{};
    const ssize_t size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (size <= 0) return nullptr;
    return PbMessage(cleat__engine__v1__envelope__unpack(nullptr, static_cast<size_t>(size), bytes.data()));
  }
  void Send(const Cleat__Engine__V1__Envelope& envelope, std::span<const UniqueFd> fds = {}) {
    std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
    cleat__engine__v1__envelope__pack(&envelope, bytes.data());
    const iovec part{bytes.data(), bytes.size()};
    const auto sent = SendWithFds(socket_.get(), {&part, 1}, fds);
    CLEAT_CHECK(sent.ok() && *sent == bytes.size());
  }
  // Hears the hello, and chooses a version.
  void AnswerHello(uint32_t protocol) {
    const PbMessage hello = Receive();
    CLEAT_CHECK(hello != nullptr && hello->hello != nullptr);
    EXPECT_EQ(hello->hello->protocol_min, kProtocolMin);
    EXPECT_EQ(hello->hello->protocol_max, kProtocolMax);
    Cleat__Engine__V1__HelloReply reply = CLEAT__ENGINE__V1__HELLO_REPLY__INIT;
    reply.has_protocol = 1;
    reply.protocol = protocol;
    Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_HELLO_REPLY;
    envelope.hello_reply = &reply;
    Send(envelope);
  }
  // The state of its first disk, as the inventory has it.
  Cleat__Engine__V1__AttachmentState Welcome(uint32_t protocol = kProtocolMax) {
    AnswerHello(protocol);
    auto state = CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_UNSPECIFIED;
    for (bool last = false; !last;) {
      const PbMessage piece = Receive();
      CLEAT_CHECK(piece != nullptr && piece->inventory != nullptr);
      if (piece->inventory->n_attachments > 0) state = piece->inventory->attachments[0]->state;
      last = piece->inventory->last != 0;
    }
    return state;
  }
  // What any version asks.
  void AskPut(const char* controller, const char* socket) {
    std::string name = controller;
    std::string path = socket;
    Cleat__Engine__V1__Controller wanted = CLEAT__ENGINE__V1__CONTROLLER__INIT;
    wanted.name = name.data();
    wanted.has_type = 1;
    wanted.type = CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK;
    wanted.socket_path = path.data();
    wanted.has_socket_mode = 1;
    wanted.socket_mode = CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT;
    wanted.has_queues = wanted.has_revision = 1;
    wanted.queues = 1;
    wanted.revision = 5;
    Cleat__Engine__V1__PutController put = CLEAT__ENGINE__V1__PUT_CONTROLLER__INIT;
    put.controller = &wanted;
    Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.has_id = 1;
    envelope.id = 2;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CONTROLLER;
    envelope.put_controller = &put;
    Send(envelope);
  }
  void AskDiscover(bool watch = false) {
    std::string text = "10.0.0.1:8009";
    Cleat__Engine__V1__Discover discover = CLEAT__ENGINE__V1__DISCOVER__INIT;
    discover.address = discover.host_nqn = discover.host_id = text.data();
    discover.has_timeout_ms = 1;
    discover.timeout_ms = 1000;
    discover.has_watch = 1;
    discover.watch = watch ? 1 : 0;
    Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.has_id = 1;
    envelope.id = 3;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_DISCOVER;
    envelope.discover = &discover;
    Send(envelope);
  }
  void AskStopDiscover() {
    Cleat__Engine__V1__StopDiscover stop = CLEAT__ENGINE__V1__STOP_DISCOVER__INIT;
    stop.has_discover = 1;
    stop.discover = 3;
    Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.has_id = 1;
    envelope.id = 4;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_STOP_DISCOVER;
    envelope.stop_discover = &stop;
    Send(envelope);
  }
  void AskTake(std::string request = {}) {
    std::string name = kController;
    Cleat__Engine__V1__TakeController take = CLEAT__ENGINE__V1__TAKE_CONTROLLER__INIT;
    take.name = name.data();
    Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.has_id = 1;
    envelope.id = 1;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_TAKE_CONTROLLER;
    envelope.take_controller = &take;
    if (!request.empty()) envelope.request = request.data();
    Send(envelope);
  }
  // With these descriptors, which it says are the counters or the connections of hosts.
  void AskTakeWith(bool counters, bool connections, std::span<const UniqueFd> fds) {
    std::string name = kController;
    Cleat__Engine__V1__TakeController take = CLEAT__ENGINE__V1__TAKE_CONTROLLER__INIT;
    take.name = name.data();
    take.has_counters = take.has_connections = 1;
    take.counters = counters ? 1 : 0;
    take.connections = connections ? 1 : 0;
    Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.has_id = 1;
    envelope.id = 1;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_TAKE_CONTROLLER;
    envelope.take_controller = &take;
    Send(envelope, fds);
  }
  // What the next reply says, whatever events come before.
  PbMessage AwaitReply() {
    for (;;) {
      PbMessage message = Receive();
      if (message == nullptr || message->body_case == CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY) return message;
    }
  }

 private:
  UniqueFd socket_;
};

Task<Result<DiscoveryReport>> UntilCancelled(CancelToken& cancel, std::atomic<bool>& ended) {
  Event never(*Reactor::Current());
  co_await never.Wait(&cancel);
  ended = true;
  co_return Error(ErrorCode::kCancelled, "given up");
}

class CommandLinkTest : public testing::Test {
 protected:
  CommandLinkTest() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    CLEAT_CHECK(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                listen(listener_.get(), 4) == 0);
  }
  ~CommandLinkTest() override {
    disks_.taken = false;
    host_.control_thread().Await<void>([&] { return link_->Stop(); });
    host_.control_thread().Await<void>([&] { return engine_->Shutdown(); });
    host_.control_thread().Call([&] {
      link_.reset();
      engine_.reset();
    });
  }

  // With a controller that stands by, and its disk.
  void Start(uint64_t takes_wait_ns) {
    ControllerSpec controller;
    controller.name = kController;
    controller.socket_path = "/run/vm/a";
    AttachmentSpec attachment;
    attachment.controller = kController;
    attachment.disk.name = "disks/d";
    attachment.disk.size_bytes = kBytes;
    host_.control_thread().Call([&] {
      Engine::Parts parts{host_.control(), ios_, disks_, endpoints_, memories_, groups_, clusters_};
      parts.discover = discover_;
      engine_ = std::make_unique<Engine>(parts);
      CLEAT_CHECK(engine_->PutController(controller, Controller::Role::kStandBy).ok());
    });
    CLEAT_CHECK(host_.control_thread().Await<Status>([&] { return engine_->Attach(attachment); }).ok());
    host_.control_thread().Call([&] {
      CommandLink::Options options;
      options.socket_path = path_;
      options.takes_wait_ns = takes_wait_ns;
      options.reactors.assign(ios_.begin(), ios_.end());
      link_ = std::make_unique<CommandLink>(host_.control(), *engine_, std::move(options));
      link_->Start();
    });
  }
  bool Calls(int patience_ms) {
    pollfd state{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    return poll(&state, 1, patience_ms) == 1;
  }
  Caller Accept() {
    CLEAT_CHECK(Calls(60'000));
    return Caller(UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  bool IsSilent() {
    bool silent = false;
    host_.control_thread().Call([&] { silent = link_->cleatd_is_silent(); });
    return silent;
  }
  // It is asked to take while it can't, and the connection ends.
  void AskAndHangUp() {
    Caller caller = Accept();
    EXPECT_EQ(caller.Welcome(), CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_STANDBY);
    caller.AskTake();
    EXPECT_TRUE(vhost::test::WaitFor([&] {
      uint32_t takes = 0;
      host_.control_thread().Call([&] { takes = link_->takes(); });
      return takes == 1;
    }));
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/cleatd.sock";
  UniqueFd listener_;
  Host host_{1};
  const std::vector<Reactor*> ios_ = host_.io_reactors();
  Disks disks_;
  Endpoints endpoints_;
  MemoryStore memories_;
  GroupStore groups_{host_.control()};
  ClusterStore clusters_;
  Engine::DiscoverFunction discover_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<CommandLink> link_;
};

// Who heard that it stands by would have it taken by another engine, while this one goes on taking it.
TEST_F(CommandLinkTest, WhatItWasAskedToTakeIsDecidedBeforeItConnectsAnew) {
  Start(60 * kNsPerSecond);
  AskAndHangUp();
  EXPECT_FALSE(Calls(300)) << "it tries every 50 ms otherwise";
  disks_.taken = false;
  Caller caller = Accept();
  EXPECT_EQ(caller.Welcome(), CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_ACTIVE);
}

TEST_F(CommandLinkTest, ATakeSaysWhichDescriptorsItBrings) {
  disks_.taken = false;
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  std::vector<UniqueFd> fds;
  fds.emplace_back(ends[1]);
  caller.AskTakeWith(/*counters=*/true, /*connections=*/true, fds);
  const PbMessage refused = caller.AwaitReply();
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->reply->ok, 0);
  EXPECT_EQ(refused->reply->code, ErrorCodeName(ErrorCode::kInvalidArgument));
  caller.AskTakeWith(/*counters=*/false, /*connections=*/true, fds);
  fds.clear();
  const PbMessage taken = caller.AwaitReply();
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->reply->ok, 1) << taken->reply->message;
  pollfd state{.fd = reading.get(), .events = 0, .revents = 0};
  EXPECT_EQ(poll(&state, 1, 60'000), 1);
  EXPECT_NE(state.revents & POLLHUP, 0) << "a guest's device has no use for them";
}

// What it logs of an order, however long that takes, has the id of the call that asked for it; what it logs meanwhile has not.
TEST_F(CommandLinkTest, WhatItLogsOfAnOrderHasTheRequestsId) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::Init("cleat-engine", "info").ok());
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  caller.AskTake("take-17");
  EXPECT_TRUE(vhost::test::WaitFor([&] {
    uint32_t takes = 0;
    host_.control_thread().Call([&] { takes = link_->takes(); });
    return takes == 1;
  }));
  host_.control_thread().Call([] { spdlog::info("disks/other: something else"); });
  disks_.taken = false;
  EXPECT_TRUE(vhost::test::WaitFor([&] {
    uint32_t takes = 1;
    host_.control_thread().Call([&] { takes = link_->takes(); });
    return takes == 0;
  }));
  host_.control_thread().Call([] { spdlog::info("disks/other: something after it"); });
  spdlog::default_logger()->flush();
  const std::string text = testing::internal::GetCapturedStderr();
  // On the thread that logs once more, when the caller hangs up.
  host_.control_thread().Call([] { EXPECT_TRUE(log::Init("test", "error").ok()); });
  EXPECT_NE(text.find("controllers/a: taken; it is served here request=take-17\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("disks/other: something else\n"), std::string::npos) << text;
  EXPECT_NE(text.find("disks/other: something after it\n"), std::string::npos) << text;
}

// An engine that is upgraded before its cleatd is.
TEST_F(CommandLinkTest, ACleatdOfTheVersionBeforeIsServed) {
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome(kProtocolMin);
  caller.AskPut("controllers/b", "/run/vm/b");
  bool answered = false;
  for (int message = 0; message < 10 && !answered; ++message) {  // events about it may come first
    const PbMessage answer = caller.Receive();
    ASSERT_NE(answer, nullptr) << "it has hung up";
    if (answer->body_case != CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY) continue;
    answered = true;
    EXPECT_EQ(answer->id, 2U);
    EXPECT_TRUE(answer->reply->ok) << (answer->reply->message == nullptr ? "" : answer->reply->message);
  }
  EXPECT_TRUE(answered);
}

TEST_F(CommandLinkTest, AHeartbeatIsAnsweredWithWhatItsReactorsDo) {
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  Cleat__Engine__V1__Heartbeat heartbeat = CLEAT__ENGINE__V1__HEARTBEAT__INIT;
  Cleat__Engine__V1__Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.has_id = 1;
  envelope.id = 9;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_HEARTBEAT;
  envelope.heartbeat = &heartbeat;
  caller.Send(envelope);
  const PbMessage answer = caller.Receive();
  ASSERT_NE(answer, nullptr);
  ASSERT_EQ(answer->body_case, CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY);
  EXPECT_EQ(answer->id, 9U);
  EXPECT_TRUE(answer->reply->ok);
  ASSERT_EQ(answer->reply->n_reactors, ios_.size());
  EXPECT_EQ(answer->reply->reactors[0]->name, ios_.front()->name());
  EXPECT_GT(answer->reply->reactors[0]->turns, 0U);
  EXPECT_FALSE(IsSilent());
}

// As long as a discovery service's answer may be: 64 KiB are a message.
TEST_F(CommandLinkTest, AnAnswerThatIsTooLongForOneMessageComesInParts) {
  constexpr size_t kRecords = 1024;
  discover_ = [](DiscoverySpec spec, DiscoverySeen /*seen*/,
                 CancelToken& /*cancel*/) -> Task<Result<DiscoveryReport>> {
    EXPECT_EQ(spec.address, "10.0.0.1:8009");
    EXPECT_EQ(spec.timeout_ms, 1000U);
    const DiscoveryRecord longest{.subtype = DiscoverySubtype::kNvm,
                                  .nqn = std::string(223, 'n'),
                                  .transport = "254",
                                  .address = std::string(256, 'a'),
                                  .port = std::string(32, 'p'),
                                  .secure_channel = SecureChannel::kRequired};
    DiscoveryReport report;
    report.records.assign(kRecords, longest);
    co_return report;
  };
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  caller.AskDiscover();
  size_t records = 0;
  for (bool more = true; more;) {
    const PbMessage part = caller.Receive();
    ASSERT_NE(part, nullptr);
    ASSERT_EQ(part->body_case, CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY);
    EXPECT_EQ(part->id, 3U);
    ASSERT_TRUE(part->reply->ok);
    ASSERT_NE(part->reply->discovery, nullptr);
    records += part->reply->discovery->n_records;
    EXPECT_EQ(part->reply->discovery->records[0]->secure_channel,
              CLEAT__ENGINE__V1__SECURE_CHANNEL__SECURE_CHANNEL_REQUIRED);
    more = part->reply->more != 0;
  }
  EXPECT_EQ(records, kRecords);
}

// A service that does not answer, asked by a caller who mistyped its address, is not to keep guests from their next engine.
TEST_F(CommandLinkTest, AnEngineThatShutsDownWaitsForNoDiscoveryService) {
  discover_ = [](DiscoverySpec /*spec*/, DiscoverySeen /*seen*/,
                 CancelToken& cancel) -> Task<Result<DiscoveryReport>> {
    Event never(*Reactor::Current());
    co_await never.Wait(&cancel);
    co_return Error(ErrorCode::kCancelled, "given up");
  };
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  caller.AskDiscover();
  caller.AskPut("controllers/b", "/run/vm/b");
  EXPECT_TRUE(vhost::test::WaitFor([&] {  // that came after it
    bool there = false;
    host_.control_thread().Call([&] { there = engine_->ControllerByName("controllers/b").has_value(); });
    return there;
  }));
  disks_.taken = false;
  host_.control_thread().Await<void>([&] { return engine_->Shutdown(); });
}

// It tells two logs, and then waits to be told that nobody wants to know any more.
TEST_F(CommandLinkTest, AServiceIsWatchedUntilCleatdSaysStop) {
  discover_ = [](DiscoverySpec spec, DiscoverySeen seen,
                 CancelToken& cancel) -> Task<Result<DiscoveryReport>> {
    EXPECT_TRUE(spec.watch);
    for (const size_t records : {kDiscoveryRecordsAMessage + 1, size_t{0}}) {
      DiscoveryReport report;
      report.records.resize(records);
      seen(report);
    }
    Event never(*Reactor::Current());
    co_await never.Wait(&cancel);
    co_return Error(ErrorCode::kCancelled, "given up");
  };
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  caller.AskDiscover(/*watch=*/true);
  for (const bool whole : {false, true, true}) {
    const PbMessage part = caller.Receive();
    ASSERT_TRUE(part != nullptr && part->reply != nullptr);
    EXPECT_EQ(part->id, 3U);
    EXPECT_TRUE(part->reply->more);
    EXPECT_EQ(part->reply->whole != 0, whole);
  }
  caller.AskStopDiscover();
  bool is_ended = false;
  for (int answers = 0; answers < 2; ++answers) {
    const PbMessage answer = caller.Receive();
    ASSERT_TRUE(answer != nullptr && answer->reply != nullptr);
    EXPECT_FALSE(answer->reply->more);
    if (answer->id == 3) is_ended = std::string(answer->reply->code) == "cancelled";
  }
  EXPECT_TRUE(is_ended);
  caller.AskStopDiscover();  // again, of what has ended
  EXPECT_TRUE(caller.Receive()->reply->ok);
}

// More logs than messages may wait for a cleatd that reads nothing: it hears of the last one, and why it was the last.
TEST_F(CommandLinkTest, OfLogsThatCleatdDoesNotReadTheLastOneIsKept) {
  constexpr size_t kLogs = 10'000;  // of two messages each
  static constexpr char kLast[] = "nqn.2014-08.org.example:last";
  std::atomic<bool> told{false};
  discover_ = [&told](DiscoverySpec /*spec*/, DiscoverySeen seen,
                      CancelToken& /*cancel*/) -> Task<Result<DiscoveryReport>> {
    DiscoveryReport report;
    report.records.resize(kDiscoveryRecordsAMessage + 1);
    for (size_t log = 1; log < kLogs; ++log) seen(report);
    report.records.back().nqn = kLast;
    seen(report);
    told = true;
    co_return Error(ErrorCode::kUnimplemented, "it does not tell of changes");
  };
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.Welcome();
  caller.AskDiscover(/*watch=*/true);
  ASSERT_TRUE(vhost::test::WaitFor([&] { return told.load(); }));
  size_t logs = 0;
  std::string last;
  for (bool more = true; more;) {
    const PbMessage part = caller.Receive();
    ASSERT_TRUE(part != nullptr && part->reply != nullptr) << "it has hung up";
    more = part->reply->more != 0;
    if (!part->reply->whole) continue;
    ++logs;
    last = part->reply->discovery->records[0]->nqn;
  }
  EXPECT_EQ(last, kLast);
  EXPECT_LT(logs, kLogs) << "as many as the socket takes, and one";
}

TEST_F(CommandLinkTest, AConnectionThatEndsEndsWhatItsCleatdWatches) {
  std::atomic<bool> ended{false};
  discover_ = [&ended](DiscoverySpec /*spec*/, DiscoverySeen /*seen*/, CancelToken& cancel) {
    return UntilCancelled(cancel, ended);
  };
  Start(60 * kNsPerSecond);
  {
    Caller caller = Accept();
    caller.Welcome();
    caller.AskDiscover(/*watch=*/true);
    caller.AskPut("controllers/b", "/run/vm/b");
    while (caller.Receive()->id != 2) {  // which came after it
    }
    EXPECT_FALSE(ended);
  }
  EXPECT_TRUE(vhost::test::WaitFor([&] { return ended.load(); }));
}

// Nor one of a version that there is not.
TEST_F(CommandLinkTest, ACleatdOfANewerVersionIsHungUpOn) {
  Start(60 * kNsPerSecond);
  Caller caller = Accept();
  caller.AnswerHello(kProtocolMax + 1);
  EXPECT_EQ(caller.Receive(), nullptr);
}

// Storage that hangs must not keep cleatd from all the other disks.
TEST_F(CommandLinkTest, ItWaitsForThatOnlySoLong) {
  Start(100 * kNsPerMs);
  AskAndHangUp();
  Caller caller = Accept();
  EXPECT_EQ(caller.Welcome(), CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_STANDBY);
}

}  // namespace
}  // namespace cleat::engine::command_link_test
