// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/psk.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "keys/base64.h"
#include "nvme/tls/hkdf.h"

namespace cleat::nvme::tls {
namespace {

using auth::AsBytes;
using auth::BytesOf;
using auth::HmacOf;

constexpr std::string_view kPrefix = "NVMeTLSkey-1:";
constexpr size_t kBase64At = 16;  // behind the two digits and their colon
constexpr size_t kCrcBytes = 4;

Error NoPsk(std::string_view what, std::string_view why) {
  return {ErrorCode::kInvalidArgument, std::string(what) +
                                           " is no key for NVMe/TCP's TLS: " + std::string(why) +
                                           "; give what 'nvme gen-tls-key' prints, NVMeTLSkey-1:HH:BASE64:"};
}

uint8_t BitOf(IdentityVersion version) {
  return static_cast<uint8_t>(1U << static_cast<unsigned>(version));
}
constexpr uint8_t kBoth = 3;
constexpr uint8_t kTaken = 4;

// The digits of the hash in an identity.
std::string_view DigitsOf(Hash hash) {
  return hash == Hash::kSha256 ? "01" : "02";
}

std::string TextOf(const keys::Secret& characters) {
  const auto bytes = characters.bytes();
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// ---- Which identity

IdentityVersion IdentityChoice::next() const {
  const bool other = (state_.load(std::memory_order_relaxed) & kBoth) == BitOf(IdentityVersion::kV0);
  return other ? IdentityVersion::kV1 : IdentityVersion::kV0;
}

void IdentityChoice::Accepted(IdentityVersion version) {
  const uint8_t refused = version == IdentityVersion::kV1 ? BitOf(IdentityVersion::kV0) : uint8_t{0};
  state_.store(refused | kTaken, std::memory_order_relaxed);
}

// Once both were refused the two take turns, each of them as a refusal for good.
bool IdentityChoice::Refused(IdentityVersion version, bool says_so) {
  uint8_t before = state_.load(std::memory_order_relaxed);
  for (;;) {
    if (!says_so && (before & kTaken) != 0) return true;
    const bool are_both = ((before | BitOf(version)) & kBoth) == kBoth;
    const uint8_t after = static_cast<uint8_t>((before & kTaken) | BitOf(version));
    if (state_.compare_exchange_weak(before, after, std::memory_order_relaxed)) return !are_both;
  }
}

// ---- The key

Result<Psk> Psk::Parse(std::string_view text, std::string_view what) {
  if (text.size() > kPskTextBytesMax) return NoPsk(what, "it is too long");
  if (!text.starts_with(kPrefix) || text.size() <= kBase64At || text[kBase64At - 1] != ':')
    return NoPsk(what, "it does not begin with NVMeTLSkey-1:HH:");
  if (!text.ends_with(':')) return NoPsk(what, "it does not end with a colon");
  const std::string_view digits = text.substr(kPrefix.size(), 2);
  if (digits != "00" && digits != "01" && digits != "02")
    return NoPsk(what, "its hash is not one of 00, 01 and 02");
  text.remove_suffix(1);
  const keys::Secret room = keys::DecodeBase64(text.substr(kBase64At));
  if (room.empty()) return NoPsk(what, "what is behind the second colon is not base64");
  const size_t size_bytes = room.size() - std::min(kCrcBytes, room.size());
  if (size_bytes != BytesOf(Hash::kSha256) && size_bytes != BytesOf(Hash::kSha384))
    return NoPsk(what, "it is not of 32 or 48 bytes");
  const Hash hash = size_bytes == BytesOf(Hash::kSha256) ? Hash::kSha256 : Hash::kSha384;
  const bool transformed = digits != "00";
  if (transformed && digits != DigitsOf(hash)) return NoPsk(what, "its size is not that of its hash");
  uint32_t crc = 0;
  std::memcpy(&crc, room.bytes().data() + size_bytes, sizeof(crc));
  if (crc != ::crc32(0, room.bytes().data(), static_cast<uInt>(size_bytes)))
    return NoPsk(what, "its checksum is wrong, so that a part of it was lost or changed");
  return Psk(keys::Secret::Copy(room.bytes().first(size_bytes)), hash, transformed);
}

keys::Secret Psk::Retained(std::string_view host_nqn) const {
  if (!transformed_) return configured_.Copy();
  return ExpandLabel(hash_, Extract(hash_, configured_), "HostNQN", host_nqn, configured_.size());
}

Result<ConnectionKey> Psk::KeyFor(std::string_view host_nqn, std::string_view subsystem_nqn,
                                  IdentityVersion version) const {
  const keys::Secret retained = Retained(host_nqn);
  const std::string names = std::string(host_nqn) + " " + std::string(subsystem_nqn);
  const std::string digits(DigitsOf(hash_));
  ConnectionKey key;
  key.hash = hash_;
  std::string context;
  if (version == IdentityVersion::kV0) {
    context = key.identity = "NVMe0R" + digits + " " + names;
  } else {
    const keys::Secret digest =
        HmacOf(hash_, retained.bytes(), {AsBytes(names), AsBytes(" NVMe-over-Fabrics")});
    context = digits + " " + TextOf(keys::EncodeBase64(digest));
    key.identity = "NVMe1R" + digits + " " + names + context.substr(digits.size());
  }
  if (context.size() > kContextBytesMax) {
    return Error(ErrorCode::kInvalidArgument,
                 "the NQNs of the host and of the subsystem have more than " +
                     std::to_string(kContextBytesMax - key.identity.find(' ') - 2) +
                     " characters together, too many for TLS: give one of them a shorter one");
  }
  key.key = ExpandLabel(hash_, Extract(hash_, retained), "nvme-tls-psk", context, BytesOf(hash_));
  return key;
}

}  // namespace cleat::nvme::tls
