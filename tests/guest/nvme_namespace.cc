// SPDX-License-Identifier: Apache-2.0
// A disk on an NVMe namespace by the drive's own commands. Run in a guest with emulated drives (test_nvme.py), whose paths stand in the
// environment:
//   CLEAT_NVME       blocks of 512 bytes, 512 MiB
//   CLEAT_NVME_4K    blocks of 4096 bytes
//   CLEAT_NVME_BAD   can't read the block at kBadBytes
//   CLEAT_NVME_SLOW  writes 5 times a second
// As `nvme_namespace writer PATH`: a process that writes to the slow one and is killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "modules/nvme/nvme.h"
#include "modules/nvme/nvme_channel.h"
#include "modules/uring/uring_ring.h"
#include "nvme/status.h"
#include "tests/guest/nvme_host.h"

namespace cleat::modules::nvme_namespace {
namespace {

using block::AccessMode;
using block::IoStatus;
using block::Op;
using test::Io;

constexpr uint64_t kBadBytes = 2 * kMiB;
constexpr uint64_t kWrites = 32;  // under way when the writer is killed
constexpr uint64_t kWriteBytes = 4096;

class Namespace : public testing::TestWithParam<Drive> {
 protected:
  std::unique_ptr<test::TestDisk> OpenDisk() { return host_.OpenNamespaceDisk(path_, GetParam().block); }
  const std::string path_ = PathIn(GetParam().variable);
  Host host_;
};

INSTANTIATE_TEST_SUITE_P(Blocks, Namespace,
                         testing::Values(Drive{"CLEAT_NVME", 512}, Drive{"CLEAT_NVME_4K", 4096}),
                         [](const auto& drive) { return "of" + std::to_string(drive.param.block); });

TEST_P(Namespace, AgreesWithTheReferenceAlsoAfterReopening) {
  std::vector<uint8_t> content;
  {
    const auto disk = OpenDisk();
    ASSERT_EQ(disk->Do(Op::kWriteZeroes, 0, kBytes), IoStatus::kOk);
    test::RandomLoad load(*disk, 1, 0, kBytes, test::RandomLoad::Discards::kNone);
    load.Run(600);
    content = load.reference();
    host_.Close(*disk);
  }
  const auto disk = OpenDisk();
  test::Arena arena(kBytes);
  ASSERT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), content.data(), kBytes), 0);
  host_.Close(*disk);
}

// The same from memory that is registered meanwhile: in two chunks, so that some commands' lies in both. Then from other memory, which gets
// the places of the first while commands go on.
TEST(NamespaceMemory, AgreesWithTheReferenceAlsoWhereItIsRegistered) {
  Host host;
  const auto disk = host.OpenNamespaceDisk(PathIn("CLEAT_NVME_4K"), 4096);
  UringHub& hub = host.hub();
  std::unique_ptr<test::RandomLoad> before;
  for (const uint64_t seed : {1, 2}) {
    ASSERT_EQ(disk->Do(Op::kWriteZeroes, 0, kBytes), IoStatus::kOk);
    auto load = std::make_unique<test::RandomLoad>(*disk, seed, 0, kBytes, test::RandomLoad::Discards::kNone,
                                                   test::Pages::kPinned);
    before.reset();
    for (const uint64_t none = hub.registered_commands(); hub.registered_commands() == none;) load->Run(20);
    EXPECT_GT(hub.registrar().registered_bytes(), MemoryRegistrar::kChunkBytes);
    load->Run(150);
    const uint64_t registered = hub.registered_commands();
    load->Run(50);
    EXPECT_GT(hub.registered_commands(), registered) << "the kernel has refused one";
    test::Arena arena(kBytes);
    ASSERT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena), IoStatus::kOk);
    EXPECT_EQ(std::memcmp(arena.data(), load->reference().data(), kBytes), 0);
    before = std::move(load);
  }
  before.reset();
  while (hub.registrar().registered_bytes() > 0) std::this_thread::yield();
  host.Close(*disk);
}

// Some kernels refuse what others take: here the kernel does, because a place that is used was emptied.
TEST(NamespaceMemory, WhatTheKernelRefusesIsTriedWithoutRegistering) {
  constexpr uint64_t kRequests = 64;
  Host host;
  const auto disk = host.OpenNamespaceDisk(PathIn("CLEAT_NVME"));
  test::Arena arena(kRequests * 4096, test::Pages::kPinned);
  while (!host.hub().registrar().Find(arena.region(), 0, 1)) std::this_thread::yield();
  ASSERT_EQ(disk->Do(Op::kWrite, 0, kRequests * 4096, &arena), IoStatus::kOk);
  EXPECT_GT(host.hub().registered_commands(), 0U);
  const uint16_t place = *host.hub().registrar().Find(arena.region(), 0, 1);
  ASSERT_TRUE(host.hub().FindForCommands(host.reactor())->SetBuffer(place, {nullptr, 0}).ok());
  std::memset(arena.data(), 0, kRequests * 4096);
  std::vector<std::unique_ptr<Io>> ios;
  for (uint64_t i = 0; i < kRequests; ++i) {
    Io& io = *ios.emplace_back(std::make_unique<Io>());
    io.segments = {{&arena.region(), i * 4096, 4096}};
    disk->Start(io, Op::kRead, i * 4096, 4096);
  }
  for (const auto& io : ios) EXPECT_EQ(disk->Wait(*io), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + kRequests * 4096, 0xa5),
            static_cast<int64_t>(kRequests * 4096));
  const uint64_t registered = host.hub().registered_commands();
  EXPECT_EQ(disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(host.hub().registered_commands(), registered);
  host.Close(*disk);
}

// The guest asks for more at once than the queues of ring and drive hold. Each request's memory is in two pieces that no other one shares: the
// kernel reads a command's iovecs late when the drive's queue is full.
TEST_P(Namespace, LosesNothingBeyondItsLimits) {
  constexpr uint64_t kRequests = kBytes / 8192;
  static_assert(kRequests > UringRing::kVectors && kRequests > NvmeChannel::kCommandsMax);
  const auto disk = OpenDisk();
  test::Arena arena(kBytes);
  for (const Op op : {Op::kWrite, Op::kRead}) {
    for (uint64_t i = 0; i < kRequests; ++i) {
      const uint64_t stamp = op == Op::kWrite ? i : ~i;
      std::memcpy(arena.data() + i * 4096, &stamp, sizeof(stamp));
      std::memcpy(arena.data() + kBytes / 2 + i * 4096, &stamp, sizeof(stamp));
    }
    std::vector<std::unique_ptr<Io>> ios;
    uint64_t done = 0;
    for (uint64_t i = 0; i < kRequests; ++i) {
      Io& io = *ios.emplace_back(std::make_unique<Io>());
      io.segments = {{&arena.region(), i * 4096, 4096}, {&arena.region(), kBytes / 2 + i * 4096, 4096}};
      io.on_done = [&done, &io] {
        ++done;
        ASSERT_EQ(io.status(), IoStatus::kOk);
      };
      disk->Start(io, op, i * 8192, 8192);
    }
    while (done < kRequests) disk->Step();
  }
  for (uint64_t i = 0; i < 2 * kRequests; ++i) {
    uint64_t stamp = 0;
    std::memcpy(&stamp, arena.data() + i * 4096, sizeof(stamp));
    ASSERT_EQ(stamp, i % kRequests);
  }
  host_.Close(*disk);
}

// Memory in the smallest pieces, more of them than a command may have, at any address.
TEST_P(Namespace, TakesMemoryInAnyPieces) {
  const auto disk = OpenDisk();
  test::Arena arena(4 * kMiB);
  for (const uint32_t piece : {64U, 512U, 4096U + 512U}) {
    for (const uint64_t misaligned : {uint64_t{0}, uint64_t{1}}) {
      const uint64_t total = uint64_t{piece} * 512;
      Io io;
      for (uint64_t i = 0; i < 512; ++i)
        io.segments.push_back({&arena.region(), misaligned + i * (piece + 32), piece});
      if (total % GetParam().block != 0) continue;
      for (uint64_t i = 0; i < 512; ++i)
        std::memset(io.segments[i].data(), static_cast<int>(i % 251 + 1), piece);
      disk->Start(io, Op::kWrite, 0, total);
      ASSERT_EQ(disk->Wait(io), IoStatus::kOk);
      test::Arena back(total);
      ASSERT_EQ(disk->Do(Op::kRead, 0, total, &back), IoStatus::kOk);
      for (uint64_t i = 0; i < 512; ++i) {
        ASSERT_EQ(std::memcmp(back.data() + i * piece, io.segments[i].data(), piece), 0)
            << piece << " at " << i;
        std::memset(io.segments[i].data(), 0, piece);
      }
      disk->Start(io, Op::kRead, 0, total);
      ASSERT_EQ(disk->Wait(io), IoStatus::kOk);
      for (uint64_t i = 0; i < 512; ++i)
        ASSERT_EQ(std::memcmp(back.data() + i * piece, io.segments[i].data(), piece), 0)
            << piece << " at " << i;
    }
  }
  host_.Close(*disk);
}

TEST_P(Namespace, ZeroesReadBackAndDiscardsAreTaken) {
  const auto disk = OpenDisk();
  const uint64_t block = GetParam().block;
  const block::Geometry& geometry = disk->channel().geometry();
  EXPECT_TRUE(geometry.write_zeroes && geometry.discard && geometry.write_cache);
  test::Arena arena(kBytes);
  std::memset(arena.data(), 'x', kBytes);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, kBytes, &arena), IoStatus::kOk);
  for (const bool may_unmap : {true, false}) {
    Io zeroes;
    zeroes.request.may_unmap = may_unmap;
    zeroes.request.fua = true;
    disk->Start(zeroes, Op::kWriteZeroes, (may_unmap ? 1 : 4) * kMiB + block, 2 * kMiB);
    ASSERT_EQ(disk->Wait(zeroes), IoStatus::kOk);
  }
  ASSERT_EQ(disk->Do(Op::kDiscard, 8 * kMiB, kMiB), IoStatus::kOk);
  ASSERT_EQ(disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
  ASSERT_EQ(disk->Do(Op::kRead, 0, 8 * kMiB, &arena), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + 8 * kMiB, 0), static_cast<int64_t>(4 * kMiB));
  EXPECT_EQ(arena.data()[kMiB + block - 1], 'x');
  EXPECT_EQ(arena.data()[kMiB + block], 0);
  EXPECT_EQ(arena.data()[3 * kMiB + block], 'x');
  ASSERT_EQ(disk->Do(Op::kRead, 9 * kMiB, kMiB, &arena), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + kMiB, 'x'), static_cast<int64_t>(kMiB))
      << "not discarded";
  host_.Close(*disk);
}

TEST(NamespaceChoice, GoesThroughTheBlockDeviceWhereTheDiskHasSmallerBlocks) {
  Host host;
  const auto device = host.MustOpen(PathIn("CLEAT_NVME_4K"));
  EXPECT_TRUE(device->io_path().starts_with("io_uring")) << device->io_path();
  EXPECT_NE(device->io_path().find("blocks of 4096 bytes, the disk of 512"), std::string::npos)
      << device->io_path();
  EXPECT_TRUE(host.Await(device->Close()).ok());
}

// Through the page cache, with an owner, whom the kernel keeps from dropping pages that wait to be written.
TEST(NamespaceChoice, ZeroesGoOverWhatThePageCacheHas) {
  Host host;
  test::TestDisk disk(host.MustOpen(PathIn("CLEAT_NVME_4K")), host.reactor(),
                      [&] { host.reactor().RunOnce(); });
  ASSERT_TRUE(host.Await(disk.pipeline().Acquire()).ok());
  test::Arena arena(4096);
  for (const Op op : {Op::kWriteZeroes, Op::kDiscard}) {
    std::memset(arena.data(), 'x', 4096);
    ASSERT_EQ(disk.Do(Op::kWrite, 8192, 4096, &arena), IoStatus::kOk);
    ASSERT_EQ(disk.Do(op, 8192, 4096), IoStatus::kOk) << "a page of it is dirty";
    ASSERT_EQ(disk.Do(Op::kRead, 8192, 4096, &arena), IoStatus::kOk);
    const int64_t zeroes = std::count(arena.data(), arena.data() + 4096, 0);
    EXPECT_TRUE(op == Op::kDiscard || zeroes == 4096) << zeroes;
  }
  EXPECT_TRUE(host.Await(disk.pipeline().Release()).ok());
  host.Close(disk);
}

TEST(NamespaceErrors, AMediumErrorFailsItsRequestAloneAndIsNamed) {
  Host host;
  const auto disk = host.OpenNamespaceDisk(PathIn("CLEAT_NVME_BAD"));
  struct Reasons final : block::FailureListener {
    void Failed(const block::Request& request) override { numbers.push_back(request.error_number); }
    void WaitForSpace(uint32_t /*requests*/) override {}
    std::vector<int32_t> numbers;
  } reasons;
  disk->channel().SetFailureListener(&reasons);
  test::Arena arena(kBytes);
  EXPECT_EQ(disk->Do(Op::kRead, kBadBytes - 4096, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kRead, kBadBytes, 4096, &arena), IoStatus::kIoError);
  EXPECT_EQ(disk->Do(Op::kRead, 0, 8 * kMiB, &arena), IoStatus::kIoError) << "one of many commands";
  EXPECT_EQ(disk->Do(Op::kRead, kBadBytes + 4096, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(reasons.numbers, (std::vector<int32_t>(2, nvme::ErrorNumberOf(nvme::Status(0x281)))));
  disk->channel().SetFailureListener(nullptr);
  host.Close(*disk);
}

TEST(NamespaceLocks, OneWriterByEitherNode) {
  Host host;
  const std::string path = PathIn("CLEAT_NVME");
  const std::string node = "/dev/ng" + path.substr(std::strlen("/dev/nvme"));
  const auto first = host.MustOpen(path);
  const auto second = host.MustOpen(path);
  ASSERT_TRUE(host.Await(first->Acquire(AccessMode::kReadWrite)).ok());
  const Status refused = host.Await(second->Acquire(AccessMode::kReadWrite));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition) << refused.error().message;
  EXPECT_NE(refused.error().message.find(path), std::string::npos) << refused.error().message;
  EXPECT_TRUE(host.Await(first->Release()).ok());
  // Somebody who uses the node for commands alone, and locks it.
  UniqueFd other(open(node.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(other) << node;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(other.get(), F_OFD_SETLK, &whole), 0);
  const Status held = host.Await(second->Acquire(AccessMode::kReadWrite));
  ASSERT_FALSE(held.ok());
  EXPECT_NE(held.error().message.find(node), std::string::npos) << held.error().message;
  EXPECT_TRUE(host.Await(first->Acquire(AccessMode::kReadWrite)).error().code == held.error().code)
      << "nothing is left locked";
  // And who uses the block device alone.
  other.Reset(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_FALSE(host.Await(second->Acquire(AccessMode::kReadWrite)).ok());
  other.Reset();
  const Status granted = host.Await(second->Acquire(AccessMode::kReadWrite));
  EXPECT_TRUE(granted.ok()) << granted.error().message;
  EXPECT_TRUE(host.Await(second->Release()).ok());
  for (const auto& device : {first.get(), second.get()}) EXPECT_TRUE(host.Await(device->Close()).ok());
}

// What somebody wrote to the block device before lies in its page cache: it is not written over the disk's data later.
TEST(NamespaceLocks, NobodysOldPagesAreWrittenOverIt) {
  Host host;
  const std::string path = PathIn("CLEAT_NVME");
  const auto disk = host.OpenNamespaceDisk(path);
  test::Arena arena(4096);
  std::memset(arena.data(), 'o', 4096);
  {
    const UniqueFd buffered(open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(pwrite(buffered.get(), arena.data(), 4096, 0), 4096);
  }
  ASSERT_TRUE(host.Await(disk->pipeline().Acquire()).ok());
  std::memset(arena.data(), 'n', 4096);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  sync();
  ASSERT_EQ(disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(arena.data()[0], 'n');
  EXPECT_TRUE(host.Await(disk->pipeline().Release()).ok());
  host.Close(*disk);
}

TEST(NamespaceLocks, ReadersShareIt) {
  Host host;
  const std::string path = PathIn("CLEAT_NVME");
  std::vector<std::unique_ptr<block::Device>> readers;
  for (int i = 0; i < 2; ++i) {
    readers.push_back(host.MustOpen(path, 512, AccessMode::kReadOnly));
    readers.back()->SetUser("reader " + std::to_string(i));
    EXPECT_TRUE(host.Await(readers.back()->Acquire(AccessMode::kReadOnly)).ok());
  }
  const auto writer = host.MustOpen(path);
  EXPECT_FALSE(host.Await(writer->Acquire(AccessMode::kReadWrite)).ok());
  for (const auto& reader : readers) EXPECT_TRUE(host.Await(reader->Close()).ok());
  EXPECT_TRUE(host.Await(writer->Acquire(AccessMode::kReadWrite)).ok()) << "closing releases too";
  EXPECT_TRUE(host.Await(writer->Close()).ok());
}

// ---- A drive that the kernel resets

// Writes blocks and reads them back, from and into memory in two pieces that are its own.
class Slot {
 public:
  static constexpr uint64_t kHalf = 4096;

  Slot(test::TestDisk& disk, test::Arena& arena, uint64_t number) : disk_(disk), number_(number) {
    io_.segments = {{&arena.region(), number * kHalf, kHalf},
                    {&arena.region(), kBytes / 2 + number * kHalf, kHalf}};
  }
  uint64_t verified() const { return verified_; }

  void Write() {
    ++generation_;
    for (uint64_t half = 0; half < 2; ++half) std::memset(io_.segments[half].data(), Stamp(half), kHalf);
    disk_.Start(io_, Op::kWrite, number_ * 2 * kHalf, 2 * kHalf);
  }
  void ReadBack() {
    ASSERT_EQ(disk_.Wait(io_), IoStatus::kOk);
    for (uint64_t half = 0; half < 2; ++half) std::memset(io_.segments[half].data(), 0, kHalf);
    disk_.Start(io_, Op::kRead, number_ * 2 * kHalf, 2 * kHalf);
  }
  void Verify() {
    ASSERT_EQ(disk_.Wait(io_), IoStatus::kOk);
    for (uint64_t half = 0; half < 2; ++half) {
      const uint8_t* data = io_.segments[half].data();
      ASSERT_EQ(std::count(data, data + kHalf, Stamp(half)), static_cast<int64_t>(kHalf))
          << "slot " << number_;
    }
    ++verified_;
  }

 private:
  uint8_t Stamp(uint64_t half) const {
    return static_cast<uint8_t>(1 + (number_ * 5 + generation_ * 2 + half) % 251);
  }

  test::TestDisk& disk_;
  const uint64_t number_;
  Io io_;
  uint64_t generation_ = 0;
  uint64_t verified_ = 0;
};

// What the drive has comes back, and what comes meanwhile waits in the kernel, which reads its iovecs when the drive is there again.
TEST(NamespaceResets, NothingIsLostOrMixedUp) {
  constexpr uint64_t kSlots = 96;
  constexpr int kResets = 8;
  Host host;
  const std::string path = PathIn("CLEAT_NVME");
  const auto disk = host.OpenNamespaceDisk(path);
  test::Arena arena(kBytes);
  std::vector<std::unique_ptr<Slot>> slots;
  for (uint64_t i = 0; i < kSlots; ++i) slots.push_back(std::make_unique<Slot>(*disk, arena, i));
  const std::string controller = path.substr(std::strlen("/dev/"), path.rfind('n') - std::strlen("/dev/"));
  std::atomic<int> resets{0};
  std::thread resetter([&] {
    for (; resets < kResets; ++resets) {
      const UniqueFd file(
          open(("/sys/class/nvme/" + controller + "/reset_controller").c_str(), O_WRONLY | O_CLOEXEC));
      EXPECT_EQ(write(file.get(), "1", 1), 1) << controller;
    }
  });
  while (resets < kResets && !testing::Test::HasFatalFailure()) {
    for (const auto& slot : slots) slot->Write();
    for (const auto& slot : slots) slot->ReadBack();
    for (const auto& slot : slots) slot->Verify();
  }
  resetter.join();
  EXPECT_GT(slots.front()->verified(), 0U);
  host.Close(*disk);
}

// ---- Who takes over from a killed process

// Begins the writes, says so, and waits for its end.
int RunWriter(const std::string& path) {
  Host host;
  const auto disk = host.OpenNamespaceDisk(path);
  if (!host.Await(disk->pipeline().Acquire()).ok()) return 1;
  test::Arena arena(kWriteBytes);
  std::memset(arena.data(), 'B', kWriteBytes);
  std::vector<std::unique_ptr<Io>> ios;
  for (uint64_t i = 0; i < kWrites; ++i) {
    Io& io = *ios.emplace_back(std::make_unique<Io>());
    io.segments = {{&arena.region(), 0, kWriteBytes}};
    disk->Start(io, Op::kWrite, i * kWriteBytes, kWriteBytes);
  }
  disk->Step();
  std::puts("begun");
  std::fflush(stdout);
  for (;;) disk->Step();
}

// The program again, with its standard output in a pipe.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    int ends[2];
    CLEAT_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<std::string> words{"/proc/self/exe", "writer", path};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    CLEAT_CHECK(posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char byte = 0;
    const UniqueFd output(ends[0]);
    begun_ = read(output.get(), &byte, 1) == 1;
  }
  ~Writer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool begun() const { return begun_; }

 private:
  pid_t pid_ = 0;
  bool begun_ = false;
};

// How many of the writes are there.
uint64_t CountLanded(test::TestDisk& disk) {
  test::Arena arena(kWrites * kWriteBytes);
  EXPECT_EQ(disk.Do(Op::kRead, 0, kWrites * kWriteBytes, &arena), IoStatus::kOk);
  uint64_t landed = 0;
  for (uint64_t i = 0; i < kWrites; ++i) landed += arena.data()[i * kWriteBytes] == 'B' ? 1 : 0;
  return landed;
}

// With no_ofd_lock.c preloaded this fails: then nobody waits.
TEST(NamespaceOwnership, TheLastWriteOfAKilledProcessLandsBeforeItsSuccessorOwnsTheDisk) {
  const std::string path = PathIn("CLEAT_NVME_SLOW");
  Host host;
  host.lock_wait_ns = 60 * kNsPerSecond;
  {
    const auto disk = host.OpenNamespaceDisk(path);
    ASSERT_TRUE(host.Await(disk->pipeline().Acquire()).ok());
    ASSERT_EQ(disk->Do(Op::kWriteZeroes, 0, kWrites * kWriteBytes), IoStatus::kOk);
    ASSERT_EQ(CountLanded(*disk), 0U);
    host.Close(*disk);
  }
  {
    const Writer writer(path);
    ASSERT_TRUE(writer.begun());
  }
  // An engine of before, which knows of the block device alone, is kept out as well.
  const UniqueFd block(open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_NE(flock(block.get(), LOCK_EX | LOCK_NB), 0) << "nobody waits at the block device";
  const auto disk = host.OpenNamespaceDisk(path);
  ASSERT_TRUE(host.Await(disk->pipeline().Acquire()).ok());
  const uint64_t landed = CountLanded(*disk);
  EXPECT_EQ(landed, kWrites) << "all were given to the drive";
  host.Close(*disk);
}

}  // namespace
}  // namespace cleat::modules::nvme_namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "writer")
    return cleat::modules::nvme_namespace::RunWriter(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
