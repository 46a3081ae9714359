// SPDX-License-Identifier: Apache-2.0
// RDMA verbs and the connection manager over a real adapter: soft-RoCE's, in the guest of test_rdma_verbs.py, or any other that the environment's
// CLEAT_RDMA_ADDRESS names. What each adapter does is in rdma_verbs_common_test.cc; here is what takes a real one, or its time. Both ends are in this
// process, but for the peer that is killed. DeviceRemoval takes the adapter CLEAT_RDMA_LINK away.
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/guest/rdma_ends.h"

namespace cleat::rdma::rdma_verbs {
namespace {

constexpr const char* kPeerPort = "CLEAT_RDMA_PEER_PORT";  // of the process that is to be killed

class RealAdapters final : public AdaptersUnderTest {
 public:
  std::string own_address() const override {
    const char* address = std::getenv("CLEAT_RDMA_ADDRESS");  // NOLINT(concurrency-mt-unsafe)
    return address == nullptr ? "192.0.2.1" : address;
  }
  const char* other_address() const override {
    return std::getenv("CLEAT_RDMA_OTHER_ADDRESS");  // NOLINT(concurrency-mt-unsafe)
  }
  Result<std::unique_ptr<Device>> Open(const std::string& local_address) override {
    return OpenDevice(local_address);
  }
  Result<std::unique_ptr<ConnectionManager>> OpenManager() override { return OpenConnectionManager(); }
};

class AdapterVerbs : public VerbsTest {
 protected:
  Adapter adapter;
  End host{*adapter.device};
  End target{*adapter.device};
};

// For a process of its own, as its credentials may not change any more once the adapter is open.
[[noreturn]] void RegisterTooMuch() {
  constexpr rlim_t kLimitBytes = 1 << 20;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  limit.rlim_cur = kLimitBytes;
  setrlimit(RLIMIT_MEMLOCK, &limit);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
  syscall(SYS_capset, &header, none.data());
  const auto device = Must(OpenDevice(OwnAddress()));
  std::vector<uint8_t> memory(4 * kLimitBytes);
  const auto registered = device->Register(memory, {.local_write = true});
  if (!registered.ok()) std::fprintf(stderr, "%s\n", registered.error().message.c_str());
  const bool small = device->Register(std::span(memory).first(4096), {.local_write = true}).ok();
  std::exit(!registered.ok() && small ? 0 : 1);
}

TEST_F(AdapterVerbs, TheLimitOfLockedMemoryIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RegisterTooMuch(), testing::ExitedWithCode(0), "RLIMIT_MEMLOCK");
}

TEST_F(AdapterVerbs, APeerThatDoesNotAnswerIsGivenUp) {
  adapter.Connect(host, target);
  target.pair().Break();  // its adapter is silent from now on
  const auto begin = std::chrono::steady_clock::now();
  const LocalPiece piece = host.Piece(0, 8);
  host.Post({.id = 1, .pieces = {&piece, 1}});
  const Completion failed = host.Next();
  EXPECT_EQ(failed.status, WorkStatus::kRetriesExceeded) << NameOf(failed.status);
  // A path that comes back by then costs no connection.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

// ---- Peers and adapters that go

// The process that is killed: connects and does nothing more.
int BeThePeer(const char* port) {
  Adapter adapter;
  End host(*adapter.device);
  adapter.BeginToConnect(host, {OwnAddress(), static_cast<uint16_t>(std::atoi(port))});
  adapter.PumpUntil([&] { return host.ended.has_value(); });
  return 1;
}

pid_t StartPeer(uint16_t port) {
  const std::string text = std::to_string(port);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  setenv(kPeerPort, text.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  execl("/proc/self/exe", "rdma_verbs", nullptr);
  _exit(127);
}

TEST_F(AdapterVerbs, AKilledPeerEndsTheConnection) {
  const pid_t peer = StartPeer(adapter.listener->local().port);
  ASSERT_GT(peer, 0);
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  target.connection = Must(adapter.door.requests.front()->Accept(target.parts(), {}, target));
  adapter.door.requests.clear();
  ASSERT_TRUE(adapter.PumpUntil([&] { return target.established; }));
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
  ASSERT_TRUE(adapter.PumpUntil([&] { return target.ended.has_value(); }));
  EXPECT_EQ(target.ended, EndKind::kDisconnected);
  const LocalPiece piece = target.Piece(0, 8);
  target.Post({.id = 9, .pieces = {&piece, 1}});
  EXPECT_EQ(target.Next().status, WorkStatus::kFlushed);
}

TEST(DeviceRemoval, EndsWhatIsOnTheAdapterAndAllOfItCanGo) {
  const char* link = std::getenv("CLEAT_RDMA_LINK");  // NOLINT(concurrency-mt-unsafe)
  if (link == nullptr) GTEST_SKIP() << "CLEAT_RDMA_LINK names no adapter that may be taken away";
  auto adapter = std::make_unique<Adapter>();
  auto host = std::make_unique<End>(*adapter->device);
  auto target = std::make_unique<End>(*adapter->device, /*receives=*/false);
  adapter->Connect(*host, *target);
  const LocalPiece piece = host->Piece(0, 8);
  host->Post({.id = 1, .pieces = {&piece, 1}});  // which waits for a receiver

  const pid_t remover = fork();
  ASSERT_GE(remover, 0);
  if (remover == 0) {
    execlp("rdma", "rdma", "link", "delete", link, nullptr);
    _exit(127);
  }
  ASSERT_TRUE(
      adapter->PumpUntil([&] { return host->ended && target->ended && !adapter->door.ended.empty(); }));
  // The end that hears of it first is disconnected by the kernel, which the other one may hear before the removal.
  for (const End* end : {host.get(), target.get()})
    EXPECT_TRUE(end->ended == EndKind::kDeviceRemoved || end->ended == EndKind::kDisconnected) << end->error;
  EXPECT_TRUE(host->ended == EndKind::kDeviceRemoved || target->ended == EndKind::kDeviceRemoved);
  ASSERT_TRUE(ReadableWithin(adapter->device->descriptor(), kHangSeconds * 1000));
  const Status gone = adapter->device->TakeEvents();
  ASSERT_FALSE(gone.ok());
  EXPECT_NE(gone.error().message.find(link), std::string::npos) << gone.error().message;
  // Neither harms any more.
  host->pair().Post({});
  host->pair().Break();
  Completion flushed;
  host->completions->Poll({&flushed, 1});
  host->completions->TakeEvents();
  host.reset();
  target.reset();
  adapter->listener.reset();
  adapter.reset();
  // The command itself waits until this process has ended, as soft-RoCE cannot take an adapter from a process that has it open, and librdmacm closes the
  // last adapter of a machine no sooner.
}

}  // namespace

AdaptersUnderTest& UnderTest() {
  static RealAdapters adapters;
  return adapters;
}

}  // namespace cleat::rdma::rdma_verbs

int main(int argc, char** argv) {
  const char* port = std::getenv(cleat::rdma::rdma_verbs::kPeerPort);  // NOLINT(concurrency-mt-unsafe)
  if (port != nullptr) return cleat::rdma::rdma_verbs::BeThePeer(port);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
