// SPDX-License-Identifier: Apache-2.0
// A host's TLS session against OpenSSL's server in memory, honest or with its bytes changed on their way. The program counts OpenSSL's
// allocations, so that what is said of a session's memory can be tested.
#include "nvme/tls/session.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/tls/server.h"

namespace cleat::nvme::tls {
namespace {

using test::Bytes;
using test::kOtherTlsKey;
using test::kTlsKeys;
using test::TlsKey;
using test::TlsServer;

// ---- OpenSSL's memory

struct Allocations {
  int64_t calls = 0;
  int64_t blocks = 0;  // that are not freed
};
Allocations g_allocations;
// Allocations until none succeeds any more, as when the memory for keys is used up; negative: all do.
int64_t g_allocations_left = -1;

bool IsRefused() {
  if (g_allocations_left < 0) return false;
  if (g_allocations_left == 0) return true;
  --g_allocations_left;
  return false;
}

void* Allocate(size_t bytes, const char* /*file*/, int /*line*/) {
  if (IsRefused()) return nullptr;
  ++g_allocations.calls;
  ++g_allocations.blocks;
  return std::malloc(bytes);
}
void* Reallocate(void* memory, size_t bytes, const char* file, int line) {
  if (memory == nullptr) return Allocate(bytes, file, line);
  if (IsRefused()) return nullptr;
  ++g_allocations.calls;
  return std::realloc(memory, bytes);
}
void Release(void* memory, const char* /*file*/, int /*line*/) {
  if (memory != nullptr) --g_allocations.blocks;
  std::free(memory);
}
// Before anything else here uses OpenSSL.
const bool kCounts = CRYPTO_set_mem_functions(Allocate, Reallocate, Release) == 1;

// ---- Both ends

std::unique_ptr<Session> MakeSession(ConnectionKey key = TlsKey(), const SessionLimits& limits = {}) {
  return Session::Make(std::move(key), limits).value();
}

Bytes TakeOutput(Session& session) {
  const auto output = session.output();
  Bytes bytes(output.begin(), output.end());
  session.Sent(bytes.size());
  return bytes;
}

// Puts the bytes into the session, at most `step` at a time, and calls `use` after each.
void Feed(Session& session, const Bytes& bytes, const std::function<void()>& use, size_t step = SIZE_MAX) {
  for (size_t at = 0; at < bytes.size();) {
    const auto space = session.InputSpace();
    const size_t count = std::min({step, space.size(), bytes.size() - at});
    ASSERT_GT(count, 0U);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), count, space.begin());
    session.Came(count);
    at += count;
    use();
  }
}

// Both ends shake hands as far as they go. nullopt: it worked.
std::optional<Error> Connect(Session& session, TlsServer& server, size_t step = SIZE_MAX) {
  for (int turn = 0; turn < 10; ++turn) {
    Result<bool> done = session.GoOn();
    if (!done.ok()) return done.error();
    server.Give(TakeOutput(session));
    const bool server_done = server.Handshake();
    if (*done && server_done) return std::nullopt;
    std::optional<Error> error;
    const auto use = [&] {
      const Result<bool> more = session.GoOn();
      if (!more.ok()) error = more.error();
    };
    Feed(session, server.Take(), use, step);
    if (error) return error;
  }
  return Error(ErrorCode::kDeadlineExceeded, "the two do not come to an end");
}

Bytes RandomBytes(size_t bytes, uint64_t seed) {
  Random random(seed);
  Bytes data(bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
  return data;
}

// Cuts data into pieces of sizes that follow each other.
std::vector<iovec> Cut(Bytes& data, const std::vector<size_t>& sizes) {
  std::vector<iovec> pieces;
  for (size_t at = 0, i = 0; at < data.size(); ++i) {
    const size_t bytes = std::min(sizes[i % sizes.size()], data.size() - at);
    pieces.push_back({data.data() + at, bytes});
    at += bytes;
  }
  return pieces;
}

// All of it to the server, by as many turns as it takes.
Bytes Send(Session& session, TlsServer& server, Bytes data, const std::vector<size_t>& sizes) {
  Bytes arrived;
  for (size_t at = 0; at < data.size();) {
    Bytes rest(data.begin() + static_cast<ptrdiff_t>(at), data.end());
    const auto pieces = Cut(rest, sizes);
    const Result<size_t> taken = session.Write(pieces);
    EXPECT_TRUE(taken.ok() && *taken > 0);
    if (!taken.ok() || *taken == 0) break;
    at += *taken;
    server.Give(TakeOutput(session));
    const auto got = server.Read();
    if (got) arrived.insert(arrived.end(), got->begin(), got->end());
  }
  return arrived;
}

// What the session makes of `bytes`, which came in steps.
struct Received {
  Bytes data;
  std::optional<Error> error;
};
Received Receive(Session& session, const Bytes& bytes, size_t step, const std::vector<size_t>& sizes) {
  Received all;
  Bytes room(40'000);
  const auto pieces = Cut(room, sizes);
  const auto use = [&] {
    for (;;) {
      const Result<size_t> got = session.Read(pieces);
      if (!got.ok()) all.error = got.error();
      if (!got.ok() || *got == 0) return;
      all.data.insert(all.data.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*got));
    }
  };
  Feed(session, bytes, use, step);
  return all;
}
Received Receive(Session& session, const Bytes& bytes) {
  return Receive(session, bytes, SIZE_MAX, {100'000});
}

struct Pair {
  explicit Pair(const char* key = kTlsKeys[0], const TlsServer::Options& options = {},
                const SessionLimits& limits = {})
      : session(MakeSession(TlsKey(key), limits)), server(TlsKey(key), options) {
    const auto error = Connect(*session, server);
    EXPECT_FALSE(error) << error->message;
    // Tickets that came with the handshake.
    EXPECT_FALSE(Receive(*session, server.Take()).error);
  }
  std::unique_ptr<Session> session;
  TlsServer server;
};

bool Mentions(const Error& error, const char* text) {
  return error.message.find(text) != std::string::npos;
}

// ---- What works

TEST(TlsSession, CarriesDataBothWaysWithEachHash) {
  for (const char* const key : kTlsKeys) {
    Pair pair(key);
    const Bytes there = RandomBytes(300'000, 1);
    EXPECT_EQ(Send(*pair.session, pair.server, there, {72, 4096, 20, 50'000}), there);
    const Bytes back = RandomBytes(300'000, 2);
    pair.server.Write(back);
    const Received received = Receive(*pair.session, pair.server.Take(), SIZE_MAX, {24, 4096, 1});
    EXPECT_FALSE(received.error);
    EXPECT_EQ(received.data, back);
  }
}

TEST(TlsSession, UnderstandsATargetThatSendsByteByByte) {
  auto session = MakeSession();
  TlsServer server(TlsKey());
  const auto error = Connect(*session, server, 1);
  ASSERT_FALSE(error) << error->message;
  const Bytes data = RandomBytes(40'000, 3);
  server.Write(data);
  const Received received = Receive(*session, server.Take(), 1, {5});
  EXPECT_EQ(received.data, data);
}

TEST(TlsSession, TakesAnotherGroupWhenTheTargetAsksForIt) {
  for (const char* const group : {"P-256", "P-384"}) {
    Pair pair(kTlsKeys[1], {.groups = group});
    const Bytes data = RandomBytes(1000, 4);
    EXPECT_EQ(Send(*pair.session, pair.server, data, {1000}), data) << pair.server.group();
  }
}

TEST(TlsSession, FillsRecordsOfSmallPieces) {
  Pair pair;
  Bytes data = RandomBytes(16'384, 5);
  ASSERT_EQ(pair.session->Write(Cut(data, {72})).value(), data.size());
  EXPECT_EQ(pair.session->output().size(), data.size() + kRecordOverheadBytes);
}

TEST(TlsSession, WritesNoMoreThanTheOutputHasRoomForAndGoesOnOnceItWasSent) {
  Pair pair;
  Bytes data = RandomBytes(200'000, 6);
  ASSERT_EQ(pair.session->Write(Cut(data, {200'000})).value(), 2 * kRecordDataBytesMax);
  EXPECT_EQ(pair.session->Write(Cut(data, {200'000})).value(), 0U);
  // A part is not enough for a record more.
  const auto output = pair.session->output();
  Bytes sent(output.begin(), output.begin() + 20'000);
  pair.session->Sent(sent.size());
  EXPECT_EQ(pair.session->Write(Cut(data, {200'000})).value(), 0U);
  pair.server.Give(sent);
  pair.server.Give(TakeOutput(*pair.session));
  EXPECT_EQ(pair.session->Write(Cut(data, {200'000})).value(), 2 * kRecordDataBytesMax);
  EXPECT_EQ(pair.server.Read().value().size(), 2 * kRecordDataBytesMax);
}

TEST(TlsSession, MayChangeWhatWasWrittenAtOnce) {
  Pair pair;
  const Bytes data = RandomBytes(30'000, 7);
  Bytes memory = data;
  ASSERT_EQ(pair.session->Write(Cut(memory, {16'384, 100})).value(), data.size());
  std::fill(memory.begin(), memory.end(), 0);
  pair.server.Give(TakeOutput(*pair.session));
  EXPECT_EQ(pair.server.Read(), data);
}

TEST(TlsSession, AnswersKeyUpdates) {
  Pair pair;
  for (uint32_t turn = 0; turn < Session::kKeyUpdatesMax; ++turn) {
    const Bytes data = RandomBytes(100, turn);
    pair.server.UpdateKey(true);
    pair.server.Write(data);
    EXPECT_EQ(Receive(*pair.session, pair.server.Take()).data, data);
    ASSERT_EQ(Send(*pair.session, pair.server, data, {100}), data);
  }
}

TEST(TlsSession, SaysAndHearsTheOrderlyEnd) {
  Pair ours;
  ours.session->Close();
  ours.server.Give(TakeOutput(*ours.session));
  EXPECT_EQ(ours.server.Read(), std::nullopt);

  Pair theirs;
  const Bytes last = RandomBytes(100, 8);
  theirs.server.Write(last);
  theirs.server.Close();
  const Received received = Receive(*theirs.session, theirs.server.Take());
  EXPECT_EQ(received.data, last);
  ASSERT_TRUE(received.error);
  EXPECT_EQ(received.error->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Mentions(*received.error, "the target has closed it")) << received.error->message;
}

// ---- Who is not let in, and does not let in

void ExpectKeyIsRefused(TlsServer& server) {
  auto session = MakeSession();
  const auto error = Connect(*session, server);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kPermissionDenied) << error->message;
  EXPECT_TRUE(Mentions(*error, "same pre-shared key")) << error->message;
  EXPECT_FALSE(session->established());
  // For good.
  EXPECT_EQ(session->GoOn().error().message, error->message);
}

TEST(TlsSession, WithAnotherKeyIsRefused) {
  TlsServer server(TlsKey(kOtherTlsKey));
  ExpectKeyIsRefused(server);
  EXPECT_TRUE(server.failed());
}

TEST(TlsSession, WithAnotherIdentityIsRefused) {
  TlsServer other_version(TlsKey(kTlsKeys[0], IdentityVersion::kV1));
  ExpectKeyIsRefused(other_version);
  TlsServer other_subsystem(TlsKey(kTlsKeys[0], IdentityVersion::kV0, "nqn.2014-08.org.example:other"));
  ExpectKeyIsRefused(other_subsystem);
}

// Nobody would know who it is.
TEST(TlsSession, DoesNotTakeACertificateForAKey) {
  TlsServer server(TlsKey(kOtherTlsKey, IdentityVersion::kV1), {.has_certificate = true});
  ExpectKeyIsRefused(server);
  EXPECT_TRUE(server.failed() || !server.Handshake());
}

TEST(TlsSession, DoesNotSpeakOlderVersions) {
  TlsServer server(TlsKey(), {.has_certificate = true, .newest_version = TLS1_2_VERSION});
  auto session = MakeSession();
  const auto error = Connect(*session, server);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kUnavailable) << error->message;
  EXPECT_TRUE(Mentions(*error, "protocol version")) << error->message;
}

TEST(TlsSession, SaysThatATargetSpeaksNoTls) {
  Bytes ic_resp(128);
  ic_resp[0] = 1;
  ic_resp[2] = ic_resp[4] = 128;
  Bytes term_req(24);
  term_req[0] = 3;
  term_req[2] = term_req[4] = 24;
  const std::string text = "SSH-2.0-OpenSSH_9.2p1\r\n";
  for (const Bytes& bytes : {ic_resp, term_req, Bytes(text.begin(), text.end())}) {
    auto session = MakeSession();
    ASSERT_FALSE(session->GoOn().value());
    TakeOutput(*session);
    std::optional<Error> error;
    Feed(*session, bytes, [&] {
      const auto done = session->GoOn();
      if (!done.ok()) error = done.error();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, ErrorCode::kUnavailable);
    EXPECT_TRUE(Mentions(*error, "no TLS 1.3")) << error->message;
  }
}

// ---- Who changes bytes on their way

TEST(TlsSession, IsNotEstablishedWithAnyByteOfTheTargetsHandshakeChanged) {
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

TEST(TlsSession, EndsWithTheRecordThatWasChangedAndGivesWhatCameBefore) {
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

TEST(TlsSession, GivesNothingOfARecordThatIsNotWhole) {
  Pair pair;
  pair.server.Write(RandomBytes(1000, 11));
  Bytes bytes = pair.server.Take();
  const uint8_t last = bytes.back();
  bytes.pop_back();
  EXPECT_TRUE(Receive(*pair.session, bytes).data.empty());
  EXPECT_EQ(Receive(*pair.session, {last}).data.size(), 1000U);
}

TEST(TlsSession, DoesNotTakeARecordTwice) {
  Pair pair;
  pair.server.Write(RandomBytes(10, 12));
  const Bytes bytes = pair.server.Take();
  EXPECT_FALSE(Receive(*pair.session, bytes).error);
  const Received again = Receive(*pair.session, bytes);
  EXPECT_TRUE(again.data.empty());
  EXPECT_TRUE(again.error);
}

TEST(TlsSession, SurvivesRandomBytes) {
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

// ---- What a target makes us do

TEST(TlsSession, EndsWhenATargetSendsKeyUpdatesAndNoData) {
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

TEST(TlsSession, EndsWhenATargetSendsTicketsAndNoData) {
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
TEST(TlsSession, EndsWhenATargetSendsMoreKeyUpdatesThanItsDataEarns) {
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

TEST(TlsSession, TakesAKeyUpdateForEachRecordsWorthOfDataHoweverLongItGoesOn) {
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
TEST(TlsSession, KeepsNoMoreKeyUpdatesForATargetThanItBeganWith) {
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

TEST(TlsSession, OpensNoMoreThanSoManyRecordsByOneRead) {
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

TEST(TlsSession, AnswersKeyUpdatesOnceHoweverManyAsked) {
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

// ---- How long a key is used

TEST(TlsSession, GoesOnToAnotherKeyOfItsOwnBeforeTheFirstOneHasEncryptedTooMuch) {
  for (const char* const key : kTlsKeys) {
    constexpr uint64_t kBlocks = 3000;  // three full records
    Pair pair(key, {}, {.sealed_blocks = kBlocks});
    const Bytes data = RandomBytes(20 * kRecordDataBytesMax, 18);
    EXPECT_EQ(Send(*pair.session, pair.server, data, {100'000}), data);
    EXPECT_FALSE(pair.server.failed());
    // What the target sends goes on with the target's first key, as nothing was asked for.
    pair.server.Write(data);
    EXPECT_EQ(Receive(*pair.session, pair.server.Take()).data, data);
  }
}

TEST(TlsSession, SaysSoWithTheFirstRecordBehindTheLimitAlone) {
  Bytes data = RandomBytes(kRecordDataBytesMax, 19);
  // A block more than the data for the record's type, one for its tag.
  constexpr uint64_t kBlocksOfRecord = kRecordDataBytesMax / kBlockBytes + 2;
  constexpr size_t kRecordBytes = kRecordDataBytesMax + kRecordOverheadBytes;
  constexpr size_t kUpdateBytes = 5 + kRecordOverheadBytes;
  Pair pair(kTlsKeys[0], {}, {.sealed_blocks = 2 * kBlocksOfRecord});
  const auto pieces = Cut(data, {data.size()});
  for (const size_t bytes :
       {kRecordBytes, kRecordBytes, kUpdateBytes + kRecordBytes, kRecordBytes, kUpdateBytes + kRecordBytes}) {
    ASSERT_EQ(pair.session->Write(pieces).value(), data.size());
    EXPECT_EQ(pair.session->output().size(), bytes);
    pair.server.Give(TakeOutput(*pair.session));
    EXPECT_EQ(pair.server.Read(), data);
  }
}

// Blocks of 128 bits: the square of their number by 2^129.
TEST(TlsSession, EncryptsNoMoreWithOneKeyThanLeavesAMargin) {
  EXPECT_LE(SessionLimits().sealed_blocks, uint64_t{1} << 40);
  EXPECT_GE(SessionLimits().opened_blocks, SessionLimits().sealed_blocks);
}

TEST(TlsSession, EndsWhenATargetNeverChangesItsKey) {
  constexpr uint64_t kBlocks = 3000;
  for (const bool changes : {false, true}) {
    Pair pair(kTlsKeys[0], {}, {.opened_blocks = kBlocks});
    const Bytes data = RandomBytes(kRecordDataBytesMax, 20);
    std::optional<Error> error;
    for (int turn = 0; turn < 10 && !error; ++turn) {
      if (changes) pair.server.UpdateKey(false);
      pair.server.Write(data);
      error = Receive(*pair.session, pair.server.Take()).error;
    }
    EXPECT_EQ(error.has_value(), !changes);
    if (error) {
      EXPECT_TRUE(Mentions(*error, "than one key can protect")) << error->message;
    }
  }
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

TEST(TlsSession, TakesOffPadding) {
  Bytes padded = Of({1, 2, 3, 0, 0}, kData);
  padded.resize(padded.size() + 200);
  const Received received = ReceiveForged({padded, Of({4}, kData)});
  EXPECT_FALSE(received.error);
  EXPECT_EQ(received.data, (Bytes{1, 2, 3, 0, 0, 4}));
}

TEST(TlsSession, ReadsOverTicketsHoweverTheyAreCut) {
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

TEST(TlsSession, EndsWithWhatARecordMayNotHave) {
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

TEST(TlsSession, EndsWithAHeaderThatNoRecordMayHave) {
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

// ---- Memory

TEST(TlsSession, AllocatesNothingForARecord) {
  ASSERT_TRUE(kCounts);
  Pair pair;
  Bytes data = RandomBytes(16'384, 16);
  constexpr int kRecords = 100;
  std::vector<Bytes> theirs;
  for (int i = 0; i < kRecords; ++i) {
    pair.server.Write(data);
    theirs.push_back(pair.server.Take());
  }
  const auto pieces = Cut(data, {16'384});
  const auto write = [&] {
    ASSERT_EQ(pair.session->Write(pieces).value(), data.size());
    pair.session->Sent(pair.session->output().size());
  };
  const auto read = [&](const Bytes& bytes) {
    const auto space = pair.session->InputSpace();
    std::copy(bytes.begin(), bytes.end(), space.begin());
    pair.session->Came(bytes.size());
    ASSERT_EQ(pair.session->Read(pieces).value(), data.size());
  };
  write();
  read(theirs[0]);
  const Allocations before = g_allocations;
  for (int i = 1; i < kRecords; ++i) write();
  const Allocations written = g_allocations;
  for (int i = 1; i < kRecords; ++i) read(theirs[static_cast<size_t>(i)]);
  EXPECT_EQ(written.calls, before.calls);
  EXPECT_EQ(g_allocations.calls, written.calls);
  EXPECT_EQ(g_allocations.blocks, before.blocks);
}

TEST(TlsSession, HoldsNoMoreMemoryHoweverManyMessagesCome) {
  ASSERT_TRUE(kCounts);
  Pair pair;
  const Bytes data = RandomBytes(10, 17);
  int64_t before = 0;
  std::vector<Bytes> theirs;
  for (int turn = 0; turn < 400; ++turn) {
    if (turn % 2 == 0) pair.server.UpdateKey(turn % 4 == 0);
    pair.server.SendTicket();
    for (uint32_t i = 0; i < Session::kRecordsPerKeyUpdate / 2; ++i) pair.server.Write(data);
    theirs.push_back(pair.server.Take());
  }
  for (size_t turn = 0; turn < theirs.size(); ++turn) {
    ASSERT_EQ(Receive(*pair.session, theirs[turn]).data.size(),
              data.size() * Session::kRecordsPerKeyUpdate / 2);
    TakeOutput(*pair.session);
    if (turn == 10) before = g_allocations.blocks;
  }
  EXPECT_LE(g_allocations.blocks, before + 8);
}

// What `step` returns, when OpenSSL is given `count` blocks and no more.
template <typename Step>
auto WithAllocations(int64_t count, const Step& step) {
  g_allocations_left = count;
  auto result = step();
  g_allocations_left = -1;
  return result;
}

// An engine serves many guests: a connection that gets no memory ends alone.
TEST(TlsSession, EndsWithoutMemoryForItsKeysAtTheEndOfTheHandshake) {
  ASSERT_TRUE(kCounts);
  constexpr int64_t kMost = 5000;
  uint32_t without_memory = 0;
  int64_t count = 0;
  for (; count < kMost; ++count) {
    auto session = MakeSession();
    TlsServer server(TlsKey(), {.tickets = 0});
    ASSERT_FALSE(session->GoOn().value());
    server.Give(TakeOutput(*session));
    server.Handshake();
    const Bytes answer = server.Take();
    std::copy(answer.begin(), answer.end(), session->InputSpace().begin());
    session->Came(answer.size());
    const Result<bool> done = WithAllocations(count, [&] { return session->GoOn(); });
    if (done.ok()) break;
    EXPECT_FALSE(session->established());
    EXPECT_NE(done.error().code, ErrorCode::kPermissionDenied) << done.error().message;
    if (done.error().code == ErrorCode::kResourceExhausted) ++without_memory;
  }
  EXPECT_LT(count, kMost);
  EXPECT_GT(without_memory, 50U) << "two ciphers, and four keys by HKDF";
}

TEST(TlsSession, EndsWithoutMemoryForTheKeysOfAKeyUpdateOfEitherSide) {
  ASSERT_TRUE(kCounts);
  const Bytes data = RandomBytes(10, 21);
  for (const bool is_ours : {false, true}) {
    uint32_t failed = 0;
    for (int64_t count = 0;; ++count) {
      Pair pair(kTlsKeys[0], {.tickets = 0});
      pair.server.UpdateKey(true);
      pair.server.Write(data);
      const Bytes bytes = pair.server.Take();
      Bytes room(data.size());
      const auto pieces = Cut(room, {room.size()});
      std::copy(bytes.begin(), bytes.end(), pair.session->InputSpace().begin());
      pair.session->Came(bytes.size());
      const Result<size_t> done =
          is_ours ? [&] {
            EXPECT_EQ(pair.session->Read(pieces).value(), data.size());
            return WithAllocations(count, [&] { return pair.session->Write(pieces); });
          }()
                  : WithAllocations(count, [&] { return pair.session->Read(pieces); });
      if (done.ok()) break;
      ++failed;
      EXPECT_EQ(done.error().code, ErrorCode::kResourceExhausted) << done.error().message;
      EXPECT_FALSE(pair.session->Write(pieces).ok()) << "for good";
    }
    EXPECT_GT(failed, 10U);
  }
}

TEST(TlsSession, TakesItsMemoryWithIt) {
  ASSERT_TRUE(kCounts);
  { const Pair warm_up; }
  const int64_t before = g_allocations.blocks;
  for (int turn = 0; turn < 20; ++turn) {
    const Pair pair;
  }
  EXPECT_LE(g_allocations.blocks, before + 8);
}

}  // namespace
}  // namespace cleat::nvme::tls
