// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvme/auth/controller.h"

#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "block/segments.h"

namespace cleat::nvme::auth {
namespace {

using Number = std::unique_ptr<BIGNUM, decltype(&BN_free)>;
Number NewNumber() {
  return {BN_new(), &BN_free};
}

struct GroupNumbers {
  int bits;
  unsigned long x;
};
constexpr GroupNumbers kGroupNumbers[] = {{0, 0},          {2048, 560316},   {3072, 2625351},
                                          {4096, 5736041}, {6144, 15705020}, {8192, 10965728}};
constexpr size_t kHashBytes[] = {0, 32, 48, 64};

const EVP_MD* DigestBy(uint8_t hash) {
  return hash == 1 ? EVP_sha256() : hash == 2 ? EVP_sha384() : EVP_sha512();
}

Bytes TestHmac(uint8_t hash, const Bytes& key, const Bytes& text) {
  Bytes out(kHashBytes[hash]);
  unsigned length = 0;
  CLEAT_CHECK(HMAC(DigestBy(hash), key.data(), static_cast<int>(key.size()), text.data(), text.size(),
                   out.data(), &length) != nullptr);
  return out;
}

void Append(Bytes& to, const Bytes& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}
void AppendText(Bytes& to, const std::string& text) {
  to.insert(to.end(), text.begin(), text.end());
}

uint32_t Little(const Bytes& bytes, size_t at, size_t size) {
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint32_t{bytes.at(at + i)} << (8 * i);
  return value;
}

// [2^shift e], by the series of e; 64 bits more than that are kept on the way.
Number ScaledE(int shift) {
  Number term = NewNumber(), sum = NewNumber();
  BN_one(term.get());
  BN_lshift(term.get(), term.get(), shift + 64);
  for (unsigned long k = 1; !BN_is_zero(term.get()); ++k) {
    BN_add(sum.get(), sum.get(), term.get());
    BN_div_word(term.get(), k);
  }
  BN_rshift(sum.get(), sum.get(), 64);
  return sum;
}

Bytes BytesOfNumber(const BIGNUM* number, size_t size_bytes) {
  Bytes bytes(size_bytes);
  CLEAT_CHECK(BN_bn2binpad(number, bytes.data(), static_cast<int>(size_bytes)) > 0);
  return bytes;
}

}  // namespace

Bytes RawSecret(size_t size_bytes) {
  Bytes secret(size_bytes);
  std::iota(secret.begin(), secret.end(), uint8_t{0});
  return secret;
}

Bytes PrimeOf(uint8_t group) {
  const auto [bits, x] = kGroupNumbers[group];
  Number prime = ScaledE(bits - 130), power = NewNumber();
  BN_add_word(prime.get(), x);
  BN_lshift(prime.get(), prime.get(), 64);
  BN_set_bit(power.get(), bits);
  BN_add(prime.get(), prime.get(), power.get());
  BN_zero(power.get());
  BN_set_bit(power.get(), bits - 64);
  BN_sub(prime.get(), prime.get(), power.get());
  BN_sub_word(prime.get(), 1);
  return BytesOfNumber(prime.get(), static_cast<size_t>(bits) / 8);
}

Bytes PowerOf(uint8_t group, const Bytes& base, const Bytes& exponent) {
  const Bytes prime_bytes = PrimeOf(group);
  const Number prime(BN_bin2bn(prime_bytes.data(), static_cast<int>(prime_bytes.size()), nullptr), &BN_free);
  const Number number(BN_bin2bn(base.data(), static_cast<int>(base.size()), nullptr), &BN_free);
  const Number power(BN_bin2bn(exponent.data(), static_cast<int>(exponent.size()), nullptr), &BN_free);
  const std::unique_ptr<BN_CTX, decltype(&BN_CTX_free)> context(BN_CTX_new(), &BN_CTX_free);
  Number result = NewNumber();
  CLEAT_CHECK(BN_mod_exp(result.get(), number.get(), power.get(), prime.get(), context.get()) == 1);
  return BytesOfNumber(result.get(), prime_bytes.size());
}

void TestController::Submit(const fabrics::QueuedCommand& command) {
  CLEAT_CHECK(!command_);
  command_ = command;
  ++commands;
}

std::pair<fabrics::CompletionEntry, uint64_t> TestController::Answer() {
  const fabrics::QueuedCommand command = *std::exchange(command_, std::nullopt);
  // Fabrics, security protocol E9h with 0001h: all of its commands have that.
  CLEAT_CHECK(command.entry.opcode == 0x7f && command.entry.cdw10 == 0xe9010100);
  fabrics::CompletionEntry entry;
  if (status) entry.status_field = static_cast<uint16_t>(status(commands) << 1);
  if (entry.status_field != 0) return {entry, 0};
  if (command.entry.nsid == 5) {
    Bytes message(block::SumBytes(command.to_target));
    CLEAT_CHECK(command.entry.cdw11 == message.size() && command.from_target.empty());
    block::Gather(command.to_target, 0, message.data(), message.size());
    TakeMessage(message);
    return {entry, 0};
  }
  CLEAT_CHECK(command.entry.nsid == 6 && command.to_target.empty());
  const uint64_t room_bytes = block::SumBytes(command.from_target);
  CLEAT_CHECK(command.entry.cdw11 == room_bytes);
  const Bytes message = GiveMessage(room_bytes);
  block::Scatter(message.data(), message.size(), command.from_target, 0);
  return {entry, message.size()};
}

Bytes TestController::GiveMessage(size_t room_bytes) {
  const uint8_t id = due_;
  Bytes message = NextMessage();
  if (tamper) tamper(id, message);
  message.resize(std::min(message.size(), room_bytes));
  return message;
}

void TestController::TakeMessage(const Bytes& message) {
  const uint8_t type = message.at(0), id = message.at(1);
  if (type == 0 && id == 0xf0) {
    CLEAT_CHECK(message.size() == 8 && message[6] == 1 && Little(message, 4, 2) == transaction_);
    failure2 = message[7];
  } else if (type == 0 && id == 0) {
    negotiate = message;
    transaction_ = static_cast<uint16_t>(Little(message, 4, 2));
    due_ = 1;
  } else if (type == 1 && id == 2) {
    reply = message;
    TakeReply(message);
  } else if (type == 1 && id == 4) {
    CLEAT_CHECK(message.size() == 16 && Little(message, 4, 2) == transaction_);
    success2 = true;
  } else {
    CLEAT_CHECK(false);
  }
}

void TestController::TakeReply(const Bytes& message) {
  const size_t size = kHashBytes[hash];
  const uint32_t dh_bytes = Little(message, 10, 2);
  CLEAT_CHECK(message.at(6) == size && message.size() == 16 + 2 * size + dh_bytes);
  CLEAT_CHECK(Little(message, 4, 2) == transaction_);
  asked_ = message[8] == 1;
  host_sequence_ = Little(message, 12, 4);
  const auto at = message.begin() + 16;
  const Bytes response(at, at + static_cast<ptrdiff_t>(size));
  host_challenge_.assign(at + static_cast<ptrdiff_t>(size), at + static_cast<ptrdiff_t>(2 * size));
  if (group != 0) {
    shared_ = PowerOf(group, Bytes(at + static_cast<ptrdiff_t>(2 * size), message.end()), exponent_);
  }
  host_accepted = response == Response("HostHost", host_secret, host_transformation, host_nqn, subsystem_nqn,
                                       challenge_, 0x01020304);
  due_ = host_accepted ? 3 : 0xf1;
}

Bytes TestController::NextMessage() {
  const auto low = static_cast<uint8_t>(transaction_), high = static_cast<uint8_t>(transaction_ >> 8);
  const auto size = static_cast<uint8_t>(kHashBytes[hash]);
  if (due_ == 0xf1) return {0, 0xf1, 0, 0, low, high, 1, 1};
  if (due_ == 1) {
    challenge_.assign(size, 0x5a);
    Bytes value;
    if (group != 0) {
      exponent_.assign(32, 0x37);
      value = PowerOf(group, {2}, exponent_);
    }
    Bytes message = {1,
                     1,
                     0,
                     0,
                     low,
                     high,
                     size,
                     0,
                     hash,
                     group,
                     static_cast<uint8_t>(value.size()),
                     static_cast<uint8_t>(value.size() >> 8),
                     4,
                     3,
                     2,
                     1};
    Append(message, challenge_);
    Append(message, value);
    return message;
  }
  CLEAT_CHECK(due_ == 3);
  const bool proves = asked_ && own_secret;
  Bytes message = {1, 3, 0, 0, low, high, size, 0, static_cast<uint8_t>(proves ? 1 : 0), 0, 0, 0, 0, 0, 0, 0};
  if (proves) {
    Append(message, Response("Controller", *own_secret, own_transformation, subsystem_nqn, host_nqn,
                             host_challenge_, host_sequence_));
  }
  return message;
}

Bytes TestController::Response(const char* role, const Bytes& secret, uint8_t transformation,
                               const std::string& nqn, const std::string& peer, const Bytes& challenge,
                               uint32_t sequence) const {
  Bytes text = challenge;
  if (!shared_.empty()) {
    Bytes session_key(kHashBytes[hash]);
    CLEAT_CHECK(EVP_Digest(shared_.data(), shared_.size(), session_key.data(), nullptr, DigestBy(hash),
                           nullptr) == 1);
    text = TestHmac(hash, session_key, challenge);
  }
  for (int shift = 0; shift < 32; shift += 8) text.push_back(static_cast<uint8_t>(sequence >> shift));
  text.push_back(static_cast<uint8_t>(transaction_));
  text.push_back(static_cast<uint8_t>(transaction_ >> 8));
  text.push_back(0);
  AppendText(text, role);
  AppendText(text, nqn);
  text.push_back(0);
  AppendText(text, peer);
  Bytes key = secret;
  if (transformation != 0) {
    Bytes named;
    AppendText(named, nqn);
    AppendText(named, "NVMe-over-Fabrics");
    key = TestHmac(transformation, secret, named);
  }
  return TestHmac(hash, key, text);
}

}  // namespace cleat::nvme::auth
