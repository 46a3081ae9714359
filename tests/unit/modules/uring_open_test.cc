// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "modules/uring/uring_ring.h"
#include "tests/unit/modules/lock_of_nobody.h"
#include "tests/unit/modules/loop_device.h"
#include "tests/unit/modules/uring_fixture.h"

namespace cleat::modules::uring_open_test {
namespace {

using block::AccessMode;
using block::IoStatus;
using block::Op;

constexpr uint64_t kBytes = 1 << 20;

class UringOpen : public testing::Test {
 protected:
  // Each error names the disk, the path and whatever else `parts` asks for.
  void ExpectError(const std::string& path, ErrorCode code, std::vector<std::string> parts,
                   uint64_t bytes = kBytes, AccessMode mode = AccessMode::kReadWrite) {
    const auto opened = host_.Open(path, bytes, 512, mode);
    ASSERT_FALSE(opened.ok()) << path;
    EXPECT_EQ(ErrorCodeName(opened.error().code), ErrorCodeName(code)) << opened.error().message;
    parts.insert(parts.end(), {"disks/u", path});
    for (const std::string& part : parts) {
      EXPECT_NE(opened.error().message.find(part), std::string::npos) << opened.error().message;
    }
  }
  std::unique_ptr<block::Device> MustOpen(const std::string& path, AccessMode mode = AccessMode::kReadWrite) {
    auto opened = host_.Open(Options(path, mode));
    CLEAT_CHECK(opened.ok());
    return std::move(opened).value();
  }
  static UringOptions Options(const std::string& path, AccessMode mode = AccessMode::kReadWrite) {
    UringOptions options(block::DiskShape("disks/u", kBytes, 512, 4096), path, mode);
    options.lock_wait_ns = 100 * kNsPerMs;
    return options;
  }

  test::UringHost host_;
  test::ScratchFolder folder_{test::DiskFolder()};
};

TEST_F(UringOpen, SaysWhatIsWrongWithAFile) {
  ExpectError(folder_.Path("missing"), ErrorCode::kNotFound, {"truncate -s 1048576"});
  ExpectError(folder_.path(), ErrorCode::kFailedPrecondition, {"folder"});
  ExpectError("/dev/null", ErrorCode::kFailedPrecondition, {"neither"});
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectError(pipe, ErrorCode::kFailedPrecondition, {"neither"});  // and does not wait for a writer
  ExpectError(folder_.MakeFile("small", kBytes - 512), ErrorCode::kFailedPrecondition,
              {"1048064", "1048576", "truncate"});
  const std::string file = folder_.MakeFile("file", kBytes);
  ExpectError(file + "/below", ErrorCode::kNotFound, {});
}

TEST_F(UringOpen, RefusesAnImpossibleShape) {
  const auto opened = host_.Open(folder_.MakeFile("file", kBytes), 1000);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(UringOpen, SaysWhoMayNot) {
  const std::string file = folder_.MakeFile("file", kBytes);
  ASSERT_EQ(chmod(file.c_str(), 0444), 0);
  if (geteuid() == 0) {
    // Root may do anything: be nobody for a moment. The path must lead through folders that nobody may pass.
    char absolute[4096];
    ASSERT_NE(realpath(file.c_str(), absolute), nullptr);
    ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
    ASSERT_EQ(seteuid(65534), 0);
    const bool reachable = access(absolute, F_OK) == 0 && eaccess(absolute, R_OK) == 0;
    if (reachable) {
      ExpectError(file, ErrorCode::kPermissionDenied, {"written", "65534"});
      EXPECT_TRUE(host_.Open(file, kBytes, 512, AccessMode::kReadOnly).ok());
    }
    ASSERT_EQ(seteuid(0), 0);
    if (!reachable) GTEST_SKIP() << "the build folder can't be reached by user nobody";
  } else {
    ExpectError(file, ErrorCode::kPermissionDenied, {"written"});
    EXPECT_TRUE(host_.Open(file, kBytes, 512, AccessMode::kReadOnly).ok());
  }
}

TEST_F(UringOpen, ReportsItsGeometry) {
  const auto device = MustOpen(folder_.MakeFile("file", kBytes + 12345));
  const block::Geometry& geometry = device->geometry();
  EXPECT_EQ(geometry.size_bytes, kBytes) << "the disk's size, not the file's";
  EXPECT_EQ(geometry.logical_block_bytes, 512U);
  EXPECT_EQ(geometry.physical_block_bytes, 4096U);
  EXPECT_TRUE(geometry.discard && geometry.write_zeroes && geometry.write_cache);
  EXPECT_EQ(geometry.discard_granularity_bytes % 512, 0U);
  EXPECT_TRUE(block::CheckGeometry(geometry, "disks/u").ok());
}

TEST_F(UringOpen, OneWriterOrManyReaders) {
  const std::string file = folder_.MakeFile("file", kBytes);
  const auto writer = MustOpen(file);
  const auto second = MustOpen(file);
  const auto reader = MustOpen(file, AccessMode::kReadOnly);
  const auto other_reader = MustOpen(file, AccessMode::kReadOnly);
  EXPECT_TRUE(host_.Await(writer->Acquire(AccessMode::kReadWrite)).ok());
  EXPECT_TRUE(host_.Await(writer->Acquire(AccessMode::kReadWrite)).ok()) << "again is nothing new";
  for (block::Device* device : {second.get(), reader.get()}) {
    const AccessMode mode = device == reader.get() ? AccessMode::kReadOnly : AccessMode::kReadWrite;
    const Status refused = host_.Await(device->Acquire(mode));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.error().message.find(file), std::string::npos);
    EXPECT_NE(refused.error().message.find("locked by another disk of this engine"), std::string::npos)
        << refused.error().message;
  }
  EXPECT_TRUE(host_.Await(writer->Release()).ok());
  EXPECT_TRUE(host_.Await(reader->Acquire(AccessMode::kReadOnly)).ok());
  EXPECT_TRUE(host_.Await(other_reader->Acquire(AccessMode::kReadOnly)).ok());
  EXPECT_FALSE(host_.Await(second->Acquire(AccessMode::kReadWrite)).ok());
  EXPECT_TRUE(host_.Await(reader->Release()).ok());
  EXPECT_FALSE(host_.Await(second->Acquire(AccessMode::kReadWrite)).ok());
  EXPECT_TRUE(host_.Await(other_reader->Close()).ok()) << "closing releases too";
  EXPECT_TRUE(host_.Await(second->Acquire(AccessMode::kReadWrite)).ok());
  const Status wrong = host_.Await(reader->Acquire(AccessMode::kReadWrite));
  EXPECT_EQ(wrong.error().code, ErrorCode::kInvalidArgument) << "opened read-only";
}

TEST_F(UringOpen, ABlockDeviceHasOneWriterUnderAllItsNames) {
  const test::LoopDevice loop(folder_.MakeFile("file", kBytes));
  if (!loop.made()) GTEST_SKIP() << "this needs root and a loop device";
  struct stat node {};
  ASSERT_EQ(stat(loop.path().c_str(), &node), 0);
  const std::string other_name = folder_.path() + "/node";
  ASSERT_EQ(mknod(other_name.c_str(), S_IFBLK | 0600, node.st_rdev), 0);

  auto first = MustOpen(loop.path());
  ASSERT_TRUE(host_.Await(first->Acquire(AccessMode::kReadWrite)).ok());
  auto second = MustOpen(other_name);
  const Status refused = host_.Await(second->Acquire(AccessMode::kReadWrite));
  ASSERT_FALSE(refused.ok()) << "two writers";
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message.find(other_name), std::string::npos) << refused.error().message;
  EXPECT_TRUE(host_.Await(first->Release()).ok());
  const Status granted = host_.Await(second->Acquire(AccessMode::kReadWrite));
  EXPECT_TRUE(granted.ok()) << granted.error().message;
  EXPECT_TRUE(host_.Await(second->Release()).ok());
}

// The lock belongs to the open file: a process that dies loses it, and only then another one gets it.
TEST_F(UringOpen, TheLockEndsWithTheProcess) {
  const std::string file = folder_.MakeFile("file", kBytes);
  const auto device = MustOpen(file);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const UniqueFd fd(open(file.c_str(), O_RDWR));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    const char result = fcntl(fd.get(), F_OFD_SETLK, &whole) == 0 ? 'y' : 'n';
    [[maybe_unused]] const ssize_t written = write(ready[1], &result, 1);
    for (;;) pause();
  }
  char locked = 0;
  ASSERT_EQ(read(ready[0], &locked, 1), 1);
  EXPECT_EQ(locked, 'y');
  const Status refused = host_.Await(device->Acquire(AccessMode::kReadWrite));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable)
      << "it runs our program: an engine that may be draining";
  EXPECT_NE(refused.error().message.find("locked by process " + std::to_string(child)), std::string::npos)
      << refused.error().message;
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
  EXPECT_TRUE(host_.Await(device->Acquire(AccessMode::kReadWrite)).ok());
}

TEST_F(UringOpen, WhatADeadProcessIsStillWritingIsWaitedFor) {
  const std::string file = folder_.MakeFile("file", kBytes);
  UringOptions options = Options(file);
  options.lock_wait_ns = 60 * kNsPerSecond;
  const auto opened = host_.Open(options);
  ASSERT_TRUE(opened.ok());
  block::Device* device = opened->get();
  test::LockOfNobody lock(file);
  std::optional<Status> acquired;
  host_.Begin(device->Acquire(AccessMode::kReadWrite), acquired);
  const uint64_t until_ns = MonotonicClock().NowNs() + 400 * kNsPerMs;  // the holder is looked for meanwhile
  while (MonotonicClock().NowNs() < until_ns) host_.reactor().RunOnce();
  EXPECT_FALSE(acquired.has_value()) << (acquired->ok() ? "granted" : acquired->error().message);
  lock.End();
  while (!acquired) host_.reactor().RunOnce();
  EXPECT_TRUE(acquired->ok());
}

TEST_F(UringOpen, AndWhenThatLastsItIsSaid) {
  const std::string file = folder_.MakeFile("file", kBytes);
  const auto device = MustOpen(file);
  const test::LockOfNobody lock(file);
  const Status refused = host_.Await(device->Acquire(AccessMode::kReadWrite));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("last writes"), std::string::npos) << refused.error().message;
}

// Readers share the lock; but what a dead one is still reading goes to the memory of the guest whose next engine this is.
TEST_F(UringOpen, TheLastReadsOfTheSameUserAreWaitedFor) {
  const std::string file = folder_.MakeFile("file", kBytes);
  UringOptions options = Options(file, AccessMode::kReadOnly);
  const auto before = MustOpen(file, AccessMode::kReadOnly);
  before->SetUser("controllers/a target 0");
  ASSERT_TRUE(host_.Await(before->Acquire(AccessMode::kReadOnly)).ok());
  EXPECT_TRUE(host_.Await(before->Acquire(AccessMode::kReadOnly)).ok()) << "again is nothing new";
  const auto other = MustOpen(file, AccessMode::kReadOnly);
  other->SetUser("controllers/b target 0");
  EXPECT_TRUE(host_.Await(other->Acquire(AccessMode::kReadOnly)).ok());

  const auto impatient = MustOpen(file, AccessMode::kReadOnly);
  impatient->SetUser("controllers/a target 0");
  const Status refused = host_.Await(impatient->Acquire(AccessMode::kReadOnly));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("last reads"), std::string::npos) << refused.error().message;

  options.lock_wait_ns = 60 * kNsPerSecond;
  const auto opened = host_.Open(options);
  ASSERT_TRUE(opened.ok());
  block::Device* const next = opened->get();
  next->SetUser("controllers/a target 0");
  std::optional<Status> acquired;
  host_.Begin(next->Acquire(AccessMode::kReadOnly), acquired);
  const uint64_t until_ns = MonotonicClock().NowNs() + 100 * kNsPerMs;
  while (MonotonicClock().NowNs() < until_ns) host_.reactor().RunOnce();
  EXPECT_FALSE(acquired.has_value()) << (acquired->ok() ? "granted" : acquired->error().message);
  EXPECT_TRUE(host_.Await(before->Close()).ok());
  while (!acquired) host_.reactor().RunOnce();
  EXPECT_TRUE(acquired->ok()) << acquired->error().message;

  const auto writer = MustOpen(file);
  EXPECT_FALSE(host_.Await(writer->Acquire(AccessMode::kReadWrite)).ok()) << "they read";
  EXPECT_TRUE(host_.Await(next->Release()).ok());
  EXPECT_TRUE(host_.Await(other->Release()).ok());
  EXPECT_TRUE(host_.Await(writer->Acquire(AccessMode::kReadWrite)).ok());
}

// An engine of a version before locks all of the file, for whichever of its users.
TEST_F(UringOpen, AReaderOfAnOlderVersionIsNotWaitedFor) {
  const std::string file = folder_.MakeFile("file", kBytes);
  const UniqueFd older(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_RDLCK;
  ASSERT_EQ(fcntl(older.get(), F_OFD_SETLK, &whole), 0);
  const auto reader = MustOpen(file, AccessMode::kReadOnly);
  reader->SetUser("controllers/a target 0");
  EXPECT_TRUE(host_.Await(reader->Acquire(AccessMode::kReadOnly)).ok());
}

// Locks that do not keep ours away are nobody's business: flock is apart from OFD locks.
TEST_F(UringOpen, WhoHasAnotherKindOfLockIsNotBlamed) {
  const std::string file = folder_.MakeFile("file", kBytes);
  const auto device = MustOpen(file);
  const UniqueFd innocent(open(file.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(innocent.get(), LOCK_EX), 0);
  const test::LockOfNobody lock(file);
  const Status refused = host_.Await(device->Acquire(AccessMode::kReadWrite));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("no process that can be seen"), std::string::npos)
      << refused.error().message;
}

TEST_F(UringOpen, AReadOnlyDiskReads) {
  const std::string file = folder_.MakeFile("file", kBytes);
  test::TestDisk disk(
      MustOpen(file, AccessMode::kReadOnly), host_.reactor(), [this] { host_.reactor().RunOnce(); },
      AccessMode::kReadOnly);
  test::Arena arena(4096);
  EXPECT_EQ(disk.Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(disk.Do(Op::kFlush, 0, 0), IoStatus::kOk);
  EXPECT_EQ(disk.Do(Op::kWrite, 0, 4096, &arena), IoStatus::kReadOnly);
}

TEST_F(UringOpen, GrowsWithItsFile) {
  const std::string file = folder_.MakeFile("file", kBytes);
  test::TestDisk disk(MustOpen(file), host_.reactor(), [this] { host_.reactor().RunOnce(); });
  test::Arena arena(4096);
  const Status early = host_.Await(disk.pipeline().Resize(2 * kBytes));
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(early.error().message.find(file), std::string::npos) << early.error().message;
  EXPECT_EQ(disk.Do(Op::kWrite, kBytes, 4096, &arena), IoStatus::kInvalid);
  ASSERT_EQ(truncate(file.c_str(), 2 * kBytes), 0);
  EXPECT_TRUE(host_.Await(disk.pipeline().Resize(2 * kBytes)).ok());
  EXPECT_EQ(disk.Do(Op::kWrite, 2 * kBytes - 4096, 4096, &arena), IoStatus::kOk);
}

TEST_F(UringOpen, AReactorWithoutARingIsAnError) {
  const MonotonicClock clock;
  const auto device = MustOpen(folder_.MakeFile("file", kBytes));
  const auto other = std::move(Reactor::Make(clock, {})).value();
  EXPECT_FALSE(device->OpenChannel(*other).ok());
}

// Places for the files that rings for commands keep: for as many disks as a host has, within what the process may have open.
TEST_F(UringOpen, AnEngineKeepsTheFilesOfThousandsOfDisks) {
  const MonotonicClock clock;
  const UniqueFd file(open(folder_.MakeFile("file", kBytes).c_str(), O_RDONLY | O_CLOEXEC));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t most : {std::min<rlim_t>(before.rlim_max, 20000), rlim_t{255}}) {
    const auto reactor = std::move(Reactor::Make(clock, {})).value();
    const rlimit limit{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    UringHub hub;
    const Status added = hub.AddReactor(*reactor);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_TRUE(added.ok()) << added.error().message;
    ASSERT_TRUE(hub.commands_status().ok()) << hub.commands_status().error().message;
    const uint64_t disks = std::min<uint64_t>(most, UringRing::kKeptFilesMax) / 2 - 1;
    std::set<uint32_t> places;
    for (uint64_t i = 0; i < disks; ++i) {
      const auto place = hub.KeepFiles(file.get(), file.get());
      ASSERT_TRUE(place.ok()) << place.error().message;
      EXPECT_TRUE(places.insert(*place).second);
    }
    const auto none = hub.KeepFiles(file.get(), file.get());
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(none.error().message.find("RLIMIT_NOFILE") != std::string::npos,
              most < UringRing::kKeptFilesMax)
        << none.error().message;
    hub.DropFiles(*places.begin());
    EXPECT_TRUE(hub.KeepFiles(file.get(), file.get()).ok());
  }
}

// In a process that may not use io_uring: what the hub and OpenUring say. Returns what went wrong, 0 for nothing.
int TryWithoutIoUring(const std::string& file) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 1;
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 2;
  const MonotonicClock clock;
  const auto reactor = std::move(Reactor::Make(clock, {})).value();
  BlockingPool blocking(0);
  UringHub hub;
  const Status added = hub.AddReactor(*reactor);
  if (added.ok() || added.error().message.find("io_uring_disabled") == std::string::npos) return 3;
  std::optional<Result<std::unique_ptr<block::Device>>> opened;
  const auto keep = [&]() -> Task<void> {
    const UringOptions options(block::DiskShape("disks/u", kBytes, 512, 512), file, AccessMode::kReadWrite);
    auto open = OpenUring(options, hub, blocking);
    opened.emplace(co_await std::move(open));
  };
  Spawn(keep());
  if (!opened || opened->ok()) return 4;
  if (opened->error().code != ErrorCode::kUnimplemented) return 5;
  if (opened->error().message.find("disks/u") == std::string::npos) return 6;
  return 0;
}

TEST_F(UringOpen, SaysWhenIoUringIsForbidden) {
  const std::string file = folder_.MakeFile("file", kBytes);
  const pid_t child = fork();
  if (child == 0) _exit(TryWithoutIoUring(file));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace cleat::modules::uring_open_test
