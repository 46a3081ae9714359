// SPDX-License-Identifier: Apache-2.0
// The protocol of NVMe/TCP against Linux' own target, over real sockets that this test pumps itself: connections, an association, I/O
// queues. Run in the guest of test_nvmf.py, or beside any other target (SPDK's nvmf_tgt); the environment says
//   CLEAT_NVMF_ADDRESS  where the target listens
//   CLEAT_NVMF_NQN      its subsystem
//   CLEAT_NVMF_PLAIN    UUID of a namespace with blocks of 512 bytes
//   CLEAT_NVMF_LARGE    ... with blocks of 4096 bytes
//   CLEAT_NVMF_DHCHAP_SECRET, CLEAT_NVMF_DHCHAP_CTRL_SECRET
//                       the host's secret and the subsystem's, where there are any
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/association.h"
#include "nvme/host/queue_login.h"
#include "nvme/tcp_host/host_connection.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::nvme::nvmf_namespace {
namespace {

using fabrics::CompletionEntry;
using fabrics::Reached;

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kHangNs = 60'000 * kNsPerMs;  // for what can only hang
constexpr uint64_t kBytes =
    2 << 20;  // of a namespace that are used: a 16th, one command, is what SPDK's target takes too
constexpr uint32_t kDepth = 16;

std::string Setting(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) ADD_FAILURE() << variable << " is not set: this runs in the guest of test_nvmf.py";
  return value == nullptr ? "" : value;
}

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

UniqueFd ConnectTo(const std::string& where) {
  const auto address = fabrics::ParseTransportAddress(where);
  CLEAT_CHECK(address.ok());
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address->port);
  std::memcpy(&to.sin_addr, address->address.data(), sizeof(to.sin_addr));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << std::strerror(errno);
  return fd;
}

// What the host authenticates with. The arithmetic is done by whoever looks into `computing` next, on this test's one thread.
host::HostChap ChapOf(std::shared_ptr<auth::Authentication>& computing) {
  const char* const secret = std::getenv("CLEAT_NVMF_DHCHAP_SECRET");
  const char* const own = std::getenv("CLEAT_NVMF_DHCHAP_CTRL_SECRET");
  host::HostChap chap;
  if (secret == nullptr) return chap;
  auto parsed = auth::ChapSecret::Parse(secret, "CLEAT_NVMF_DHCHAP_SECRET");
  CLEAT_CHECK(parsed.ok());
  auth::ChapSecrets secrets{.host = std::move(parsed).value(), .controller = std::nullopt};
  if (own != nullptr) {
    auto parsed_own = auth::ChapSecret::Parse(own, "CLEAT_NVMF_DHCHAP_CTRL_SECRET");
    CLEAT_CHECK(parsed_own.ok());
    secrets.controller = std::move(parsed_own).value();
  }
  chap.secrets = std::make_shared<const auth::ChapSecrets>(std::move(secrets));
  chap.random = [](std::span<uint8_t> bytes) {
    CLEAT_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  };
  chap.compute = [&computing](const auto& authentication) { computing = authentication; };
  return chap;
}

// A connection with its socket.
class Wire {
 public:
  Wire(const tcp::HostConnectionOptions& options, fabrics::QueuePairOwner& owner)
      : socket_(ConnectTo(Setting("CLEAT_NVMF_ADDRESS"))), connection_(options, owner) {
    connection_.Start();
  }
  tcp::HostConnection& connection() { return connection_; }

  // Sends all that there is, waits shortly for what comes, and takes it.
  void Step() {
    SendAll();
    pollfd ready{socket_.get(), POLLIN, 0};
    if (connection_.ended() || poll(&ready, 1, 10) <= 0) return;
    std::array<iovec, 64> pieces{};
    const uint32_t count = connection_.ReceiveSpace(pieces);
    const ssize_t bytes = readv(socket_.get(), pieces.data(), static_cast<int>(count));
    if (bytes <= 0) return connection_.Abort(Error(ErrorCode::kUnavailable, "the target has closed"));
    connection_.Received(static_cast<size_t>(bytes));
    SendAll();
  }

 private:
  void SendAll() {
    while (connection_.wants_to_send()) {
      std::array<iovec, 64> pieces{};
      const uint32_t count = connection_.FillSend(pieces);
      if (count == 0) return;
      const ssize_t bytes = writev(socket_.get(), pieces.data(), static_cast<int>(count));
      if (bytes <= 0) return connection_.Abort(Error(ErrorCode::kUnavailable, "the target takes nothing"));
      connection_.Sent(static_cast<size_t>(bytes));
    }
  }

  UniqueFd socket_;
  tcp::HostConnection connection_;
};

// An association, driven to where a test wants it.
class Host final : public host::AssociationOwner {
 public:
  Host(const std::string& uuid, tcp::Digests digests, const std::string& nqn = Setting("CLEAT_NVMF_NQN"),
       uint32_t kato_ms = 5000)
      : digests_(digests), association_(Config(uuid, nqn, kato_ms), *this), wire_(Options(), association_) {
    association_.Start(wire_.connection(), NowNs());
  }
  ~Host() {
    association_.End(true);
    EXPECT_TRUE(Until([this] { return gone_; }));
  }

  template <typename There>
  bool Until(There&& there) {
    const uint64_t deadline_ns = NowNs() + kHangNs;
    while (!there()) {
      if (NowNs() > deadline_ns) return false;
      wire_.Step();
      association_.Tick(NowNs());
      if (const auto authentication = std::exchange(computing_, nullptr)) {
        authentication->Compute();
        association_.Computed();
      }
    }
    return true;
  }
  bool BecomesLive() {
    return Until([this] { return live_ || lost_; }) && live_;
  }
  std::string WhyLost() {
    EXPECT_TRUE(Until([this] { return live_ || lost_; }));
    return lost_ ? lost_->message : "";
  }

  const host::AssociationInfo& info() const { return association_.info(); }
  host::Association& association() { return association_; }
  tcp::Digests digests() const { return digests_; }

  // ---- AssociationOwner
  void Live(uint64_t life, const host::AssociationInfo& /*info*/) override {
    EXPECT_EQ(life, kLife);
    live_ = true;
  }
  void Changed(uint64_t /*life*/, uint32_t /*changed*/, const host::AssociationInfo& /*info*/) override {}
  void Lost(uint64_t /*life*/, const Error& reason) override { lost_ = reason; }
  void Gone(uint64_t /*life*/) override { gone_ = true; }

  static fabrics::HostIdentity Identity() {
    fabrics::Uuid id{};
    id.fill(0x42);
    return fabrics::HostIdentityOfUuid(id);
  }

 private:
  static constexpr uint64_t kLife = 7;

  host::AssociationConfig Config(const std::string& uuid, const std::string& nqn, uint32_t kato_ms) {
    host::AssociationConfig config;
    config.who = "subsystems/guest";
    config.life = kLife;
    config.host = Identity();
    config.subsystem_nqn = nqn;
    config.chap = ChapOf(computing_);
    const auto parsed = fabrics::ParseUuid(uuid);
    CLEAT_CHECK(parsed.ok());
    config.wanted.ids.uuid = *parsed;
    config.kato_ms = kato_ms;
    config.io_queues = 2;
    return config;
  }
  tcp::HostConnectionOptions Options() const {
    tcp::HostConnectionOptions options;
    options.name = "subsystems/guest, queue 0";
    options.depth = host::AssociationConfig().admin_entries - 1;
    options.digests = digests_;
    return options;
  }

  const tcp::Digests digests_;
  std::shared_ptr<auth::Authentication> computing_;
  host::Association association_;
  Wire wire_;
  bool live_ = false;
  bool gone_ = false;
  std::optional<Error> lost_;
};

// An I/O queue with up to kDepth commands in flight, each named by its cookie.
class Queue final : public fabrics::QueuePairOwner {
 public:
  Queue(Host& host, uint16_t id) : host_(host), login_(Config(host, id)), wire_(Options(host, id), *this) {
    EXPECT_TRUE(Until([this] { return login_.ready(); })) << why_;
    const bool proves = std::getenv("CLEAT_NVMF_DHCHAP_CTRL_SECRET") != nullptr;
    EXPECT_EQ(login_.proved(), proves);
    wire_.connection().set_in_capsule_bytes(host.info().fabrics.in_capsule_bytes);
  }

  template <typename There>
  bool Until(There&& there) {
    const uint64_t deadline_ns = NowNs() + kHangNs;
    while (!there() && !ended_ && NowNs() < deadline_ns) {
      wire_.Step();
      host_.association().Tick(NowNs());
      if (const auto authentication = std::exchange(computing_, nullptr)) {
        authentication->Compute();
        login_.Computed(wire_.connection(), NowNs());
      }
    }
    return there();
  }

  void Start(uint64_t cookie, const Command& command, const block::Segment& segment, bool to_target) {
    CLEAT_CHECK(cookie < kDepth && !busy_[cookie]);
    segments_[cookie] = segment;
    fabrics::QueuedCommand queued;
    queued.entry = fabrics::EntryOf(command);
    const auto memory =
        std::span<const block::Segment>(&segments_[cookie], segment.length_bytes == 0 ? 0 : 1);
    (to_target ? queued.to_target : queued.from_target) = memory;
    queued.cookie = cookie;
    busy_[cookie] = true;
    wire_.connection().Submit(queued);
  }
  void WaitFor(uint64_t cookie, uint64_t data_bytes) {
    ASSERT_TRUE(Until([&] { return !busy_[cookie]; })) << why_;
    EXPECT_TRUE(entries_[cookie].status().ok()) << NameOf(entries_[cookie].status());
    EXPECT_EQ(data_bytes_[cookie], data_bytes);
  }

  // ---- QueuePairOwner
  void Connected() override { login_.Begin(wire_.connection(), NowNs()); }
  void Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) override {
    if (host::QueueLogin::IsOf(cookie)) {
      const auto taken = login_.Take(wire_.connection(), cookie, entry, data_bytes, NowNs());
      EXPECT_TRUE(taken.ok()) << taken.error().message;
      return;
    }
    busy_[cookie] = false;
    entries_[cookie] = entry;
    data_bytes_[cookie] = data_bytes;
  }
  void Unanswered(uint64_t /*cookie*/, Reached /*reached*/) override {}
  void Ended(const Error& reason) override {
    ended_ = true;
    why_ = reason.message;
  }

 private:
  host::QueueLoginConfig Config(const Host& host, uint16_t id) {
    host::QueueLoginConfig config;
    config.who = "subsystems/guest, queue " + std::to_string(id);
    config.host = Host::Identity();
    config.subsystem_nqn = Setting("CLEAT_NVMF_NQN");
    config.chap = ChapOf(computing_);
    config.controller_id = host.info().controller_id;
    config.queue_id = id;
    config.entries = kDepth + 1;
    config.timeout_ns = kHangNs;
    return config;
  }
  static tcp::HostConnectionOptions Options(const Host& host, uint16_t id) {
    tcp::HostConnectionOptions options;
    options.name = "subsystems/guest, queue " + std::to_string(id);
    options.depth = kDepth;
    options.digests = host.digests();
    return options;
  }

  Host& host_;
  std::shared_ptr<auth::Authentication> computing_;
  host::QueueLogin login_;
  Wire wire_;
  std::array<bool, kDepth> busy_{};
  std::array<block::Segment, kDepth> segments_{};
  std::array<CompletionEntry, kDepth> entries_{};
  std::array<uint64_t, kDepth> data_bytes_{};
  bool ended_ = false;
  std::string why_;
};

struct Kind {
  const char* variable;
  uint32_t block_bytes;
  tcp::Digests digests;
};

class OverTcp : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, OverTcp,
                         testing::Values(Kind{"CLEAT_NVMF_PLAIN", 512, {}},
                                         Kind{"CLEAT_NVMF_PLAIN", 512, {.header = true, .data = true}},
                                         Kind{"CLEAT_NVMF_LARGE", 4096, {.header = true, .data = false}},
                                         Kind{"CLEAT_NVMF_LARGE", 4096, {.header = false, .data = true}}),
                         [](const auto& kind) {
                           const Kind& of = kind.param;
                           return "Of" + std::to_string(of.block_bytes) +
                                  (of.digests.header ? "HeaderDigest" : "") +
                                  (of.digests.data ? "DataDigest" : "");
                         });

// Rounds of writes and reads of any length beside each other, from data in the capsule to many R2Ts, on two queues.
TEST_P(OverTcp, AgreesWithTheReference) {
  constexpr uint64_t kPart = kBytes / kDepth;  // of the namespace, for each command in flight
  constexpr int kRounds = 8;
  Host host(Setting(GetParam().variable), GetParam().digests);
  ASSERT_TRUE(host.BecomesLive()) << host.WhyLost();
  const host::AssociationInfo& info = host.info();
  ASSERT_EQ(info.space.block_bytes, GetParam().block_bytes);
  ASSERT_GE(info.space.blocks * info.space.block_bytes, kBytes);
  const uint64_t most = info.controller.transfer_bytes_max;
  ASSERT_TRUE(most == 0 || kPart <= most) << most;
  Queue first(host, 1);
  Queue second(host, 2);
  test::Arena arena(kBytes);
  std::vector<uint8_t> reference(kBytes);
  std::mt19937_64 random(11);
  const uint64_t blocks = kPart / GetParam().block_bytes;
  const auto command = [&](Opcode opcode, uint64_t at, uint64_t bytes) {
    return OnBlocks(opcode, info.nsid, at / info.space.block_bytes,
                    static_cast<uint32_t>(bytes / info.space.block_bytes), 0);
  };
  for (int round = 0; round < kRounds; ++round) {
    // All of the first round, so that the reference begins as the namespace does.
    std::array<std::pair<uint64_t, uint64_t>, kDepth> ranges;
    for (uint64_t i = 0; i < kDepth; ++i) {
      const uint64_t at = round == 0 ? 0 : random() % blocks;
      const uint64_t count =
          round == 0 ? blocks : 1 + random() % std::min<uint64_t>(blocks - at, round % 2 == 0 ? blocks : 8);
      ranges[i] = {i * kPart + at * info.space.block_bytes, count * info.space.block_bytes};
      // Each 512 bytes differ from all others, also from those of other rounds.
      for (uint64_t b = ranges[i].first; b < ranges[i].first + ranges[i].second; b += 512) {
        const uint64_t stamp = random();
        std::memset(reference.data() + b, static_cast<int>(stamp), 512);
        std::memcpy(reference.data() + b, &stamp, sizeof(stamp));
      }
      std::memcpy(arena.data() + ranges[i].first, reference.data() + ranges[i].first, ranges[i].second);
      Queue& queue = i % 2 == 0 ? first : second;
      queue.Start(i, command(Opcode::kWrite, ranges[i].first, ranges[i].second),
                  {&arena.region(), ranges[i].first, static_cast<uint32_t>(ranges[i].second)}, true);
    }
    for (uint64_t i = 0; i < kDepth; ++i) (i % 2 == 0 ? first : second).WaitFor(i, 0);
    std::memset(arena.data(), 0x5a, kBytes);
    // What one queue wrote the other one reads.
    for (uint64_t i = 0; i < kDepth; ++i) {
      (i % 2 == 0 ? second : first)
          .Start(i, command(Opcode::kRead, i * kPart, kPart),
                 {&arena.region(), i * kPart, static_cast<uint32_t>(kPart)}, false);
    }
    for (uint64_t i = 0; i < kDepth; ++i) (i % 2 == 0 ? second : first).WaitFor(i, kPart);
    ASSERT_EQ(std::memcmp(arena.data(), reference.data(), kBytes), 0) << "round " << round;
  }
  first.Start(0, Flush(info.nsid), {}, true);
  first.WaitFor(0, 0);
}

TEST(Association, IsKeptAliveBySayingSo) {
  Host host(Setting("CLEAT_NVMF_PLAIN"), {}, Setting("CLEAT_NVMF_NQN"), 1000);
  ASSERT_TRUE(host.BecomesLive()) << host.WhyLost();
  // One each half second: longer than the target waits for a host that says nothing.
  EXPECT_TRUE(host.Until([&] { return host.association().keep_alives_answered() > 6; }));
  EXPECT_TRUE(host.association().live());
}

TEST(Association, ToANamespaceThatIsNotThereSaysWhichOneIsMissing) {
  const std::string absent = "00112233-4455-6677-8899-aabbccddeeff";
  Host host(absent, {});
  EXPECT_NE(host.WhyLost().find(absent), std::string::npos) << host.WhyLost();
}

TEST(Association, ToASubsystemThatIsNotThereSaysWhichOneIsMissing) {
  const std::string absent = "nqn.2026-11.example:absent";
  Host host(Setting("CLEAT_NVMF_PLAIN"), {}, absent);
  EXPECT_NE(host.WhyLost().find(absent), std::string::npos) << host.WhyLost();
}

}  // namespace
}  // namespace cleat::nvme::nvmf_namespace
