// SPDX-License-Identifier: Apache-2.0
// A disk attached over gRPC does what a disk does: on every back end, with every kind of request, on one
// queue or four, whichever side has the socket.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"

namespace cleat::system_test::disk_io_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kDiskBytes = 64 * kMiB;
constexpr uint64_t kRequests = kSanitized ? 3000 : 20000;

std::vector<uint8_t> Pattern(size_t bytes, uint64_t seed) {
  std::vector<uint8_t> data(bytes);
  Random random(seed);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
  return data;
}

v1::DiskSpec SpecOf(const std::string& backend, const Host& host) {
  if (backend == "file") return FileDisk(kDiskBytes, host.Path("disk.img"));
  return backend == "memory" ? MemoryDisk(kDiskBytes) : NullDisk(kDiskBytes);
}

// Writes at every size from 512 bytes to 1 MiB, reads it back in one request of its own.
void EverySize(perf::BlkDriver& driver) {
  const uint32_t block_bytes = driver.block_bytes();
  std::vector<uint32_t> sizes{block_bytes, 3 * block_bytes, 65536 + block_bytes};
  for (uint32_t size = block_bytes; size <= kMiB; size *= 2) sizes.push_back(size);
  auto buffer = driver.AllocateBuffer(kMiB);
  ASSERT_TRUE(buffer.ok());
  uint64_t offset = block_bytes;
  for (const uint32_t size : sizes) {
    const std::vector<uint8_t> data = Pattern(size, size);
    perf::BlkIo io;
    io.offset_bytes = offset;
    io.length_bytes = size;
    io.data_gpa = *buffer;
    for (const perf::BlkOp op : {perf::BlkOp::kWrite, perf::BlkOp::kRead}) {
      io.op = op;
      const auto memory = driver.memory().Span(*buffer, size);
      if (op == perf::BlkOp::kWrite) std::copy(data.begin(), data.end(), memory.begin());
      if (op == perf::BlkOp::kRead) std::fill(memory.begin(), memory.end(), uint8_t{0xee});
      const auto done = driver.Execute(0, io);
      ASSERT_OK(done);
      ASSERT_EQ(done->status, perf::wire::kBlkOk) << size << " bytes at " << offset;
    }
    EXPECT_TRUE(std::equal(data.begin(), data.end(), driver.memory().Span(*buffer, size).begin())) << size;
    offset += size + block_bytes;
  }
}

void EveryRequest(perf::BlkDriver& driver) {
  const uint32_t bytes = 256 * 1024;
  const std::vector<uint8_t> data = Pattern(bytes, 7);
  std::vector<uint8_t> read(bytes);
  EXPECT_OK(driver.WriteSync(kMiB, data));
  EXPECT_OK(driver.FlushSync());
  EXPECT_OK(driver.ReadSync(kMiB, read));
  EXPECT_EQ(read, data);
  ASSERT_TRUE(driver.has(perf::wire::kBlkWriteZeroes));
  const uint32_t half = bytes / 2;
  for (const bool unmap : {false, true}) {
    EXPECT_OK(driver.WriteSync(kMiB, data));
    EXPECT_OK(driver.WriteZeroesSync(kMiB, half, unmap));
    EXPECT_OK(driver.ReadSync(kMiB, read));
    EXPECT_TRUE(std::all_of(read.begin(), read.begin() + half, [](uint8_t byte) { return byte == 0; }));
    EXPECT_TRUE(std::equal(read.begin() + half, read.end(), data.begin() + half));
  }
  if (driver.has(perf::wire::kBlkDiscard)) {
    EXPECT_OK(driver.DiscardSync(kMiB, half));
    EXPECT_OK(driver.ReadSync(kMiB, read));
    EXPECT_TRUE(
        std::equal(read.begin() + half, read.end(), data.begin() + half));  // its neighbour is untouched
  }
}

class EveryBackend : public testing::TestWithParam<const char*> {};

TEST_P(EveryBackend, WritesAndVerifies) {
  Host host({.as_nobody = true});
  ASSERT_TRUE(host.ok());
  EXPECT_NE(host.cleatd().User(), 0U);
  EXPECT_NE(host.engine().User(), 0U);
  const std::string backend = GetParam();
  ASSERT_TRUE(host.AttachNew("a", SpecOf(backend, host)));
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  perf::BlkDriver& driver = (*peer)->driver();
  EXPECT_EQ(driver.capacity_bytes(), kDiskBytes);
  EXPECT_EQ(driver.block_bytes(), 512U);
  const auto id = driver.GetIdSync();
  ASSERT_OK(id);
  EXPECT_EQ(*id, "a");
  EXPECT_NE((*peer)->frontend().inflight(), nullptr) << "no in-flight area was negotiated";
  EveryRequest(driver);
  EverySize(driver);

  EXPECT_OK((*peer)->ShutDown());
  perf::StampedBlocks blocks(kDiskBytes, 512, 1, /*initially_zero=*/false);
  for (const bool packed : {false, true}) {
    for (const auto layout :
         {perf::LayoutPolicy::kClassic, perf::LayoutPolicy::kIndirect, perf::LayoutPolicy::kAnyLayout}) {
      SCOPED_TRACE(packed ? "packed" : "split");
      EXPECT_OK((*peer)->Boot({.packed = packed, .layout = layout}));
      IoLoad load((*peer)->driver(), blocks, {.seed = 11});
      EXPECT_OK(load.Run(kRequests / 6));
      EXPECT_EQ((*peer)->driver().stats().used_length_mismatches, 0U);
      EXPECT_OK((*peer)->ShutDown());
    }
  }
  EXPECT_TRUE(host.Remove("a"));
}
INSTANTIATE_TEST_SUITE_P(Disk, EveryBackend, testing::Values("file", "memory"));

TEST(Disk, NullReadsZeroesAndTakesEverything) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", NullDisk(kDiskBytes)));
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  perf::BlkDriver& driver = (*peer)->driver();
  const std::vector<uint8_t> data = Pattern(kMiB, 3);
  std::vector<uint8_t> read = data;
  EXPECT_OK(driver.WriteSync(0, data));
  EXPECT_OK(driver.FlushSync());
  EXPECT_OK(driver.ReadSync(0, read));
  EXPECT_TRUE(std::all_of(read.begin(), read.end(), [](uint8_t byte) { return byte == 0; }));
}

TEST(Disk, FourQueuesOnTwoReactors) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  for (const char* backend : {"file", "memory"}) {
    ASSERT_TRUE(host.AttachNew(backend, SpecOf(backend, host), 4));
    auto peer =
        Peer::Start(host.SocketPath(backend), {.num_queues = 4, .layout = perf::LayoutPolicy::kAnyLayout});
    ASSERT_OK(peer);
    EXPECT_EQ((*peer)->driver().config().num_queues, 4);
    EXPECT_TRUE(host.WaitController(backend, v1::CONTROLLER_STATE_READY));
    perf::StampedBlocks blocks(kDiskBytes, 512, 2);
    IoLoad load((*peer)->driver(), blocks, {.seed = 5});
    EXPECT_OK(load.Run(kRequests));
    EXPECT_OK(load.Verify());
    EXPECT_OK((*peer)->ShutDown());
  }
}

// A guest that pauses and goes on, with packed rings of a size that no split ring could have.
TEST(Disk, PackedRingsStopAndGoOn) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok() && host.AttachNew("a", SpecOf("file", host), 4));
  auto peer = Peer::Start(
      host.SocketPath("a"),
      {.num_queues = 4, .queue_size = 100, .packed = true, .layout = perf::LayoutPolicy::kAnyLayout});
  ASSERT_OK(peer);
  EXPECT_TRUE((*peer)->driver().ring(0).packed());
  EveryRequest((*peer)->driver());
  perf::StampedBlocks blocks(kDiskBytes, 512, 6, /*initially_zero=*/false);
  IoLoad load((*peer)->driver(), blocks, {.seed = 8});
  for (int round = 0; round < 5; ++round) {
    EXPECT_OK(load.Run(kRequests / 20));
    EXPECT_OK((*peer)->driver().Stop());
    EXPECT_OK((*peer)->driver().Resume());
  }
  EXPECT_OK((*peer)->ShutDown());
}

// A guest with fewer processors than the device has queues uses only some of them.
TEST(Disk, GuestUsesOneOfFourQueues) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok() && host.AttachNew("a", MemoryDisk(kDiskBytes), 4));
  auto peer = Peer::Start(host.SocketPath("a"), {.num_queues = 1});
  ASSERT_OK(peer);
  EveryRequest((*peer)->driver());
  EXPECT_TRUE(host.WaitController("a", v1::CONTROLLER_STATE_READY));
}

TEST(Disk, LargeBlocks) {
  Host host;
  ASSERT_TRUE(host.ok());
  for (const char* backend : {"file", "memory"}) {
    v1::DiskSpec spec = SpecOf(backend, host);
    spec.set_logical_block_bytes(4096);
    ASSERT_TRUE(host.AttachNew(backend, spec));
    auto peer = Peer::Start(host.SocketPath(backend));
    ASSERT_OK(peer);
    perf::BlkDriver& driver = (*peer)->driver();
    EXPECT_EQ(driver.block_bytes(), 4096U);
    EverySize(driver);
    perf::StampedBlocks blocks(kDiskBytes, 4096, 3, /*initially_zero=*/false);
    IoLoad load(driver, blocks, {.seed = 6});
    EXPECT_OK(load.Run(kRequests / 10));
    // Half a block is not a request for such a disk.
    auto buffer = driver.AllocateBuffer(4096);
    ASSERT_TRUE(buffer.ok());
    const auto half = driver.Execute(
        0, {.op = perf::BlkOp::kWrite, .offset_bytes = 512, .length_bytes = 512, .data_gpa = *buffer});
    ASSERT_OK(half);
    EXPECT_EQ(half->status, perf::wire::kBlkIoError);
  }
}

TEST(Disk, ReadOnly) {
  Host host;
  ASSERT_TRUE(host.ok());
  ASSERT_TRUE(host.AttachNew("a", SpecOf("file", host)));
  const std::vector<uint8_t> data = Pattern(4096, 9);
  {
    auto writer = Peer::Start(host.SocketPath("a"));
    ASSERT_OK(writer);
    EXPECT_OK((*writer)->driver().WriteSync(8192, data));
    EXPECT_OK((*writer)->ShutDown());
  }
  ASSERT_TRUE(host.Remove("a"));

  v1::DiskSpec shared = FileDisk(kDiskBytes, host.Path("disk.img"), false);
  shared.set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_OK(host.api().CreateDisk("shared", shared));
  for (const char* reader : {"b", "c"}) {
    ASSERT_OK(host.api().CreateController(reader, BlkController(host.SocketPath(reader))));
    const auto refused = host.api().Attach(reader, "shared");
    EXPECT_EQ(refused.code(), grpc::StatusCode::FAILED_PRECONDITION);
    const auto attached = host.api().Attach(reader, "shared", /*read_only=*/true);
    ASSERT_OK(attached);
    auto peer = Peer::Start(host.SocketPath(reader));
    ASSERT_OK(peer);
    perf::BlkDriver& driver = (*peer)->driver();
    EXPECT_TRUE(driver.has(perf::wire::kBlkReadOnly));
    std::vector<uint8_t> read(4096);
    EXPECT_OK(driver.ReadSync(8192, read));
    EXPECT_EQ(read, data);
    EXPECT_FALSE(driver.WriteSync(8192, Pattern(4096, 1)).ok());
    EXPECT_FALSE(driver.WriteZeroesSync(8192, 4096).ok());
    EXPECT_OK(driver.ReadSync(8192, read));
    EXPECT_EQ(read, data);
  }
}

TEST(Disk, EngineHasTheSocket) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", MemoryDisk(kDiskBytes), 1, v1::SOCKET_MODE_SERVER));
  perf::StampedBlocks blocks(kDiskBytes, 512, 4);
  for (int visit = 0; visit < 3; ++visit) {
    auto peer = Peer::Connect(host.SocketPath("a"));
    ASSERT_OK(peer);
    EXPECT_OK((*peer)->Boot());
    IoLoad load((*peer)->driver(), blocks, {.seed = 7});
    EXPECT_OK(load.Run(500));
    EXPECT_OK(load.Verify());
    if (visit != 1) {  // the second one just vanishes
      EXPECT_OK((*peer)->ShutDown());
    }
  }
  EXPECT_TRUE(host.Remove("a"));
}

// Memory that is plugged and unplugged while requests are in flight elsewhere.
TEST(Disk, MemoryHotPlugUnderIo) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", SpecOf("file", host)));
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  perf::BlkDriver& driver = (*peer)->driver();
  const uint64_t plugged_gpa = uint64_t{64} << 30;
  perf::StampedBlocks blocks(kDiskBytes / 2, 512, 5);
  for (int round = 0; round < 10; ++round) {
    ASSERT_OK((*peer)->memory().AddRegion({.gpa = plugged_gpa, .size_bytes = 4 * kMiB}));
    EXPECT_OK(driver.UpdateMemory());
    const auto buffer = (*peer)->memory().AllocateIn(plugged_gpa, kMiB, 4096);
    ASSERT_OK(buffer);
    perf::BlkIo io;
    io.offset_bytes = kDiskBytes / 2;
    io.length_bytes = kMiB;
    io.data_gpa = *buffer;
    for (const perf::BlkOp op : {perf::BlkOp::kWrite, perf::BlkOp::kRead}) {
      io.op = op;
      const auto done = driver.Execute(0, io);
      ASSERT_OK(done);
      EXPECT_EQ(done->status, perf::wire::kBlkOk);
    }
    (*peer)->memory().Free(*buffer, kMiB);
    ASSERT_OK((*peer)->memory().RemoveRegion(plugged_gpa));
    EXPECT_OK(driver.UpdateMemory());
    IoLoad load(driver, blocks, {.seed = static_cast<uint64_t>(round), .bytes_max = 64 * 1024});
    EXPECT_OK(load.Run(100));
  }
}

}  // namespace
}  // namespace cleat::system_test::disk_io_test
