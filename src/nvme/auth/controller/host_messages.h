// SPDX-License-Identifier: Apache-2.0
// What a controller takes of a host's messages of in-band authentication. Their layout is in messages.h.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.4 (common messages) and 8.13.5 (DH-HMAC-CHAP). Plain values; any thread. What a host
// sends is hostile: every length is checked against what came before anything behind it is looked at. Bytes behind a message are left alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "nvme/auth/algorithms.h"
#include "nvme/auth/messages.h"

namespace cleat::nvme::auth {

// Why a host is not believed.
struct HostRefusal {
  std::optional<Explanation> tell;  // of AUTH_Failure1; nullopt: the host has ended it
  std::string
      text;  // what the host does wrong, or what is to be done about it; the caller names the host before it
};

// AUTH_Negotiate, as far as a controller chooses from it.
struct Negotiation {
  uint16_t transaction = 0;
  Hash hash = Hash::kSha256;       // the strongest of those that both have
  DhGroup group = DhGroup::kNull;  // the first of kGroupsLiked that the host has
};
// 3072 bits are as strong as hashes and ciphers of 128 bits are; the larger groups cost this end ten times as much and more, at the host's
// word; without a group who listens can try secrets.
inline constexpr DhGroup kGroupsLiked[] = {DhGroup::kFfdhe3072, DhGroup::kFfdhe2048, DhGroup::kFfdhe4096,
                                           DhGroup::kFfdhe6144, DhGroup::kFfdhe8192, DhGroup::kNull};

// DH-HMAC-CHAP_Reply. The spans lie in the message.
struct HostReply {
  std::span<const uint8_t> response;   // BytesOf(hash)
  bool asks = false;                   // the controller has to prove itself
  std::span<const uint8_t> challenge;  // BytesOf(hash), where it has to
  uint32_t sequence = 0;               // S2; not 0 where it has to
  std::span<const uint8_t> dh_value;   // up to BytesOf(group); none for kNull
};

std::optional<HostRefusal> ParseNegotiate(std::span<const uint8_t> bytes, Negotiation& negotiation);
std::optional<HostRefusal> ParseReply(std::span<const uint8_t> bytes, const Negotiation& terms,
                                      HostReply& reply);
std::optional<HostRefusal> ParseSuccess2(std::span<const uint8_t> bytes, uint16_t transaction);

}  // namespace cleat::nvme::auth
