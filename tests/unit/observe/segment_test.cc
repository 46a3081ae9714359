// SPDX-License-Identifier: Apache-2.0
// What is written comes out as it was, to a reader that goes by the header.
#include "observe/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "observe/reader.h"

namespace cleat::observe::segment_test {
namespace {

SegmentOptions Options() {
  SegmentOptions options;
  options.engine = "engine-7";
  options.incarnation = 77;
  options.reactors = {"reactor-0", "reactor-1"};
  return options;
}

class SegmentTest : public testing::Test {
 protected:
  SegmentTest() : segment_(Segment::Make(Options()).value()) {}

  std::unique_ptr<SegmentReader> Reader() {
    return SegmentReader::Open(segment_->OpenForReaders().value()).value();
  }
  std::unique_ptr<DiskCounters> Add(const std::string& disk, uint32_t reactor = 0) {
    return segment_->Add("controllers/vm", disk, 3, reactor, 1000).value();
  }
  uint64_t AllocatedBytes() {
    struct stat file {};
    EXPECT_EQ(fstat(segment_->OpenForReaders().value().get(), &file), 0);
    return static_cast<uint64_t>(file.st_blocks) * 512;
  }
  // A copy of the segment's header in a file of its own, changed.
  Result<std::unique_ptr<SegmentReader>> OpenChanged(const std::function<void(SegmentHeader&)>& change) {
    SegmentHeader header = segment_->header();
    change(header);
    UniqueFd fd(memfd_create("changed", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(segment_->header().segment_bytes)), 0);
    EXPECT_EQ(pwrite(fd.get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
    return SegmentReader::Open(std::move(fd));
  }

  std::unique_ptr<Segment> segment_;
};

TEST_F(SegmentTest, TellsWhoseItIs) {
  const auto reader = Reader();
  EXPECT_EQ(reader->engine(), "engine-7");
  EXPECT_EQ(reader->incarnation(), 77U);
  EXPECT_EQ(reader->process(), static_cast<uint64_t>(getpid()));
  EXPECT_EQ(reader->op_names().at(1), "write");
  EXPECT_EQ(reader->stage_names().at(static_cast<size_t>(RequestStage::kSubmitted)), "submitted");
  ASSERT_EQ(reader->Reactors().size(), 2U);
  EXPECT_EQ(reader->Reactors()[1].name, "reactor-1");
  EXPECT_TRUE(reader->Cells().empty());
}

TEST_F(SegmentTest, CountersAndHistogramsComeOut) {
  const auto first = Add("disks/a");
  const auto second = Add("disks/b", 1);
  second->Count(OpColumn::kWrite, 5, 20480, 1);
  second->Count(OpColumn::kWrite, 2, 8192, 0);
  second->Record(OpColumn::kWrite, RequestStage::kDone, 1'000'000, 7);
  const auto reader = Reader();
  const auto cells = reader->Cells();
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[1].controller, "controllers/vm");
  EXPECT_EQ(cells[1].disk, "disks/b");
  EXPECT_EQ(cells[1].target, 3U);
  EXPECT_EQ(cells[1].reactor, 1U);
  const OpCount& writes = cells[1].ops.at(static_cast<size_t>(OpColumn::kWrite));
  EXPECT_EQ(writes.requests, 7U);
  EXPECT_EQ(writes.bytes, 28672U);
  EXPECT_EQ(writes.errors, 1U);
  EXPECT_EQ(cells[0].ops.at(static_cast<size_t>(OpColumn::kWrite)).requests, 0U);
  const auto histograms = reader->Histograms(cells[1]);
  for (size_t op = 0; op < histograms.size(); ++op) {
    for (size_t stage = 0; stage < histograms[op].size(); ++stage) {
      const bool this_one =
          op == static_cast<size_t>(OpColumn::kWrite) && stage == static_cast<size_t>(RequestStage::kDone);
      EXPECT_EQ(histograms[op][stage].count(), this_one ? 7U : 0U) << op << " " << stage;
      if (this_one) {
        EXPECT_NEAR(static_cast<double>(histograms[op][stage].PercentileNs(0.5)), 1e6, 16e3);
      }
    }
  }
}

TEST_F(SegmentTest, ACellThatIsGivenBackBeginsAnew) {
  auto cell = Add("disks/a");
  cell->Count(OpColumn::kRead, 1, 512, 0);
  cell->Record(OpColumn::kRead, RequestStage::kTotal, 5'000'000, 1);
  const auto reader = Reader();
  const auto before = reader->Cells();
  cell.reset();
  EXPECT_TRUE(reader->Cells().empty());
  EXPECT_TRUE(reader->Histograms(before.at(0)).empty()) << "it is nobody's";
  cell = Add("disks/b");
  const auto after = reader->Cells();
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].index, before[0].index);
  EXPECT_NE(after[0].generation, before[0].generation);
  EXPECT_EQ(after[0].ops.at(0).requests, 0U);
  EXPECT_EQ(reader->Histograms(after[0]).at(0).at(static_cast<size_t>(RequestStage::kTotal)).count(), 0U);
}

// The price of a disk that is there: a page, whatever the cell has room for. Looking costs nothing.
TEST_F(SegmentTest, WhatIsNotUsedTakesNoMemory) {
  const uint64_t empty = AllocatedBytes();
  std::vector<std::unique_ptr<DiskCounters>> cells;
  for (int i = 0; i < 100; ++i) cells.push_back(Add("disks/" + std::to_string(i)));
  const auto reader = Reader();
  for (const CellSeen& cell : reader->Cells()) EXPECT_EQ(reader->Histograms(cell).size(), size_t{kOpCount});
  EXPECT_LE(AllocatedBytes(), empty + 100 * 4096 + 4096);
  for (const auto& cell : cells) cell->Record(OpColumn::kRead, RequestStage::kTotal, 1'000'000, 1);
  EXPECT_GT(AllocatedBytes(), empty + 100 * 4096);
  cells.clear();
  EXPECT_LE(AllocatedBytes(), empty + 100 * 4096 + 4096) << "histograms are given back";
}

TEST_F(SegmentTest, ThereIsALimit) {
  std::vector<std::unique_ptr<DiskCounters>> cells;
  for (uint64_t i = 0; i < kCellsMax; ++i) cells.push_back(Add("disks/a"));
  const auto one_more = segment_->Add("controllers/vm", "disks/more", 0, 0, 0);
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(one_more.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(one_more.error().message.find("disks/more"), std::string::npos);
  cells.pop_back();
  EXPECT_TRUE(segment_->Add("controllers/vm", "disks/more", 0, 0, 0).ok());
}

TEST_F(SegmentTest, ReadersCantWrite) {
  const UniqueFd fd = segment_->OpenForReaders().value();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  EXPECT_NE(ftruncate(fd.get(), 0), 0);
}

// An engine with other operations and stages: names say what is what.
TEST_F(SegmentTest, TheHeaderDescribesTheRest) {
  auto reader = OpenChanged([](SegmentHeader& header) {
    header.op_count = 2;
    header.stage_count = 3;
    std::memcpy(header.op_names[1], "copy", 5);
  });
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->op_names(), (std::vector<std::string>{"read", "copy"}));
  EXPECT_EQ((*reader)->stage_names().size(), 3U);
}

TEST_F(SegmentTest, AHeaderThatMakesNoSenseIsRefused) {
  const std::pair<const char*, std::function<void(SegmentHeader&)>> cases[] = {
      {"no magic", [](SegmentHeader& h) { h.magic = 0; }},
      {"another layout", [](SegmentHeader& h) { h.layout_version = 99; }},
      {"longer than its file", [](SegmentHeader& h) { h.segment_bytes += 4096; }},
      {"cells behind the end", [](SegmentHeader& h) { h.cells.count = uint64_t{1} << 19; }},
      {"a stride of nothing", [](SegmentHeader& h) { h.cells.stride_bytes = 0; }},
      {"a stride that wraps", [](SegmentHeader& h) { h.cells.stride_bytes = UINT64_MAX; }},
      {"histograms behind their cell",
       [](SegmentHeader& h) { h.histograms_offset_bytes = h.cells.stride_bytes; }},
      {"too many operations", [](SegmentHeader& h) { h.op_count = 1000; }},
      {"no stages", [](SegmentHeader& h) { h.stage_count = 0; }},
      {"a million reactors", [](SegmentHeader& h) { h.reactors.count = 1'000'000; }},
      {"an endless slow ring", [](SegmentHeader& h) { h.slow_ring_count = UINT64_MAX; }},
  };
  for (const auto& [what, change] : cases) {
    const auto reader = OpenChanged(change);
    ASSERT_FALSE(reader.ok()) << what;
    EXPECT_EQ(reader.error().code, ErrorCode::kFailedPrecondition) << what;
  }
  EXPECT_FALSE(SegmentReader::Open(UniqueFd(open("/dev/null", O_RDONLY))).ok());
}

}  // namespace
}  // namespace cleat::observe::segment_test
