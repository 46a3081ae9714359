// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/psk.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "keys/base64.h"
#include "nvme/fabrics/names.h"
#include "nvme/tls/hkdf.h"

namespace cleat::nvme::tls {
namespace {

using auth::AsBytes;
using auth::BytesOf;
using auth::HmacOf;

constexpr std::string_view kPrefix = "NVMeTLSkey-1:";
constexpr size_t kBase64At = 16;  // behind the two digits and their colon
constexpr size_t kCrcBytes = 4;
// What an identity of version 0 has beside the two NQNs: "NVMe0R01 " and the space between them.
constexpr size_t kVersion0BytesBeside = 10;

Error NoPsk(std::string_view what, std::string_view why) {
  return {ErrorCode::kInvalidArgument, std::string(what) +
                                           " is no key for NVMe/TCP's TLS: " + std::string(why) +
                                           "; give what 'nvme gen-tls-key' prints, NVMeTLSkey-1:HH:BASE64:"};
}

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
  const MutexLock lock(mutex_);
  if (taken_) return *taken_;
  return refused_ == IdentityVersion::kV0 ? IdentityVersion::kV1 : IdentityVersion::kV0;
}

void IdentityChoice::Accepted(IdentityVersion version) {
  const MutexLock lock(mutex_);
  taken_ = version;
  refused_.reset();
  refusals_of_taken_ = silences_of_taken_ = 0;
}

// Once both were refused the two take turns, each of them as a refusal for good.
bool IdentityChoice::Refused(IdentityVersion version, IdentityRefusal refusal) {
  const MutexLock lock(mutex_);
  if (taken_) {
    // A connection was on its way with this one when the other one was taken.
    if (*taken_ != version) return true;
    if (refusal == IdentityRefusal::kSilent && ++silences_of_taken_ < kSilencesOfTakenMax) return true;
    if (refusal == IdentityRefusal::kPerhaps && ++refusals_of_taken_ < kRefusalsOfTakenMax) return true;
    taken_.reset();
    refusals_of_taken_ = silences_of_taken_ = 0;
  }
  const bool are_both = refused_.has_value() && *refused_ != version;
  refused_ = version;
  return !are_both;
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

Result<keys::Secret> Psk::Retained(std::string_view host_nqn) const {
  if (!transformed_) return configured_.Copy();
  CLEAT_ASSIGN(const keys::Secret extracted, Extract(hash_, configured_));
  return ExpandLabel(hash_, extracted, "HostNQN", host_nqn, configured_.size());
}

IdentityChoice& Psk::choice(std::string_view address) const {
  const MutexLock lock(mutex_);
  const auto found = choices_.find(address);
  return found != choices_.end() ? found->second : choices_[std::string(address)];
}

bool Psk::HasVersion0For(std::string_view host_nqn, std::string_view subsystem_nqn) {
  return kVersion0BytesBeside + host_nqn.size() + subsystem_nqn.size() <= kContextBytesMax;
}

// "NVMe0R01 HOST SUBSYSTEM", and a version 1 has a digest behind it.
std::optional<PskIdentity> ParseIdentity(std::string_view identity) {
  constexpr std::string_view kName = "NVMe0R01 ";
  // Two names, the digest of a key of 48 bytes, and a space before each of the last two.
  constexpr size_t kBytesMax = kName.size() + 2 * fabrics::kNqnBytesMax + 64 + 2;
  if (identity.size() > kBytesMax || identity.size() < kName.size()) return std::nullopt;
  PskIdentity parts;
  parts.version = identity[4] == '1' ? IdentityVersion::kV1 : IdentityVersion::kV0;
  parts.hash = identity[7] == '2' ? Hash::kSha384 : Hash::kSha256;
  const std::string_view digit = parts.version == IdentityVersion::kV1 ? "1" : "0";
  const std::string name = "NVMe" + std::string(digit) + "R" + std::string(DigitsOf(parts.hash)) + " ";
  if (!identity.starts_with(name)) return std::nullopt;
  std::string_view rest = identity.substr(name.size());
  if (parts.version == IdentityVersion::kV1) {
    const size_t digest_at = rest.rfind(' ');
    if (digest_at == std::string_view::npos) return std::nullopt;
    rest = rest.substr(0, digest_at);
  }
  const size_t space_at = rest.find(' ');
  if (space_at == std::string_view::npos) return std::nullopt;
  parts.host_nqn = rest.substr(0, space_at);
  parts.subsystem_nqn = rest.substr(space_at + 1);
  if (parts.subsystem_nqn.find(' ') != std::string_view::npos) return std::nullopt;
  for (const std::string_view nqn : {parts.host_nqn, parts.subsystem_nqn}) {
    if (!fabrics::CheckNqn(nqn, "it").ok()) return std::nullopt;
  }
  return parts;
}

bool Psk::operator==(const Psk& other) const {
  return hash_ == other.hash_ && transformed_ == other.transformed_ &&
         configured_.size() == other.configured_.size() &&
         keys::EqualInConstantTime(configured_.bytes(), other.configured_.bytes());
}

Result<ConnectionKey> Psk::KeyFor(std::string_view host_nqn, std::string_view subsystem_nqn,
                                  IdentityVersion version) const {
  if (version == IdentityVersion::kV0 && !HasVersion0For(host_nqn, subsystem_nqn)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the NQNs of the host and of the subsystem have more than " +
                     std::to_string(kContextBytesMax - kVersion0BytesBeside) +
                     " characters together, too many for an identity of version 0");
  }
  CLEAT_ASSIGN(const keys::Secret retained, Retained(host_nqn));
  const std::string names = std::string(host_nqn) + " " + std::string(subsystem_nqn);
  const std::string digits(DigitsOf(hash_));
  ConnectionKey key;
  key.hash = hash_;
  std::string context;
  if (version == IdentityVersion::kV0) {
    context = key.identity = "NVMe0R" + digits + " " + names;
  } else {
    CLEAT_ASSIGN(const keys::Secret digest,
                 HmacOf(hash_, retained.bytes(), {AsBytes(names), AsBytes(" NVMe-over-Fabrics")}));
    context = digits + " " + TextOf(keys::EncodeBase64(digest));
    key.identity = "NVMe1R" + digits + " " + names + context.substr(digits.size());
  }
  CLEAT_ASSIGN(const keys::Secret extracted, Extract(hash_, retained));
  CLEAT_ASSIGN(key.key, ExpandLabel(hash_, extracted, "nvme-tls-psk", context, BytesOf(hash_)));
  return key;
}

}  // namespace cleat::nvme::tls
