// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp_host/host_connection.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/nvme/tcp/busy_host.h"
#include "tests/unit/nvme/tcp/peer.h"

namespace cleat::nvme::tcp {
namespace {

using fabrics::Reached;
using test::Busy;
using test::Bytes;
using test::Controller;
using test::Host;
using test::kReadBytes;
using test::kWriteBytes;
using test::TestMemory;
using test::operator+;
using Answers = std::vector<Host::Answer>;
using Lefts = std::vector<Host::Left>;

constexpr uint16_t kTransient = 0x22;

TEST(HostConnection, AsksForWhatItsOptionsSayAndIsConnectedByTheAnswer) {
  Host host({.name = {}, .digests = {.header = true, .data = true}});
  EXPECT_EQ(host.connection.room(), 0U);
  const Bytes request = host.Send();
  ASSERT_EQ(request.size(), 128U);
  const Bytes start = {0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0};
  EXPECT_EQ(Bytes(request.begin(), request.begin() + 16), start);
  host.Receive(Controller::IcResp(3));
  EXPECT_EQ(host.connected, 1);
  EXPECT_EQ(host.connection.room(), 128U);
}

TEST(HostConnection, RefusesAnAnswerToItsIcReqThatIsOtherThanAsked) {
  struct Case {
    Bytes response;
    Digests asked;
    std::string text;
  };
  Bytes short_one = Controller::IcResp(0);
  short_one[4] = 127;
  const Case cases[] = {
      {Controller::IcResp(0), {.header = true, .data = false}, "other digests"},
      {Controller::IcResp(1), {}, "other digests"},
      {Controller::IcResp(2), {.header = false, .data = false}, "other digests"},
      {Controller::IcResp(1), {.header = true, .data = true}, "other digests"},
      {Controller::IcResp(0, 4092), {}, "MAXH2CDATA is 4092"},
      {Controller::IcResp(0, 4098), {}, "MAXH2CDATA is 4098"},
      {Controller::IcResp(0, 65536, 32), {}, "CPDA is 32"},
      {Controller::IcResp(0, 65536, 0, 1), {}, "format version 1"},
      {short_one, {}, "127 bytes"},
      {Controller{}.Resp(0), {}, "CapsuleResp before ICResp"},
      {Controller{}.R2t(0, 0, 0, 4), {}, "R2T before ICResp"},
  };
  for (const Case& c : cases) {
    Host host({.name = {}, .digests = c.asked});
    host.Send();
    host.Receive(c.response);
    EXPECT_EQ(host.connected, 0) << c.text;
    EXPECT_EQ(host.ended, 1) << c.text;
    EXPECT_NE(host.why.find(c.text), std::string::npos) << host.why;
  }
}

TEST(HostConnection, RefusesAnAnswerBeforeTheQuestion) {
  Host host;
  host.Receive(Controller::IcResp(0));
  EXPECT_EQ(host.ended, 1);
  EXPECT_EQ(host.connected, 0);
}

TEST(HostConnection, SendsEntriesWithTheirDescriptorsAndDataThatFitsAlong) {
  Busy busy;
  const Bytes& sent = busy.capsules;
  ASSERT_EQ(sent.size(), 72U + 72 + 72 + 128);
  const auto capsule = [&sent](size_t at) {
    return std::vector<uint64_t>{test::Get(sent, at, 1),         test::Get(sent, at + 3, 1),
                                 test::Get(sent, at + 4, 4),     test::Get(sent, at + 8, 1),
                                 test::Get(sent, at + 10, 2),    test::Get(sent, at + 8 + 32, 4),
                                 test::Get(sent, at + 8 + 39, 1)};
  };
  // Type, PDO, PLEN, opcode, CID, the descriptor's length and type.
  EXPECT_EQ(capsule(0), (std::vector<uint64_t>{4, 0, 72, 2, 0, kReadBytes, 0x5a}));
  EXPECT_EQ(capsule(72), (std::vector<uint64_t>{4, 0, 72, 1, 1, kWriteBytes, 0x5a}));
  EXPECT_EQ(capsule(144), (std::vector<uint64_t>{4, 72, 200, 1, 2, 128, 0x01}));
  EXPECT_EQ(Bytes(sent.begin() + 216, sent.end()), busy.small.Content());
}

// Three rounds, so that the queue of what is to be sent begins anew in its midst.
TEST(HostConnection, SendsCommandsInTheirOrderWhateverTheDepth) {
  for (const uint32_t depth : {1U, 2U, 3U, 5U, 31U, 127U}) {
    Host host({.name = {}, .depth = depth});
    host.Connect(Controller::IcResp(0));
    const TestMemory data({512}, 1);
    uint16_t cid = 0;
    for (int round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < depth; ++i) host.Read(i, data);
      const Bytes sent = host.Send(SIZE_MAX, 2);
      ASSERT_EQ(sent.size(), size_t{72} * depth) << depth;
      for (uint32_t i = 0; i < depth; ++i, ++cid) {
        EXPECT_EQ(test::Get(sent, size_t{72} * i + 10, 2), cid) << depth;
        host.Receive(Controller{}.Resp(cid));
      }
    }
    EXPECT_EQ(host.answers.size(), size_t{3} * depth);
    EXPECT_EQ(host.ended, 0) << host.why;
  }
}

TEST(HostConnection, SendsConnectsDataInItsCapsuleWhateverTheQueueCarries) {
  Host host({.name = {}, .in_capsule_bytes = 0});
  host.Connect(Controller::IcResp(0));
  TestMemory data({1024}, 1);
  fabrics::QueuedCommand command{.entry = {}, .to_target = data.segments, .from_target = {}, .cookie = 1};
  command.entry.opcode = fabrics::kFabricsOpcode;
  host.connection.Submit(command);
  EXPECT_EQ(host.Send().size(), 72U + 1024);
  host.Write(2, data);
  EXPECT_EQ(host.Send().size(), 72U);
}

TEST(HostConnection, PadsToTheControllersAlignment) {
  for (uint32_t cpda = 0; cpda <= 31; ++cpda) {
    Host host({.name = {}, .digests = {.header = true, .data = true}});
    host.Connect(Controller::IcResp(3, 65536, static_cast<uint8_t>(cpda)));
    TestMemory data({512}, 1);
    host.Write(1, data);
    const Bytes sent = host.Send();
    const size_t pdo = sent[3];
    EXPECT_EQ(pdo % ((cpda + 1) * 4), 0U);
    ASSERT_EQ(sent.size(), pdo + 512 + 4);
    EXPECT_EQ(test::Get(sent, 4, 4), sent.size());
    EXPECT_EQ(sent[1], 3);
    EXPECT_EQ(test::Get(sent, 72, 4), test::SlowCrc(sent.data(), 72));
    EXPECT_EQ(Bytes(sent.begin() + static_cast<ptrdiff_t>(pdo), sent.end() - 4), data.Content());
    EXPECT_EQ(test::Get(sent, pdo + 512, 4), test::SlowCrc(sent.data() + pdo, 512));
  }
}

TEST(HostConnection, CutsDataAtTheControllersLimitAndEchoesTheTag) {
  Host host;
  host.Connect(Controller::IcResp(0, 8192));
  TestMemory data({5000, kWriteBytes - 5000}, 1);
  host.Write(1, data);
  host.Send();
  host.Receive(Controller{}.R2t(0, 0xabcd, 0, kWriteBytes));
  Bytes content;
  const Bytes sent = host.Send();
  for (size_t at = 0; at < sent.size(); at += test::Get(sent, at + 4, 4)) {
    EXPECT_EQ(sent[at], 6);
    EXPECT_EQ(test::Get(sent, at + 10, 2), 0xabcdU);
    EXPECT_EQ(test::Get(sent, at + 12, 4), content.size());
    const size_t bytes = test::Get(sent, at + 16, 4);
    EXPECT_LE(bytes, 8192U);
    content = content + Bytes(sent.begin() + static_cast<ptrdiff_t>(at) + 24,
                              sent.begin() + static_cast<ptrdiff_t>(at + 24 + bytes));
    EXPECT_EQ((sent[at + 1] & 4) != 0, content.size() == kWriteBytes);
  }
  EXPECT_EQ(content, data.Content());
  host.Receive(Controller{}.Resp(0));
  EXPECT_EQ(host.answers, (Answers{{1, 0, 0}}));
}

TEST(HostConnection, PassesOnHowMuchCameWhateverTheEnd) {
  Busy busy;
  busy.host.Receive(busy.controller.Data(0, 0, Bytes(4096, 7), 4) + busy.controller.Resp(0));
  EXPECT_EQ(busy.host.answers, (Answers{{1, 0, 4096}}));
  EXPECT_TRUE(busy.read.MarginsAreWhole());
}

TEST(HostConnection, CompletesAReadByTheSuccessOfItsLastData) {
  Busy busy;
  busy.host.Receive(busy.controller.Data(0, 0, Bytes(4096, 7), 0) +
                    busy.controller.Data(0, 4096, Bytes(4096, 8), 12, 100));
  EXPECT_EQ(busy.host.answers, (Answers{{1, 0, kReadBytes}}));
  EXPECT_EQ(busy.read.Content(), Bytes(4096, 7) + Bytes(4096, 8));
}

TEST(HostConnection, FailsOnlyTheCommandWhoseDataDigestIsWrong) {
  for (const bool by_success : {false, true}) {
    Busy busy({.header = true, .data = true});
    Bytes data = busy.controller.Data(0, 0, Bytes(kReadBytes, 7), by_success ? 12 : 4);
    data[1000] ^= 1;
    busy.host.Receive(by_success ? data : data + busy.controller.Resp(0));
    EXPECT_EQ(busy.host.answers, (Answers{{1, kTransient, 0}}));
    EXPECT_EQ(busy.host.ended, 0);
    busy.host.Receive(busy.controller.Resp(2));
    EXPECT_EQ(busy.host.answers.size(), 2U);
  }
}

TEST(HostConnection, LeavesTheControllersOwnErrorWhereTheDigestIsWrongToo) {
  Busy busy({.header = false, .data = true});
  Bytes data = busy.controller.Data(0, 0, Bytes(kReadBytes, 7), 4);
  data.back() ^= 1;
  busy.host.Receive(data + busy.controller.Resp(0, 0x281));
  EXPECT_EQ(busy.host.answers, (Answers{{1, 0x281, 0}}));
}

TEST(HostConnection, RefusesAnAnswerToACommandThatHasNotBeenSentWhole) {
  Host host;
  host.Connect(Controller::IcResp(0));
  TestMemory memory({512}, 1);
  host.Read(1, memory);
  EXPECT_EQ(host.Send(71).size(), 71U);
  host.Receive(Controller{}.Data(0, 0, Bytes(8), 12));
  EXPECT_EQ(host.ended, 1);
  EXPECT_NE(host.why.find("not sent yet"), std::string::npos) << host.why;
  EXPECT_TRUE(memory.Untouched());
  // Within a PDU no other begins.
  EXPECT_TRUE(host.Send().empty());
}

TEST(HostConnection, NamesTheControllersReasonForItsEnd) {
  Busy busy;
  busy.host.Receive(Controller::TermReq(4, 0x1234));
  EXPECT_EQ(busy.host.ended, 1);
  EXPECT_NE(busy.host.why.find("data transfer out of range (FES 4, FEI 0x1234)"), std::string::npos)
      << busy.host.why;
  EXPECT_TRUE(busy.host.Send().empty());
}

TEST(HostConnection, KnowsALateAnswerByItsCid) {
  constexpr uint16_t kUses = 1000;
  Host host({.name = {}, .depth = 1});
  host.Connect(Controller::IcResp(0));
  TestMemory memory({512}, 1);
  for (uint16_t use = 0; use < kUses; ++use) {
    host.Read(use, memory);
    const Bytes sent = host.Send();
    EXPECT_EQ(test::Get(sent, 10, 2), use);
    host.Receive(Controller{}.Resp(use));
  }
  EXPECT_EQ(host.answers.size(), kUses);
  host.Read(kUses, memory);
  host.Send();
  host.Receive(Controller{}.Resp(5));
  EXPECT_EQ(host.ended, 1);
  EXPECT_EQ(host.left, (Lefts{{kUses, Reached::kPerhapsAll}}));
}

// ---- What is answered while its data is being sent.

TEST(HostConnection, HoldsAnErrorBackUntilThePduThatIsHalfSentHasLeft) {
  Busy busy;
  busy.host.Receive(busy.controller.R2t(1, 5, 0, kWriteBytes));
  EXPECT_EQ(busy.host.Send(1000).size(), 1000U);
  busy.host.Receive(busy.controller.Resp(1, 0x281));
  EXPECT_TRUE(busy.host.answers.empty());
  EXPECT_EQ(busy.host.Send(kWriteBytes + 24 - 1001).size(), kWriteBytes + 24U - 1001);
  EXPECT_TRUE(busy.host.answers.empty());
  EXPECT_EQ(busy.host.Send().size(), 1U);
  EXPECT_EQ(busy.host.answers, (Answers{{2, 0x281, 0}}));
  EXPECT_EQ(busy.host.ended, 0);
}

TEST(HostConnection, RefusesASecondAnswerWhileTheFirstIsHeldBack) {
  Busy busy;
  busy.host.Receive(busy.controller.R2t(1, 5, 0, kWriteBytes));
  busy.host.Send(1000);
  busy.host.Receive(busy.controller.Resp(1, 0x281) + busy.controller.Resp(1, 0x281));
  EXPECT_EQ(busy.host.ended, 1);
  // The command was answered: that stands.
  EXPECT_EQ(busy.host.answers, (Answers{{2, 0x281, 0}}));
  EXPECT_EQ(busy.host.left.size(), 2U);
  EXPECT_TRUE(busy.host.Send().empty());
}

TEST(HostConnection, SendsNothingMoreOfACommandThatFailedBeforeItsDataBegan) {
  Busy busy;
  busy.host.Receive(busy.controller.R2t(1, 5, 0, kWriteBytes) + busy.controller.Resp(1, 0x281));
  EXPECT_EQ(busy.host.answers, (Answers{{2, 0x281, 0}}));
  EXPECT_TRUE(busy.host.Send().empty());
}

TEST(HostConnection, SendsNoFurtherPduOfACommandThatFailedInBetween) {
  Host host;
  host.Connect(Controller::IcResp(0, 8192));
  TestMemory data({kWriteBytes}, 1);
  host.Write(1, data);
  host.Send();
  host.Receive(Controller{}.R2t(0, 0, 0, kWriteBytes));
  EXPECT_EQ(host.Send(100).size(), 100U);
  host.Receive(Controller{}.Resp(0, 0x281));
  EXPECT_EQ(host.Send().size(), 8192U + 24 - 100);
  EXPECT_EQ(host.answers, (Answers{{1, 0x281, 0}}));
}

TEST(HostConnection, RefusesTheSuccessOfAWriteWhoseLastDataIsHalfSent) {
  Busy busy;
  busy.host.Receive(busy.controller.R2t(1, 5, 0, kWriteBytes));
  busy.host.Send(kWriteBytes + 23);
  busy.host.Receive(busy.controller.Resp(1));
  EXPECT_EQ(busy.host.ended, 1);
  EXPECT_NE(busy.host.why.find("success for CID 0x1"), std::string::npos) << busy.host.why;
}

// ---- Ends.

TEST(HostConnection, SaysOfEachCommandHowFarItCame) {
  struct Case {
    size_t sent_bytes;  // of the capsules: a write by R2T, a write with its data, a read
    Lefts left;
  };
  const Case cases[] = {
      {0, {{1, Reached::kNothing}, {2, Reached::kNothing}, {3, Reached::kNothing}}},
      {1, {{1, Reached::kNoData}, {2, Reached::kNothing}, {3, Reached::kNothing}}},
      {72, {{1, Reached::kNoData}, {2, Reached::kNothing}, {3, Reached::kNothing}}},
      {73, {{1, Reached::kNoData}, {2, Reached::kPerhapsAll}, {3, Reached::kNothing}}},
      {72 + 200, {{1, Reached::kNoData}, {2, Reached::kPerhapsAll}, {3, Reached::kNothing}}},
      {72 + 201, {{1, Reached::kNoData}, {2, Reached::kPerhapsAll}, {3, Reached::kPerhapsAll}}},
  };
  for (const Case& c : cases) {
    Host host;
    host.Connect(Controller::IcResp(0));
    TestMemory large({kWriteBytes}, 1);
    TestMemory small({128}, 2);
    host.Write(1, large);
    host.Write(2, small);
    host.Read(3, small);
    EXPECT_EQ(host.Send(c.sent_bytes).size(), c.sent_bytes);
    host.connection.Abort(Error(ErrorCode::kDeadlineExceeded, "too slow"));
    EXPECT_EQ(host.left, c.left) << c.sent_bytes;
    EXPECT_EQ(host.why, "too slow");
    EXPECT_TRUE(host.Send().empty());
    host.connection.Abort(Error(ErrorCode::kDeadlineExceeded, "again"));
    EXPECT_EQ(host.ended, 1);
  }
}

TEST(HostConnection, SaysThatDataMayHaveReachedTheControllerOnceAByteOfItsPduWent) {
  for (const size_t bytes : {0, 1}) {
    Busy busy;
    busy.host.Receive(busy.controller.R2t(1, 5, 0, kWriteBytes));
    busy.host.Send(bytes);
    busy.host.connection.Abort(Error(ErrorCode::kUnavailable, "reset"));
    ASSERT_EQ(busy.host.left.size(), 3U);
    EXPECT_EQ(busy.host.left[1].reached, bytes == 0 ? Reached::kNoData : Reached::kPerhapsAll);
  }
}

TEST(HostConnection, CountsABatchWholeBeforeItsOwnerEndsIt) {
  Busy busy;
  busy.host.Receive(busy.controller.R2t(1, 5, 0, kWriteBytes));
  busy.host.Send(100);
  busy.host.Receive(busy.controller.Resp(1, 0x281));
  TestMemory memory({64}, 1);
  busy.host.Read(9, memory);
  busy.host.abort_on_completion = true;
  std::vector<iovec> iovecs(8);
  busy.host.connection.FillSend(iovecs);
  busy.host.connection.Sent(kWriteBytes + 24 - 100 + 10);
  EXPECT_EQ(busy.host.answers, (Answers{{2, 0x281, 0}}));
  EXPECT_EQ(busy.host.left,
            (Lefts{{1, Reached::kPerhapsAll}, {3, Reached::kPerhapsAll}, {9, Reached::kPerhapsAll}}));
}

TEST(HostConnection, StopsReadingWhenItsOwnerEndsItInACompletion) {
  Busy busy;
  busy.host.abort_on_completion = true;
  busy.host.Receive(busy.controller.Resp(2) + busy.controller.Data(0, 0, Bytes(64, 9), 12));
  EXPECT_EQ(busy.host.answers, (Answers{{3, 0, 0}}));
  EXPECT_EQ(busy.host.left.size(), 2U);
  EXPECT_TRUE(busy.read.Untouched());
}

}  // namespace
}  // namespace cleat::nvme::tcp
