// SPDX-License-Identifier: Apache-2.0
// Those who talk to the daemons and not to a disk: callers of the API that send too much, open too much or
// read nothing; somebody who plays an engine to cleatd, and somebody who plays cleatd to an engine. The guest
// of this host works on, and so does the API for everybody else.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "hostile_rig.h"

namespace cleat::system_test::hostile_callers_test {
namespace {

constexpr size_t kHugeBytes = size_t{4} << 20;
constexpr int kEndTimeoutMs = 120'000;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

UniqueFd ConnectTo(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.Reset();
  return fd;
}

// Reads what there is until the other end hangs up.
bool WaitHungUp(const UniqueFd& fd) {
  std::vector<char> bytes(64 * 1024);
  for (;;) {
    pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kEndTimeoutMs) <= 0) return false;
    if (recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) <= 0) return true;
  }
}

std::string RandomBytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Next());
  return bytes;
}

class HostileCaller : public Hostile {
 protected:
  // Another caller's call is answered, and the engine is still there.
  void ExpectApiServes() {
    Api other(host_.address());
    EXPECT_OK(TryAgain([&] { return other.GetDisk(kVictim).status; }));
    Reply<Model> engine;
    ASSERT_OK(TryAgain([&] {
      engine = other.List();
      return engine.status;
    }));
    EXPECT_TRUE(engine.value.engines.at(kEngineName).status().connected());
    ExpectOthersServed();
  }
  // While streams come, or end, by the thousand and in their own time, a call may be told to try again; but not for long.
  template <typename Call>
  static grpc::Status TryAgain(Call call) {
    const uint64_t deadline_ns = MonotonicClock().NowNs() + uint64_t{kEndTimeoutMs} * kNsPerMs;
    grpc::Status status = call();
    while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
           MonotonicClock().NowNs() < deadline_ns) {
      poll(nullptr, 0, 1);
      status = call();
    }
    return status;
  }
};

TEST_F(HostileCaller, SendsHugeMessages) {
  for (int i = 0; i < 5; ++i) {
    const auto reply = host_.api().CreateDisk(std::string(kHugeBytes, 'x'), MemoryDisk(kDiskBytes));
    EXPECT_EQ(reply.code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << reply.message();
  }
  // Below the limit of a message, and still nonsense: the answer does not repeat it all.
  const auto reply = host_.api().CreateDisk(std::string(size_t{900} * 1024, 'x'), MemoryDisk(kDiskBytes));
  EXPECT_EQ(reply.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LT(reply.message().size(), 4096U);
  ExpectApiServes();
}

TEST_F(HostileCaller, OpensStreamsByTheThousandAndReadsNone) {
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader;
  };
  // 20 connections, 60 streams each: what is past the limits waits or is refused.
  std::vector<std::unique_ptr<Api>> callers;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 20; ++i) {
    callers.push_back(std::make_unique<Api>(host_.address()));
    for (int j = 0; j < 60; ++j) {
      auto stream = std::make_unique<Stream>();
      stream->reader = callers.back()->stub().Watch(&stream->context, v1::WatchRequest());
      streams.push_back(std::move(stream));
    }
  }
  // There is room for plain calls, and things change that nobody reads of.
  Api other(host_.address());
  for (int i = 0; i < 50; ++i) {
    const std::string id = fmt::format("passing{}", i);
    EXPECT_OK(TryAgain([&] { return other.CreateDisk(id, NullDisk(kDiskBytes)).status; }));
    EXPECT_OK(TryAgain([&] { return other.DeleteDisk(id); }));
  }
  EXPECT_OK(TryAgain([&] { return other.GetDisk(kVictim).status; }));
  ExpectOthersServed();
  for (const auto& stream : streams) stream->context.TryCancel();
  for (const auto& stream : streams) stream->reader->Finish();
  ExpectApiServes();
  EXPECT_TRUE(host_.WaitController(kVictim, v1::CONTROLLER_STATE_CONNECTING)) << "watching is possible again";
}

TEST_F(HostileCaller, SpeaksNoHttp) {
  Random random(1);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) {
    UniqueFd fd = ConnectTo(host_.Path("api.sock"), SOCK_STREAM);
    ASSERT_TRUE(fd.valid());
    const std::string bytes = RandomBytes(random, random.Below(4096));
    if (i % 2 == 0) (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    silent.push_back(std::move(fd));
  }
  ExpectApiServes();
}

// ---- cleatd's socket for engines.

TEST_F(HostileCaller, PlaysAnEngineWithGarbage) {
  Random random(2);
  for (int i = 0; i < 100; ++i) {
    const UniqueFd fd = ConnectTo(host_.Path("engine.sock"), SOCK_SEQPACKET);
    ASSERT_TRUE(fd.valid());
    const std::string bytes = RandomBytes(random, 1 + random.Below(i % 10 == 0 ? 100'000 : 2000));
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(WaitHungUp(fd)) << "datagram " << i << " of " << bytes.size() << " bytes";
  }
  ExpectApiServes();
}

// Even if the socket's mode let somebody else in.
TEST_F(HostileCaller, OfAnotherUserIsNoEngine) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const std::string path = host_.Path("engine.sock");
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  ASSERT_EQ(chmod(host_.Path("").c_str(), 0711), 0);
  const sockaddr_un address = AddressOf(path);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // system calls only
    if (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setgid, kNobody) != 0) _exit(10);
    if (syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0) _exit(11);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(12);
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    char byte = 0;
    _exit(poll(&ready, 1, kEndTimeoutMs) == 1 && recv(fd, &byte, 1, 0) <= 0 ? 0 : 13);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "10, 11: could not become nobody; 12: not let in; 13: served";
  EXPECT_TRUE(host_.WaitCleatdLog("engine socket: connection refused: process"));
  ExpectApiServes();
}

// ---- A cleatd that is none.

class HostileOrders : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    const sockaddr_un address = AddressOf(host_.Path("engine.sock"));
    host_.KillCleatd();
    unlink(address.sun_path);
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
    host_.StartEngine();
  }
  // The engine comes, and says hello.
  UniqueFd Accept() {
    pollfd ready{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&ready, 1, kEndTimeoutMs), 1) << "the engine does not come";
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char bytes[4096];
    EXPECT_GT(recv(fd.get(), bytes, sizeof bytes, 0), 0) << "no hello";
    return fd;
  }
  static void Send(const UniqueFd& fd, const std::string& bytes) {
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Envelope{hello_reply {protocol}}; small numbers only.
  static std::string Welcome(int protocol) { return {'\x1a', '\x02', '\x08', static_cast<char>(protocol)}; }
  // Envelope{id, fetch_memory{disk}}
  static std::string Fetch(int id) {
    return {'\x08', static_cast<char>(id), '\xb2', '\x01', '\x07', '\x0a', '\x05', 'd', 'i', 's', 'k', 's'};
  }

  Host host_{{.with_engine = false}};
  UniqueFd listener_;
};

TEST_F(HostileOrders, NonsenseIsHungUpOnAndTheEngineComesBack) {
  Random random(3);
  const std::vector<std::pair<const char*, std::string>> openings{
      {"garbage", "\xff\xff\xff garbage"},
      {"a protocol of the future", Welcome(99)},
      {"protocol 0", Welcome(0)},
      {"a request before the hello", Fetch(1)},
      {"as large as may be", RandomBytes(random, 64 * 1024)},
      {"larger", RandomBytes(random, 80 * 1024)},
  };
  for (const auto& [name, bytes] : openings) {
    SCOPED_TRACE(name);
    const UniqueFd fd = Accept();
    Send(fd, bytes);
    EXPECT_TRUE(WaitHungUp(fd));
  }
  EXPECT_TRUE(host_.engine().Running());
}

TEST_F(HostileOrders, TenThousandRequestsWhoseAnswersNobodyReads) {
  uint64_t descriptors = 0;
  {
    const UniqueFd fd = Accept();
    descriptors = host_.engine().Stats().descriptors;
    Send(fd, Welcome(1));
    // Until the socket is full in both directions, or all are sent: the engine has to stop one way or another.
    for (int i = 0; i < 10'000; ++i) {
      const std::string request = Fetch(1 + i % 100);
      if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN)
        break;
    }
  }
  const UniqueFd fd = Accept();
  EXPECT_TRUE(host_.engine().Running());
  // A thread of the engine's may hold one for a moment.
  ProcessStats after;
  EXPECT_TRUE(host_.WaitEngineStats(
      [&](const ProcessStats& stats) { return stats.descriptors <= descriptors; }, &after))
      << after.descriptors << " descriptors, " << descriptors << " in the first connection";
}

TEST_F(HostileOrders, DescriptorsThatNobodyAskedForAreClosed) {
  const auto send_with = [](const UniqueFd& fd, const std::string& bytes, size_t count) {
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    const std::vector<int> fds(count, fd.get());
    std::memcpy(CMSG_DATA(rights), fds.data(), count * sizeof(int));
    return sendmsg(fd.get(), &message, MSG_NOSIGNAL) > 0;
  };
  uint64_t descriptors = 0;
  for (int round = 0; round < 20; ++round) {
    const UniqueFd fd = Accept();
    Send(fd, Welcome(1));
    if (round == 1) descriptors = host_.engine().Stats().descriptors;
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(send_with(fd, Fetch(1), 4));
    (void)send_with(fd, Fetch(1), 200);  // ends the connection
    EXPECT_TRUE(WaitHungUp(fd));
  }
  ProcessStats after;
  EXPECT_TRUE(host_.WaitEngineStats(
      [&](const ProcessStats& stats) { return stats.descriptors <= descriptors; }, &after))
      << after.descriptors << " descriptors, " << descriptors << " in the second round";
}

}  // namespace
}  // namespace cleat::system_test::hostile_callers_test
