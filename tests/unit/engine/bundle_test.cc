// SPDX-License-Identifier: Apache-2.0
// Hosts' connections with their sockets on their way from one engine to the next: each socket comes to its queue. Whatever is wrong with what
// comes, all of it is closed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/unix_socket.h"
#include "engine/hand_over/bundle.h"
#include "tests/unit/engine/saved_connections.h"

namespace cleat::engine::bundle_test {
namespace {

using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;
using saved_connections::Association;
using saved_connections::Associations;
using saved_connections::ExpectSame;
using saved_connections::Packed;
using ::testing::HasSubstr;

// The hosts' ends of sockets, which show who is closed.
class Bundles : public ::testing::Test {
 protected:
  UniqueFd Socket() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    hosts_.emplace_back(ends[0]);
    return UniqueFd(ends[1]);
  }
  Associations WithSockets(size_t associations, uint16_t io_queues) {
    Associations made;
    for (size_t i = 0; i < associations; ++i) {
      made.push_back(Association(static_cast<uint16_t>(i + 1), io_queues));
      for (SavedQueue& queue : made.back().queues) queue.socket = Socket();
    }
    return made;
  }
  bool IsClosed(size_t host) const {
    uint8_t byte = 0;
    return recv(hosts_[host].get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }
  bool AllAreClosed() const {
    for (size_t host = 0; host < hosts_.size(); ++host) {
      if (!IsClosed(host)) return false;
    }
    return true;
  }
  Result<Associations> Open(const UniqueFd& bundle) {
    return OpenBundle(bundle, [this](uint64_t count) -> Result<DescriptorBudget::Reservation> {
      asked_for_ = count;
      if (refuses_) return Error(ErrorCode::kResourceExhausted, "none left");
      return DescriptorBudget::Reservation();
    });
  }
  // As another engine might have filled it: the descriptors with one message each `a_message`, and perhaps without an end.
  UniqueFd Filled(std::vector<UniqueFd> fds, size_t a_message = 1, bool ends = true) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    UniqueFd writing(pair[0]);
    uint8_t mark = 1;
    const iovec part{&mark, 1};
    for (std::span<const UniqueFd> left(fds); !left.empty();) {
      const auto some = left.first(std::min(left.size(), a_message));
      EXPECT_TRUE(SendWithFds(writing.get(), {&part, 1}, some).ok());
      left = left.subspan(some.size());
    }
    if (!ends) left_open_ = std::move(writing);
    return UniqueFd(pair[1]);
  }
  static UniqueFd Memory(std::span<const uint8_t> bytes) {
    UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(write(memory.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return memory;
  }

  std::vector<UniqueFd> hosts_;
  UniqueFd left_open_;
  uint64_t asked_for_ = 0;
  bool refuses_ = false;
};

TEST_F(Bundles, EverySocketComesToItsQueue) {
  constexpr uint16_t kIoQueues = 64;
  constexpr size_t kAssociations = 8;  // 520 sockets, in three messages
  auto bundle = MakeBundle(WithSockets(kAssociations, kIoQueues));
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  const auto opened = Open(*bundle);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(asked_for_, hosts_.size());
  ASSERT_EQ(opened->size(), kAssociations);
  size_t host = 0;
  for (const SavedAssociation& association : *opened) {
    for (const SavedQueue& queue : association.queues) {
      const auto number = static_cast<uint32_t>(host);
      ASSERT_EQ(write(queue.socket.get(), &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
      uint32_t got = 0;
      ASSERT_EQ(read(hosts_[host].get(), &got, sizeof(got)), static_cast<ssize_t>(sizeof(got)));
      EXPECT_EQ(got, host++);
    }
  }
}

TEST_F(Bundles, WhoeverClosesItClosesAllConnections) {
  auto bundle = MakeBundle(WithSockets(2, 1));
  ASSERT_TRUE(bundle.ok());
  EXPECT_FALSE(IsClosed(0));
  bundle->Reset();
  EXPECT_TRUE(AllAreClosed());
}

TEST_F(Bundles, WhatIsBrokenIsClosedWhole) {
  struct Case {
    std::string says;
    std::function<UniqueFd(std::vector<UniqueFd>)> fill;  // from a memfd and four sockets
  };
  const std::vector<Case> cases = {
      {"is empty", [this](auto) { return Filled({}); }},
      {"has no end", [this](auto fds) { return Filled(std::move(fds), 2, /*ends=*/false); }},
      {"lacks 1 sockets",
       [this](auto fds) {
         fds.pop_back();
         return Filled(std::move(fds), 3);
       }},
      {"lacks 4 sockets",
       [this](auto fds) {
         fds.resize(1);
         return Filled(std::move(fds));
       }},
      {"more sockets than connections",
       [this](auto fds) {
         fds.push_back(Socket());
         return Filled(std::move(fds));
       }},
      {"no connection's",
       [this](auto fds) {
         fds[2] = Memory({});
         return Filled(std::move(fds), 200);
       }},
      {"does not begin with a memfd",
       [this](auto fds) {
         std::swap(fds[0], fds[1]);
         return Filled(std::move(fds));
       }},
      {"can't be read",
       [this](auto fds) {
         EXPECT_EQ(ftruncate(fds[0].get(), 100), 0);
         return Filled(std::move(fds));
       }},
      {"at most",
       [this](auto fds) {
         EXPECT_EQ(ftruncate(fds[0].get(), kHostConnectionsBytesMax + 1), 0);
         return Filled(std::move(fds));
       }},
      {"receiving", [](auto fds) { return std::move(fds[1]); }},
  };
  for (const Case& wrong : cases) {
    hosts_.clear();
    Associations associations = WithSockets(2, 1);
    std::vector<UniqueFd> fds;
    fds.push_back(Memory(Packed(associations)));
    for (SavedAssociation& association : associations) {
      for (SavedQueue& queue : association.queues) fds.push_back(std::move(queue.socket));
    }
    UniqueFd bundle = wrong.fill(std::move(fds));
    const auto refused = Open(bundle);
    ASSERT_FALSE(refused.ok()) << wrong.says;
    if (wrong.says != "receiving") {
      EXPECT_THAT(refused.error().message, HasSubstr(wrong.says));
    }
    bundle.Reset();
    left_open_.Reset();
    EXPECT_TRUE(AllAreClosed()) << wrong.says;
  }
}

TEST_F(Bundles, DescriptorsAreReservedBeforeTheyAreOpened) {
  auto bundle = MakeBundle(WithSockets(5, 64));
  ASSERT_TRUE(bundle.ok());
  refuses_ = true;
  const auto refused = Open(*bundle);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(asked_for_, hosts_.size());
  bundle->Reset();
  EXPECT_TRUE(AllAreClosed());
}

// A process that may have no more descriptors.
class NoneLeft {
 public:
  NoneLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoneLeft() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoneLeft(const NoneLeft&) = delete;
  NoneLeft& operator=(const NoneLeft&) = delete;

 private:
  rlimit before_{};
};

TEST_F(Bundles, WithoutDescriptorsNoneIsMadeOrOpened) {
  auto bundle = MakeBundle(WithSockets(1, 1));
  Associations others = WithSockets(1, 1);
  ASSERT_TRUE(bundle.ok());
  {
    const NoneLeft none;
    EXPECT_FALSE(MakeBundle(std::move(others)).ok());
    const auto refused = Open(*bundle);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted) << refused.error().message;
  }
  bundle->Reset();
  EXPECT_TRUE(AllAreClosed());
}

}  // namespace
}  // namespace cleat::engine::bundle_test
