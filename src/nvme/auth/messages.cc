// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::auth {
namespace {

// A copy of the message's beginning, which `bytes` hold.
template <typename Head>
Head HeadOf(std::span<const uint8_t> bytes) {
  CLEAT_CHECK(bytes.size() >= sizeof(Head));
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  return head;
}

Refusal Violation(Explanation tell, std::string text) {
  return {.tell = tell, .code = ErrorCode::kDataLoss, .text = std::move(text)};
}

Refusal TooShort(const char* name, size_t came, size_t wanted) {
  return Violation(Explanation::kIncorrectPayload,
                   fmt::format("the target's {} is too short: {} bytes of {}", name, came, wanted));
}

// What AUTH_Failure1 says, and what to do about it.
Refusal FailureOf(Explanation explanation) {
  const auto refusal = [](ErrorCode code, std::string text) {
    return Refusal{.tell = std::nullopt, .code = code, .text = std::move(text)};
  };
  switch (explanation) {
    case Explanation::kFailed:
      return refusal(ErrorCode::kPermissionDenied,
                     "the target does not accept the host's secret (authentication failed): compare it with "
                     "the one that the target has for this host's NQN; where a secret of the subsystem is "
                     "configured here, see that the target has that too");
    case Explanation::kProtocolNotUsable:
      return refusal(ErrorCode::kFailedPrecondition,
                     "the target does not take DH-HMAC-CHAP (authentication protocol not usable): allow it "
                     "at the target");
    case Explanation::kSecureChannelMismatch:
      return refusal(ErrorCode::kFailedPrecondition,
                     "the target wants a secure channel made by authentication (concatenation mismatch), "
                     "which this host "
                     "does not do: switch it off at the target");
    case Explanation::kHashNotUsable:
      return refusal(ErrorCode::kFailedPrecondition,
                     "the target takes none of the hashes that the host offers (hash function not usable): "
                     "allow one at the "
                     "target");
    case Explanation::kGroupNotUsable:
      return refusal(ErrorCode::kFailedPrecondition,
                     "the target takes none of the Diffie-Hellman groups that the host offers (group not "
                     "usable): allow one "
                     "at the target");
    case Explanation::kIncorrectPayload:
      return refusal(ErrorCode::kDataLoss,
                     "the target finds a message of the host wrong (incorrect payload)");
    case Explanation::kIncorrectMessage:
      return refusal(ErrorCode::kDataLoss,
                     "the target did not expect the host's message (incorrect protocol message)");
  }
  return refusal(ErrorCode::kDataLoss, fmt::format("the target ends the authentication for reason {:#04x}",
                                                   static_cast<unsigned>(explanation)));
}

// Whether the message is the one that is due, in its whole fixed part of `fixed_bytes`.
std::optional<Refusal> CheckHead(std::span<const uint8_t> bytes, uint16_t transaction, MessageId due,
                                 const char* name, size_t fixed_bytes) {
  if (bytes.size() < sizeof(FailureMessage)) return TooShort(name, bytes.size(), fixed_bytes);
  const auto head = HeadOf<MessageHead>(bytes);
  if (head.type == MessageType::kCommon && head.id == MessageId::kFailure1)
    return FailureOf(HeadOf<FailureMessage>(bytes).explanation);
  if (head.type != MessageType::kChap || head.id != due) {
    return Violation(Explanation::kIncorrectMessage,
                     fmt::format("the target sends message {}/{:02x}h where {} is due",
                                 static_cast<unsigned>(head.type), static_cast<unsigned>(head.id), name));
  }
  if (bytes.size() < fixed_bytes) return TooShort(name, bytes.size(), fixed_bytes);
  if (head.transaction != transaction) {
    return Violation(
        Explanation::kIncorrectPayload,
        fmt::format("the target's {} is of transaction {}, not of {}", name, head.transaction, transaction));
  }
  return std::nullopt;
}

std::optional<Refusal> CheckHashBytes(const char* name, size_t hash_bytes, Hash hash) {
  if (hash_bytes == BytesOf(hash)) return std::nullopt;
  return Violation(
      Explanation::kIncorrectPayload,
      fmt::format("the target's {} says that a value of {} has {} bytes", name, NameOf(hash), hash_bytes));
}

std::optional<Refusal> CheckDhBytes(DhGroup group, size_t dh_bytes) {
  const bool good = group == DhGroup::kNull ? dh_bytes == 0 : dh_bytes > 0 && dh_bytes <= BytesOf(group);
  if (good) return std::nullopt;
  return Violation(Explanation::kIncorrectPayload,
                   fmt::format("the target's challenge has a Diffie-Hellman value of {} bytes for group {}",
                               dh_bytes, NameOf(group)));
}

}  // namespace

NegotiateMessage NegotiateOf(const Offer& offer, uint16_t transaction) {
  NegotiateMessage message;
  CLEAT_CHECK(!offer.hashes.empty() && offer.hashes.size() <= std::size(message.hashes));
  CLEAT_CHECK(!offer.groups.empty() && offer.groups.size() <= std::size(message.groups));
  message.head.transaction = transaction;
  for (const Hash hash : offer.hashes) message.hashes[message.hash_count++] = static_cast<uint8_t>(hash);
  for (const DhGroup group : offer.groups)
    message.groups[message.group_count++] = static_cast<uint8_t>(group);
  return message;
}

std::optional<Refusal> ParseChallenge(std::span<const uint8_t> bytes, uint16_t transaction,
                                      const Offer& offer, Challenge& challenge) {
  constexpr const char* kName = "challenge";
  if (auto refusal = CheckHead(bytes, transaction, MessageId::kChallenge, kName, sizeof(ChallengeHead)))
    return refusal;
  const auto head = HeadOf<ChallengeHead>(bytes);
  const std::optional<Hash> hash = HashOf(head.hash);
  if (!hash || std::ranges::find(offer.hashes, *hash) == offer.hashes.end()) {
    return Violation(Explanation::kHashNotUsable,
                     fmt::format("the target chooses hash {}, which the host did not offer", head.hash));
  }
  const std::optional<DhGroup> group = DhGroupOf(head.group);
  if (!group || std::ranges::find(offer.groups, *group) == offer.groups.end()) {
    return Violation(
        Explanation::kGroupNotUsable,
        fmt::format("the target chooses Diffie-Hellman group {}, which the host did not offer", head.group));
  }
  if (auto refusal = CheckHashBytes(kName, head.hash_bytes, *hash)) return refusal;
  if (auto refusal = CheckDhBytes(*group, head.dh_bytes)) return refusal;
  if (head.sequence == 0)
    return Violation(Explanation::kIncorrectPayload, "the target's challenge has sequence number 0");
  const size_t wanted = sizeof(head) + head.hash_bytes + head.dh_bytes;
  if (bytes.size() < wanted) return TooShort(kName, bytes.size(), wanted);
  challenge = {.hash = *hash,
               .group = *group,
               .sequence = head.sequence,
               .value = bytes.subspan(sizeof(head), head.hash_bytes),
               .dh_value = bytes.subspan(sizeof(head) + head.hash_bytes, head.dh_bytes)};
  return std::nullopt;
}

std::optional<Refusal> ParseSuccess1(std::span<const uint8_t> bytes, uint16_t transaction, Hash hash,
                                     Success1& success) {
  constexpr const char* kName = "success message";
  if (auto refusal = CheckHead(bytes, transaction, MessageId::kSuccess1, kName, sizeof(Success1Head)))
    return refusal;
  const auto head = HeadOf<Success1Head>(bytes);
  success = {};
  if (head.response_valid == 0) return std::nullopt;
  if (auto refusal = CheckHashBytes(kName, head.hash_bytes, hash)) return refusal;
  const size_t wanted = sizeof(head) + head.hash_bytes;
  if (bytes.size() < wanted) return TooShort(kName, bytes.size(), wanted);
  success = {.response_valid = true, .response = bytes.subspan(sizeof(head), head.hash_bytes)};
  return std::nullopt;
}

}  // namespace cleat::nvme::auth
