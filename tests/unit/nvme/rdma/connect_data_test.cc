// SPDX-License-Identifier: Apache-2.0
// What the connection manager carries: what each side says is what the other one reads, and what is wrong has the status that the specification has for it.
#include "nvme/rdma/connect_data.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cleat::nvme::rdma::connect_data_test {
namespace {

constexpr QueueLimits kLimits{.admin_entries_max = 32, .io_entries_max = 128, .queue_id_max = 8};

template <typename Record>
std::vector<uint8_t> BytesOf(const Record& record, size_t padding = 0) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&record);
  std::vector<uint8_t> bytes(at, at + sizeof(record));
  bytes.resize(bytes.size() + padding, 0xaa);
  return bytes;
}

std::optional<RejectStatus> Parse(const ConnectRequest& request) {
  AskedQueue asked;
  return ParseRequest(BytesOf(request), kLimits, asked);
}

TEST(RdmaConnectData, ARequestIsWhatTheHostAsksFor) {
  AskedQueue asked;
  ASSERT_EQ(ParseRequest(BytesOf(RequestOf(3, 128, 0x1234), 24), kLimits, asked), std::nullopt)
      << "padded, as it arrives over RoCE";
  EXPECT_EQ(asked.queue_id, 3);
  EXPECT_EQ(asked.entries, 128U);
  EXPECT_EQ(asked.answers_max, 128U);
  EXPECT_EQ(asked.controller_id, 0x1234);
}

TEST(RdmaConnectData, BytesAreWhereLinuxHasThem) {
  const auto bytes = BytesOf(RequestOf(0x0102, 0x0304, 0x0506));
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin(), bytes.begin() + 10),
            (std::vector<uint8_t>{0, 0, 0x02, 0x01, 0x04, 0x03, 0x03, 0x03, 0x06, 0x05}))
      << "HSQSIZE counts from 0, HRQSIZE from 1";
  EXPECT_EQ(BytesOf(ReplyOf(0x0708))[2], 0x08);
  EXPECT_EQ(BytesOf(RejectOf(RejectStatus::kNoResources)), (std::vector<uint8_t>{0, 0, 6, 0}));
}

TEST(RdmaConnectData, ARequestIsRejectedByTheStatusOfItsFault) {
  AskedQueue asked;
  const auto good = BytesOf(RequestOf(1, 16, 0));
  EXPECT_EQ(ParseRequest({}, kLimits, asked), RejectStatus::kInvalidLength);
  EXPECT_EQ(ParseRequest(std::span(good).first(31), kLimits, asked), RejectStatus::kInvalidLength);
  ConnectRequest request = RequestOf(1, 16, 0);
  request.record_format = 1;
  EXPECT_EQ(Parse(request), RejectStatus::kInvalidRecordFormat);
  EXPECT_EQ(Parse(RequestOf(9, 16, 0)), RejectStatus::kInvalidQueueId);
  EXPECT_EQ(Parse(RequestOf(8, 128, 0)), std::nullopt);
  EXPECT_EQ(Parse(RequestOf(8, 129, 0)), RejectStatus::kInvalidHostSendSize);
  EXPECT_EQ(Parse(RequestOf(0, 32, 0)), std::nullopt);
  EXPECT_EQ(Parse(RequestOf(0, 33, 0)), RejectStatus::kInvalidHostSendSize) << "of an admin queue";
  request = RequestOf(1, 16, 0);
  request.host_send_size = 0;
  EXPECT_EQ(Parse(request), RejectStatus::kInvalidHostSendSize) << "a queue has two entries at least";
  request.host_send_size = UINT16_MAX;
  EXPECT_EQ(Parse(request), RejectStatus::kInvalidHostSendSize);
  request = RequestOf(1, 16, 0);
  request.host_receive_size = 0;
  EXPECT_EQ(Parse(request), RejectStatus::kInvalidHostReceiveSize);
}

TEST(RdmaConnectData, AHostReadsReplyAndReject) {
  const auto reply = ParseReply(BytesOf(ReplyOf(128), 164));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(*reply, 128U);
  const auto whole = BytesOf(ReplyOf(128));
  EXPECT_FALSE(ParseReply(std::span(whole).first(31)).ok());
  EXPECT_FALSE(ParseReply(BytesOf(ReplyOf(0))).ok());
  const Error busy = ParseReject(BytesOf(RejectOf(RejectStatus::kNoResources), 144));
  EXPECT_EQ(busy.code, ErrorCode::kUnavailable);
  EXPECT_NE(busy.message.find("no resources (status 6)"), std::string::npos) << busy.message;
  EXPECT_EQ(ParseReject(BytesOf(RejectOf(RejectStatus::kInvalidQueueId))).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ParseReject({}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ParseReject(BytesOf(ConnectReject{.status = 0xffff})).code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cleat::nvme::rdma::connect_data_test
