// SPDX-License-Identifier: Apache-2.0
// librte_vhost as the endpoint's tests use it, and what only it can show.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <optional>

#include "host.h"
#include "library_under_test.h"
#include "vhost/library.h"

namespace cleat::vhost::test::library_test {
namespace {

struct Started {
  TemporaryDirectory directory;
  std::unique_ptr<VhostLibrary> library;
  bool affinity_kept = false;
  Started() {
    cpu_set_t before;
    cpu_set_t after;
    sched_getaffinity(0, sizeof before, &before);
    auto started = VhostLibrary::Start("test", directory.path());
    sched_getaffinity(0, sizeof after, &after);
    affinity_kept = CPU_EQUAL(&before, &after) != 0;
    CLEAT_CHECK(started.ok());
    library = std::move(started).value();
  }
};

Started& Instance() {
  static Started started;
  return started;
}

ProtocolLibrary& Library() {
  return *Instance().library;
}

[[maybe_unused]] const LibraryUnderTest& registered =
    LibrariesUnderTest().emplace_back(LibraryUnderTest{"RteVhost", &Library});

TEST(VhostLibrary, LeavesTheThreadsAffinityAndAPrivateDirectory) {
  EXPECT_TRUE(Instance().affinity_kept);
  struct stat info {};
  const std::string directory = Instance().directory.path() + "/vhost-" + std::to_string(getpid());
  ASSERT_EQ(stat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

// Of a number that a connection is asked for; nothing when it is not answered.
std::optional<uint64_t> Asked(const UniqueFd& connection, Request request) {
  MessageHeader header;
  header.request = static_cast<uint32_t>(request);
  header.flags = kVersion;
  if (send(connection.get(), &header, sizeof header, MSG_NOSIGNAL) != sizeof header) return std::nullopt;
  std::array<uint8_t, sizeof(MessageHeader) + sizeof(uint64_t)> answer{};
  pollfd state{.fd = connection.get(), .events = POLLIN, .revents = 0};
  if (poll(&state, 1, 60'000) != 1) return std::nullopt;
  const ssize_t size = recv(connection.get(), answer.data(), answer.size(), 0);
  if (size != static_cast<ssize_t>(answer.size())) return std::nullopt;
  uint64_t number = 0;
  std::memcpy(&number, answer.data() + sizeof header, sizeof number);
  return number;
}

// The relay answers in its place.
TEST(VhostLibrary, OffersNeitherMoreNorLessThanItWasTold) {
  Host host;
  const Offer offer = OfferFor(host.AddModel(2));
  auto connection = Library().Connect(offer);
  ASSERT_TRUE(connection.ok()) << connection.error().message;
  EXPECT_EQ(Asked(*connection, Request::kGetFeatures), offer.features);
  EXPECT_EQ(Asked(*connection, Request::kGetProtocolFeatures), offer.protocol_features);
}

TEST(VhostLibrary, ASecondStartIsRefused) {
  Instance();
  TemporaryDirectory directory;
  auto second = VhostLibrary::Start("test", directory.path());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().message, "DPDK can be started only once in a process");
  auto nowhere = VhostLibrary::Start("test", directory.path() + "/no");
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cleat::vhost::test::library_test
