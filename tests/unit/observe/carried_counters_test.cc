// SPDX-License-Identifier: Apache-2.0
// What one engine has counted of a controller goes on in another one's cells.
#include "observe/carried_counters.h"

#include <gtest/gtest.h>

#include "observe/segment.h"

namespace cleat::observe::carried_counters_test {
namespace {

constexpr char kController[] = "controllers/vm";

std::unique_ptr<Segment> MakeSegment(const std::string& engine) {
  SegmentOptions options;
  options.engine = engine;
  options.reactors = {"reactor-0", "reactor-1"};
  return Segment::Make(options).value();
}

TEST(CarriedCounters, GoesOnInAnotherEngine) {
  const auto blue = MakeSegment("blue");
  const auto green = MakeSegment("green");
  const auto first = blue->Add(kController, "disks/a", 0, 0, 500).value();
  const auto second = blue->Add(kController, "disks/a", 0, 1, 400).value();
  const auto other = blue->Add("controllers/vm2", "disks/b", 0, 0, 300).value();
  first->Count(OpColumn::kRead, 3, 12288, 1);
  first->Record(OpColumn::kRead, RequestStage::kTotal, 5, 2);
  second->Count(OpColumn::kRead, 1, 4096, 0);
  second->Record(OpColumn::kRead, RequestStage::kTotal, 123456789, 1);
  other->Count(OpColumn::kRead, 1000, 0, 0);

  const auto carried = ReadCarriedCounters(blue->OpenForReaders().value(), kController);
  ASSERT_TRUE(carried.ok()) << carried.error().message;
  ASSERT_EQ(carried->size(), 1U);
  const auto cell = green->Add(kController, "disks/a", 0, 1, 900).value();
  cell->Count(OpColumn::kRead, 10, 0, 0);  // since it was taken
  carried->at(0).AddTo(*cell);

  const auto reader = SegmentReader::Open(green->OpenForReaders().value()).value();
  const auto cells = reader->Cells();
  ASSERT_EQ(cells.size(), 1U);
  EXPECT_EQ(cells[0].since_ns, 400U);
  const OpCount& reads = cells[0].ops.at(static_cast<size_t>(OpColumn::kRead));
  EXPECT_EQ(reads.requests, 14U);
  EXPECT_EQ(reads.bytes, 16384U);
  EXPECT_EQ(reads.errors, 1U);
  const auto histograms = reader->Histograms(cells[0]);
  const Histogram& histogram =
      histograms[static_cast<size_t>(OpColumn::kRead)][static_cast<size_t>(RequestStage::kTotal)];
  EXPECT_EQ(histogram.count(), 3U);
  EXPECT_EQ(histogram.PercentileNs(0), 5U);
  EXPECT_EQ(histogram.LongestNs(), BucketHighestNs(BucketOf(123456789)));
}

// Nobody else's is taken for its own, whatever is said.
TEST(CarriedCounters, LooksWhereItIsTold) {
  const auto blue = MakeSegment("blue");
  const auto other = blue->Add("controllers/vm2", "disks/b", 0, 0, 300).value();
  const auto first = blue->Add(kController, "disks/a", 0, 0, 500).value();
  const auto second = blue->Add(kController, "disks/c", 1, 0, 500).value();
  first->Count(OpColumn::kRead, 3, 12288, 0);
  const std::vector<uint64_t> told{other->index(), first->index(), kCellsMax, ~uint64_t{0}};
  const auto carried = ReadCarriedCounters(blue->OpenForReaders().value(), kController, told);
  ASSERT_TRUE(carried.ok()) << carried.error().message;
  ASSERT_EQ(carried->size(), 1U);
  EXPECT_EQ(carried->at(0).disk, "disks/a");
  EXPECT_EQ(carried->at(0).ops.at(static_cast<size_t>(OpColumn::kRead)).requests, 3U);
}

TEST(CarriedCounters, OfNobodyIsNothing) {
  const auto blue = MakeSegment("blue");
  EXPECT_TRUE(ReadCarriedCounters(blue->OpenForReaders().value(), kController)->empty());
  EXPECT_FALSE(ReadCarriedCounters(UniqueFd(), kController).ok());
}

}  // namespace
}  // namespace cleat::observe::carried_counters_test
