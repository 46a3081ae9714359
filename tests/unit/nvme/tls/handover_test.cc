// SPDX-License-Identifier: Apache-2.0
// What a kernel gets that is to make a connection's records, and the rules that the session keeps from then on: against OpenSSL's server, whose
// records are opened here, and made for it, with nothing but the keys that were handed over.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/unit/nvme/tls/session_rig.h"

namespace cleat::nvme::tls::handover_test {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kTagBytes = 16;
constexpr uint8_t kInternalError = 80;
constexpr uint8_t kUnexpectedMessage = 10;
constexpr uint8_t kBadRecordMac = 20;

Bytes FromHex(const std::string& digits) {
  Bytes bytes;
  for (size_t at = 0; at < digits.size(); at += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(digits.substr(at, 2), nullptr, 16)));
  return bytes;
}

Bytes BytesOf(const keys::Secret& secret) {
  return {secret.bytes().begin(), secret.bytes().end()};
}

// A kernel's end of one direction, as RFC 8446, 5.2 and 5.3 have it.
class Peer {
 public:
  explicit Peer(const RecordKeys& keys)
      : key_(BytesOf(keys.key)), base_(BytesOf(keys.nonce_base)), sequence_(keys.sequence) {}

  Bytes Seal(const Bytes& data, uint8_t type) {
    Bytes content = data;
    content.push_back(type);
    const size_t payload_bytes = content.size() + kTagBytes;
    Bytes record = {23, 3, 3, static_cast<uint8_t>(payload_bytes >> 8), static_cast<uint8_t>(payload_bytes)};
    EVP_CIPHER_CTX* const context = Begin(true, record);
    int done = 0;
    Bytes sealed(content.size());
    CLEAT_CHECK(EVP_CipherUpdate(context, sealed.data(), &done, content.data(),
                                 static_cast<int>(content.size())) == 1);
    CLEAT_CHECK(EVP_CipherFinal_ex(context, sealed.data() + done, &done) == 1);
    Bytes tag(kTagBytes);
    CLEAT_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1);
    EVP_CIPHER_CTX_free(context);
    record.insert(record.end(), sealed.begin(), sealed.end());
    record.insert(record.end(), tag.begin(), tag.end());
    return record;
  }
  // The first record of `bytes`, which loses it: content and type. nullopt: it is not the peer's.
  std::optional<Bytes> Open(Bytes& bytes) {
    const Bytes header(bytes.begin(), bytes.begin() + kHeaderBytes);
    const size_t payload_bytes = size_t{header[3]} << 8 | header[4];
    Bytes content(bytes.begin() + kHeaderBytes,
                  bytes.begin() + static_cast<ptrdiff_t>(kHeaderBytes + payload_bytes - kTagBytes));
    Bytes tag(bytes.begin() + static_cast<ptrdiff_t>(kHeaderBytes + content.size()),
              bytes.begin() + static_cast<ptrdiff_t>(kHeaderBytes + payload_bytes));
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(kHeaderBytes + payload_bytes));
    EVP_CIPHER_CTX* const context = Begin(false, header);
    int done = 0;
    CLEAT_CHECK(EVP_CipherUpdate(context, content.data(), &done, content.data(),
                                 static_cast<int>(content.size())) == 1);
    CLEAT_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1);
    const bool good = EVP_CipherFinal_ex(context, content.data() + done, &done) == 1;
    EVP_CIPHER_CTX_free(context);
    return good ? std::optional(content) : std::nullopt;
  }

 private:
  EVP_CIPHER_CTX* Begin(bool seals, const Bytes& header) {
    Bytes nonce = base_;
    for (size_t i = 0; i < 8; ++i) nonce[nonce.size() - 1 - i] ^= static_cast<uint8_t>(sequence_ >> (8 * i));
    ++sequence_;
    EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
    int done = 0;
    CLEAT_CHECK(EVP_CipherInit_ex(context, key_.size() == 16 ? EVP_aes_128_gcm() : EVP_aes_256_gcm(), nullptr,
                                  key_.data(), nonce.data(), seals ? 1 : 0) == 1);
    CLEAT_CHECK(EVP_CipherUpdate(context, nullptr, &done, header.data(), static_cast<int>(header.size())) ==
                1);
    return context;
  }

  const Bytes key_;
  const Bytes base_;
  uint64_t sequence_;
};

// RFC 8448, 3: the two secrets of a connection, and the keys that it has them become.
TEST(Handover, TheKeysAreThoseOfTheSpecificationsExample) {
  constexpr std::array<std::array<const char*, 3>, 2> kVectors = {
      {{"a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643",
        "9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984"},
       {"9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5",
        "17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9"}}};
  for (const auto& [secret, key, nonce_base] : kVectors) {
    const auto cipher =
        RecordCipher::Make(Hash::kSha256, keys::Secret::Copy(FromHex(secret)), RecordCipher::Use::kSeal);
    ASSERT_TRUE(cipher.ok());
    const auto keys = cipher->keys();
    ASSERT_TRUE(keys.ok());
    EXPECT_EQ(BytesOf(keys->key), FromHex(key));
    EXPECT_EQ(BytesOf(keys->nonce_base), FromHex(nonce_base));
    EXPECT_EQ(keys->sequence, 0U);
  }
}

TEST(Handover, WhoHasTheKeysGoesOnWithEachHashAndAfterRecordsOfBothDirections) {
  for (const char* const key : kTlsKeys) {
    Pair pair(key);                             // a ticket has come
    const Bytes data = RandomBytes(40'000, 1);  // three records
    EXPECT_EQ(Send(*pair.session, pair.server, data, {100'000}), data);
    const auto keys = pair.session->ExportKeys();
    ASSERT_TRUE(keys.ok());
    EXPECT_EQ(keys->seal.sequence, 3U);
    EXPECT_EQ(keys->open.sequence, 1U);
    pair.session->HandOver();
    Peer seals(keys->seal);
    Peer opens(keys->open);
    for (const size_t bytes : {1, 500, 16'384}) {
      const Bytes more = RandomBytes(bytes, bytes);
      pair.server.Give(seals.Seal(more, 23));
      EXPECT_EQ(pair.server.Read(), more);
      pair.server.Write(more);
      Bytes sent = pair.server.Take();
      auto opened = opens.Open(sent);
      ASSERT_TRUE(opened);
      EXPECT_EQ(opened->back(), 23);
      opened->pop_back();
      EXPECT_EQ(*opened, more);
    }
  }
}

// Whoever reads on behind the handshake has to find the next record there: all that the target sends comes in one piece, the tickets too.
TEST(Handover, TheHandshakeTakesNoByteBehindItsLastRecord) {
  auto session = MakeSession();
  TlsServer server(TlsKey());
  ASSERT_FALSE(*session->GoOn());
  server.Give(TakeOutput(*session));
  EXPECT_FALSE(server.Handshake());
  Bytes bytes = server.Take();
  const Bytes behind = {23, 3, 3, 0, 1, 9};
  bytes.insert(bytes.end(), behind.begin(), behind.end());
  size_t at = 0;
  while (!session->established()) {
    const auto space = session->InputSpace();
    ASSERT_FALSE(space.empty());
    const size_t count = std::min(space.size(), bytes.size() - at);
    ASSERT_GT(count, 0U);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), count, space.begin());
    session->Came(count);
    at += count;
    ASSERT_TRUE(session->GoOn().ok());
  }
  EXPECT_EQ(Bytes(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end()), behind);
  EXPECT_FALSE(session->is_between_records()) << "the host's Finished is not sent";
  server.Give(TakeOutput(*session));
  EXPECT_TRUE(server.Handshake());
  EXPECT_TRUE(session->is_between_records());
}

TEST(Handover, NothingThatIsHalfSentOrHalfReceivedIsLeftBehind) {
  Pair pair;
  Bytes data = RandomBytes(100, 1);
  auto pieces = Cut(data, {100});
  ASSERT_TRUE(pair.session->Write(pieces).ok());
  EXPECT_FALSE(pair.session->is_between_records()) << "not sent";
  pair.server.Give(TakeOutput(*pair.session));
  EXPECT_TRUE(pair.session->is_between_records());
  pair.server.Write(data);
  const Bytes record = pair.server.Take();
  EXPECT_TRUE(Receive(*pair.session, Bytes(record.begin(), record.begin() + 7)).data.empty());
  EXPECT_FALSE(pair.session->is_between_records()) << "half a record";
  EXPECT_EQ(Receive(*pair.session, Bytes(record.begin() + 7, record.end()), 1, {30}).data, data);
  EXPECT_TRUE(pair.session->is_between_records());
  pair.server.UpdateKey(true);
  EXPECT_FALSE(Receive(*pair.session, pair.server.Take()).error);
  EXPECT_FALSE(pair.session->is_between_records()) << "a KeyUpdate is to be answered";
}

class HandedOver : public testing::Test {
 protected:
  void SetUp() override { session_.HandOver(); }
  Status Take(ContentType type, const Bytes& content) { return session_.TakeRecord(type, content); }
  void ExpectEnded(const Status& status, const char* text, std::optional<uint8_t> alert) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_TRUE(Mentions(status.error(), text)) << status.error().message;
    EXPECT_EQ(session_.alert(), alert);
    EXPECT_TRUE(session_.failed());
    EXPECT_FALSE(session_.MaySeal().ok());
  }

  static constexpr uint64_t kBlocks = 1000;
  static constexpr auto kMessage = ContentType::kHandshake;
  Pair pair_{kTlsKeys[0], {}, SessionLimits{.kernel_blocks = kBlocks}};
  Session& session_ = *pair_.session;
  const Bytes kTicket = {4, 0, 0, 3, 1, 2, 3};
};

TEST_F(HandedOver, TicketsAreReadOverAlsoInParts) {
  EXPECT_TRUE(Take(kMessage, kTicket).ok());
  for (const uint8_t byte : kTicket) EXPECT_TRUE(Take(kMessage, {byte}).ok());
  EXPECT_TRUE(session_.Opened(10).ok());
  EXPECT_TRUE(Take(kMessage, {4, 0}).ok());
  ExpectEnded(session_.Opened(10), "in the midst of a message", kUnexpectedMessage);
}

TEST_F(HandedOver, AKeyUpdateEndsItAndIsRemembered) {
  EXPECT_FALSE(session_.saw_key_update());
  ExpectEnded(Take(kMessage, {24, 0, 0, 1, 1}), "changed its key", kInternalError);
  EXPECT_TRUE(session_.saw_key_update());
}

TEST_F(HandedOver, TheOrderlyEndIsTold) {
  EXPECT_TRUE(Take(ContentType::kAlert, {1, 90}).ok()) << "user_canceled is no end";
  ExpectEnded(Take(ContentType::kAlert, {1, 0}), "the target has closed it", std::nullopt);
}

TEST_F(HandedOver, AFatalAlertIsToldInItsWords) {
  ExpectEnded(Take(ContentType::kAlert, {2, 20}), "the target says \"bad record mac\"", std::nullopt);
}

TEST_F(HandedOver, OtherTypesEndIt) {
  ExpectEnded(Take(ContentType::kChangeCipherSpec, {1}), "a record of type 20", kUnexpectedMessage);
}

TEST_F(HandedOver, RecordsWithoutDataInARowAreBounded) {
  EXPECT_TRUE(session_.Opened(1).ok());  // behind the handshake's ticket
  for (int turn = 0; turn < 2; ++turn) {
    for (uint32_t i = 0; i < Session::kIdleRecordsMax; ++i) EXPECT_TRUE(Take(kMessage, kTicket).ok()) << i;
    EXPECT_TRUE(session_.Opened(1).ok());
  }
  for (uint32_t i = 0; i < Session::kIdleRecordsMax; ++i) EXPECT_TRUE(Take(kMessage, kTicket).ok());
  ExpectEnded(Take(kMessage, kTicket), "records in a row without data", kUnexpectedMessage);
}

TEST_F(HandedOver, WhatTheKernelCantOpenEndsItAsWhatTheSessionCantOpen) {
  ExpectEnded(session_.FailFor(Unopened::kChanged), "changed on its way", kBadRecordMac);
}

// A block and a tag at least for each record, so that the limit comes too early and never too late.
TEST_F(HandedOver, NoKeyIsUsedForTooMuch) {
  EXPECT_TRUE(session_.Opened((kBlocks - 100) * kBlockBytes).ok());
  EXPECT_TRUE(session_.MaySeal().ok());
  session_.Sealed((kBlocks - 100) * kBlockBytes);
  EXPECT_TRUE(session_.MaySeal().ok());
  session_.Sealed(100 * kBlockBytes);
  ExpectEnded(session_.MaySeal(), "as much was sent as one key can protect", kInternalError);
}

TEST_F(HandedOver, ATargetsKeyIsNotUsedForTooMuch) {
  ExpectEnded(session_.Opened(kBlocks * kBlockBytes), "more than one key can protect", kInternalError);
}

}  // namespace
}  // namespace cleat::nvme::tls::handover_test
