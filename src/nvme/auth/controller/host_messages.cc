// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/controller/host_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::auth {
namespace {

constexpr uint8_t kDhHmacChap = 1;  // AUTHID
constexpr size_t kDescriptorsAt = offsetof(NegotiateMessage, protocol);
constexpr size_t kDescriptorBytes = sizeof(NegotiateMessage) - kDescriptorsAt;
constexpr size_t kIdsMax = 30;

// A copy of the message's beginning, which `bytes` hold.
template <typename Head>
Head BeginningOf(std::span<const uint8_t> bytes) {
  CLEAT_CHECK(bytes.size() >= sizeof(Head));
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  return head;
}

HostRefusal Refuse(Explanation tell, std::string text) {
  return {.tell = tell, .text = std::move(text)};
}

HostRefusal TooShortOfHost(const char* name, size_t came, size_t wanted) {
  return Refuse(Explanation::kIncorrectPayload,
                fmt::format("the host's {} is too short: {} bytes of {}", name, came, wanted));
}

// AUTH_Failure2.
HostRefusal FailureOfHost(Explanation explanation) {
  return {.tell = std::nullopt,
          .text = explanation == Explanation::kFailed
                      ? std::string("the host does not believe that this is the subsystem: compare the "
                                    "subsystem's secret here with the one that the host has")
                      : fmt::format("the host ends the authentication for reason {:#04x}",
                                    static_cast<unsigned>(explanation))};
}

// Whether the message is the one that is due, in its whole fixed part of `fixed_bytes`. `transaction`: nullopt where the message begins one.
std::optional<HostRefusal> CheckHostHead(std::span<const uint8_t> bytes, std::optional<uint16_t> transaction,
                                         const MessageHead& due, const char* name, size_t fixed_bytes) {
  if (bytes.size() < sizeof(MessageHead)) return TooShortOfHost(name, bytes.size(), fixed_bytes);
  const auto head = BeginningOf<MessageHead>(bytes);
  if (head.type == MessageType::kCommon && head.id == MessageId::kFailure2 && transaction) {
    return FailureOfHost(bytes.size() < sizeof(FailureMessage)
                             ? Explanation::kIncorrectPayload
                             : BeginningOf<FailureMessage>(bytes).explanation);
  }
  if (head.type != due.type || head.id != due.id) {
    return Refuse(Explanation::kIncorrectMessage,
                  fmt::format("the host sends message {}/{:02x}h where {} is due",
                              static_cast<unsigned>(head.type), static_cast<unsigned>(head.id), name));
  }
  if (bytes.size() < fixed_bytes) return TooShortOfHost(name, bytes.size(), fixed_bytes);
  if (transaction && head.transaction != *transaction) {
    return Refuse(Explanation::kIncorrectPayload, fmt::format("the host's {} is of transaction {}, not of {}",
                                                              name, head.transaction, *transaction));
  }
  return std::nullopt;
}

// Of DH-HMAC-CHAP's descriptor. Numbers that are not known here are others' business.
std::optional<HostRefusal> Choose(const NegotiateMessage& offer, Negotiation& negotiation) {
  if (offer.hash_count > kIdsMax || offer.group_count > kIdsMax) {
    return Refuse(Explanation::kIncorrectPayload,
                  fmt::format("the host offers {} hashes and {} Diffie-Hellman groups, more than there is "
                              "room for",
                              offer.hash_count, offer.group_count));
  }
  const std::span hashes(offer.hashes, offer.hash_count), groups(offer.groups, offer.group_count);
  std::optional<Hash> best;
  for (const uint8_t id : hashes) {
    const std::optional<Hash> hash = HashOf(id);
    if (hash && (!best || *hash > *best)) best = hash;
  }
  if (!best) return Refuse(Explanation::kHashNotUsable, "the host offers no hash that this end has");
  const auto is_offered = [&](DhGroup group) {
    return std::ranges::find(groups, static_cast<uint8_t>(group)) != groups.end();
  };
  const auto group = std::ranges::find_if(kGroupsLiked, is_offered);
  if (group == std::end(kGroupsLiked)) {
    return Refuse(Explanation::kGroupNotUsable, "the host offers no Diffie-Hellman group that this end has");
  }
  negotiation.hash = *best;
  negotiation.group = *group;
  return std::nullopt;
}

}  // namespace

std::optional<HostRefusal> ParseNegotiate(std::span<const uint8_t> bytes, Negotiation& negotiation) {
  constexpr const char* kName = "negotiation";
  const MessageHead due{.type = MessageType::kCommon, .id = MessageId::kNegotiate};
  if (auto refusal = CheckHostHead(bytes, std::nullopt, due, kName, kDescriptorsAt)) return refusal;
  negotiation.transaction = BeginningOf<MessageHead>(bytes).transaction;  // for AUTH_Failure1, too
  const uint8_t secure_channel = bytes[offsetof(NegotiateMessage, secure_channel)];
  const size_t descriptors = bytes[offsetof(NegotiateMessage, descriptors)];
  const size_t wanted = kDescriptorsAt + descriptors * kDescriptorBytes;
  if (descriptors == 0) return Refuse(Explanation::kIncorrectPayload, "the host offers no protocol");
  if (bytes.size() < wanted) return TooShortOfHost(kName, bytes.size(), wanted);
  if (secure_channel != 0) {
    return Refuse(Explanation::kSecureChannelMismatch,
                  "the host wants a secure channel made by authentication (concatenation), which this end "
                  "does not do: switch it off at the host, and give it a pre-shared key where it is to use "
                  "TLS");
  }
  for (size_t i = 0; i < descriptors; ++i) {
    NegotiateMessage offer;
    std::memcpy(reinterpret_cast<uint8_t*>(&offer) + kDescriptorsAt,
                bytes.data() + kDescriptorsAt + i * kDescriptorBytes, kDescriptorBytes);
    if (offer.protocol == kDhHmacChap) return Choose(offer, negotiation);
  }
  return Refuse(Explanation::kProtocolNotUsable, "the host does not offer DH-HMAC-CHAP");
}

std::optional<HostRefusal> ParseReply(std::span<const uint8_t> bytes, const Negotiation& terms,
                                      HostReply& reply) {
  constexpr const char* kName = "reply";
  const MessageHead due{.type = MessageType::kChap, .id = MessageId::kReply};
  if (auto refusal = CheckHostHead(bytes, terms.transaction, due, kName, sizeof(ReplyHead))) return refusal;
  const auto head = BeginningOf<ReplyHead>(bytes);
  if (head.hash_bytes != BytesOf(terms.hash)) {
    return Refuse(Explanation::kIncorrectPayload,
                  fmt::format("the host's reply says that a value of {} has {} bytes", NameOf(terms.hash),
                              head.hash_bytes));
  }
  const bool is_null = terms.group == DhGroup::kNull;
  if (is_null ? head.dh_bytes != 0 : head.dh_bytes == 0 || head.dh_bytes > BytesOf(terms.group)) {
    return Refuse(Explanation::kIncorrectPayload,
                  fmt::format("the host's reply has a Diffie-Hellman value of {} bytes for group {}",
                              head.dh_bytes, NameOf(terms.group)));
  }
  const size_t hash_bytes = head.hash_bytes, wanted = sizeof(head) + 2 * hash_bytes + head.dh_bytes;
  if (bytes.size() < wanted) return TooShortOfHost(kName, bytes.size(), wanted);
  const bool asks = head.challenge_valid != 0;
  if (asks && head.sequence == 0) {
    return Refuse(Explanation::kIncorrectPayload, "the host's challenge has sequence number 0");
  }
  reply = {
      .response = bytes.subspan(sizeof(head), hash_bytes),
      .asks = asks,
      .challenge = asks ? bytes.subspan(sizeof(head) + hash_bytes, hash_bytes) : std::span<const uint8_t>(),
      .sequence = head.sequence,
      .dh_value = bytes.subspan(sizeof(head) + 2 * hash_bytes, head.dh_bytes)};
  return std::nullopt;
}

std::optional<HostRefusal> ParseSuccess2(std::span<const uint8_t> bytes, uint16_t transaction) {
  const MessageHead due{.type = MessageType::kChap, .id = MessageId::kSuccess2};
  return CheckHostHead(bytes, transaction, due, "success message", sizeof(Success2Message));
}

}  // namespace cleat::nvme::auth
