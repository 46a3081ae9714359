// SPDX-License-Identifier: Apache-2.0
// Whose I/O is under way: told by locks alone, whoever died and however.
#include "modules/uring/io_lifetime.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "modules/uring/uring_hub.h"
#include "reactor/reactor.h"
#include "tests/support/temp_dir.h"

namespace cleat::modules::io_lifetime_test {
namespace {

class IoLifetimeTest : public testing::Test {
 protected:
  std::unique_ptr<IoLifetime> Make(const std::string& name) {
    auto made = IoLifetime::Make(folder(), name);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(made).value();
  }
  std::string folder() const { return directory_.path() + "/io"; }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder()), {}));
  }

  test::TempDir directory_;
};

// A process with a file of its own, until it is killed.
class OtherProcess {
 public:
  // `keep`: with a second descriptor for this process, which stands for a request that is still in the kernel.
  OtherProcess(const std::string& folder, bool keep) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) Live(folder, ends[1], keep);
    close(ends[1]);
    Receive(ends[0], keep);
    close(ends[0]);
  }
  ~OtherProcess() { Kill(); }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void EndRequest() { kept_.Reset(); }
  bool keeps() const { return kept_.valid(); }

 private:
  // A byte, with room for a descriptor beside it.
  struct Message {
    Message() {
      header.msg_iov = &data;
      header.msg_iovlen = 1;
      header.msg_control = &control;
      header.msg_controllen = sizeof(control);
    }
    char byte = 1;
    iovec data{&byte, 1};
    msghdr header{};
    union {
      cmsghdr header;
      char bytes[CMSG_SPACE(sizeof(int))];
    } control{};
  };

  [[noreturn]] static void Live(const std::string& folder, int socket, bool keep) {
    const auto made = IoLifetime::Make(folder, "other");
    if (!made) _exit(1);
    Message message;
    if (keep) {
      message.control.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
      const int fd = (*made)->fd();
      std::memcpy(CMSG_DATA(&message.control.header), &fd, sizeof(fd));
    } else {
      message.header.msg_controllen = 0;
    }
    if (sendmsg(socket, &message.header, 0) != 1) _exit(1);
    while (true) pause();
  }

  void Receive(int socket, bool keep) {
    Message message;
    ASSERT_EQ(recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC), 1);
    if (!keep) return;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(&message.control.header), sizeof(fd));
    kept_ = UniqueFd(fd);
  }

  pid_t pid_ = 0;
  UniqueFd kept_;
};

TEST_F(IoLifetimeTest, OfALiveProcessIsNotWaitedFor) {
  const auto ours = Make("ours");
  OtherProcess other(folder(), false);
  EXPECT_EQ(ours->FindDeadWithIo(), std::nullopt);
  EXPECT_EQ(files(), 2U);
}

TEST_F(IoLifetimeTest, OfADeadOneIsAsLongAsAnythingOfItIsOpen) {
  const auto ours = Make("ours");
  OtherProcess other(folder(), true);
  ASSERT_TRUE(other.keeps());
  EXPECT_EQ(ours->FindDeadWithIo(), std::nullopt) << "it lives, and answers for itself";
  other.Kill();
  const auto found = ours->FindDeadWithIo();
  ASSERT_TRUE(found.has_value());
  EXPECT_NE(found->find("/io/other-"), std::string::npos) << *found;
  other.EndRequest();
  EXPECT_EQ(ours->FindDeadWithIo(), std::nullopt);
  EXPECT_EQ(files(), 1U) << "what has ended is removed";
}

TEST_F(IoLifetimeTest, TheNextOneRemovesWhatHasEnded) {
  {
    const auto first = Make("ours");
    EXPECT_EQ(files(), 1U);
  }
  EXPECT_EQ(files(), 0U);
  for (int i = 0; i < 2; ++i) OtherProcess(folder(), false).Kill();
  EXPECT_EQ(files(), 1U) << "the second removed the first one's";
  const auto ours = Make("ours");
  EXPECT_EQ(files(), 1U);
}

// A ring keeps it: after everything else of it is closed, until the ring has gone.
TEST_F(IoLifetimeTest, LastsAsLongAsARingThatHasIt) {
  const MonotonicClock clock;
  const auto reactor = Reactor::Make(clock, {}).value();
  auto ours = Make("ours");
  const std::string path = ours->path();
  auto hub = std::make_unique<UringHub>(ours.get());
  ASSERT_TRUE(hub->AddReactor(*reactor).ok());
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  ours.reset();
  const auto locked = [&file] {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_start = 1;
    lock.l_len = 1;
    EXPECT_EQ(fcntl(file.get(), F_OFD_GETLK, &lock), 0);
    return lock.l_type != F_UNLCK;
  };
  EXPECT_TRUE(locked());
  hub.reset();
  while (locked()) usleep(1000);  // the kernel ends rings in the background
}

// A process short of descriptors would otherwise take the dead one's reads for ended, and its guest's memory would be given up to them.
TEST_F(IoLifetimeTest, WithoutADescriptorToLookWithOneCountsAsFound) {
  const auto ours = Make("ours");
  OtherProcess other(folder(), true);
  ASSERT_TRUE(other.keeps());
  other.Kill();
  // UBSan looks at a class it has not met before through a pipe, which takes descriptors: it meets that of errors here.
  ASSERT_FALSE(IoLifetime::Make("/proc/no-such-folder/io", "ours").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto next_free = static_cast<rlim_t>(UniqueFd(dup(ours->fd())).get());
  const rlimit none_left{next_free, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  const auto short_of = ours->FindDeadWithIo();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(short_of.has_value());
  EXPECT_NE(short_of->find(folder()), std::string::npos) << *short_of;
  other.EndRequest();
  EXPECT_EQ(ours->FindDeadWithIo(), std::nullopt);
}

TEST_F(IoLifetimeTest, AFolderThatIsGoneHasNone) {
  const auto ours = Make("ours");
  std::filesystem::remove_all(folder());
  EXPECT_EQ(ours->FindDeadWithIo(), std::nullopt);
}

TEST_F(IoLifetimeTest, AFolderThatCantBeMadeIsNamed) {
  const auto made = IoLifetime::Make("/proc/no-such-folder/io", "ours");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("/proc/no-such-folder/io"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace cleat::modules::io_lifetime_test
