// SPDX-License-Identifier: Apache-2.0
// How an RBD disk's requests become operations of librbd, on a librbd that is played here (its functions are this file's): what
// the reactor copies in a turn, and what becomes of pieces that fail.
#include "modules/rbd/rbd_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "block/memory.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace {

struct PlayedCompletion {
  rbd_callback_t answered;
  void* arg;
  int64_t result = 0;
};

// Writes are copied when they are handed over, as librbd does; all answers come when the test says so.
struct PlayedLibrbd {
  std::vector<uint8_t> content;
  std::vector<PlayedCompletion*> under_way;
  uint64_t copied_bytes = 0;  // within calls
  uint32_t operations = 0;
  uint32_t flushes = 0;
  uint32_t refuse_from = UINT32_MAX;  // operation
  uint32_t fail_from = UINT32_MAX;

  int Take(rbd_completion_t completion, int64_t result) {
    const uint32_t operation = operations++;
    if (operation >= refuse_from) return -ENOMEM;
    auto* played = static_cast<PlayedCompletion*>(completion);
    played->result = operation >= fail_from ? -EIO : result;
    under_way.push_back(played);
    return 0;
  }
  void Answer() {
    for (PlayedCompletion* played : std::exchange(under_way, {})) played->answered(played, played->arg);
  }
} librbd;

}  // namespace

extern "C" {
int rbd_aio_create_completion(void* arg, rbd_callback_t answered, rbd_completion_t* completion) {
  *completion = new PlayedCompletion{answered, arg};
  return 0;
}
void rbd_aio_release(rbd_completion_t completion) {
  delete static_cast<PlayedCompletion*>(completion);
}
ssize_t rbd_aio_get_return_value(rbd_completion_t completion) {
  return static_cast<PlayedCompletion*>(completion)->result;
}
int rbd_aio_writev(rbd_image_t /*image*/, const iovec* iovecs, int count, uint64_t offset,
                   rbd_completion_t completion) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(librbd.content.data() + offset, iovecs[i].iov_base, iovecs[i].iov_len);
    offset += iovecs[i].iov_len;
    librbd.copied_bytes += iovecs[i].iov_len;
  }
  return librbd.Take(completion, 0);
}
int rbd_aio_write(rbd_image_t image, uint64_t offset, size_t length, const char* data,
                  rbd_completion_t completion) {
  const iovec whole{const_cast<char*>(data), length};
  return rbd_aio_writev(image, &whole, 1, offset, completion);
}
// Into the caller's memory, by a thread of librbd's: no copy of the reactor's.
int rbd_aio_readv(rbd_image_t /*image*/, const iovec* iovecs, int count, uint64_t offset,
                  rbd_completion_t completion) {
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    std::memcpy(iovecs[i].iov_base, librbd.content.data() + offset + bytes, iovecs[i].iov_len);
    bytes += static_cast<int64_t>(iovecs[i].iov_len);
  }
  return librbd.Take(completion, bytes);
}
int rbd_aio_read(rbd_image_t image, uint64_t offset, size_t length, char* data, rbd_completion_t completion) {
  const iovec whole{data, length};
  return rbd_aio_readv(image, &whole, 1, offset, completion);
}
int rbd_aio_flush(rbd_image_t /*image*/, rbd_completion_t completion) {
  ++librbd.flushes;
  return librbd.Take(completion, 0);
}
}

namespace cleat::modules::rbd_channel_test {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint64_t kPiece = RbdChannel::kPieceBytes;

// Scattered over segments of odd sizes.
struct Io {
  Io(Op op, uint64_t offset_bytes, uint64_t bytes) : memory(bytes) {
    Random random(bytes);
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.Next());
    region = block::MemoryRegion::Borrow(memory.data(), memory.size());
    constexpr uint64_t kSegment = 100'000;
    for (uint64_t at = 0; at < bytes; at += kSegment)
      segments.push_back({region.get(), at, static_cast<uint32_t>(std::min(kSegment, bytes - at))});
    request.op = op;
    request.offset_bytes = offset_bytes;
    request.length_bytes = bytes;
    request.segments = segments;
  }
  std::vector<uint8_t> memory;
  std::shared_ptr<block::MemoryRegion> region;
  std::vector<block::Segment> segments;
  block::Request request;
  bool done = false;
};

class RbdChannelTest : public testing::Test {
 protected:
  RbdChannelTest() {
    librbd = {};
    librbd.content.resize(uint64_t{64} << 20);
    channel = std::make_unique<RbdChannel>(RbdHandle{}, reactors[0], [] {});
  }
  void Submit(Io& io) {
    io.request.Push(
        [](block::Request&, const block::Frame& frame) { static_cast<Io*>(frame.layer)->done = true; }, &io);
    channel->Submit(io.request);
  }
  // One turn after the other, with the time that they take. Returns the most that was copied in one.
  uint64_t RunTurns(bool answering) {
    uint64_t most_bytes = librbd.copied_bytes;  // by Submit
    for (int quiet = 0; quiet < 10; ++quiet) {
      const uint64_t before = librbd.copied_bytes;
      reactors.clock().AdvanceBy(10 * kNsPerUs);
      if (reactors[0].RunOnce()) quiet = 0;
      if (answering) librbd.Answer();
      most_bytes = std::max(most_bytes, librbd.copied_bytes - before);
    }
    return most_bytes;
  }
  bool Wrote(const Io& io) {
    return std::equal(io.memory.begin(), io.memory.end(),
                      librbd.content.begin() + static_cast<long>(io.request.offset_bytes));
  }

  cleat::test::VirtualReactors reactors;
  std::unique_ptr<RbdChannel> channel;
};

TEST_F(RbdChannelTest, CopiesNoMoreThanAPieceOfALargeWriteInATurn) {
  Io largest(Op::kWrite, 4096, block::kTransferBytesMax);
  Io odd(Op::kWrite, uint64_t{40} << 20, 2 * kPiece + 4096);
  Submit(largest);
  Submit(odd);
  EXPECT_LE(RunTurns(false), kPiece);
  EXPECT_EQ(librbd.operations, block::kTransferBytesMax / kPiece) << "pieces do not wait for one another";
  EXPECT_FALSE(largest.done);
  librbd.copied_bytes = 0;
  EXPECT_LE(RunTurns(true), kPiece) << "the one that had no room beside it";
  for (const Io* io : {&largest, &odd}) {
    EXPECT_TRUE(io->done);
    EXPECT_EQ(io->request.status, IoStatus::kOk);
    EXPECT_TRUE(Wrote(*io));
  }
}

TEST_F(RbdChannelTest, OthersHaveTheirTurnsBetweenThePieces) {
  Io large(Op::kWrite, 0, 16 * kPiece);
  Submit(large);
  Io small(Op::kWrite, uint64_t{40} << 20, kPiece);
  Submit(small);
  EXPECT_EQ(librbd.operations, 1U) << "a write of one piece goes at once";
  RunTurns(true);
  Io back(Op::kRead, 0, 16 * kPiece);
  const uint32_t before = librbd.operations;
  Submit(back);
  EXPECT_EQ(librbd.operations, before + 1) << "librbd's threads copy what is read";
  RunTurns(true);
  EXPECT_TRUE(small.done && large.done && back.done);
  EXPECT_EQ(back.request.status, IoStatus::kOk);
  EXPECT_EQ(back.memory, large.memory);
}

TEST_F(RbdChannelTest, ADurableWriteIsFlushedOnceAfterItsLastPiece) {
  Io io(Op::kWrite, 0, 3 * kPiece);
  io.request.fua = true;
  Submit(io);
  RunTurns(false);
  EXPECT_EQ(librbd.operations, 3U);
  EXPECT_EQ(librbd.flushes, 0U);
  librbd.Answer();
  RunTurns(false);
  EXPECT_EQ(librbd.flushes, 1U);
  EXPECT_FALSE(io.done);
  RunTurns(true);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.request.status, IoStatus::kOk);
}

TEST_F(RbdChannelTest, AWriteWithABadPieceFailsWhenAllAreBack) {
  for (const bool refused : {false, true}) {
    SCOPED_TRACE(refused);
    librbd.operations = 0;
    (refused ? librbd.refuse_from : librbd.fail_from) = 2;
    Io io(Op::kWrite, 0, 8 * kPiece);
    Submit(io);
    RunTurns(false);
    EXPECT_EQ(librbd.operations, refused ? 3U : 8U) << "after a refusal no more are handed over";
    EXPECT_FALSE(io.done) << "librbd has pieces of it";
    librbd.Answer();
    RunTurns(false);
    EXPECT_TRUE(io.done);
    EXPECT_EQ(io.request.status, IoStatus::kIoError);
    librbd.refuse_from = librbd.fail_from = UINT32_MAX;
  }
}

}  // namespace
}  // namespace cleat::modules::rbd_channel_test
