// SPDX-License-Identifier: Apache-2.0
// The messages of in-band authentication with DH-HMAC-CHAP: how a host writes its own, and what it takes of a controller's.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.4 (common messages) and 8.13.5 (DH-HMAC-CHAP). Plain values; any thread. What a
// target sends is hostile: every length is checked against what came before anything behind it is looked at.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::auth {

static_assert(std::endian::native == std::endian::little);

// The room for any message: what Authentication Receive asks for, as other hosts do.
inline constexpr size_t kMessageBytesMax = 4096;

enum class MessageType : uint8_t { kCommon = 0, kChap = 1 };

enum class MessageId : uint8_t {
  kNegotiate = 0x00,  // common
  kChallenge = 0x01,
  kReply = 0x02,
  kSuccess1 = 0x03,
  kSuccess2 = 0x04,
  kFailure2 = 0xf0,  // common; the host's
  kFailure1 = 0xf1,  // common; the controller's
};

// Why an authentication failed, in AUTH_Failure1 and AUTH_Failure2.
enum class Explanation : uint8_t {
  kFailed = 1,
  kProtocolNotUsable = 2,
  kSecureChannelMismatch = 3,
  kHashNotUsable = 4,
  kGroupNotUsable = 5,
  kIncorrectPayload = 6,
  kIncorrectMessage = 7,
};

// ---- As they are sent

struct MessageHead {
  MessageType type = MessageType::kChap;
  MessageId id = MessageId::kChallenge;
  uint16_t reserved = 0;
  uint16_t transaction = 0;  // T_ID
};
static_assert(sizeof(MessageHead) == 6);

struct NegotiateMessage {  // AUTH_Negotiate, with one protocol descriptor
  MessageHead head{.type = MessageType::kCommon, .id = MessageId::kNegotiate};
  uint8_t secure_channel = 0;  // SC_C: none
  uint8_t descriptors = 1;     // NAPD
  uint8_t protocol = 1;        // AUTHID: DH-HMAC-CHAP
  uint8_t reserved = 0;
  uint8_t hash_count = 0;
  uint8_t group_count = 0;
  uint8_t hashes[30] = {};
  uint8_t groups[30] = {};
};
static_assert(sizeof(NegotiateMessage) == 72);

struct ChallengeHead {  // DH-HMAC-CHAP_Challenge; then the challenge and the controller's DH value
  MessageHead head;
  uint8_t hash_bytes = 0;  // HL
  uint8_t reserved = 0;
  uint8_t hash = 0;
  uint8_t group = 0;
  uint16_t dh_bytes = 0;  // DHVLEN
  uint32_t sequence = 0;  // S1
};
static_assert(sizeof(ChallengeHead) == 16);

struct ReplyHead {  // DH-HMAC-CHAP_Reply; then the response, the host's challenge and the host's DH value
  MessageHead head{.type = MessageType::kChap, .id = MessageId::kReply};
  uint8_t hash_bytes = 0;
  uint8_t reserved1 = 0;
  uint8_t challenge_valid = 0;  // CVALID: the controller has to prove itself too
  uint8_t reserved2 = 0;
  uint16_t dh_bytes = 0;
  uint32_t sequence = 0;  // S2, never 0: that would ask for a secure channel
};
static_assert(sizeof(ReplyHead) == 16);
inline constexpr size_t kReplyBytesMax = sizeof(ReplyHead) + 2 * kHashBytesMax + kDhBytesMax;
static_assert(kReplyBytesMax <= kMessageBytesMax);

struct Success1Head {  // DH-HMAC-CHAP_Success1; then the controller's response, where it is valid
  MessageHead head;
  uint8_t hash_bytes = 0;
  uint8_t reserved1 = 0;
  uint8_t response_valid = 0;  // RVALID
  uint8_t reserved2[7] = {};
};
static_assert(sizeof(Success1Head) == 16);

struct Success2Message {  // DH-HMAC-CHAP_Success2
  MessageHead head{.type = MessageType::kChap, .id = MessageId::kSuccess2};
  uint8_t reserved[10] = {};
};
static_assert(sizeof(Success2Message) == 16);

struct FailureMessage {  // AUTH_Failure1, AUTH_Failure2
  MessageHead head{.type = MessageType::kCommon, .id = MessageId::kFailure2};
  uint8_t reason = 1;  // authentication failure: the only one that there is
  Explanation explanation = Explanation::kFailed;
};
static_assert(sizeof(FailureMessage) == 8);

// ---- What the host makes of them

// What the host lets the controller choose from, the ones that it likes best first.
struct Offer {
  std::vector<Hash> hashes = {Hash::kSha512, Hash::kSha384, Hash::kSha256};
  std::vector<DhGroup> groups = {DhGroup::kFfdhe2048, DhGroup::kFfdhe3072, DhGroup::kFfdhe4096,
                                 DhGroup::kFfdhe6144, DhGroup::kFfdhe8192, DhGroup::kNull};
};
NegotiateMessage NegotiateOf(const Offer& offer, uint16_t transaction);

// The end of an authentication, and what the controller is told of it: nothing where that is who ended it.
struct Refusal {
  std::optional<Explanation> tell;
  ErrorCode code = ErrorCode::kDataLoss;
  std::string
      text;  // what the target does wrong, or what is to be done about it; the caller names the target before it
};

struct Challenge {
  Hash hash = Hash::kSha256;
  DhGroup group = DhGroup::kNull;
  uint32_t sequence = 0;
  std::span<const uint8_t> value;     // BytesOf(hash) of the message
  std::span<const uint8_t> dh_value;  // up to BytesOf(group) of the message; none for kNull
};

struct Success1 {
  bool response_valid = false;
  std::span<const uint8_t> response;  // BytesOf(hash) of the message where it is valid
};

// `bytes`: as many as came. A refusal is also what AUTH_Failure1 becomes.
std::optional<Refusal> ParseChallenge(std::span<const uint8_t> bytes, uint16_t transaction,
                                      const Offer& offer, Challenge& challenge);
std::optional<Refusal> ParseSuccess1(std::span<const uint8_t> bytes, uint16_t transaction, Hash hash,
                                     Success1& success);

}  // namespace cleat::nvme::auth
