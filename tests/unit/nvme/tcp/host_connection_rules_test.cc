// SPDX-License-Identifier: Apache-2.0
// Controllers that do what they may not. Each ends the connection, for the reason named, and the controller is told.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nvme/tcp_host/host_connection.h"
#include "tests/unit/nvme/tcp/busy_host.h"
#include "tests/unit/nvme/tcp/peer.h"

namespace cleat::nvme::tcp {
namespace {

using test::Busy;
using test::Bytes;
using test::Controller;
using test::kReadBytes;
using test::kWriteBytes;
using test::operator+;

struct Claim {
  const char* name;
  TermReason reason;
  const char* text;
  std::function<Bytes(const Controller&)> sends;
  Digests digests;
};

Bytes With(Bytes pdu, size_t at, uint8_t value) {
  pdu.at(at) = value;
  return pdu;
}

const Claim kClaims[] = {
    {"UnknownType",
     TermReason::kInvalidHeaderField,
     "which no host receives",
     [](auto& c) { return With(c.Resp(0), 0, 0x0a); },
     {}},
    {"TypeOfAHost",
     TermReason::kInvalidHeaderField,
     "CapsuleCmd",
     [](auto& c) { return With(c.Resp(0), 0, 4); },
     {}},
    {"HeaderTooShort",
     TermReason::kInvalidHeaderField,
     "header of 20 bytes",
     [](auto& c) { return With(c.Resp(0), 2, 20); },
     {}},
    {"HeaderTooLong",
     TermReason::kInvalidHeaderField,
     "header of 255 bytes",
     [](auto& c) { return With(c.R2t(1, 0, 0, 4), 2, 255); },
     {}},
    {"ResponseTooShort",
     TermReason::kInvalidHeaderField,
     "of 23 bytes",
     [](auto& c) { return With(c.Resp(0), 4, 23); },
     {}},
    {"ResponseTooLong",
     TermReason::kInvalidHeaderField,
     "of 25 bytes",
     [](auto& c) { return With(c.Resp(0), 4, 25); },
     {}},
    {"HugeResponse",
     TermReason::kInvalidHeaderField,
     "CapsuleResp of 4278190104",
     [](auto& c) { return With(c.Resp(0), 7, 255); },
     {}},
    {"DataInsideItsHeader",
     TermReason::kInvalidHeaderField,
     "begins at byte 20",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 3, 20); },
     {}},
    {"DataInsideItsHeaderDigest",
     TermReason::kInvalidHeaderField,
     "begins at byte 24",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 3, 24); },
     {.header = true, .data = false}},
    {"DataNotAligned",
     TermReason::kInvalidHeaderField,
     "begins at byte 26",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 3, 26); },
     {}},
    {"DataEndsBeforeItBegins",
     TermReason::kInvalidHeaderField,
     "ends before its data",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 4, 24); },
     {}},
    {"DataLongerThanItsPdu",
     TermReason::kInvalidHeaderField,
     "of 31 bytes, 32 expected",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 4, 31); },
     {}},
    {"DataEmpty",
     TermReason::kInvalidHeaderField,
     "without data",
     [](auto& c) { return With(With(c.Data(0, 0, Bytes(8), 4), 16, 0), 4, 32); },
     {}},
    {"HeaderDigestNotAgreed",
     TermReason::kInvalidHeaderField,
     "a header digest",
     [](auto& c) { return With(c.Resp(0), 1, 1); },
     {}},
    {"HeaderDigestMissing",
     TermReason::kInvalidHeaderField,
     "no header digest",
     [](auto& c) { return With(c.Resp(0), 1, 0); },
     {.header = true, .data = false}},
    {"DataDigestMissing",
     TermReason::kInvalidHeaderField,
     "no data digest",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 1, 4); },
     {.header = false, .data = true}},
    {"DataDigestNotAgreed",
     TermReason::kInvalidHeaderField,
     "a data digest",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 1, 6); },
     {}},
    {"HeaderDigestWrong",
     TermReason::kHeaderDigest,
     "digest is wrong",
     [](auto& c) { return With(c.Resp(0), 25, 1); },
     {.header = true, .data = false}},
    {"HeaderChanged",
     TermReason::kHeaderDigest,
     "digest is wrong",
     [](auto& c) { return With(c.Data(0, 0, Bytes(8), 4), 13, 9); },
     {.header = true, .data = true}},
    {"IcRespAgain", TermReason::kPduSequence, "ICResp again", [](auto& c) { return c.IcResp(); }, {}},
    {"UnknownSlot",
     TermReason::kInvalidHeaderField,
     "which no command has",
     [](auto& c) { return c.Resp(900); },
     {}},
    {"FreeSlot",
     TermReason::kInvalidHeaderField,
     "which no command has",
     [](auto& c) { return c.Resp(3); },
     {}},
    {"OtherGeneration",
     TermReason::kInvalidHeaderField,
     "which no command has",
     [](auto& c) { return c.Resp(1 << 10); },
     {}},
    {"AnsweredTwice",
     TermReason::kInvalidHeaderField,
     "which no command has",
     [](auto& c) { return c.Resp(2) + c.Resp(2); },
     {}},
    {"DataAfterTheAnswer",
     TermReason::kInvalidHeaderField,
     "which no command has",
     [](auto& c) { return c.Resp(0) + c.Data(0, 0, Bytes(8), 4); },
     {}},
    {"R2tAfterTheAnswer",
     TermReason::kInvalidHeaderField,
     "which no command has",
     [](auto& c) { return c.Resp(1, 0x281) + c.R2t(1, 0, 0, 4); },
     {}},
    {"DataForAWrite",
     TermReason::kPduSequence,
     "reads nothing",
     [](auto& c) { return c.Data(1, 0, Bytes(8), 4); },
     {}},
    {"DataBeyondTheEnd",
     TermReason::kDataOutOfRange,
     "8193 bytes at 0",
     [](auto& c) { return c.Data(0, 0, Bytes(kReadBytes + 1), 4); },
     {}},
    {"DataWithAGap",
     TermReason::kDataOutOfRange,
     "at 8",
     [](auto& c) { return c.Data(0, 8, Bytes(8), 4); },
     {}},
    {"DataThatOverlaps",
     TermReason::kDataOutOfRange,
     "at 4, where 8",
     [](auto& c) { return c.Data(0, 0, Bytes(8), 0) + c.Data(0, 4, Bytes(8), 4); },
     {}},
    {"DataAtAHugeOffset",
     TermReason::kDataOutOfRange,
     "4294967288",
     [](auto& c) { return c.Data(0, 0xfffffff8, Bytes(16), 4); },
     {}},
    {"DataAfterTheLast",
     TermReason::kPduSequence,
     "after its last",
     [](auto& c) { return c.Data(0, 0, Bytes(8), 4) + c.Data(0, 8, Bytes(8), 4); },
     {}},
    {"SuccessThatIsNotTheLast",
     TermReason::kInvalidHeaderField,
     "SUCCESS",
     [](auto& c) { return c.Data(0, 0, Bytes(8), 8); },
     {}},
    {"R2tForARead",
     TermReason::kPduSequence,
     "no data to send",
     [](auto& c) { return c.R2t(0, 0, 0, 4); },
     {}},
    {"R2tForDataInTheCapsule",
     TermReason::kPduSequence,
     "no data to send",
     [](auto& c) { return c.R2t(2, 0, 0, 4); },
     {}},
    {"R2tForNothing",
     TermReason::kDataOutOfRange,
     "of 0 bytes",
     [](auto& c) { return c.R2t(1, 0, 0, 0); },
     {}},
    {"R2tBeyondTheEnd",
     TermReason::kDataOutOfRange,
     "of 20001 bytes",
     [](auto& c) { return c.R2t(1, 0, 0, kWriteBytes + 1); },
     {}},
    {"R2tThatWraps",
     TermReason::kDataOutOfRange,
     "of 4294967295 bytes",
     [](auto& c) { return c.R2t(1, 0, 0, 0xffffffff); },
     {}},
    {"R2tOutOfOrder",
     TermReason::kDataOutOfRange,
     "at 4096",
     [](auto& c) { return c.R2t(1, 0, 4096, 4096); },
     {}},
    {"TwoR2ts",
     TermReason::kLimitExceeded,
     "one at a time",
     [](auto& c) { return c.R2t(1, 0, 0, 4096) + c.R2t(1, 0, 4096, 4096); },
     {}},
    {"SuccessOfAWriteWithoutItsData",
     TermReason::kPduSequence,
     "the controller has 0",
     [](auto& c) { return c.Resp(1); },
     {}},
};

TEST(HostConnectionRules, EndsForEachRuleThatAControllerBreaksAndSaysWhich) {
  for (const Claim& claim : kClaims) {
    for (const size_t step : {size_t{1}, SIZE_MAX}) {
      SCOPED_TRACE(claim.name);
      Busy busy(claim.digests);
      busy.host.Receive(claim.sends(busy.controller), step);
      EXPECT_EQ(busy.host.ended, 1);
      EXPECT_NE(busy.host.why.find(claim.text), std::string::npos) << busy.host.why;
      EXPECT_NE(busy.host.why.find("the test's controller"), std::string::npos);
      EXPECT_EQ(busy.host.answers.size() + busy.host.left.size(), 3U);
      EXPECT_TRUE(busy.read.MarginsAreWhole() && busy.write.Untouched() && busy.small.Untouched());
      const Bytes last = busy.host.Send();
      ASSERT_GE(last.size(), 24U);
      EXPECT_EQ(last[0], 2);
      EXPECT_EQ(last[2], 24);
      EXPECT_EQ(test::Get(last, 4, 4), last.size());
      EXPECT_EQ(test::Get(last, 8, 2), static_cast<uint64_t>(claim.reason));
      EXPECT_FALSE(busy.host.connection.wants_to_send());
      std::vector<iovec> iovecs(4);
      EXPECT_EQ(busy.host.connection.ReceiveSpace(iovecs), 0U);
    }
  }
}

TEST(HostConnectionRules, RefusesEachTypeThatNoControllerSends) {
  for (uint32_t type = 0; type <= UINT8_MAX; ++type) {
    CommonHeader header;
    header.type = static_cast<PduType>(type);
    header.header_bytes = 24;
    header.pdu_bytes = 23;
    const auto refusal = CheckCommonHeader(header, {.header = true, .data = true});
    ASSERT_TRUE(refusal) << type;  // the five that are sent are too short
    const bool is_sent = type == 1 || type == 3 || type == 5 || type == 7 || type == 9;
    EXPECT_EQ(refusal->text.find("no host receives") == std::string::npos, is_sent) << refusal->text;
  }
}

}  // namespace
}  // namespace cleat::nvme::tcp
