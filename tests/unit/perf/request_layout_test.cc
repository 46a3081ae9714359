// SPDX-License-Identifier: Apache-2.0
#include "perf/ring/request_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace cleat::perf::request_layout_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct LayoutTest : ::testing::Test {
  void SetUp() override {
    memory = GuestMemory::CreateWithHole(8 * kMiB).value();
    area_gpa = memory->Allocate(sizeof(RequestArea), 64).value();
    data_gpa = memory->Allocate(kMiB, 4096).value();
    uint8_t* data = memory->At(data_gpa, kMiB);
    for (uint64_t i = 0; i < kMiB; ++i) data[i] = static_cast<uint8_t>(i * 7 + i / 256);
    memory->At<RequestArea>(area_gpa)->header = {wire::kBlkOut, 0, 0x1122334455667788ULL};
  }

  // What a device gathers from the readable part.
  std::vector<uint8_t> Readable(const RequestLayout& layout) const {
    std::vector<uint8_t> bytes;
    for (const Segment& segment : layout.chain) {
      if (segment.writable) continue;
      const std::span<uint8_t> piece = memory->Span(segment.gpa, segment.len);
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    return bytes;
  }

  std::unique_ptr<GuestMemory> memory;
  uint64_t area_gpa = 0;
  uint64_t data_gpa = 0;
};

TEST_F(LayoutTest, ClassicIsHeaderDataStatus) {
  LayoutPlanner planner(LayoutPolicy::kClassic, 1, true, {});
  RequestLayout layout;
  const Segment data{data_gpa, 4096, true};
  ASSERT_TRUE(planner.Plan(*memory, area_gpa, {&data, 1}, &layout));
  ASSERT_EQ(layout.chain.size(), 3U);
  EXPECT_FALSE(layout.indirect);
  EXPECT_EQ(layout.chain[0].len, 16U);
  EXPECT_EQ(layout.chain[1].gpa, data_gpa);
  EXPECT_EQ(layout.chain[2].len, 1U);
  EXPECT_TRUE(layout.chain[2].writable);
}

TEST_F(LayoutTest, AnyLayoutIsLegalAndCarriesTheSameBytes) {
  LayoutPlanner planner(LayoutPolicy::kAnyLayout, 42, true, {.descriptors_max = 32});
  RequestLayout layout;
  std::set<size_t> lengths;
  size_t joined_heads = 0;
  size_t joined_tails = 0;
  for (int i = 0; i < 2000; ++i) {
    const bool read = i % 2 == 0;
    const uint32_t bytes = 512U * (1 + i % 16);
    const Segment data{data_gpa, bytes, read};
    ASSERT_TRUE(planner.Plan(*memory, area_gpa, {&data, 1}, &layout));
    lengths.insert(layout.chain.size());
    bool writable_seen = false;
    uint64_t writable_bytes = 0;
    for (const Segment& segment : layout.chain) {
      ASSERT_GT(segment.len, 0U);
      ASSERT_TRUE(segment.writable || !writable_seen) << "readable after writable";
      writable_seen = segment.writable;
      writable_bytes += segment.writable ? segment.len : 0;
    }
    ASSERT_EQ(writable_bytes, read ? bytes + 1 : 1);
    const std::vector<uint8_t> readable = Readable(layout);
    ASSERT_EQ(readable.size(), read ? 16 : 16 + bytes);
    ASSERT_EQ(std::memcmp(readable.data(), memory->At(area_gpa, 16), 16), 0);
    if (!read) {
      ASSERT_EQ(std::memcmp(readable.data() + 16, memory->At(data_gpa, bytes), bytes), 0);
    }
    // Seen as header and first data in one descriptor, and last data and status in one.
    joined_heads += layout.chain.front().len > 16 ? 1 : 0;
    joined_tails += layout.chain.back().len > 1 ? 1 : 0;
    const Segment last = layout.chain.back();
    ASSERT_EQ(last.gpa + last.len - 1, area_gpa + offsetof(RequestArea, status));
  }
  EXPECT_GT(lengths.size(), 5U);
  EXPECT_GT(joined_heads, 50U);
  EXPECT_GT(joined_tails, 50U);
}

TEST_F(LayoutTest, AnAnswerBeforeTheDataIsJoinedWithItsHead) {
  LayoutPlanner planner(LayoutPolicy::kAnyLayout, 9, true, {.descriptors_max = 32});
  const RequestShape shape{.header_bytes = 51, .answer_offset = 0, .answer_bytes = 108, .answer_first = true};
  const uint64_t big_area = memory->Allocate(512, 64).value();
  RequestLayout layout;
  size_t joined = 0;
  for (int i = 0; i < 500; ++i) {
    const Segment data[] = {{data_gpa, 512, true}, {data_gpa + 4096, 1024, true}};
    ASSERT_TRUE(planner.Plan(*memory, big_area, shape, {}, data, &layout));
    // Where the device's bytes end up: first the answer, then the data, with the bounced bytes in their place.
    std::vector<uint64_t> places;
    for (const Segment& segment : layout.chain) {
      for (uint32_t j = 0; segment.writable && j < segment.len; ++j) places.push_back(segment.gpa + j);
    }
    ASSERT_EQ(places.size(), 108U + 512 + 1024);
    for (uint64_t& place : places) {
      const uint64_t in_bounce = place - layout.bounce.from_gpa;
      if (layout.bounce.bytes > in_bounce) place = layout.bounce.to_gpa + in_bounce;
    }
    for (uint64_t j = 0; j < places.size(); ++j) {
      const uint64_t expected = j < 108         ? big_area + j
                                : j < 108 + 512 ? data_gpa + j - 108
                                                : data_gpa + 4096 + j - 108 - 512;
      ASSERT_EQ(places[j], expected) << j;
    }
    joined += layout.bounce.bytes > 0 ? 1 : 0;
  }
  EXPECT_GT(joined, 100U);
}

TEST_F(LayoutTest, SameSeedSameLayout) {
  LayoutPlanner one(LayoutPolicy::kAnyLayout, 7, true, {});
  LayoutPlanner two(LayoutPolicy::kAnyLayout, 7, true, {});
  RequestLayout a;
  RequestLayout b;
  const Segment data{data_gpa, 8192, false};
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(one.Plan(*memory, area_gpa, {&data, 1}, &a));
    ASSERT_TRUE(two.Plan(*memory, area_gpa, {&data, 1}, &b));
    ASSERT_EQ(a.indirect, b.indirect);
    ASSERT_EQ(a.chain.size(), b.chain.size());
    for (size_t j = 0; j < a.chain.size(); ++j) ASSERT_EQ(a.chain[j].len, b.chain[j].len);
  }
}

TEST_F(LayoutTest, KeepsToTheDevicesLimits) {
  LayoutPlanner planner(LayoutPolicy::kAnyLayout, 3, true,
                        {.descriptors_max = 10, .piece_bytes_max = 1024, .piece_alignment_bytes = 512});
  RequestLayout layout;
  for (int i = 0; i < 500; ++i) {
    const Segment data{data_gpa, 8192, true};
    ASSERT_TRUE(planner.Plan(*memory, area_gpa, {&data, 1}, &layout));
    ASSERT_LE(layout.chain.size(), 10U);
    for (const Segment& segment : layout.chain) {
      ASSERT_LE(segment.len, 1024U);
      if (segment.gpa >= data_gpa) {
        ASSERT_EQ(segment.len % 512, 0U);
      }
    }
  }
  const Segment too_much{data_gpa, 16384, true};
  EXPECT_FALSE(planner.Plan(*memory, area_gpa, {&too_much, 1}, &layout));
}

}  // namespace
}  // namespace cleat::perf::request_layout_test
