// SPDX-License-Identifier: Apache-2.0
#include "virtio/inflight_log.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace cleat::virtio::inflight_log_test {
namespace {

// The vhost-user specification's structures, written down once more to compare the bytes with.
struct DescStateSplit {
  uint8_t inflight;
  uint8_t padding[5];
  uint16_t next;
  uint64_t counter;
};
constexpr uint16_t kSize = 8;
struct QueueRegionSplit {
  uint64_t features;
  uint16_t version;
  uint16_t desc_num;
  uint16_t last_batch_head;
  uint16_t used_idx;
  DescStateSplit desc[kSize];
};
static_assert(offsetof(QueueRegionSplit, desc) == InflightLog::kHeaderBytes);
static_assert(sizeof(DescStateSplit) == InflightLog::kEntryBytes);
static_assert(sizeof(QueueRegionSplit) == InflightLog::Bytes(kSize));

class InflightLogTest : public ::testing::Test {
 protected:
  InflightMemory memory() { return {reinterpret_cast<uint8_t*>(&region), sizeof(region), nullptr}; }
  void Attach(uint16_t used_index = 0) {
    const Status status = log.Attach(memory(), kSize, used_index);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  QueueRegionSplit region{};
  InflightLog log;
};

TEST_F(InflightLogTest, NoMemoryNoLog) {
  EXPECT_TRUE(log.Attach({}, kSize, 0).ok());
  EXPECT_FALSE(log.enabled());
  log.Fetched(3);
  log.Used(3);
  log.Published(1);
  EXPECT_TRUE(log.InFlight().empty());
}

TEST_F(InflightLogTest, FreshLogIsPrepared) {
  Attach(700);
  EXPECT_EQ(region.version, 1);
  EXPECT_EQ(region.desc_num, kSize);
  EXPECT_EQ(region.used_idx, 700);
  EXPECT_TRUE(log.InFlight().empty());
}

TEST_F(InflightLogTest, BytesOfABatch) {
  Attach();
  log.Fetched(5);
  log.Fetched(2);
  log.Fetched(7);
  EXPECT_EQ(region.desc[5].inflight, 1);
  EXPECT_EQ(region.desc[5].counter, 0U);
  EXPECT_EQ(region.desc[2].counter, 1U);
  EXPECT_EQ(region.desc[7].counter, 2U);
  log.Used(7);
  log.Used(5);
  EXPECT_EQ(region.last_batch_head, 5);
  EXPECT_EQ(region.desc[5].next, 7);
  EXPECT_EQ(region.desc[7].inflight, 1);  // until the guest can see it
  log.Published(2);
  EXPECT_EQ(region.desc[7].inflight, 0);
  EXPECT_EQ(region.desc[5].inflight, 0);
  EXPECT_EQ(region.desc[2].inflight, 1);
  EXPECT_EQ(region.used_idx, 2);
}

TEST_F(InflightLogTest, InFlightInTheOrderOfFetching) {
  Attach();
  for (const uint16_t head : {6, 1, 4, 0}) log.Fetched(head);
  log.Used(1);
  log.Published(1);
  log.Fetched(1);
  EXPECT_EQ(log.InFlight(), (std::vector<uint16_t>{6, 4, 0, 1}));
}

TEST_F(InflightLogTest, SuccessorSeesWhatWasInFlightAndCountsOn) {
  Attach(65535);
  for (const uint16_t head : {6, 1, 4}) log.Fetched(head);
  InflightLog successor;
  ASSERT_TRUE(successor.Attach(memory(), kSize, 65535).ok());
  successor.Fetched(0);
  EXPECT_EQ(successor.InFlight(), (std::vector<uint16_t>{6, 1, 4, 0}));
  EXPECT_EQ(region.desc[0].counter, 3U);
}

TEST_F(InflightLogTest, KilledBeforeTheUsedIndexTheBatchIsInFlight) {
  Attach(10);
  log.Fetched(3);
  log.Fetched(4);
  log.Used(4);
  log.Used(3);
  InflightLog successor;
  ASSERT_TRUE(successor.Attach(memory(), kSize, 10).ok());
  EXPECT_EQ(successor.InFlight(), (std::vector<uint16_t>{3, 4}));
  // Its own batches are not confused by the half one: the list has a loop behind them.
  successor.Used(3);
  successor.Used(4);
  successor.Published(12);
  EXPECT_TRUE(successor.InFlight().empty());
}

TEST_F(InflightLogTest, KilledAfterTheUsedIndexTheBatchIsDone) {
  Attach(65534);
  for (const uint16_t head : {3, 4, 5, 6}) log.Fetched(head);
  log.Used(3);
  log.Published(65535);
  log.Used(6);
  log.Used(4);
  InflightLog successor;  // the ring's index has moved by two
  ASSERT_TRUE(successor.Attach(memory(), kSize, 1).ok());
  EXPECT_EQ(successor.InFlight(), (std::vector<uint16_t>{5}));
  EXPECT_EQ(region.used_idx, 1);
}

TEST_F(InflightLogTest, RingThatBeganAnewIsNoBatch) {
  Attach(500);
  log.Fetched(3);
  InflightLog successor;
  ASSERT_TRUE(successor.Attach(memory(), kSize, 0).ok());
  EXPECT_EQ(region.used_idx, 0);
  EXPECT_TRUE(successor.InFlight().empty());  // what head 3 names now is another request
}

TEST_F(InflightLogTest, AFreshLogHasNothingInFlightWhateverItsBytes) {
  region.desc[3].inflight = 1;
  Attach(500);
  EXPECT_FALSE(log.resumed());
  EXPECT_TRUE(log.InFlight().empty());
  log.Fetched(2);
  ForgetInflight(memory());
  InflightLog successor;
  ASSERT_TRUE(successor.Attach(memory(), kSize, 501).ok());
  EXPECT_FALSE(successor.resumed());
  EXPECT_TRUE(successor.InFlight().empty());
  EXPECT_EQ(region.used_idx, 501);
  InflightLog third;
  ASSERT_TRUE(third.Attach(memory(), kSize, 501).ok());
  EXPECT_TRUE(third.resumed());
}

TEST_F(InflightLogTest, AMisalignedOneIsRefusedAndNotTouched) {
  InflightMemory odd = memory();
  ++odd.base;
  --odd.size_bytes;
  EXPECT_FALSE(log.Attach(odd, kSize / 2, 0).ok());
  region.version = 0x0101;
  ForgetInflight(odd);
  EXPECT_EQ(region.version, 0x0101);
}

TEST_F(InflightLogTest, ListThatLeavesTheQueueEndsThere) {
  Attach(0);
  log.Fetched(1);
  log.Fetched(2);
  log.Used(1);
  log.Used(2);
  region.desc[2].next = 60000;
  log.Published(2);
  EXPECT_EQ(region.desc[2].inflight, 0);
  region.used_idx = 0;
  region.last_batch_head = 60000;
  InflightLog successor;
  ASSERT_TRUE(successor.Attach(memory(), kSize, 3).ok());
}

TEST_F(InflightLogTest, RefusesWhatDoesNotFit) {
  InflightMemory small = memory();
  small.size_bytes -= 1;
  const Status too_small = log.Attach(small, kSize, 0);
  ASSERT_FALSE(too_small.ok());
  EXPECT_NE(too_small.error().message.find("143 bytes, a queue of 8 needs 144"), std::string::npos)
      << too_small.error().message;

  InflightMemory odd = memory();
  odd.base += 4;
  odd.size_bytes -= 4;
  EXPECT_FALSE(log.Attach(odd, 4, 0).ok());

  region.version = 2;
  EXPECT_FALSE(log.Attach(memory(), kSize, 0).ok());
  region.version = 1;
  region.desc_num = kSize / 2;
  EXPECT_FALSE(log.Attach(memory(), kSize, 0).ok());
  EXPECT_FALSE(log.enabled());
}

TEST_F(InflightLogTest, ALogForALargerQueueIsFine) {
  region.desc_num = 256;
  Attach();
  EXPECT_EQ(region.desc_num, 256);
}

}  // namespace
}  // namespace cleat::virtio::inflight_log_test
