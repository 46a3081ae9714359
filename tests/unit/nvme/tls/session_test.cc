// SPDX-License-Identifier: Apache-2.0
// A host's TLS session with an honest OpenSSL server, and with those that do not get as far as a connection.
#include "nvme/tls/session.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/nvme/tls/session_rig.h"

namespace cleat::nvme::tls::session_test {
namespace {

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

}  // namespace
}  // namespace cleat::nvme::tls::session_test
