// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "modules/uring/uring_ring.h"
#include "tests/unit/modules/uring_fixture.h"

namespace cleat::modules::uring_io_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Io;

constexpr uint64_t kMiB = 1 << 20;

struct Place {
  const char* name;
  std::string folder;
  uint32_t block;
  bool direct;
};

class UringIo : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (!folder_.made()) GTEST_SKIP() << "no folder can be made in " << GetParam().folder;
  }
  std::unique_ptr<test::TestDisk> OpenDisk(const std::string& path, uint64_t bytes) {
    return host_.OpenDisk(path, bytes, GetParam().block, GetParam().direct);
  }
  test::UringHost host_;
  test::ScratchFolder folder_{GetParam().folder};
};

INSTANTIATE_TEST_SUITE_P(Places, UringIo,
                         testing::Values(Place{"memory512", test::MemoryFolder(), 512, true},
                                         Place{"direct512", test::DiskFolder(), 512, true},
                                         Place{"direct4096", test::DiskFolder(), 4096, true},
                                         Place{"buffered512", test::DiskFolder(), 512, false}),
                         [](const auto& place) { return std::string(place.param.name); });

TEST_P(UringIo, AgreesWithTheReferenceAlsoAfterReopening) {
  constexpr uint64_t kBytes = 8 * kMiB;
  const std::string path = folder_.MakeFile("disk", kBytes);
  std::vector<uint8_t> content;
  {
    const auto disk = OpenDisk(path, kBytes);
    test::RandomLoad load(*disk, 1, 0, kBytes);
    load.Run(1500);
    EXPECT_EQ(disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
    content = load.reference();
    disk->CloseChannel();
    EXPECT_TRUE(host_.Await(disk->pipeline().Close()).ok());
  }
  const auto disk = OpenDisk(path, kBytes);
  test::Arena arena(kBytes);
  ASSERT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), content.data(), kBytes), 0);
}

// More at once than the submission queue, the completion queue and the bounce buffers hold together.
TEST_P(UringIo, LosesNothingBeyondItsLimits) {
  constexpr uint64_t kRequests = 3 * UringRing::kUnderWayMax;
  constexpr uint64_t kBytes = kRequests * 4096;
  const auto disk = OpenDisk(folder_.MakeFile("disk", kBytes), kBytes);
  test::Arena arena(kBytes + 4096);
  for (uint64_t i = 0; i < kRequests; ++i) std::memcpy(arena.data() + i * 4096, &i, sizeof(i));
  for (const uint64_t misaligned : {uint64_t{0}, uint64_t{8}}) {
    for (const Op op : {Op::kWrite, Op::kRead}) {
      if (op == Op::kRead) std::memset(arena.data(), 0, kBytes + 4096);
      std::vector<std::unique_ptr<Io>> ios;
      uint64_t done = 0;
      for (uint64_t i = 0; i < kRequests; ++i) {
        ios.push_back(std::make_unique<Io>());
        Io& io = *ios.back();
        io.segments = {{&arena.region(), i * 4096 + misaligned, 4096}};
        io.on_done = [&done, &io] {
          ++done;
          ASSERT_EQ(io.status(), IoStatus::kOk);
        };
        disk->Start(io, op, i * 4096, 4096);
      }
      while (done < kRequests) disk->Step();
    }
    for (uint64_t i = misaligned; i < kRequests; ++i) {
      uint64_t stamp = 0;
      if (misaligned == 0) std::memcpy(&stamp, arena.data() + i * 4096, sizeof(stamp));
      ASSERT_EQ(stamp, misaligned == 0 ? i : 0);
    }
    if (misaligned == 0) {
      for (uint64_t i = 0; i < kRequests; ++i) std::memcpy(arena.data() + i * 4096, &i, sizeof(i));
    }
  }
}

TEST_P(UringIo, TakesMoreSegmentsThanTheKernelDoes) {
  const uint64_t block = GetParam().block;
  const uint64_t segments = 2 * UringRing::kIovecsMax + 7;
  const uint64_t bytes = segments * block;
  const auto disk = OpenDisk(folder_.MakeFile("disk", bytes), bytes);
  test::Arena arena(4 * bytes + 4096);
  for (uint64_t i = 0; i < 2 * bytes; ++i) arena.data()[i] = static_cast<uint8_t>(i * 7 / block);
  Io io;
  for (uint64_t i = 0; i < segments; ++i) {  // every other block of memory
    io.segments.push_back({&arena.region(), 2 * i * block, static_cast<uint32_t>(block)});
  }
  disk->Start(io, Op::kWrite, 0, bytes);
  ASSERT_EQ(disk->Wait(io), IoStatus::kOk);
  ASSERT_EQ(disk->Do(Op::kRead, 0, bytes, &arena, 2 * bytes), IoStatus::kOk);
  for (uint64_t i = 0; i < segments; ++i) {
    ASSERT_EQ(std::memcmp(arena.data() + 2 * bytes + i * block, arena.data() + 2 * i * block, block), 0) << i;
  }
  for (block::Segment& segment : io.segments) std::memset(segment.data(), 0, block);
  disk->Start(io, Op::kRead, 0, bytes);
  ASSERT_EQ(disk->Wait(io), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data() + 2 * bytes, arena.data(), block), 0);
}

TEST_P(UringIo, DiscardFreesAndZeroesReadBack) {
  constexpr uint64_t kBytes = 8 * kMiB;
  constexpr uint64_t kZeroed = kMiB / 2 * 5;  // several operations, where zeroes have to be written
  const std::string path = folder_.MakeFile("disk", kBytes);
  const auto disk = OpenDisk(path, kBytes);
  const auto used = [&path] {
    struct stat status {};
    stat(path.c_str(), &status);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  test::Arena arena(kBytes);
  std::memset(arena.data(), 'x', kBytes);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, kBytes, &arena), IoStatus::kOk);
  ASSERT_EQ(disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
  const uint64_t full = used();
  EXPECT_GE(full, kBytes);

  const uint64_t block = GetParam().block;
  ASSERT_EQ(disk->Do(Op::kDiscard, 0, kMiB), IoStatus::kOk);
  EXPECT_LE(used(), full - kMiB);
  for (const bool may_unmap : {true, false}) {
    Io zeroes;
    zeroes.request.may_unmap = may_unmap;
    const uint64_t from = (may_unmap ? 1 : 4) * kMiB + block;  // not on page borders
    disk->Start(zeroes, Op::kWriteZeroes, from, kZeroed);
    ASSERT_EQ(disk->Wait(zeroes), IoStatus::kOk);
  }
  ASSERT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + kBytes, 0), static_cast<int64_t>(kMiB + 2 * kZeroed));
  EXPECT_EQ(arena.data()[kMiB + block - 1], 'x');
  EXPECT_EQ(arena.data()[kMiB + block], 0);
  EXPECT_EQ(arena.data()[kMiB + block + kZeroed], 'x');
}

// Somebody makes the file shorter while it is a disk: errors, no hang and no made-up data.
TEST_P(UringIo, FailsWhereTheFileHasGone) {
  constexpr uint64_t kBytes = kMiB;
  const std::string path = folder_.MakeFile("disk", kBytes);
  const auto disk = OpenDisk(path, kBytes);
  ASSERT_EQ(truncate(path.c_str(), kBytes / 2), 0);
  test::Arena arena(kBytes + 4096);
  EXPECT_EQ(disk->Do(Op::kRead, 0, kBytes / 2, &arena), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena), IoStatus::kIoError);
  EXPECT_EQ(disk->Do(Op::kRead, kBytes / 2, 4096, &arena), IoStatus::kIoError);
  EXPECT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena, 7), IoStatus::kIoError);
}

TEST_P(UringIo, NoSpaceIsSaid) {
  constexpr uint64_t kBytes = 2 * kMiB;
  const std::string path = folder_.MakeFile("disk", kBytes);
  const auto disk = OpenDisk(path, kBytes);
  test::Arena arena(kBytes + 4096);
  // A limit on the size of files stands for a full file system, which a test can't fill politely.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = kMiB;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(disk->Do(Op::kWrite, 0, kMiB, &arena), IoStatus::kOk);
  struct Reasons final : block::FailureListener {
    void Failed(const block::Request& request) override { errnos.push_back(request.error_number); }
    void WaitForSpace(uint32_t /*requests*/) override {}
    std::vector<int> errnos;
  } reasons;
  disk->channel().SetFailureListener(&reasons);
  EXPECT_EQ(disk->Do(Op::kWrite, kMiB, 4096, &arena), IoStatus::kNoSpace);
  EXPECT_EQ(reasons.errnos, std::vector<int>{EFBIG}) << "in the kernel's own words";
  EXPECT_EQ(disk->Do(Op::kWrite, kMiB - 8192, 16384, &arena), IoStatus::kNoSpace) << "half of it went";
  EXPECT_EQ(disk->Do(Op::kWrite, kMiB / 2, kMiB, &arena, 9), IoStatus::kNoSpace) << "through bounce buffers";
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(disk->Do(Op::kWrite, kMiB, 4096, &arena), IoStatus::kOk);
  disk->channel().SetFailureListener(nullptr);
}

// ---- Two reactors, each on its own thread with its own ring, on one disk. They sleep while the storage works.

std::unique_ptr<Reactor> MakeIoReactor(const Clock& clock, uint32_t index) {
  Reactor::Options options;
  options.name = "io" + std::to_string(index);
  options.index = index;
  options.spin_ns = 0;
  return std::move(Reactor::Make(clock, options)).value();
}

// Writes, flushes and reads back blocks of one half of the disk, a few requests at a time, then stops its reactor.
class HalfLoad {
 public:
  static constexpr uint64_t kSlots = 8;
  static constexpr uint64_t kBlock = 16384;

  HalfLoad(block::Pipeline& pipeline, Reactor& reactor, uint64_t from, uint64_t blocks)
      : pipeline_(pipeline), reactor_(reactor), from_(from), blocks_(blocks), arena_(kSlots * kBlock) {}

  void Begin() {
    channel_ = std::move(pipeline_.OpenChannel(reactor_)).value();
    for (uint64_t i = 0; i < kSlots; ++i) {
      slots_.push_back(std::make_unique<Slot>());
      Slot& slot = *slots_.back();
      slot.io.segments = {{&arena_.region(), i * kBlock, kBlock}};
      slot.io.on_done = [this, &slot] { Done(slot); };
      ++running_;
      Next(slot);
    }
  }
  uint64_t verified() const { return verified_; }

 private:
  struct Slot {
    Io io;
    uint64_t block = 0;
    uint64_t step = 0;  // 0 write, 1 flush, 2 read
  };

  void Next(Slot& slot) {
    if (next_ == blocks_) {
      if (--running_ > 0) return;
      reactor_.PostCall([this] {
        channel_.reset();
        reactor_.Stop();
      });
      return;
    }
    slot.block = next_++;
    slot.step = 0;
    std::memset(slot.io.segments[0].data(), static_cast<int>(slot.block % 251 + 1), kBlock);
    Submit(slot, Op::kWrite);
  }

  void Submit(Slot& slot, Op op) {
    slot.io.request.op = op;
    slot.io.request.offset_bytes = op == Op::kFlush ? 0 : from_ + slot.block * kBlock;
    slot.io.request.length_bytes = op == Op::kFlush ? 0 : kBlock;
    slot.io.request.segments = slot.io.segments;
    slot.io.request.Push(
        [](block::Request&, const block::Frame& frame) { static_cast<Io*>(frame.layer)->on_done(); },
        &slot.io);
    channel_->Submit(slot.io.request);
  }

  void Done(Slot& slot) {
    EXPECT_EQ(slot.io.status(), IoStatus::kOk);
    uint8_t* data = slot.io.segments[0].data();
    switch (slot.step++) {
      case 0:
        std::memset(data, 0, kBlock);
        Submit(slot, Op::kFlush);
        return;
      case 1:
        Submit(slot, Op::kRead);
        return;
      default:
        EXPECT_EQ(std::count(data, data + kBlock, static_cast<uint8_t>(slot.block % 251 + 1)),
                  static_cast<int64_t>(kBlock));
        ++verified_;
        Next(slot);
    }
  }

  block::Pipeline& pipeline_;
  Reactor& reactor_;
  const uint64_t from_;
  const uint64_t blocks_;
  test::Arena arena_;
  std::unique_ptr<block::PipelineChannel> channel_;
  std::vector<std::unique_ptr<Slot>> slots_;
  uint64_t next_ = 0;
  uint64_t running_ = 0;
  uint64_t verified_ = 0;
};

TEST(UringThreads, TwoReactorsShareADiskAndSleepMeanwhile) {
  constexpr uint64_t kBlocks = 200;
  constexpr uint64_t kHalf = kBlocks * HalfLoad::kBlock;
  test::UringHost host;
  test::ScratchFolder folder(test::DiskFolder());
  ASSERT_TRUE(folder.made());
  const MonotonicClock clock;
  const std::unique_ptr<Reactor> io[2] = {MakeIoReactor(clock, 1), MakeIoReactor(clock, 2)};
  UringHub hub;  // goes before its reactors
  for (const auto& reactor : io) ASSERT_TRUE(hub.AddReactor(*reactor).ok());
  const UringOptions options(block::DiskShape("disks/u", 2 * kHalf, 512, 512),
                             folder.MakeFile("disk", 2 * kHalf), block::AccessMode::kReadWrite);
  auto device = host.Await(OpenUring(options, hub, host.blocking()));
  ASSERT_TRUE(device.ok());
  auto pipeline =
      std::move(block::Pipeline::Make(std::move(device).value(), block::AccessMode::kReadWrite)).value();
  std::vector<std::unique_ptr<HalfLoad>> loads;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 2; ++i) {
    loads.push_back(std::make_unique<HalfLoad>(*pipeline, *io[i], i * kHalf, kBlocks));
    io[i]->PostCall([load = loads.back().get()] { load->Begin(); });
    threads.emplace_back([reactor = io[i].get()] { reactor->Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& load : loads) EXPECT_EQ(load->verified(), kBlocks);
  // Each operation may cost a few turns; a reactor that polled all the time would take thousands of them for each.
  for (const auto& reactor : io) EXPECT_LT(reactor->turns(), kBlocks * 3 * 20);
}

}  // namespace
}  // namespace cleat::modules::uring_io_test
