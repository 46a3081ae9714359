// SPDX-License-Identifier: Apache-2.0
// A target's TLS session with our own host's, with OpenSSL's client, and with hosts that have no key or break the rules.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "nvme/tls/session.h"
#include "tests/unit/nvme/tls/session_rig.h"

namespace cleat::nvme::tls::target_session_test {
namespace {

// Knows one key, and keeps what hosts have asked for.
struct Keys {
  explicit Keys(const char* key = kTlsKeys[0], IdentityVersion knows = IdentityVersion::kV0)
      : text(key), version(knows) {}
  KeyFinder finder() {
    return [this](std::string_view identity) -> Result<ConnectionKey> {
      asked.emplace_back(identity);
      if (fails) return Error(ErrorCode::kResourceExhausted, "no memory for keys");
      ConnectionKey key = TlsKey(text, version);
      if (key.identity == identity) return key;
      return Error(ErrorCode::kPermissionDenied, "nobody is known by that name");
    };
  }
  const char* text;
  IdentityVersion version;
  bool fails = false;
  std::vector<std::string> asked;
};

std::unique_ptr<Session> MakeTarget(Keys& keys) {
  return Session::MakeForTarget(keys.finder()).value();
}

// What one session has to say goes to the other one, `step` bytes at a time. The error that either came to.
struct Errors {
  std::optional<Error> host;
  std::optional<Error> target;
};
Errors ShakeHands(Session& host, Session& target, size_t step = SIZE_MAX) {
  Errors errors;
  const auto go_on = [](Session& session, std::optional<Error>& error) {
    const Result<bool> over = session.GoOn();
    if (!over.ok()) error = over.error();
  };
  go_on(host, errors.host);
  for (int turn = 0; turn < 4; ++turn) {
    const Bytes there = TakeOutput(host);
    if (!errors.target)
      Feed(
          target, there, [&] { go_on(target, errors.target); }, step);
    const Bytes back = TakeOutput(target);
    if (!errors.host)
      Feed(
          host, back, [&] { go_on(host, errors.host); }, step);
  }
  return errors;
}

Bytes Carry(Session& from, Session& to, Bytes data) {
  Bytes arrived;
  for (size_t at = 0; at < data.size();) {
    Bytes rest(data.begin() + static_cast<ptrdiff_t>(at), data.end());
    const Result<size_t> taken = from.Write(Cut(rest, {5000}));
    if (!taken.ok() || *taken == 0) break;
    at += *taken;
    const Received received = Receive(to, TakeOutput(from));
    arrived.insert(arrived.end(), received.data.begin(), received.data.end());
  }
  return arrived;
}

// A target and OpenSSL's client, whose handshake is over.
struct TargetPair {
  explicit TargetPair(const TlsClient::Options& options = {})
      : target(MakeTarget(keys)), client(TlsKey(), options) {
    const auto error = Connect(*target, client);
    EXPECT_FALSE(error) << error->message;
  }
  Keys keys;
  std::unique_ptr<Session> target;
  TlsClient client;
};

TEST(TlsTargetSession, CarriesDataBothWaysWithEachHashAndEachIdentity) {
  for (const char* const text : kTlsKeys) {
    for (const IdentityVersion version : {IdentityVersion::kV0, IdentityVersion::kV1}) {
      Keys keys(text, version);
      auto target = MakeTarget(keys);
      auto host = MakeSession(TlsKey(text, version));
      const Errors errors = ShakeHands(*host, *target);
      ASSERT_FALSE(errors.target) << errors.target->message;
      ASSERT_TRUE(host->established() && target->established());
      EXPECT_EQ(target->identity(), TlsKey(text, version).identity);
      const Bytes data = RandomBytes(200'000, 1);
      EXPECT_EQ(Carry(*host, *target, data), data);
      EXPECT_EQ(Carry(*target, *host, data), data);
    }
  }
}

TEST(TlsTargetSession, UnderstandsAHostThatSendsByteByByte) {
  Keys keys;
  auto target = MakeTarget(keys);
  auto host = MakeSession();
  const Errors errors = ShakeHands(*host, *target, 1);
  EXPECT_FALSE(errors.target) << errors.target->message;
  EXPECT_TRUE(target->established());
  EXPECT_EQ(Carry(*target, *host, Bytes(10, 1)), Bytes(10, 1));
}

TEST(TlsTargetSession, TakesOpensslsClientWithEachGroupAndAsksForOneThatBothHave) {
  for (const char* const groups : {"X25519", "P-256", "P-384", "P-521:P-256"}) {
    TargetPair pair({.groups = groups});
    ASSERT_TRUE(pair.target->established()) << groups;
    const Bytes data = RandomBytes(40'000, 2);
    pair.client.Write(data);
    EXPECT_EQ(Receive(*pair.target, pair.client.Take()).data, data);
    EXPECT_EQ(Send(*pair.target, pair.client, data, {3000}), data);
    EXPECT_EQ(pair.keys.asked.size(), 1U) << "the same key is named again, and not looked for again";
  }
}

TEST(TlsTargetSession, SaysAndHearsTheOrderlyEndAndSendsNoTicket) {
  TargetPair pair;
  EXPECT_TRUE(pair.target->output().empty()) << "a ticket would be the first record";
  pair.target->Close();
  pair.client.Give(TakeOutput(*pair.target));
  EXPECT_EQ(pair.client.Read(), std::nullopt);
  pair.client.Close();
  const Received received = Receive(*pair.target, pair.client.Take());
  ASSERT_TRUE(received.error);
  EXPECT_TRUE(Mentions(*received.error, "the host has closed it")) << received.error->message;
}

// ---- Who is not let in

TEST(TlsTargetSession, RefusesAHostWithAnotherKeyBeforeAnythingOfItCounts) {
  Keys keys;
  auto target = MakeTarget(keys);
  ConnectionKey other = TlsKey(kOtherTlsKey);  // of the same name
  ASSERT_EQ(other.identity, TlsKey().identity);
  auto host = MakeSession(std::move(other));
  const Errors errors = ShakeHands(*host, *target);
  ASSERT_TRUE(errors.target && errors.host);
  EXPECT_EQ(errors.target->code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(Mentions(*errors.target, "another key for NVMe0R01")) << errors.target->message;
  EXPECT_EQ(errors.host->code, ErrorCode::kPermissionDenied) << errors.host->message;
  EXPECT_FALSE(target->established() || host->established());
  EXPECT_FALSE(target->GoOn().ok()) << "for good";
}

TEST(TlsTargetSession, TellsAHostThatIsNotKnownThatItIsNot) {
  Keys keys(kTlsKeys[0], IdentityVersion::kV1);
  auto target = MakeTarget(keys);
  auto host = MakeSession();
  const Errors errors = ShakeHands(*host, *target);
  ASSERT_TRUE(errors.target && errors.host);
  EXPECT_EQ(errors.target->code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(Mentions(*errors.target, "nobody is known by that name")) << errors.target->message;
  EXPECT_EQ(host->refusal(), IdentityRefusal::kUnknown) << "so that it tries its other identity";
}

TEST(TlsTargetSession, RefusesWhoDoesNotSpeakTls13WithAKey) {
  const std::vector<std::pair<TlsClient::Options, const char*>> rows = {
      {{.newest_version = TLS1_2_VERSION}, "no TLS 1.3"},
      {{.has_key = false}, "no pre-shared key"},
      {{.suites = "TLS_AES_256_GCM_SHA384"}, "cipher suite"},
      {{.groups = "P-521"}, "no group"},
  };
  for (const auto& [options, why] : rows) {
    Keys keys;
    auto target = MakeTarget(keys);
    TlsClient client(TlsKey(), options);
    const auto error = Connect(*target, client);
    ASSERT_TRUE(error) << why;
    EXPECT_TRUE(Mentions(*error, why)) << error->message;
    client.Give(TakeOutput(*target));
    client.Handshake();
    EXPECT_TRUE(client.failed()) << "it is told: " << client.why();
  }
}

TEST(TlsTargetSession, SaysThatThereIsNoMemoryForKeys) {
  Keys keys;
  keys.fails = true;
  auto target = MakeTarget(keys);
  auto host = MakeSession();
  const Errors errors = ShakeHands(*host, *target);
  ASSERT_TRUE(errors.target);
  EXPECT_EQ(errors.target->code, ErrorCode::kResourceExhausted);
}

// ---- First messages that no client of a library sends

Bytes Behind(size_t length_bytes, const Bytes& bytes) {
  Bytes all;
  for (size_t i = length_bytes; i-- > 0;) all.push_back(static_cast<uint8_t>(bytes.size() >> (8 * i)));
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}
void Append(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

Bytes IdentitiesOf(const std::vector<std::string>& names) {
  Bytes list;
  for (const std::string& name : names) {
    Append(list, Behind(2, Bytes(name.begin(), name.end())));
    Append(list, Bytes(4));  // the age
  }
  Bytes binders;
  for (size_t i = 0; i < names.size(); ++i) Append(binders, Behind(1, Bytes(32)));
  Bytes extension = Behind(2, list);
  Append(extension, Behind(2, binders));
  return extension;
}

// A ClientHello in a record, with `psk` as its extension for pre-shared keys.
Bytes HelloWith(const Bytes& psk) {
  const auto extension = [](uint8_t type, const Bytes& body) {
    Bytes all = {0, type};
    Append(all, Behind(2, body));
    return all;
  };
  Bytes extensions = extension(43, {2, 3, 4});         // TLS 1.3
  Append(extensions, extension(10, {0, 2, 0, 0x1d}));  // X25519
  Append(extensions, extension(45, {1, 1}));           // psk_dhe_ke
  Bytes share = {0, 0x1d};
  Append(share, Behind(2, Bytes(32, 9)));
  Append(extensions, extension(51, Behind(2, share)));
  Append(extensions, extension(41, psk));
  Bytes hello = {3, 3};
  Append(hello, Bytes(32, 7));                 // random
  Append(hello, {0, 0, 2, 0x13, 0x01, 1, 0});  // no session, the suite, no compression
  Append(hello, Behind(2, extensions));
  Bytes message = {1};
  Append(message, Behind(3, hello));
  Bytes record = {22, 3, 1};
  Append(record, Behind(2, message));
  return record;
}

std::optional<Error> Hear(Session& target, const Bytes& bytes) {
  std::optional<Error> error;
  Feed(target, bytes, [&] {
    const Result<bool> over = target.GoOn();
    if (!over.ok()) error = over.error();
  });
  return error;
}

TEST(TlsTargetSession, LooksForTheFirstKeyThatItKnowsAmongSoManyAndNoMore) {
  const std::string known = TlsKey().identity;
  const std::vector<std::string> names = {"a", "b", known, "c"};
  Keys keys;
  auto target = MakeTarget(keys);
  const auto error = Hear(*target, HelloWith(IdentitiesOf(names)));
  ASSERT_TRUE(error);
  EXPECT_TRUE(Mentions(*error, "another key for ")) << "a proof is looked at: " << error->message;
  EXPECT_EQ(keys.asked, (std::vector<std::string>{"a", "b", known}));

  Keys later;
  auto beyond = MakeTarget(later);
  const auto unknown = Hear(*beyond, HelloWith(IdentitiesOf({"a", "b", "c", "d", known})));
  ASSERT_TRUE(unknown);
  EXPECT_TRUE(Mentions(*unknown, "nobody is known")) << unknown->message;
  EXPECT_EQ(later.asked.size(), Handshake::kIdentitiesMax);
}

TEST(TlsTargetSession, RefusesMalformedListsOfIdentities) {
  Bytes good = IdentitiesOf({"a"});
  const std::vector<Bytes> lists = {
      {}, {0}, {0, 0}, {0, 9}, {0, 3, 0, 9, 1}, {0, 2, 0, 0}, {0, 1, 7}, {0, 5, 0, 1, 'a', 0, 0},
  };
  for (const Bytes& list : lists) {
    Keys keys;
    auto target = MakeTarget(keys);
    const auto error = Hear(*target, HelloWith(list));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, ErrorCode::kUnavailable) << error->message;
    EXPECT_TRUE(keys.asked.empty());
  }
}

// From a host that has proved nothing OpenSSL would take memory for it.
TEST(TlsTargetSession, RefusesAFirstMessageThatIsTooLongByItsHeader) {
  Keys keys;
  auto target = MakeTarget(keys);
  const Bytes long_one = {22, 3, 1, 0x40, 0, 1, 1, 0, 0};
  const auto error = Hear(*target, long_one);
  ASSERT_TRUE(error);
  EXPECT_TRUE(Mentions(*error, "more bytes than")) << error->message;

  for (const Bytes& bytes : {Bytes{22, 3, 1, 0, 3, 1, 0, 0}, Bytes{23, 3, 3, 0, 30, 1, 0, 0, 0}}) {
    auto cut = MakeTarget(keys);
    EXPECT_TRUE(Hear(*cut, bytes)) << "a header in parts is not looked at";
  }
}

TEST(TlsTargetSession, RefusesMoreBytesThanAHandshakeHas) {
  Keys keys;
  auto target = MakeTarget(keys);
  TlsClient client(TlsKey());
  client.Handshake();
  ASSERT_FALSE(Hear(*target, client.Take()));
  // What is read over before the last message: a record that other versions need.
  Bytes change_cipher_spec = {20, 3, 3, 0, 1, 1};
  std::optional<Error> error;
  size_t sent = 0;
  while (!error && sent < 10 * Session::kHelloBytesMax) {
    error = Hear(*target, change_cipher_spec);
    sent += change_cipher_spec.size();
  }
  ASSERT_TRUE(error);
  EXPECT_LE(sent, Session::kHelloBytesMax + 100) << error->message;
}

TEST(TlsTargetSession, IsNotEstablishedWithAnyByteOfTheHostsHandshakeChanged) {
  size_t bytes = 0;
  {
    Keys keys;
    auto target = MakeTarget(keys);
    auto host = MakeSession();
    (void)host->GoOn();
    bytes = TakeOutput(*host).size();
  }
  for (size_t at = 0; at < bytes; ++at) {
    Keys keys;
    auto target = MakeTarget(keys);
    auto host = MakeSession();
    (void)host->GoOn();
    Bytes hello = TakeOutput(*host);
    ASSERT_EQ(hello.size(), bytes);
    hello[at] ^= static_cast<uint8_t>(1U << at % 8);
    (void)Hear(*target, hello);
    Feed(*host, TakeOutput(*target), [&] { (void)host->GoOn(); });
    (void)Hear(*target, TakeOutput(*host));
    // The version of a record that is not encrypted is left out of all of them (RFC 8446, 5.1).
    const bool is_looked_at = at != 1 && at != 2;
    EXPECT_TRUE(!is_looked_at || !target->established()) << "byte " << at << " of " << bytes;
  }
}

// ---- Hosts that have a key, and break the rules

Received ReceiveForged(const std::vector<Bytes>& contents) {
  TargetPair pair;
  RecordCipher cipher = pair.client.Forge();
  Bytes bytes;
  for (const Bytes& content : contents) {
    Bytes record(kRecordHeaderBytes + content.size() + kRecordTagBytes);
    std::copy(content.begin(), content.end(), record.begin() + kRecordHeaderBytes);
    cipher.Seal(record, static_cast<ContentType>(content.back()));
    Append(bytes, record);
  }
  return Receive(*pair.target, bytes);
}

TEST(TlsTargetSession, EndsWithWhatAHostMayNotSend) {
  const Bytes ticket = {4, 0, 0, 13, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 1, 0, 22};
  const std::vector<std::pair<std::vector<Bytes>, const char*>> rows = {
      {{ticket}, "the host has sent a message of type 4"},
      {{{1, 0, 0, 1, 0, 22}}, "message of type 1"},
      {{{24, 0, 0, 1, 2, 22}}, "asks for nonsense"},
      {{{1, 0, 21}}, "the host has closed it"},
      {{{2, 40, 21}}, "the host says"},
      {{{7, 99}}, "of type 99"},
      {std::vector<Bytes>(Session::kIdleRecordsMax + 1, Bytes{23}), "without data"},
  };
  for (const auto& [contents, why] : rows) {
    const Received received = ReceiveForged(contents);
    ASSERT_TRUE(received.error) << why;
    EXPECT_TRUE(Mentions(*received.error, why)) << received.error->message;
  }
}

TEST(TlsTargetSession, AnswersKeyUpdatesAndEndsWhenAHostSendsNothingElse) {
  TargetPair pair;
  const Bytes data = RandomBytes(100, 5);
  for (int turn = 0; turn < 5; ++turn) {
    pair.client.UpdateKey(true);
    pair.client.Write(data);
    EXPECT_EQ(Receive(*pair.target, pair.client.Take()).data, data);
    ASSERT_EQ(Send(*pair.target, pair.client, data, {100}), data);
  }
  std::optional<Error> error;
  uint32_t updates = 0;
  for (; !error && updates < 100; ++updates) {
    pair.client.UpdateKey(true);
    error = Receive(*pair.target, pair.client.Take()).error;
  }
  ASSERT_TRUE(error);
  EXPECT_LE(updates, Session::kKeyUpdatesMax + 1);
}

// ---- Memory

TEST(TlsTargetSession, HasNoBuffersWhileItHasNothingInThemAndGoesOnAfterwards) {
  TargetPair pair;
  const Bytes data = RandomBytes(1000, 6);
  EXPECT_GT(pair.target->buffer_bytes(), 0U);
  pair.target->ReleaseBuffers();
  EXPECT_EQ(pair.target->buffer_bytes(), 0U);
  pair.client.Write(data);
  Bytes bytes = pair.client.Take();
  // Half a record stays.
  const Bytes rest(bytes.begin() + 500, bytes.end());
  bytes.resize(500);
  EXPECT_TRUE(Receive(*pair.target, bytes).data.empty());
  EXPECT_TRUE(pair.target->has_input());
  pair.target->ReleaseBuffers();
  EXPECT_EQ(pair.target->buffer_bytes(), Session::kInputBytes);
  EXPECT_EQ(Receive(*pair.target, rest).data, data);
  EXPECT_EQ(Send(*pair.target, pair.client, data, {1000}), data);
  // What was not sent stays, too.
  Bytes unsent = data;
  ASSERT_EQ(pair.target->Write(Cut(unsent, {1000})).value(), data.size());
  pair.target->ReleaseBuffers();
  pair.client.Give(TakeOutput(*pair.target));
  EXPECT_EQ(pair.client.Read(), data);
}

}  // namespace
}  // namespace cleat::nvme::tls::target_session_test
