// SPDX-License-Identifier: Apache-2.0
// A host's TLS session whose bytes somebody changes on their way, or whose target breaks the rules and wastes this host's time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "nvme/tls/record_cipher.h"
#include "nvme/tls/session.h"
#include "tests/unit/nvme/tls/session_rig.h"

namespace cleat::nvme::tls::hostile_session_test {
namespace {

// ---- Who changes bytes on their way

TEST(TlsSessionUnderAttack, IsNotEstablishedWithAnyByteOfTheTargetsHandshakeChanged) {
  size_t bytes = 0;
  {
    auto session = MakeSession();
    TlsServer server(TlsKey(), {.tickets = 0});
    ASSERT_FALSE(session->GoOn().value());
    server.Give(TakeOutput(*session));
    server.Handshake();
    bytes = server.Take().size();
  }
  ASSERT_GT(bytes, 100U);
  for (size_t at = 0; at < bytes; ++at) {
    auto session = MakeSession();
    TlsServer server(TlsKey(), {.tickets = 0});
    (void)session->GoOn();
    server.Give(TakeOutput(*session));
    server.Handshake();
    Bytes answer = server.Take();
    ASSERT_EQ(answer.size(), bytes);
    answer[at] ^= static_cast<uint8_t>(1U << at % 8);
    Feed(*session, answer, [&] { (void)session->GoOn(); });
    // The version of a record that is not encrypted is left out of all of them (RFC 8446, 5.1).
    const bool is_looked_at = at != 2;
    EXPECT_EQ(session->established(), !is_looked_at) << "byte " << at << " of " << bytes;
  }
}

TEST(TlsSessionUnderAttack, EndsWithTheRecordThatWasChangedAndGivesWhatCameBefore) {
  const Bytes first = RandomBytes(1000, 9);
  for (const size_t at : {0U, 1U, 3U, 4U, 5U, 100U, 1021U}) {
    Pair pair;
    pair.server.Write(first);
    Bytes bytes = pair.server.Take();
    pair.server.Write(RandomBytes(1000, 10));
    Bytes changed = pair.server.Take();
    changed[at] ^= 0x40;
    bytes.insert(bytes.end(), changed.begin(), changed.end());
    pair.server.Write(first);
    const Bytes after = pair.server.Take();
    bytes.insert(bytes.end(), after.begin(), after.end());
    const Received received = Receive(*pair.session, bytes);
    EXPECT_EQ(received.data, first) << at;
    ASSERT_TRUE(received.error) << at;
    EXPECT_EQ(received.error->code, ErrorCode::kUnavailable);
    // The target hears why, and nothing more goes either way.
    EXPECT_FALSE(TakeOutput(*pair.session).empty());
    Bytes data(10);
    EXPECT_FALSE(pair.session->Write(Cut(data, {10})).ok());
    EXPECT_FALSE(pair.session->Read(Cut(data, {10})).ok());
  }
}

TEST(TlsSessionUnderAttack, GivesNothingOfARecordThatIsNotWhole) {
  Pair pair;
  pair.server.Write(RandomBytes(1000, 11));
  Bytes bytes = pair.server.Take();
  const uint8_t last = bytes.back();
  bytes.pop_back();
  EXPECT_TRUE(Receive(*pair.session, bytes).data.empty());
  EXPECT_EQ(Receive(*pair.session, {last}).data.size(), 1000U);
}

TEST(TlsSessionUnderAttack, DoesNotTakeARecordTwice) {
  Pair pair;
  pair.server.Write(RandomBytes(10, 12));
  const Bytes bytes = pair.server.Take();
  EXPECT_FALSE(Receive(*pair.session, bytes).error);
  const Received again = Receive(*pair.session, bytes);
  EXPECT_TRUE(again.data.empty());
  EXPECT_TRUE(again.error);
}

TEST(TlsSessionUnderAttack, SurvivesRandomBytes) {
  Random random(13);
  for (int turn = 0; turn < 300; ++turn) {
    Pair pair;
    pair.server.Write(RandomBytes(2000, 14));
    Bytes bytes = pair.server.Take();
    // Parts of honest records, and noise.
    for (int change = 0; change < 3; ++change) {
      const size_t at = random.Below(bytes.size());
      if (random.Below(2) == 0) {
        bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
      } else {
        bytes[at] = static_cast<uint8_t>(random.Next());
      }
    }
    EXPECT_TRUE(Receive(*pair.session, bytes).data.empty());
  }
}

// ---- What a target makes this host do

TEST(TlsSessionUnderAttack, EndsWhenATargetSendsKeyUpdatesAndNoData) {
  for (const bool asks : {false, true}) {
    Pair pair;
    Bytes bytes;
    for (uint32_t i = 0; i <= Session::kIdleRecordsMax; ++i) {
      pair.server.UpdateKey(asks);
      const Bytes more = pair.server.Take();
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    const Received received = Receive(*pair.session, bytes);
    ASSERT_TRUE(received.error);
    EXPECT_TRUE(Mentions(*received.error, "KeyUpdate")) << received.error->message;
  }
}

TEST(TlsSessionUnderAttack, EndsWhenATargetSendsTicketsAndNoData) {
  Pair pair;
  Bytes bytes;
  for (uint32_t i = 0; i <= Session::kIdleRecordsMax; ++i) {
    pair.server.SendTicket();
    const Bytes more = pair.server.Take();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  EXPECT_TRUE(Receive(*pair.session, bytes).error);
}

// A KeyUpdate is some bytes to its sender and a key schedule here. Otherwise a target that answers one read byte by byte, with a KeyUpdate
// before each, keeps a reactor busy.
TEST(TlsSessionUnderAttack, EndsWhenATargetSendsMoreKeyUpdatesThanItsDataEarns) {
  Pair pair;
  const Bytes data = RandomBytes(1, 15);
  for (uint32_t turn = 0; turn < Session::kKeyUpdatesMax; ++turn) {
    pair.server.UpdateKey(false);
    pair.server.Write(data);
    ASSERT_EQ(Receive(*pair.session, pair.server.Take()).data, data);
  }
  pair.server.UpdateKey(false);
  pair.server.Write(data);
  const Received received = Receive(*pair.session, pair.server.Take());
  EXPECT_TRUE(received.data.empty());
  ASSERT_TRUE(received.error);
  EXPECT_EQ(received.error->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Mentions(*received.error, "more KeyUpdates than 32")) << received.error->message;
  EXPECT_FALSE(pair.session->output().empty()) << "the target hears of it";
}

TEST(TlsSessionUnderAttack, TakesAKeyUpdateForEachRecordsWorthOfDataHoweverLongItGoesOn) {
  Pair pair;
  const Bytes data = RandomBytes(1, 15);
  for (uint32_t turn = 0; turn < 4 * Session::kKeyUpdatesMax; ++turn) {
    pair.server.UpdateKey(false);
    for (uint32_t i = 0; i < Session::kRecordsPerKeyUpdate; ++i) pair.server.Write(data);
    const Received received = Receive(*pair.session, pair.server.Take());
    ASSERT_FALSE(received.error) << received.error->message;
    ASSERT_EQ(received.data.size(), Session::kRecordsPerKeyUpdate);
  }
}

// A long life of data earns no larger burst.
TEST(TlsSessionUnderAttack, KeepsNoMoreKeyUpdatesForATargetThanItBeganWith) {
  Pair pair;
  const Bytes data = RandomBytes(1, 15);
  for (uint32_t i = 0; i < 8 * Session::kRecordsPerKeyUpdate; ++i) pair.server.Write(data);
  ASSERT_FALSE(Receive(*pair.session, pair.server.Take()).error);
  for (uint32_t turn = 0; turn <= Session::kKeyUpdatesMax; ++turn) {
    pair.server.UpdateKey(false);
    pair.server.Write(data);
  }
  EXPECT_TRUE(Receive(*pair.session, pair.server.Take()).error);
}

TEST(TlsSessionUnderAttack, OpensNoMoreThanSoManyRecordsByOneRead) {
  Pair pair;
  const Bytes data = RandomBytes(1, 15);
  constexpr uint32_t kRecords = 3 * Session::kRecordsPerReadMax;
  for (uint32_t i = 0; i < kRecords; ++i) pair.server.Write(data);
  const Bytes bytes = pair.server.Take();
  ASSERT_LE(bytes.size(), pair.session->InputSpace().size());
  std::copy(bytes.begin(), bytes.end(), pair.session->InputSpace().begin());
  pair.session->Came(bytes.size());
  Bytes room(kRecords);
  const auto pieces = Cut(room, {kRecords});
  for (int turn = 0; turn < 3; ++turn)
    EXPECT_EQ(pair.session->Read(pieces).value(), Session::kRecordsPerReadMax);
  EXPECT_EQ(pair.session->Read(pieces).value(), 0U);
}

TEST(TlsSessionUnderAttack, AnswersKeyUpdatesOnceHoweverManyAsked) {
  Pair pair;
  const Bytes data = RandomBytes(1, 15);
  for (uint32_t turn = 0; turn < Session::kKeyUpdatesMax; ++turn) {
    pair.server.UpdateKey(true);
    pair.server.Write(data);
    ASSERT_EQ(Receive(*pair.session, pair.server.Take()).data, data);
  }
  EXPECT_TRUE(pair.session->output().empty());
  Bytes one = data;
  ASSERT_EQ(pair.session->Write(Cut(one, {1})).value(), 1U);
  EXPECT_EQ(pair.session->output().size(), kRecordOverheadBytes + 1 + kRecordOverheadBytes + 5);
  pair.server.Give(TakeOutput(*pair.session));
  EXPECT_EQ(pair.server.Read(), data);
}

// ---- Records that OpenSSL would not make

// A record of these bytes with its type at their end.
Bytes Forge(RecordCipher& cipher, Bytes content) {
  Bytes record(kRecordHeaderBytes + content.size() + kRecordTagBytes);
  std::copy(content.begin(), content.end(), record.begin() + kRecordHeaderBytes);
  const auto type = static_cast<ContentType>(content.empty() ? 0 : content.back());
  cipher.Seal(record, type);
  return record;
}
Bytes Of(const Bytes& bytes, uint8_t type) {
  Bytes content = bytes;
  content.push_back(type);
  return content;
}

constexpr uint8_t kAlert = 21;
constexpr uint8_t kMessage = 22;
constexpr uint8_t kData = 23;

// What the session makes of records with these contents.
Received ReceiveForged(const std::vector<Bytes>& contents) {
  Pair pair(kTlsKeys[0], {.tickets = 0});
  RecordCipher cipher = pair.server.Forge();
  Bytes bytes;
  for (const Bytes& content : contents) {
    const Bytes record = Forge(cipher, content);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  return Receive(*pair.session, bytes);
}

TEST(TlsSessionUnderAttack, TakesOffPadding) {
  Bytes padded = Of({1, 2, 3, 0, 0}, kData);
  padded.resize(padded.size() + 200);
  const Received received = ReceiveForged({padded, Of({4}, kData)});
  EXPECT_FALSE(received.error);
  EXPECT_EQ(received.data, (Bytes{1, 2, 3, 0, 0, 4}));
}

TEST(TlsSessionUnderAttack, ReadsOverTicketsHoweverTheyAreCut) {
  Bytes ticket(4 + 700);
  ticket[0] = 4;
  ticket[2] = 700 >> 8;
  ticket[3] = 700 & 0xff;
  for (const size_t cut : {1U, 3U, 4U, 5U, 703U}) {
    const Bytes first(ticket.begin(), ticket.begin() + static_cast<ptrdiff_t>(cut));
    const Bytes second(ticket.begin() + static_cast<ptrdiff_t>(cut), ticket.end());
    const Received received = ReceiveForged({Of(first, kMessage), Of(second, kMessage), Of({9}, kData)});
    EXPECT_FALSE(received.error) << received.error->message;
    EXPECT_EQ(received.data, Bytes{9});
  }
  Bytes two = ticket;
  two.insert(two.end(), ticket.begin(), ticket.end());
  EXPECT_FALSE(ReceiveForged({Of(two, kMessage)}).error);
}

TEST(TlsSessionUnderAttack, EndsWithWhatARecordMayNotHave) {
  Bytes large_ticket = {4, 2, 0x10, 0, 0};
  const std::vector<std::pair<std::vector<Bytes>, const char*>> rows = {
      {{Bytes(50)}, "without a type"},
      {{Of({}, 20)}, "of type 20"},
      {{Of({1}, 99)}, "of type 99"},
      {{Of({}, kMessage)}, "empty part"},
      {{Of({2}, kAlert)}, "alert that is none"},
      {{Of({2, 0, 0}, kAlert)}, "alert that is none"},
      {{Of({2, 40}, kAlert)}, "handshake failure"},
      {{Of({1, 0}, kAlert)}, "has closed it"},
      {{Of({2, 0, 0, 1, 0}, kMessage)}, "message of type 2"},
      {{Of({24, 0, 0, 2, 0}, kMessage)}, "2 bytes of type 24"},
      {{Of({24, 0, 0, 0}, kMessage)}, "0 bytes of type 24"},
      {{Of({24, 0, 0, 1, 2}, kMessage)}, "asks for nonsense"},
      {{Of({24, 0, 0, 1, 0, 4}, kMessage)}, "with a KeyUpdate"},
      {{Of(large_ticket, kMessage)}, "bytes of type 4"},
      {{Of({4, 0, 0}, kMessage), Of({1}, kData)}, "midst of a message"},
      {{Of({4, 0, 0}, kMessage), Of({1, 0}, kAlert)}, "midst of a message"},
  };
  for (const auto& [contents, why] : rows) {
    const Received received = ReceiveForged(contents);
    ASSERT_TRUE(received.error) << why;
    EXPECT_TRUE(Mentions(*received.error, why)) << received.error->message;
    EXPECT_TRUE(received.data.empty());
  }
  EXPECT_FALSE(ReceiveForged({Of({1, 90}, kAlert)}).error) << "user_canceled is no end";
  EXPECT_TRUE(ReceiveForged(std::vector<Bytes>(Session::kIdleRecordsMax + 1, Of({}, kData))).error);
  EXPECT_FALSE(ReceiveForged(std::vector<Bytes>(Session::kIdleRecordsMax, Of({}, kData))).error);
}

TEST(TlsSessionUnderAttack, EndsWithAHeaderThatNoRecordMayHave) {
  for (const Bytes& header : {Bytes{21, 3, 3, 0, 19}, Bytes{20, 3, 3, 0, 1}, Bytes{22, 3, 3, 1, 0},
                              Bytes{0, 0, 0, 0, 0}, Bytes{23, 3, 3, 0, 16}, Bytes{23, 3, 3, 0x41, 1}}) {
    Pair pair;
    const Received received = Receive(*pair.session, header);
    ASSERT_TRUE(received.error);
    EXPECT_TRUE(Mentions(*received.error, "the target has sent a record of")) << received.error->message;
    EXPECT_FALSE(pair.session->output().empty());
  }
  Pair pair;
  EXPECT_FALSE(Receive(*pair.session, {23, 3, 3, 0x41, 0}).error);
}

}  // namespace
}  // namespace cleat::nvme::tls::hostile_session_test
