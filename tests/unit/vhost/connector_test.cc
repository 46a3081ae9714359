// SPDX-License-Identifier: Apache-2.0
#include "vhost/connector.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host.h"
#include "other_process.h"
#include "perf/vhost_user/message_socket.h"

namespace cleat::vhost::test::connector_test {
namespace {

// Everything on one thread, in virtual time; the kernel's sockets and inotify answer at once.
class ConnectorTest : public testing::Test {
 protected:
  ConnectorTest() {
    Reactor::Options options;
    options.fd_check_interval_ns = 0;
    control = Reactor::Make(clock, options).value();
    path = directory.path() + "/vm.sock";
  }

  // Virtual time goes on in steps of 100 us, for at most `limit_ns`.
  bool RunUntil(const std::function<bool()>& done, uint64_t limit_ns = 10 * kNsPerSecond) {
    const uint64_t end_ns = clock.NowNs() + limit_ns;
    for (;;) {
      while (control->RunOnce()) {
      }
      if (done()) return true;
      if (clock.NowNs() >= end_ns) return false;
      clock.AdvanceBy(100 * kNsPerUs);
    }
  }
  void Begin(Connector& connector) {
    peer.reset();
    control->PostCall([&] { Spawn(Keep(connector)); });
  }
  Task<void> Keep(Connector& connector) {
    auto next = connector.Next(cancel);
    peer.emplace(co_await std::move(next));
  }
  bool Connected() { return peer.has_value() && peer->ok(); }
  void Cancel() {
    control->PostCall([&] { cancel.Cancel(); });
    EXPECT_TRUE(RunUntil([&] { return peer.has_value(); }));
  }
  std::string Refusal(const Status& status) { return status ? "started" : status.error().message; }

  ManualClock clock;
  std::unique_ptr<Reactor> control;
  TemporaryDirectory directory;
  std::string path;
  AnySocketPaths paths;
  CancelToken cancel;
  std::optional<Result<UniqueFd>> peer;
};

TEST_F(ConnectorTest, ClientMeetsASocketThatAppearsWithinAMillisecond) {
  SocketPathWatcher watcher(*control);
  ClientConnector connector(*control, path, &watcher, paths);
  ASSERT_TRUE(connector.Start().ok());
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return peer.has_value(); }, 60 * kNsPerSecond));
  EXPECT_NE(connector.waiting_for().find("nothing is there yet"), std::string::npos);
  auto listener = perf::ListenUnix(path);
  ASSERT_TRUE(listener.ok());
  EXPECT_TRUE(RunUntil([&] { return Connected(); }, kNsPerMs));
}

TEST_F(ConnectorTest, ClientWithoutInotifyFindsItInASecond) {
  ClientConnector connector(*control, path, nullptr, paths);
  ASSERT_TRUE(connector.Start().ok());
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return peer.has_value(); }, 60 * kNsPerSecond));
  auto listener = perf::ListenUnix(path);
  ASSERT_TRUE(listener.ok());
  EXPECT_TRUE(RunUntil([&] { return Connected(); }, ClientConnector::kDelayMaxNs + kNsPerMs));
}

TEST_F(ConnectorTest, ClientReturnsInAMillisecondToAPeerThatWasLost) {
  ClientConnector connector(*control, path, nullptr, paths);
  ASSERT_TRUE(connector.Start().ok());
  {
    auto listener = perf::ListenUnix(path);
    Begin(connector);
    ASSERT_TRUE(RunUntil([&] { return Connected(); }));
  }
  connector.PeerLost({});
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return peer.has_value(); }, 50 * kNsPerMs));
  EXPECT_NE(connector.waiting_for().find("nobody listens on it"), std::string::npos);
  auto listener = perf::ListenUnix(path);
  EXPECT_TRUE(RunUntil([&] { return Connected(); }, 2 * kNsPerMs));
}

TEST_F(ConnectorTest, ClientsOfAbsentPeersCostLittle) {
  // Counted, not timed: the reactor has nothing to do in most turns.
  ClientConnector connector(*control, path, nullptr, paths);
  ASSERT_TRUE(connector.Start().ok());
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return peer.has_value(); }, 20 * kNsPerSecond));
  int busy_turns = 0;
  for (int i = 0; i < 100'000; ++i) {  // 10 seconds
    clock.AdvanceBy(100 * kNsPerUs);
    busy_turns += control->RunOnce() ? 1 : 0;
  }
  EXPECT_LE(busy_turns, 40);
  Cancel();
  EXPECT_EQ(peer->error().code, ErrorCode::kCancelled);
}

TEST_F(ConnectorTest, ClientNamesWhatIsWrongWithAPath) {
  const auto start = [&](const std::string& p) {
    return Refusal(ClientConnector(*control, p, nullptr, paths).Start());
  };
  EXPECT_EQ(start(directory.path() + "/no/vm.sock"), "socket " + directory.path() +
                                                         "/no/vm.sock: directory " + directory.path() +
                                                         "/no does not exist: create it");
  const std::string file = directory.path() + "/file";
  ASSERT_TRUE(UniqueFd(open(file.c_str(), O_CREAT | O_CLOEXEC, 0600)).valid());
  EXPECT_EQ(start(file),
            "socket " + file +
                ": the path is taken by something that is not a socket: remove it or choose another "
                "path");
  EXPECT_EQ(start(file + "/vm.sock"),
            "socket " + file + "/vm.sock: " + file + " is not a directory: correct the path");
  const std::string long_path = directory.path() + "/" + std::string(107, 'x');
  EXPECT_NE(start(long_path).find("a socket's at most 107: choose a shorter one"), std::string::npos);
  EXPECT_NE(start("").find("the path names no file"), std::string::npos);
}

TEST_F(ConnectorTest, MissingPermissionIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  ASSERT_EQ(chmod(directory.path().c_str(), 0700), 0);
  ASSERT_EQ(seteuid(65534), 0);
  const std::string client = Refusal(ClientConnector(*control, path, nullptr, paths).Start());
  const std::string server = Refusal(ServerConnector(*control, path, paths).Start());
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_NE(client.find("no permission to look into " + directory.path()), std::string::npos) << client;
  EXPECT_NE(server.find("no permission to look into " + directory.path()), std::string::npos) << server;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  auto listener = perf::ListenUnix(path);
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  ASSERT_EQ(seteuid(65534), 0);
  const std::string connect = Refusal(ClientConnector(*control, path, nullptr, paths).Start());
  const std::string create = Refusal(ServerConnector(*control, path + "2", paths).Start());
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_NE(connect.find("no permission to connect"), std::string::npos) << connect;
  EXPECT_NE(create.find("no permission to create a socket in " + directory.path()), std::string::npos)
      << create;
}

TEST_F(ConnectorTest, ServerTakesOnePeerAndRefusesASecond) {
  ServerConnector connector(*control, path, paths);
  ASSERT_TRUE(connector.Start().ok());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660U);
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return peer.has_value(); }, kNsPerSecond));
  auto first = perf::ConnectUnix(path, kTestTimeoutNs);
  ASSERT_TRUE(RunUntil([&] { return Connected(); }));
  auto second = perf::ConnectUnix(path, kTestTimeoutNs);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(RunUntil([&] { return connector.refused() == 1; }));
  uint8_t byte = 0;
  EXPECT_EQ(recv(second->get(), &byte, 1, MSG_DONTWAIT), 0);  // closed, not left waiting
  EXPECT_EQ(send(first->get(), "x", 1, MSG_NOSIGNAL), 1);
  // While the first one's requests are drained the next peer waits in the queue.
  connector.PeerLost({});
  auto third = perf::ConnectUnix(path, kTestTimeoutNs);
  EXPECT_FALSE(RunUntil([&] { return connector.refused() > 1; }, kNsPerMs));
  Begin(connector);
  EXPECT_TRUE(RunUntil([&] { return Connected(); }));
  connector.Stop();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST_F(ConnectorTest, ServerKeepsOnlyThoseWaitingThatCameToNothing) {
  const OtherProcess visitor(path);
  ServerConnector connector(*control, path, paths);
  ASSERT_TRUE(connector.Start().ok());
  uint64_t delay_ns = Backoff::kDelayMinNs;
  for (; delay_ns < kNsPerSecond / 2; delay_ns *= 2) {
    const UniqueFd visit = visitor.Connect();
    Begin(connector);
    ASSERT_TRUE(RunUntil([&] { return Connected(); }));
    connector.PeerLost({.good = false, .useful = false});
  }
  const UniqueFd waiting = visitor.Connect();
  const UniqueFd too_many = visitor.Connect();
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return Connected(); }, Backoff::kDelayMinNs + kNsPerMs)) << "it waits";
  EXPECT_EQ(connector.waiting_for(), "socket " + path + ": process " + std::to_string(visitor.pid()) +
                                         " waits, whose connections come to nothing; anybody else is let in");
  uint8_t byte = 0;
  EXPECT_EQ(recv(too_many.get(), &byte, 1, MSG_DONTWAIT), 0) << "one connection of a process waits";
  auto other = perf::ConnectUnix(path, kTestTimeoutNs);
  EXPECT_TRUE(RunUntil([&] { return Connected(); }, kNsPerMs)) << "another process does not";
  EXPECT_EQ(send(other->get(), "x", 1, MSG_NOSIGNAL), 1);
  connector.PeerLost({});
  Begin(connector);
  EXPECT_FALSE(RunUntil([&] { return Connected(); }, delay_ns / 4));
  EXPECT_TRUE(RunUntil([&] { return Connected(); }, delay_ns)) << "its time is over";
  EXPECT_EQ(send(waiting.get(), "x", 1, MSG_NOSIGNAL), 1);
}

TEST_F(ConnectorTest, ServerRefusesNobodyForAPeerThatMayComeToNothing) {
  ServerConnector connector(*control, path, paths);
  ASSERT_TRUE(connector.Start().ok());
  { auto gone = perf::ConnectUnix(path, kTestTimeoutNs); }
  auto first = perf::ConnectUnix(path, kTestTimeoutNs);
  auto second = perf::ConnectUnix(path, kTestTimeoutNs);
  Begin(connector);
  ASSERT_TRUE(RunUntil([&] { return Connected(); }));
  EXPECT_EQ(send(first->get(), "x", 1, MSG_NOSIGNAL), 1)
      << "not the one that has gone before it was accepted";
  EXPECT_FALSE(RunUntil([&] { return connector.refused() > 0; }, ServerConnector::kStaysNs / 2));
  // It goes, and the connector has not been told yet: the next one is not refused for its sake.
  first->Reset();
  auto third = perf::ConnectUnix(path, kTestTimeoutNs);
  EXPECT_FALSE(RunUntil([&] { return connector.refused() > 0; }, ServerConnector::kStaysNs));
  connector.PeerLost({.good = false, .useful = false});
  Begin(connector);
  ASSERT_TRUE(RunUntil([&] { return Connected(); }));
  connector.PeerServed();
  EXPECT_EQ(connector.refused(), 1U) << "while the second one is there the third is refused";
  EXPECT_EQ(send(second->get(), "x", 1, MSG_NOSIGNAL), 1);
}

// How many of these connections the other end has closed.
size_t CountClosed(const std::vector<UniqueFd>& connections) {
  uint8_t byte = 0;
  return static_cast<size_t>(std::ranges::count_if(connections, [&byte](const UniqueFd& connection) {
    return recv(connection.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
}

// A crowd that connects as fast as it is accepted has some of each turn, and is got rid of all the same.
TEST_F(ConnectorTest, ServerAcceptsAFewConnectionsATurn) {
  constexpr size_t kCrowd = 2 * ServerConnector::kAcceptsAtOnce;
  ServerConnector connector(*control, path, paths);
  ASSERT_TRUE(connector.Start().ok());
  const auto turn = [&](const std::vector<UniqueFd>& crowd) {
    const size_t before = CountClosed(crowd);
    clock.AdvanceBy(100 * kNsPerUs);
    control->RunOnce();
    const size_t closed = CountClosed(crowd) - before;
    EXPECT_LE(closed, ServerConnector::kAcceptsAtOnce);
    return closed;
  };
  const auto connect = [&](size_t count) {
    std::vector<UniqueFd> crowd;
    for (size_t i = 0; i < count; ++i) crowd.push_back(perf::ConnectUnix(path, kTestTimeoutNs).value());
    return crowd;
  };
  // While a peer is waited for: those that have nothing to say any more are dropped. Behind them is one that has.
  Begin(connector);
  control->RunOnce();
  const std::vector<UniqueFd> gone = connect(kCrowd);
  for (const UniqueFd& connection : gone) ASSERT_EQ(shutdown(connection.get(), SHUT_WR), 0);
  const UniqueFd first = perf::ConnectUnix(path, kTestTimeoutNs).value();
  for (int turns = 0; !Connected(); ++turns) {
    ASSERT_LT(turns, 1000);
    turn(gone);
  }
  EXPECT_EQ(CountClosed(gone), kCrowd);
  // While one is served: a crowd is one episode, and one line.
  testing::internal::CaptureStdout();
  connector.PeerServed();
  const std::vector<UniqueFd> others = connect(kCrowd);
  for (int turns = 0; connector.refused() < kCrowd && turns < 1000; ++turns) turn(others);
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_EQ(connector.refused(), kCrowd);
  EXPECT_NE(log.find("second peer refused"), std::string::npos) << log;
  EXPECT_EQ(log.find("second peer refused"), log.rfind("second peer refused")) << log;
  EXPECT_EQ(CountClosed(others), kCrowd);
  EXPECT_EQ(send(first.get(), "x", 1, MSG_NOSIGNAL), 1);
}

TEST_F(ConnectorTest, ServerTakesOverAStaleSocketOnly) {
  { auto stale = perf::ListenUnix(path); }
  ASSERT_EQ(access(path.c_str(), F_OK), 0);
  ServerConnector connector(*control, path, paths);
  ASSERT_TRUE(connector.Start().ok());
  EXPECT_EQ(Refusal(ServerConnector(*control, path, paths).Start()),
            "socket " + path + ": process " + std::to_string(getpid()) +
                " listens on it already: end that, or choose another path");
  // What was put in its place meanwhile is not ours to remove.
  ASSERT_EQ(unlink(path.c_str()), 0);
  auto other = perf::ListenUnix(path);
  connector.Stop();
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace cleat::vhost::test::connector_test
