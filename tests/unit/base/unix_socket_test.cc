// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cleat::unix_socket_test {
namespace {

struct Pair {
  explicit Pair(int type) {
    int ends[2];
    CLEAT_CHECK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
    a = UniqueFd(ends[0]);
    b = UniqueFd(ends[1]);
  }
  UniqueFd a;
  UniqueFd b;
};

// The writing ends of a pipe, whose reading end tells when the last of them is closed.
struct Pipe {
  explicit Pipe(size_t count) {
    int ends[2];
    CLEAT_CHECK(pipe(ends) == 0);
    reading = UniqueFd(ends[0]);
    writing.emplace_back(ends[1]);
    while (writing.size() < count) writing.push_back(writing.front().Duplicate());
  }
  bool AllClosed() const {
    pollfd polled{.fd = reading.get(), .events = POLLIN, .revents = 0};
    return poll(&polled, 1, 0) == 1 && (polled.revents & POLLHUP) != 0;
  }
  UniqueFd reading;
  std::vector<UniqueFd> writing;
};

iovec PartOf(std::string_view text) {
  return {const_cast<char*>(text.data()), text.size()};
}

Result<size_t> Send(const UniqueFd& socket, std::string_view text, std::span<const UniqueFd> fds = {}) {
  const iovec part = PartOf(text);
  return SendWithFds(socket.get(), {&part, 1}, fds);
}

// As a peer that keeps to no limit.
void SendUnchecked(const UniqueFd& socket, const std::vector<UniqueFd>& fds) {
  iovec part = PartOf("x");
  std::vector<uint8_t> space(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  cmsghdr* const control = CMSG_FIRSTHDR(&header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  for (size_t i = 0; i < fds.size(); ++i) {
    const int fd = fds[i].get();
    std::memcpy(CMSG_DATA(control) + i * sizeof fd, &fd, sizeof fd);
  }
  ASSERT_EQ(sendmsg(socket.get(), &header, MSG_NOSIGNAL), 1);
}

class UnixSocketTest : public testing::Test {
 protected:
  Result<std::optional<ReceivedMessage>> Receive(const UniqueFd& socket, size_t fds_max = kMessageFdsMax) {
    return ReceiveWithFds(socket.get(), buffer_, fds_max);
  }
  std::string Text(size_t bytes) const { return {reinterpret_cast<const char*>(buffer_.data()), bytes}; }

  std::array<uint8_t, 16> buffer_{};
};

TEST_F(UnixSocketTest, AMessageArrivesWithItsPartsAndItsDescriptors) {
  const Pair pair(SOCK_SEQPACKET);
  Pipe pipe(3);
  const std::array parts = {PartOf("one "), PartOf("two")};
  auto sent = SendWithFds(pair.a.get(), parts, pipe.writing);
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(*sent, 7U);
  pipe.writing.clear();
  EXPECT_FALSE(pipe.AllClosed());  // they are under way
  {
    const auto received = Receive(pair.b);
    ASSERT_TRUE(received.ok());
    ASSERT_TRUE(received->has_value());
    EXPECT_EQ(Text((*received)->bytes), "one two");
    EXPECT_EQ((*received)->fds.size(), 3U);
    EXPECT_FALSE(pipe.AllClosed());
  }
  EXPECT_TRUE(pipe.AllClosed());
}

// For each limit: where the kernel rounds the room for descriptors up, one more would fit.
TEST_F(UnixSocketTest, OneDescriptorTooManyRefusesTheMessageAndAllAreClosed) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    for (size_t fds_max = 0; fds_max <= kMessageFdsMax; ++fds_max) {
      SCOPED_TRACE(fds_max);
      const Pair pair(type);
      Pipe pipe(fds_max + 1);
      SendUnchecked(pair.a, pipe.writing);
      pipe.writing.clear();
      const auto received = Receive(pair.b, fds_max);
      ASSERT_FALSE(received.ok());
      EXPECT_EQ(received.error().code, ErrorCode::kInvalidArgument);
      EXPECT_TRUE(pipe.AllClosed());
    }
  }
}

TEST_F(UnixSocketTest, ManyDescriptorsTooManyAreClosedAsWell) {
  const Pair pair(SOCK_SEQPACKET);
  Pipe pipe(250);
  SendUnchecked(pair.a, pipe.writing);
  pipe.writing.clear();
  EXPECT_FALSE(Receive(pair.b).ok());
  EXPECT_TRUE(pipe.AllClosed());
}

TEST_F(UnixSocketTest, MoreDescriptorsThanTheProcessMayOpenRefuseTheMessage) {
  const Pair pair(SOCK_SEQPACKET);
  Pipe pipe(4);
  ASSERT_TRUE(Send(pair.a, "x", pipe.writing).ok());
  pipe.writing.clear();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Two are free below the limit.
  const UniqueFd lowest(dup(pair.a.get()));
  const rlimit low{.rlim_cur = static_cast<rlim_t>(lowest.get()) + 2, .rlim_max = before.rlim_max};
  const std::span<uint8_t> buffer = buffer_;
  // Nothing else meanwhile: UBSan's check of a virtual call opens a pipe.
  const int lowered = setrlimit(RLIMIT_NOFILE, &low);
  const auto received = ReceiveWithFds(pair.b.get(), buffer, kMessageFdsMax);
  const int restored = setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_EQ(lowered, 0);
  ASSERT_EQ(restored, 0);
  ASSERT_FALSE(received.ok());
  // It is this process that lacks them, and no fault of who has sent the message.
  EXPECT_EQ(received.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(received.error().message.find("raise LimitNOFILE="), std::string::npos)
      << received.error().message;
  EXPECT_TRUE(pipe.AllClosed());
}

TEST_F(UnixSocketTest, ADatagramThatDoesNotFitIsRefusedWithItsDescriptors) {
  const Pair pair(SOCK_SEQPACKET);
  Pipe pipe(1);
  ASSERT_TRUE(Send(pair.a, std::string(buffer_.size() + 1, 'x'), pipe.writing).ok());
  ASSERT_TRUE(Send(pair.a, std::string(buffer_.size(), 'y')).ok());
  pipe.writing.clear();
  const auto received = Receive(pair.b);
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(pipe.AllClosed());
  const auto next = Receive(pair.b);
  ASSERT_TRUE(next.ok() && next->has_value());
  EXPECT_EQ(Text((*next)->bytes), std::string(buffer_.size(), 'y'));
}

TEST_F(UnixSocketTest, NothingBlocks) {
  const Pair pair(SOCK_SEQPACKET);  // not O_NONBLOCK
  const auto received = Receive(pair.b);
  ASSERT_TRUE(received.ok());
  EXPECT_FALSE(received->has_value());
  size_t sent = 1;
  for (int i = 0; i < 100'000 && sent > 0; ++i) {
    const auto result = Send(pair.a, "x");
    ASSERT_TRUE(result.ok());
    sent = *result;
  }
  EXPECT_EQ(sent, 0U);
}

TEST_F(UnixSocketTest, APeerThatIsGoneIsAValue) {
  Pair pair(SOCK_SEQPACKET);
  pair.a.Reset();
  const auto received = Receive(pair.b);
  ASSERT_TRUE(received.ok() && received->has_value());
  EXPECT_EQ((*received)->bytes, 0U);
  const auto sent = Send(pair.b, "x");  // and no SIGPIPE
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace cleat::unix_socket_test
