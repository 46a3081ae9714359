// SPDX-License-Identifier: Apache-2.0
// Where a capsule says that its data is, and which status what it may not say has.
#include "nvme/rdma/keyed_sgl.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "nvme/fabrics/queues/target_queue.h"

namespace cleat::nvme::rdma::keyed_sgl_test {
namespace {

using fabrics::SubmissionEntry;

constexpr uint8_t kWrite = 1;
constexpr uint8_t kRead = 2;

SubmissionEntry EntryOf(const fabrics::SglDescriptor& descriptor, uint8_t opcode = kWrite) {
  SubmissionEntry entry;
  entry.opcode = opcode;
  entry.data = descriptor;
  return entry;
}
SubmissionEntry InCapsule(uint64_t offset, uint32_t bytes, uint8_t opcode = kWrite) {
  return EntryOf({.address = offset, .length_bytes = bytes, .reserved = {}, .type = fabrics::kSglInCapsule},
                 opcode);
}
SubmissionEntry Segment(uint64_t offset, uint32_t bytes) {
  return EntryOf({.address = offset, .length_bytes = bytes, .reserved = {}, .type = kSglLastInCapsule});
}
std::vector<uint8_t> BytesOf(const std::vector<KeyedDescriptor>& descriptors) {
  std::vector<uint8_t> bytes(descriptors.size() * kDescriptorBytes);
  if (!bytes.empty()) std::memcpy(bytes.data(), descriptors.data(), bytes.size());
  return bytes;
}
// The status code, 0: none.
uint32_t CodeOf(const SubmissionEntry& entry, const std::vector<uint8_t>& behind = {}) {
  CommandData data;
  const auto wrong = ParseData(entry, behind, data);
  if (wrong) {
    EXPECT_TRUE(wrong->do_not_retry());
  }
  return wrong ? wrong->code() : 0;
}

TEST(KeyedSgl, OneDescriptorNamesTheHostsMemory) {
  CommandData data;
  const auto keyed = MakeKeyed(0x123456789abc, 0x012345, 0xfedcba98, true);
  std::vector<uint8_t> bytes(sizeof(keyed));
  std::memcpy(bytes.data(), &keyed, sizeof(keyed));
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin() + 8, bytes.end()),
            (std::vector<uint8_t>{0x45, 0x23, 0x01, 0x98, 0xba, 0xdc, 0xfe, 0x4f}));
  ASSERT_FALSE(ParseData(EntryOf(EntryDescriptorOf(keyed)), {}, data));
  EXPECT_EQ(data.place, DataPlace::kHostMemory);
  EXPECT_EQ(data.bytes, 0x012345U);
  ASSERT_EQ(data.piece_count, 1U);
  EXPECT_EQ(data.pieces[0].address, 0x123456789abcU);
  EXPECT_EQ(data.pieces[0].length_bytes, 0x012345U);
  EXPECT_EQ(data.pieces[0].key, 0xfedcba98U);
  EXPECT_TRUE(data.invalidates);
  EXPECT_EQ(data.key_to_invalidate, 0xfedcba98U);
  ASSERT_FALSE(ParseData(EntryOf(EntryDescriptorOf(MakeKeyed(1, 2, 3, false))), {}, data));
  EXPECT_FALSE(data.invalidates);
}

TEST(KeyedSgl, SeveralDescriptorsAreInTheCapsule) {
  std::vector<KeyedDescriptor> descriptors;
  for (uint32_t i = 0; i < kDescriptorsMax; ++i)
    descriptors.push_back(MakeKeyed(i * 4096, i * 512, 70 + i, false));
  std::vector<uint8_t> behind(32, 0xff);
  const auto bytes = BytesOf(descriptors);
  behind.insert(behind.end(), bytes.begin(), bytes.end());
  CommandData data;
  ASSERT_FALSE(ParseData(Segment(32, static_cast<uint32_t>(bytes.size())), behind, data));
  EXPECT_EQ(data.place, DataPlace::kHostMemory);
  EXPECT_EQ(data.bytes, 15U * 16 / 2 * 512);
  ASSERT_EQ(data.piece_count, 15U) << "the empty one is none";
  EXPECT_EQ(data.host().back().key, 85U);
  EXPECT_FALSE(data.invalidates);
}

TEST(KeyedSgl, DataIsInTheCapsuleOrNowhere) {
  CommandData data;
  ASSERT_FALSE(ParseData(InCapsule(8, 100), std::vector<uint8_t>(108), data));
  EXPECT_EQ(data.place, DataPlace::kInCapsule);
  EXPECT_EQ(data.offset_bytes, 8U);
  EXPECT_EQ(data.bytes, 100U);
  ASSERT_FALSE(ParseData(EntryOf(EntryDescriptorOf(MakeKeyed(0, 0, 0, true))), {}, data));
  EXPECT_EQ(data.place, DataPlace::kNowhere);
  EXPECT_FALSE(data.invalidates) << "a key that no data has";
  EXPECT_EQ(CodeOf(InCapsule(0, 0)), 0U);
  EXPECT_EQ(CodeOf(EntryOf({})), 0U) << "of a command without data hosts say what they like";
}

TEST(KeyedSgl, WhatIsWrongHasItsStatus) {
  const std::vector<uint8_t> behind(64);
  EXPECT_EQ(CodeOf(InCapsule(0, 65), behind), 0x0fU);
  EXPECT_EQ(CodeOf(InCapsule(1, 64), behind), 0x0fU);
  EXPECT_EQ(CodeOf(InCapsule(65, 1), behind), 0x16U);
  EXPECT_EQ(CodeOf(InCapsule(UINT64_MAX, 1), behind), 0x16U);
  EXPECT_EQ(CodeOf(InCapsule(0, UINT32_MAX), behind), 0x0fU);
  EXPECT_EQ(CodeOf(InCapsule(0, 64, kRead), behind), 0x11U) << "there is no way back into a capsule";
  SubmissionEntry fabrics_receive = InCapsule(0, 64, 0x7f);
  fabrics_receive.nsid = 6;
  EXPECT_EQ(CodeOf(fabrics_receive, behind), 0x11U);
  fabrics_receive.nsid = 5;
  EXPECT_EQ(CodeOf(fabrics_receive, behind), 0U);
  EXPECT_EQ(
      CodeOf(EntryOf({.address = 0, .length_bytes = 1, .reserved = {}, .type = fabrics::kSglByTransport})),
      0x11U);
  EXPECT_EQ(CodeOf(EntryOf(EntryDescriptorOf(MakeKeyed(0, 64, 1, false))), behind), 0x0fU)
      << "what came along is nobody's";
  EXPECT_EQ(CodeOf(EntryOf(EntryDescriptorOf(MakeKeyed(0, fabrics::kTransferBytesMax, 1, false)))), 0U);
  EXPECT_EQ(CodeOf(EntryOf(EntryDescriptorOf(MakeKeyed(0, fabrics::kTransferBytesMax + 1, 1, false)))),
            0x0fU);
  EXPECT_EQ(CodeOf(EntryOf(EntryDescriptorOf(MakeKeyed(UINT64_MAX - 1, 2, 1, false)))), 0x0fU) << "it wraps";
}

TEST(KeyedSgl, WhatIsWrongInASegmentHasItsStatus) {
  EXPECT_EQ(CodeOf(Segment(0, 0)), 0x0dU);
  EXPECT_EQ(CodeOf(Segment(0, 17), std::vector<uint8_t>(32)), 0x0dU);
  EXPECT_EQ(CodeOf(Segment(0, 17 * kDescriptorBytes), std::vector<uint8_t>(272)), 0x0eU);
  EXPECT_EQ(CodeOf(Segment(0, 32), std::vector<uint8_t>(31)), 0x0dU);
  EXPECT_EQ(CodeOf(Segment(33, 16), std::vector<uint8_t>(32)), 0x16U);
  EXPECT_EQ(CodeOf(Segment(UINT64_MAX - 15, 16), std::vector<uint8_t>(32)), 0x16U);
  EXPECT_EQ(CodeOf(Segment(0, 16), std::vector<uint8_t>(16)), 0x11U) << "a data block without a key";
  constexpr uint32_t kHalf = fabrics::kTransferBytesMax / 2;
  EXPECT_EQ(CodeOf(Segment(0, 32), BytesOf({MakeKeyed(0, kHalf, 1, false), MakeKeyed(0, kHalf, 2, false)})),
            0U);
  EXPECT_EQ(
      CodeOf(Segment(0, 32), BytesOf({MakeKeyed(0, kHalf, 1, false), MakeKeyed(0, kHalf + 1, 2, false)})),
      0x0fU);
  EXPECT_EQ(CodeOf(Segment(0, 32), BytesOf({MakeKeyed(0, 1, 1, true), MakeKeyed(0, 1, 1, true)})), 0U);
  EXPECT_EQ(CodeOf(Segment(0, 32), BytesOf({MakeKeyed(0, 1, 1, true), MakeKeyed(0, 1, 2, true)})), 0x11U)
      << "one answer invalidates one key";
}

TEST(KeyedSgl, WhateverComesStaysWithinItsLimits) {
  Random random(7);
  static constexpr uint8_t kTypes[] = {kSglKeyed, kSglKeyedInvalidate, kSglLastInCapsule,
                                       fabrics::kSglInCapsule, 0};
  uint32_t good = 0;
  for (uint32_t round = 0; round < 200'000; ++round) {
    std::vector<uint8_t> behind(random.Below(400));
    for (size_t at = 0; at < behind.size(); ++at) {
      behind[at] = at % 16 == 15         ? kTypes[random.Below(2)]
                   : random.Chance(1, 4) ? static_cast<uint8_t>(random.Next())
                                         : 0;
    }
    fabrics::SglDescriptor descriptor;
    descriptor.address = random.Chance(1, 2) ? random.Below(64) : random.Next();
    descriptor.length_bytes =
        static_cast<uint32_t>(random.Chance(1, 2) ? random.Below(20) * 16 : random.Next());
    descriptor.type = kTypes[random.Below(std::size(kTypes))];
    const auto entry = EntryOf(descriptor, static_cast<uint8_t>(random.Next()));
    CommandData data;
    if (ParseData(entry, behind, data)) continue;
    ++good;
    ASSERT_LE(data.bytes, fabrics::kTransferBytesMax);
    ASSERT_LE(data.piece_count, kDescriptorsMax);
    ASSERT_EQ(data.place == DataPlace::kNowhere, data.bytes == 0);
    uint64_t bytes = 0;
    for (const HostPiece& piece : data.host()) {
      ASSERT_GT(piece.length_bytes, 0U);
      bytes += piece.length_bytes;
    }
    if (data.place == DataPlace::kHostMemory) {
      ASSERT_EQ(bytes, data.bytes);
    }
    if (data.place == DataPlace::kInCapsule) {
      ASSERT_LE(uint64_t{data.offset_bytes} + data.bytes, behind.size());
    }
  }
  EXPECT_GT(good, 1000U);
}

}  // namespace
}  // namespace cleat::nvme::rdma::keyed_sgl_test
