// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/names.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace cleat::nvme::fabrics {
namespace {

constexpr std::string_view kRdmaScheme = "rdma://";
constexpr std::string_view kFrom = ",from=";

Error Invalid(std::string text) {
  return {ErrorCode::kInvalidArgument, std::move(text)};
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// How many bytes the character at the beginning of `text` has; 0: this is no UTF-8, or a control character.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  constexpr uint8_t kDelete = 0x7f;
  if (at(0) <= kDelete) return at(0) >= ' ' && at(0) != kDelete ? 1 : 0;
  size_t bytes = 0;
  uint32_t code = 0;
  if ((at(0) & 0xe0U) == 0xc0) {
    bytes = 2, code = at(0) & 0x1fU;
  } else if ((at(0) & 0xf0U) == 0xe0) {
    bytes = 3, code = at(0) & 0xfU;
  } else if ((at(0) & 0xf8U) == 0xf0) {
    bytes = 4, code = at(0) & 7U;
  }
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (at(i) & 0x3fU);
  }
  // The shortest form alone is one; halves of UTF-16 pairs and what lies beyond Unicode are none; C1 is control too.
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool half = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[bytes] || code > 0x10ffff || half ? 0 : bytes;
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "nqn." is before it: the year and the month in which the domain's owner had it, then the domain.
bool HasDate(std::string_view rest) {
  constexpr std::string_view kShape = "dddd-dd.";
  if (rest.size() <= kShape.size()) return false;
  for (size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] == 'd' ? !IsDigit(rest[i]) : rest[i] != kShape[i]) return false;
  }
  const int month = (rest[5] - '0') * 10 + (rest[6] - '0');
  return month >= 1 && month <= 12;
}

Result<uint16_t> ParsePort(std::string_view text) {
  uint32_t port = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (problem != std::errc() || end != text.data() + text.size() || port == 0 || port > UINT16_MAX)
    return Invalid(fmt::format("'{}' is no port: a number from 1 to 65535", text));
  return static_cast<uint16_t>(port);
}

const char* NameOf(AddressFamily family) {
  return family == AddressFamily::kIpv4 ? "IPv4" : "IPv6";
}

// Whether `text` is an address of that family, which goes to `address`.
bool ParseIp(AddressFamily family, std::string_view text, std::array<uint8_t, 16>& address) {
  const std::string literal(text);
  // The function would stop at a zero byte.
  return text.find('\0') == std::string_view::npos &&
         inet_pton(family == AddressFamily::kIpv4 ? AF_INET : AF_INET6, literal.c_str(), address.data()) == 1;
}

// The source of a path to `target`.
Result<TransportAddress> ParseSource(std::string_view text, const TransportAddress& target) {
  TransportAddress source{.transport = target.transport, .family = target.family, .address = {}, .port = 0};
  if (ParseIp(target.family, text, source.address)) {
    if (!IsUnspecified(source)) return source;
    return Invalid(
        fmt::format("'{}' stands for all of this host's addresses: name the one to come from", text));
  }
  const bool is_ipv4 = target.family == AddressFamily::kIpv4;
  const AddressFamily other = is_ipv4 ? AddressFamily::kIpv6 : AddressFamily::kIpv4;
  std::array<uint8_t, 16> ignored{};
  if (!ParseIp(other, text, ignored)) {
    return Invalid(fmt::format("'{}' is no address of this host to come from: {}, without a port",
                               text.substr(0, kNqnBytesMax),
                               is_ipv4 ? "10.0.0.9" : "fd00::9, without brackets"));
  }
  return Invalid(fmt::format("'{}' is an {} address, and no connection to {}, which is {}, comes from one",
                             text, NameOf(other), TextOfAddress(target), NameOf(target.family)));
}

}  // namespace

cleat::Status CheckNqn(std::string_view nqn, std::string_view what) {
  constexpr std::string_view kPrefix = "nqn.";
  if (nqn.size() > kNqnBytesMax)
    return Invalid(fmt::format("{} has {} bytes, {} may be", what, nqn.size(), kNqnBytesMax));
  for (std::string_view rest = nqn; !rest.empty();) {
    const size_t bytes = CharacterBytes(rest);
    if (bytes == 0)
      return Invalid(fmt::format("{} has a control character, or is not UTF-8, at byte {}", what,
                                 nqn.size() - rest.size()));
    rest.remove_prefix(bytes);
  }
  if (!nqn.starts_with(kPrefix) || !HasDate(nqn.substr(kPrefix.size()))) {
    return Invalid(fmt::format("{} is '{}', which does not begin with 'nqn.', a date and a domain: {}", what,
                               nqn, "nqn.2024-01.com.example:name"));
  }
  if (nqn.starts_with(kUuidNqnPrefix) && !ParseUuid(nqn.substr(kUuidNqnPrefix.size())))
    return Invalid(fmt::format("{} is '{}', which has no UUID after '{}'", what, nqn, kUuidNqnPrefix));
  return {};
}

Result<Uuid> ParseUuid(std::string_view text) {
  constexpr std::string_view kShape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  const Error problem = Invalid(fmt::format("'{}' is no UUID: {}", text.substr(0, kNqnBytesMax), kShape));
  if (text.size() != kShape.size()) return problem;
  Uuid uuid{};
  size_t digits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (kShape[i] == '-') {
      if (text[i] != '-') return problem;
      continue;
    }
    const int digit = HexDigit(text[i]);
    if (digit < 0) return problem;
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | digit);
    ++digits;
  }
  return uuid;
}

Uuid NamespaceUuidOf(std::string_view subsystem_nqn, uint64_t disk) {
  constexpr uint64_t kPrime = 1'099'511'628'211;  // FNV-1a
  constexpr uint64_t kBasis = 14'695'981'039'346'656'037U;
  constexpr uint64_t kSpread = 0x9e37'79b9'7f4a'7c15;
  Uuid uuid{};
  for (uint64_t half = 0; half < 2; ++half) {
    uint64_t hash = kBasis ^ half;
    for (const char c : subsystem_nqn) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
    hash = (hash ^ disk) * kSpread;
    hash ^= hash >> 32;
    std::memcpy(uuid.data() + half * sizeof(hash), &hash, sizeof(hash));
  }
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x80);  // the version
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);  // the variant
  return uuid;
}

std::string TextOfUuid(const Uuid& uuid) {
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

cleat::Status CheckHostIdentity(const HostIdentity& host) {
  CLEAT_TRY(CheckNqn(host.nqn, "the host's NQN"));
  if (host.id == Uuid{}) return Invalid("the host's identifier is zero: give it a UUID");
  return {};
}

HostIdentity HostIdentityOfUuid(const Uuid& uuid) {
  return {.nqn = std::string(kUuidNqnPrefix) + TextOfUuid(uuid), .id = uuid};
}

Result<TransportAddress> ParseTransportAddress(std::string_view text, uint16_t port_default) {
  const Error problem = Invalid(fmt::format("'{}' is no address of a target: 10.0.0.1:{} or [fd00::1]:{}",
                                            text.substr(0, kNqnBytesMax), port_default, port_default));
  if (text.find(',') != std::string_view::npos) {
    return Invalid(fmt::format("'{}' has a comma: the address of one target is taken here, and no source",
                               text.substr(0, kNqnBytesMax)));
  }
  std::string_view address = text;
  std::string_view port;
  AddressFamily family = AddressFamily::kIpv4;
  if (text.starts_with('[')) {
    family = AddressFamily::kIpv6;
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return problem;
    address = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port[0] != ':') return problem;
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    address = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (port.size() == 1) return problem;
  auto parsed =
      TransportAddressOf(family, address, port.empty() ? std::to_string(port_default) : port.substr(1));
  if (!parsed) return problem;
  return parsed;
}

Result<TransportAddress> ParseAddressOfAnyTransport(std::string_view text, uint16_t port_default) {
  if (!text.starts_with(kRdmaScheme)) return ParseTransportAddress(text, port_default);
  auto address = ParseTransportAddress(text.substr(kRdmaScheme.size()), port_default);
  if (!address) {
    return Invalid(fmt::format("'{}' is no address of a target over RDMA: {}10.0.0.1:{} or {}[fd00::1]:{}",
                               text.substr(0, kNqnBytesMax), kRdmaScheme, port_default, kRdmaScheme,
                               port_default));
  }
  address->transport = TransportType::kRdma;
  return address;
}

bool IsUnspecified(const TransportAddress& address) {
  return std::ranges::all_of(address.address, [](uint8_t byte) { return byte == 0; });
}

Result<TransportAddress> TransportAddressOf(AddressFamily family, std::string_view address,
                                            std::string_view port) {
  TransportAddress parsed{.family = family};
  CLEAT_ASSIGN(parsed.port, ParsePort(port));
  if (!ParseIp(family, address, parsed.address))
    return Invalid(fmt::format("'{}' is no {} address", address.substr(0, kNqnBytesMax), NameOf(family)));
  return parsed;
}

std::string TextOfIp(const TransportAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.family == AddressFamily::kIpv4 ? AF_INET : AF_INET6, address.address.data(), text.data(),
            text.size());
  return text.data();
}

std::string TextOfAddress(const TransportAddress& address) {
  const bool ipv4 = address.family == AddressFamily::kIpv4;
  const std::string_view scheme =
      address.transport == TransportType::kRdma ? kRdmaScheme : std::string_view();
  return fmt::format(fmt::runtime(ipv4 ? "{}{}:{}" : "{}[{}]:{}"), scheme, TextOfIp(address), address.port);
}

Result<PathAddress> ParsePathAddress(std::string_view text) {
  PathAddress path;
  const size_t from = text.find(kFrom);
  if (text.substr(0, from).find(',') != std::string_view::npos) {
    return Invalid(fmt::format(
        "'{}': a path's source is written behind its target, without a space: 10.0.0.1:4420,from=10.0.0.9",
        text.substr(0, kNqnBytesMax)));
  }
  CLEAT_ASSIGN(path.target, ParseAddressOfAnyTransport(text.substr(0, from)));
  if (from == std::string_view::npos) return path;
  CLEAT_ASSIGN(path.source, ParseSource(text.substr(from + kFrom.size()), path.target));
  return path;
}

std::string TextOfPathAddress(const PathAddress& path) {
  std::string text = TextOfAddress(path.target);
  if (path.source) text.append(kFrom).append(TextOfIp(*path.source));
  return text;
}

}  // namespace cleat::nvme::fabrics
