// SPDX-License-Identifier: Apache-2.0
// What a controller's connection makes of hosts that break the rules, and of those that keep them where it matters how.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "nvme/tcp/crc32c.h"
#include "nvme/tcp_target/target_connection.h"
#include "tests/unit/nvme/tcp_target/target_owner.h"

namespace cleat::nvme::tcp {
namespace {

using Bytes = std::vector<uint8_t>;

template <typename Pdu>
Bytes BytesOf(const Pdu& pdu) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&pdu);
  return {at, at + sizeof(pdu)};
}

Bytes IcReqOf(uint8_t digests = 0, uint8_t align = 0, uint16_t version = 0) {
  IcReq pdu;
  pdu.header = {PduType::kIcReq, 0, sizeof(IcReq), 0, sizeof(IcReq)};
  pdu.format_version = version;
  pdu.host_data_align = align;
  pdu.digests = digests;
  return BytesOf(pdu);
}

struct Capsule {
  uint8_t opcode = 1;
  uint16_t cid = 7;
  uint8_t sgl = fabrics::kSglByTransport;
  uint32_t length = 0;
  uint64_t address = 0;
  uint32_t data = 0;  // that comes along
};
Bytes CapsuleOf(const Capsule& capsule) {
  CapsuleCmd pdu;
  pdu.header = {PduType::kCapsuleCmd, 0, sizeof(CapsuleCmd),
                static_cast<uint8_t>(capsule.data > 0 ? sizeof(CapsuleCmd) : 0),
                static_cast<uint32_t>(sizeof(CapsuleCmd) + capsule.data)};
  pdu.entry.opcode = capsule.opcode;
  pdu.entry.cid = capsule.cid;
  pdu.entry.data.type = capsule.sgl;
  pdu.entry.data.length_bytes = capsule.length;
  pdu.entry.data.address = capsule.address;
  Bytes bytes = BytesOf(pdu);
  bytes.resize(bytes.size() + capsule.data, 0x5a);
  return bytes;
}

Bytes DataOf(uint16_t cid, uint16_t tag, uint32_t offset, uint32_t data, bool last) {
  H2cData pdu;
  pdu.header = {PduType::kH2cData, static_cast<uint8_t>(last ? kFlagLast : 0), sizeof(H2cData),
                sizeof(H2cData), static_cast<uint32_t>(sizeof(H2cData) + data)};
  pdu.cid = cid;
  pdu.ttag = tag;
  pdu.offset_bytes = offset;
  pdu.data_bytes = data;
  Bytes bytes = BytesOf(pdu);
  bytes.resize(bytes.size() + data, 0xa5);
  return bytes;
}

Bytes Joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
template <typename Pdu>
Pdu Read(const Bytes& from, size_t at) {
  Pdu pdu;
  CLEAT_CHECK(at + sizeof(pdu) <= from.size());
  std::memcpy(static_cast<void*>(&pdu), from.data() + at, sizeof(pdu));
  return pdu;
}

// A connection of 4 commands that a host has opened.
struct Scene {
  explicit Scene(uint8_t digests = 0, uint8_t align = 0) {
    test::ReceiveAll(connection, IcReqOf(digests, align));
    answer = test::SendAll(connection);
    connection.BecomeQueue(4, true, 4096);
  }
  ~Scene() { connection.Abort(Error(ErrorCode::kCancelled, "the test's end")); }
  // Asks for the data of each command that has some to come, and answers none.
  void AskForData() {
    owner.run = [this](test::OwnedCommand& command) {
      command.Give(command.data_bytes);
      connection.Ask(command);
      running.push_back(&command);
    };
  }
  void Release() {
    for (test::OwnedCommand* const command : running) {
      if (command->in_use && command->state == TargetCommand::State::kRunning)
        connection.Answer(*command, Status(0));
    }
  }

  test::TargetOwner owner;
  TargetConnection connection{{.name = "10.0.0.7:4711"}, owner};
  Bytes answer;
  std::vector<test::OwnedCommand*> running;
};

TEST(TargetConnection, AnswersIcReqWithTheDigestsThatTheHostAsksFor) {
  for (const uint8_t digests : {0, 1, 2, 3}) {
    Scene scene(digests);
    const auto response = Read<IcResp>(scene.answer, 0);
    EXPECT_EQ(response.header.type, PduType::kIcResp);
    EXPECT_EQ(response.digests, digests);
    EXPECT_EQ(response.h2c_data_max_bytes, fabrics::kTransferBytesMax);
  }
}

TEST(TargetConnection, PutsDataOfReadsWhereTheHostWantsItAligned) {
  Scene scene(3, 31);
  scene.owner.run = [&scene](test::OwnedCommand& command) {
    command.Give(4096);
    scene.connection.Answer(command, Status(0), 0, 4096);
  };
  Bytes capsule = CapsuleOf({.opcode = 2, .length = 4096});
  capsule[1] |= kFlagHeaderDigest;
  capsule[4] += kDigestBytes;
  const uint32_t digest = Crc32cOf(capsule.data(), capsule.size());
  for (uint32_t i = 0; i < sizeof(digest); ++i) capsule.push_back(static_cast<uint8_t>(digest >> (8 * i)));
  test::ReceiveAll(scene.connection, capsule);
  ASSERT_FALSE(scene.owner.ended) << *scene.owner.ended;
  const Bytes sent = test::SendAll(scene.connection);
  const auto pdu = Read<C2hData>(sent, 0);
  EXPECT_EQ(pdu.header.data_offset, 128);
  EXPECT_EQ(pdu.header.pdu_bytes, 128U + 4096 + 4);
  EXPECT_EQ(Read<uint32_t>(sent, 128 + 4096), Crc32cOf(sent.data() + 128, 4096));
  const auto response = Read<CapsuleResp>(sent, 128 + 4096 + 4);
  EXPECT_EQ(response.header.type, PduType::kCapsuleResp);
  EXPECT_EQ(response.entry.cid, 7);
}

TEST(TargetConnection, EndsForEachRuleThatAHostBreaksAndSaysWhich) {
  struct Case {
    const char* text;
    Bytes bytes;
    TermReason reason;
  };
  Bytes no_header = CapsuleOf({});
  no_header[2] = 71;
  Bytes unknown = CapsuleOf({});
  unknown[0] = 0x0b;
  Bytes of_controller = CapsuleOf({});
  of_controller[0] = static_cast<uint8_t>(PduType::kR2t);
  Bytes no_data = CapsuleOf({});
  no_data[3] = sizeof(CapsuleCmd);
  Bytes digest = CapsuleOf({});
  digest[1] = kFlagHeaderDigest;
  const std::vector<Case> cases = {
      {"again", IcReqOf(), TermReason::kPduSequence},
      {"header of 71 bytes", no_header, TermReason::kInvalidHeaderField},
      {"no controller receives", unknown, TermReason::kInvalidHeaderField},
      {"no controller receives", of_controller, TermReason::kInvalidHeaderField},
      {"ends before its data", no_data, TermReason::kInvalidHeaderField},
      {"header digest", digest, TermReason::kInvalidHeaderField},
      {"8192 bytes of data in its capsule",
       CapsuleOf({.sgl = fabrics::kSglInCapsule, .length = 8192, .data = 8192}), TermReason::kLimitExceeded},
      {"nothing was asked", DataOf(7, 0, 0, 512, true), TermReason::kPduSequence},
      {"nothing was asked", DataOf(7, 999, 0, 512, true), TermReason::kPduSequence},
  };
  for (const Case& broken : cases) {
    SCOPED_TRACE(broken.text);
    Scene scene;
    test::ReceiveAll(scene.connection, broken.bytes);
    ASSERT_TRUE(scene.owner.ended);
    EXPECT_NE(scene.owner.ended->find(broken.text), std::string::npos) << *scene.owner.ended;
    const auto term = Read<TermReq>(test::SendAll(scene.connection), 0);
    EXPECT_EQ(term.header.type, PduType::kC2hTermReq);
    EXPECT_EQ(static_cast<TermReason>(term.reason), broken.reason);
  }
}

TEST(TargetConnection, RefusesDataThatWasNotAskedForSo) {
  const std::vector<std::pair<const char*, Bytes>> cases = {
      {"CID", DataOf(8, 0, 0, 8192, true)},
      {"0 of 8192 bytes have come", DataOf(7, 0, 512, 7680, true)},
      {"0 of 8192 bytes have come", DataOf(7, 0, 0, 8196, true)},
      {"LAST", DataOf(7, 0, 0, 4096, true)},
      {"LAST", DataOf(7, 0, 0, 8192, false)},
  };
  for (const auto& [text, bytes] : cases) {
    SCOPED_TRACE(text);
    Scene scene;
    scene.AskForData();
    test::ReceiveAll(scene.connection, CapsuleOf({.length = 8192}));
    (void)test::SendAll(scene.connection);
    EXPECT_TRUE(scene.connection.expects_data());
    test::ReceiveAll(scene.connection, bytes);
    ASSERT_TRUE(scene.owner.ended);
    EXPECT_NE(scene.owner.ended->find(text), std::string::npos) << *scene.owner.ended;
    EXPECT_EQ(scene.connection.commands(), 0U);
  }
}

TEST(TargetConnection, RefusesDataBeforeItsR2tWasSent) {
  Scene scene;
  scene.AskForData();
  test::ReceiveAll(scene.connection, CapsuleOf({.length = 8192}));
  test::ReceiveAll(scene.connection, DataOf(7, 0, 0, 8192, true));
  ASSERT_TRUE(scene.owner.ended);
}

TEST(TargetConnection, AnswersWrongDescriptorsAndRunsNothing) {
  const std::vector<Capsule> wrong = {
      {.sgl = fabrics::kSglInCapsule, .length = 512, .address = 4, .data = 512},
      {.sgl = fabrics::kSglInCapsule, .length = 508, .data = 512},
      {.sgl = fabrics::kSglByTransport, .length = 512, .data = 512},
      {.sgl = 0x20, .length = 512},
  };
  for (const Capsule& capsule : wrong) {
    Scene scene;
    scene.owner.run = [](test::OwnedCommand&) { FAIL(); };
    test::ReceiveAll(scene.connection, CapsuleOf(capsule));
    ASSERT_FALSE(scene.owner.ended);
    EXPECT_FALSE(Read<CapsuleResp>(test::SendAll(scene.connection), 0).entry.status().ok());
  }
}

TEST(TargetConnection, HasNoMoreCommandsThanItsQueueHasEntries) {
  Scene scene;
  scene.owner.run = [&scene](test::OwnedCommand& command) { scene.running.push_back(&command); };
  Bytes bytes;
  for (uint16_t cid = 0; cid < 5; ++cid) bytes = Joined(std::move(bytes), CapsuleOf({.cid = cid}));
  test::ReceiveAll(scene.connection, bytes);
  ASSERT_TRUE(scene.owner.ended);
  // What runs stays until it is answered.
  EXPECT_EQ(scene.connection.commands(), 4U);
  scene.Release();
  EXPECT_EQ(scene.connection.commands(), 0U);
}

TEST(TargetConnection, ACommandWithoutRoomWaitsWithAllThatCameBehindIt) {
  Scene scene;
  scene.owner.room = 1;
  std::vector<uint16_t> cids;
  scene.owner.run = [&](test::OwnedCommand& command) {
    cids.push_back(command.entry.cid);
    EXPECT_EQ(command.bytes, Bytes(512, 0x5a));
    scene.connection.Answer(command, Status(0));
  };
  Bytes bytes;
  for (uint16_t cid = 0; cid < 3; ++cid)
    bytes = Joined(std::move(bytes),
                   CapsuleOf({.cid = cid, .sgl = fabrics::kSglInCapsule, .length = 512, .data = 512}));
  // All in one piece.
  std::array<iovec, 3> iovecs;
  std::vector<uint8_t> buffer(4096);
  ASSERT_EQ(scene.connection.ReceiveSpace(iovecs, buffer), 1U);
  std::memcpy(iovecs[0].iov_base, bytes.data(), bytes.size());
  scene.connection.Received(bytes.size());
  std::fill(buffer.begin(), buffer.end(), 0xdd);
  EXPECT_TRUE(scene.connection.waits());
  EXPECT_EQ(cids, (std::vector<uint16_t>{0}));
  scene.connection.Resume();
  EXPECT_TRUE(scene.connection.waits());
  scene.owner.room = 1;
  scene.connection.Resume();
  EXPECT_TRUE(scene.connection.waits());
  EXPECT_EQ(cids, (std::vector<uint16_t>{0, 1}));
  scene.owner.room = 1;
  scene.connection.Resume();
  EXPECT_FALSE(scene.connection.waits());
  EXPECT_EQ(cids, (std::vector<uint16_t>{0, 1, 2}));
}

TEST(TargetConnection, AWrongDataDigestFailsItsCommandAlone) {
  Scene scene(kDataDigestEnable);
  scene.owner.run = [&scene](test::OwnedCommand& command) { scene.connection.Answer(command, Status(0)); };
  Bytes wrong = CapsuleOf({.sgl = fabrics::kSglInCapsule, .length = 512, .data = 512});
  wrong[1] |= kFlagDataDigest;
  wrong[5] = 0;
  const uint32_t bytes = sizeof(CapsuleCmd) + 512 + kDigestBytes;
  std::memcpy(wrong.data() + 4, &bytes, sizeof(bytes));
  wrong.resize(bytes, 0x11);
  test::ReceiveAll(scene.connection, wrong);
  test::ReceiveAll(scene.connection, CapsuleOf({.cid = 8}));
  ASSERT_FALSE(scene.owner.ended);
  const Bytes sent = test::SendAll(scene.connection);
  EXPECT_EQ(Read<CapsuleResp>(sent, 0).entry.status().field(), 0x22);
  EXPECT_TRUE(Read<CapsuleResp>(sent, sizeof(CapsuleResp)).entry.status().ok());
}

// A write of `data` bytes in its capsule, each of which is `content`.
Bytes WriteOf(uint16_t cid, uint32_t data, uint8_t content, bool digest = false) {
  Bytes bytes = CapsuleOf({.cid = cid, .sgl = fabrics::kSglInCapsule, .length = data, .data = data});
  std::fill(bytes.begin() + sizeof(CapsuleCmd), bytes.end(), content);
  if (!digest) return bytes;
  bytes[1] |= kFlagDataDigest;
  const uint32_t value = Crc32cOf(bytes.data() + sizeof(CapsuleCmd), data);
  const auto* const at = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), at, at + kDigestBytes);
  const auto whole = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data() + offsetof(CommonHeader, pdu_bytes), &whole, sizeof(whole));
  return bytes;
}

// Hands the bytes to the connection in one piece.
void ReceiveTogether(TargetConnection& connection, const Bytes& bytes, Bytes& buffer) {
  std::array<iovec, 3> iovecs;
  const uint32_t count = connection.ReceiveSpace(iovecs, buffer);
  ASSERT_EQ(count, 1U);
  ASSERT_LE(bytes.size(), iovecs[0].iov_len);
  std::memcpy(iovecs[0].iov_base, bytes.data(), bytes.size());
  connection.Received(bytes.size());
}

TEST(TargetConnection, DataThatHasComeWholeStaysWhereItIsIfTheOwnerKeepsIt) {
  for (const uint8_t digests : {uint8_t{0}, kDataDigestEnable}) {
    SCOPED_TRACE(int{digests});
    Scene scene(digests);
    scene.owner.keeps = true;
    Bytes buffer(8192, 0);
    std::vector<uint8_t> contents;
    scene.owner.run = [&](test::OwnedCommand& command) {
      const block::Segment& data = command.data[0];
      EXPECT_TRUE(data.data() >= buffer.data() && data.data() + 512 <= buffer.data() + buffer.size());
      EXPECT_EQ(Bytes(data.data(), data.data() + 512), Bytes(512, data.data()[0]));
      contents.push_back(data.data()[0]);
      scene.connection.Answer(command, Status(0));
    };
    const bool digest = digests != 0;
    ReceiveTogether(scene.connection, Joined(WriteOf(1, 512, 0x11, digest), WriteOf(2, 512, 0x22, digest)),
                    buffer);
    EXPECT_EQ(contents, (std::vector<uint8_t>{0x11, 0x22}));
    EXPECT_EQ(scene.owner.offered, 2U);
    if (!digest) continue;
    Bytes wrong = WriteOf(3, 512, 0x33, digest);
    wrong.back() ^= 1;
    ReceiveTogether(scene.connection, wrong, buffer);
    EXPECT_EQ(contents.size(), 2U) << "it does not run";
  }
}

TEST(TargetConnection, DataThatHasNotComeWholeOrHasWaitedIsCopied) {
  for (const uint8_t digests : {uint8_t{0}, kDataDigestEnable}) {
    Scene scene(digests);
    scene.owner.keeps = true;
    uint32_t ran = 0;
    scene.owner.run = [&](test::OwnedCommand& command) {
      EXPECT_EQ(command.bytes, Bytes(512, 0x44));
      ++ran;
      scene.connection.Answer(command, Status(0));
    };
    const Bytes write = WriteOf(1, 512, 0x44, digests != 0);
    for (const size_t cut : {sizeof(CapsuleCmd), sizeof(CapsuleCmd) + 100, write.size() - 1}) {
      Bytes buffer(8192, 0);
      ReceiveTogether(scene.connection, {write.begin(), write.begin() + static_cast<ptrdiff_t>(cut)}, buffer);
      test::ReceiveAll(scene.connection, {write.begin() + static_cast<ptrdiff_t>(cut), write.end()});
    }
    EXPECT_EQ(ran, 3U);
    EXPECT_EQ(scene.owner.offered, 0U);
  }
  Scene scene;
  scene.owner.keeps = true;
  scene.owner.room = 0;
  Bytes buffer(8192, 0);
  ReceiveTogether(scene.connection, WriteOf(1, 512, 0x55), buffer);
  ASSERT_TRUE(scene.connection.waits());
  scene.owner.offered = 0;
  scene.owner.room = 1;
  scene.connection.Resume();
  EXPECT_EQ(scene.owner.offered, 0U);
  EXPECT_EQ(scene.connection.running(), 1U);
  scene.connection.Abort(Error(ErrorCode::kCancelled, "the test's end"));
  for (const auto& command : scene.owner.pool) {
    if (command->in_use) scene.connection.Answer(*command, Status(0));
  }
}

// The wire has the same bytes whether large data comes by itself or not, however much of it the transport takes at a time.
TEST(TargetConnection, LargeDataComesByItselfIfTheTransportWantsIt) {
  constexpr uint32_t kAloneFrom = 1000;
  const auto send = [](uint8_t digests, uint32_t alone_from, size_t step) {
    Scene scene(digests);
    scene.connection.BecomeQueue(16, true, 4096);
    Bytes capsules;
    for (const uint32_t bytes : {0U, 999U, 1000U, 5000U, 0U, 4U, 3000U})
      capsules = Joined(capsules, CapsuleOf({.opcode = 2, .length = bytes}));
    uint8_t content = 0;
    scene.owner.run = [&](test::OwnedCommand& command) {
      command.Give(command.data_bytes);
      std::ranges::fill(command.bytes, ++content);
      scene.connection.Answer(command, Status(0), 0, command.data_bytes);
    };
    test::ReceiveAll(scene.connection, capsules);
    Bytes out;
    uint32_t alone_bytes = 0;
    bool more = false;
    std::array<iovec, 5> iovecs;
    while (scene.connection.wants_to_send()) {
      const Gather gather = scene.connection.FillSend(iovecs, alone_from);
      EXPECT_GT(gather.count, 0U);
      EXPECT_TRUE(!more || gather.alone != nullptr) << "it was said to come next";
      size_t whole = 0, sent = 0;
      for (const iovec& piece : std::span(iovecs).first(gather.count)) {
        const auto* const from = static_cast<const uint8_t*>(piece.iov_base);
        const size_t part = std::min(piece.iov_len, step - sent);
        out.insert(out.end(), from, from + part);
        whole += piece.iov_len;
        sent += part;
        if (gather.alone == nullptr) {
          EXPECT_LT(piece.iov_len, std::max(alone_from, kResponseHeadMaxBytes));
          continue;
        }
        const Bytes& data = static_cast<test::OwnedCommand*>(gather.alone)->bytes;
        EXPECT_TRUE(from >= data.data() && from + piece.iov_len == data.data() + data.size());
        EXPECT_GE(piece.iov_len, alone_from);
        alone_bytes += static_cast<uint32_t>(part);
      }
      more = gather.more && sent == whole;
      scene.connection.Sent(sent);
    }
    EXPECT_EQ(scene.owner.given, 7U);
    if (alone_from == kAloneFrom && step == SIZE_MAX) {
      EXPECT_EQ(alone_bytes, 1000U + 5000 + 3000);
    }
    return out;
  };
  const Bytes together = send(0, UINT32_MAX, SIZE_MAX);
  ASSERT_EQ(together.size(), 5 * sizeof(C2hData) + 7 * sizeof(CapsuleResp) + 999 + 1000 + 5000 + 4 + 3000);
  for (const size_t step : {size_t{1}, size_t{7}, size_t{1023}, size_t{2500}, SIZE_MAX})
    EXPECT_EQ(send(0, kAloneFrom, step), together) << step;
}

TEST(TargetConnection, WhoLooksAheadHearsOfEachCommandBeforeTheOneInFrontOfItRuns) {
  for (const bool looks : {false, true}) {
    Scene scene;
    scene.connection.SetLooksAhead(looks);
    std::vector<size_t> heard;  // when each ran
    scene.owner.run = [&](test::OwnedCommand& command) {
      heard.push_back(scene.owner.ahead.size());
      scene.connection.Answer(command, Status(0));
    };
    Bytes buffer(8192, 0);
    const Bytes three = Joined(Joined(CapsuleOf({.cid = 1}), WriteOf(2, 512, 0)), CapsuleOf({.cid = 3}));
    ReceiveTogether(scene.connection, three, buffer);
    EXPECT_EQ(scene.owner.ahead, looks ? (std::vector<uint16_t>{1, 2, 3}) : std::vector<uint16_t>());
    EXPECT_EQ(heard, looks ? (std::vector<size_t>{2, 3, 3}) : (std::vector<size_t>{0, 0, 0}));
    // A part of a command is nothing yet, and what is no command is none.
    scene.owner.ahead.clear();
    Bytes part = CapsuleOf({.cid = 4});
    part.resize(part.size() - 1);
    ReceiveTogether(scene.connection, part, buffer);
    EXPECT_TRUE(scene.owner.ahead.empty());
  }
}

}  // namespace
}  // namespace cleat::nvme::tcp
