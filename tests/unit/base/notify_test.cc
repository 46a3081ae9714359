// SPDX-License-Identifier: Apache-2.0
#include "base/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "base/clock.h"

namespace cleat::notify_test {
namespace {

using Variables = std::map<std::string, std::string>;

Result<ServiceNotifier> NotifierOf(const Variables& variables) {
  return ServiceNotifier::From([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// The manager's end. `name` as in NOTIFY_SOCKET.
class Manager {
 public:
  explicit Manager(const std::string& name) : name_(name), socket_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  }
  ~Manager() {
    if (name_[0] == '/') unlink(name_.c_str());
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // What has come, or "" when nothing has.
  std::string Receive() {
    std::array<char, 1024> buffer{};
    const ssize_t size = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(buffer.data(), static_cast<size_t>(size));
  }

 private:
  const std::string name_;
  UniqueFd socket_;
};

std::string PathOfThisTest() {
  return std::filesystem::temp_directory_path() / ("cleat-notify-" + std::to_string(getpid()));
}

TEST(ServiceNotifier, SaysNothingWithoutAManager) {
  auto notifier = NotifierOf({{"WATCHDOG_USEC", "1000000"}});
  ASSERT_TRUE(notifier.ok());
  EXPECT_FALSE(notifier->active());
  EXPECT_EQ(notifier->watchdog_ns(), 0U);
  EXPECT_TRUE(notifier->Ready("serving").ok());
  EXPECT_TRUE(notifier->Alive().ok());
}

TEST(ServiceNotifier, SendsADatagramForEachMessage) {
  for (const std::string& name : {PathOfThisTest(), "@" + PathOfThisTest()}) {
    Manager manager(name);
    auto notifier = NotifierOf({{"NOTIFY_SOCKET", name}});
    ASSERT_TRUE(notifier.ok()) << notifier.error().message;
    ASSERT_TRUE(notifier->active());
    EXPECT_TRUE(notifier->Ready("serving").ok());
    EXPECT_TRUE(notifier->Report("two lines\nWATCHDOG=1").ok());
    EXPECT_TRUE(notifier->Alive().ok());
    EXPECT_TRUE(notifier->Stopping("draining").ok());
    EXPECT_EQ(manager.Receive(), "READY=1\nSTATUS=serving");
    EXPECT_EQ(manager.Receive(), "STATUS=two lines WATCHDOG=1");
    EXPECT_EQ(manager.Receive(), "WATCHDOG=1");
    EXPECT_EQ(manager.Receive(), "STOPPING=1\nSTATUS=draining");
    EXPECT_EQ(manager.Receive(), "");
  }
}

TEST(ServiceNotifier, WatchdogIsTheManagersForThisProcessAlone) {
  const Manager manager(PathOfThisTest());
  const Variables base{{"NOTIFY_SOCKET", PathOfThisTest()}};
  const auto watchdog_of = [&](const Variables& more) {
    Variables variables = base;
    variables.insert(more.begin(), more.end());
    const auto notifier = NotifierOf(variables);
    return notifier.ok() ? notifier->watchdog_ns() : 1;
  };
  EXPECT_EQ(watchdog_of({}), 0U);
  EXPECT_EQ(watchdog_of({{"WATCHDOG_USEC", "30000000"}}), 30 * kNsPerSecond);
  EXPECT_EQ(watchdog_of({{"WATCHDOG_USEC", "30000000"}, {"WATCHDOG_PID", std::to_string(getpid())}}),
            30 * kNsPerSecond);
  EXPECT_EQ(watchdog_of({{"WATCHDOG_USEC", "30000000"}, {"WATCHDOG_PID", "1"}}), 0U);
  EXPECT_EQ(watchdog_of({{"WATCHDOG_USEC", "soon"}}), 0U);
  EXPECT_EQ(watchdog_of({{"WATCHDOG_USEC", "18446744073709551615"}}), 0U);
}

// A watchdog's word must never make a reactor wait for the manager.
TEST(ServiceNotifier, AliveDoesNotWaitForRoom) {
  Manager manager(PathOfThisTest());
  auto notifier = NotifierOf({{"NOTIFY_SOCKET", PathOfThisTest()}});
  ASSERT_TRUE(notifier.ok());
  constexpr int kFar = 100000;  // beyond any queue of datagrams
  int sent = 0;
  while (sent < kFar && notifier->Alive().ok()) ++sent;
  EXPECT_LT(sent, kFar);
  while (!manager.Receive().empty()) {
  }
  EXPECT_TRUE(notifier->Alive().ok());
}

TEST(ServiceNotifier, ASocketThatCannotBeUsedIsAnError) {
  for (const std::string& name :
       {std::string("relative"), std::string("@"), "/" + std::string(200, 'x'), PathOfThisTest() + "-none"}) {
    const auto notifier = NotifierOf({{"NOTIFY_SOCKET", name}});
    ASSERT_FALSE(notifier.ok()) << name;
    EXPECT_NE(notifier.error().message.find("NOTIFY_SOCKET"), std::string::npos);
  }
}

}  // namespace
}  // namespace cleat::notify_test
