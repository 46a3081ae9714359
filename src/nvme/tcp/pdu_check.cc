// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/pdu_check.h"

#include <fmt/format.h>

#include <cstddef>

namespace cleat::nvme::tcp {
namespace {

// What a PDU from a controller may have. Fields that a type has reserved are not looked at, as the specification wants it.
struct Allowed {
  PduType type;
  uint8_t header_bytes;
  uint32_t pdu_max_bytes;  // without digests; 0: its data decides
  bool has_header_digest;
  bool has_data;
};
constexpr Allowed kAllowed[] = {
    {PduType::kIcResp, sizeof(IcResp), sizeof(IcResp), false, false},
    {PduType::kC2hTermReq, sizeof(TermReq), sizeof(TermReq) + kTermDataMaxBytes, false, false},
    {PduType::kCapsuleResp, sizeof(CapsuleResp), sizeof(CapsuleResp), true, false},
    {PduType::kC2hData, sizeof(C2hData), 0, true, true},
    {PduType::kR2t, sizeof(R2t), sizeof(R2t), true, false},
};

const Allowed* Find(PduType type) {
  for (const Allowed& allowed : kAllowed) {
    if (allowed.type == type) return &allowed;
  }
  return nullptr;
}

Refusal WrongField(size_t offset, std::string text) {
  return {TermReason::kInvalidHeaderField, static_cast<uint32_t>(offset), std::move(text)};
}

std::optional<Refusal> CheckFlags(const CommonHeader& header, const Allowed& allowed, Digests digests) {
  const bool header_digest = allowed.has_header_digest && digests.header;
  const bool data_digest = allowed.has_data && digests.data;
  if (allowed.has_header_digest && ((header.flags & kFlagHeaderDigest) != 0) != header_digest) {
    return WrongField(offsetof(CommonHeader, flags),
                      fmt::format("{} that has {} header digest, against what was agreed",
                                  NameOf(header.type), header_digest ? "no" : "a"));
  }
  if (allowed.has_data && ((header.flags & kFlagDataDigest) != 0) != data_digest) {
    return WrongField(offsetof(CommonHeader, flags),
                      fmt::format("{} that has {} data digest, against what was agreed", NameOf(header.type),
                                  data_digest ? "no" : "a"));
  }
  return std::nullopt;
}

std::optional<Refusal> CheckLengths(const CommonHeader& header, const Allowed& allowed, uint32_t header_end) {
  const uint32_t digest = header_end - header.header_bytes;
  if (!allowed.has_data) {
    const bool fits = header.pdu_bytes >= header_end && header.pdu_bytes <= allowed.pdu_max_bytes + digest;
    if (fits) return std::nullopt;
    return WrongField(offsetof(CommonHeader, pdu_bytes),
                      fmt::format("{} of {} bytes, {} to {} expected", NameOf(header.type), header.pdu_bytes,
                                  header_end, allowed.pdu_max_bytes + digest));
  }
  if (header.data_offset < header_end || header.data_offset % kDataAlignUnitBytes != 0) {
    return WrongField(offsetof(CommonHeader, data_offset),
                      fmt::format("{} whose data begins at byte {}, a multiple of {} from {} on expected",
                                  NameOf(header.type), header.data_offset, kDataAlignUnitBytes, header_end));
  }
  if (header.pdu_bytes <= header.data_offset) {
    return WrongField(
        offsetof(CommonHeader, pdu_bytes),
        fmt::format("{} of {} bytes, which ends before its data", NameOf(header.type), header.pdu_bytes));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> CheckCommonHeader(const CommonHeader& header, Digests digests) {
  const Allowed* const allowed = Find(header.type);
  if (allowed == nullptr) {
    return WrongField(offsetof(CommonHeader, type),
                      fmt::format("{} ({:#04x}), which no host receives", NameOf(header.type),
                                  static_cast<uint8_t>(header.type)));
  }
  if (header.header_bytes != allowed->header_bytes) {
    return WrongField(offsetof(CommonHeader, header_bytes),
                      fmt::format("{} with a header of {} bytes, {} expected", NameOf(header.type),
                                  header.header_bytes, allowed->header_bytes));
  }
  if (auto refusal = CheckFlags(header, *allowed, digests)) return refusal;
  return CheckLengths(header, *allowed, HeaderEnd(header, digests));
}

uint32_t HeaderEnd(const CommonHeader& header, Digests digests) {
  const Allowed* const allowed = Find(header.type);
  const bool digest = allowed != nullptr && allowed->has_header_digest && digests.header;
  return header.header_bytes + (digest ? kDigestBytes : 0);
}

std::optional<Refusal> CheckDataLength(const C2hData& pdu, Digests digests) {
  const uint64_t expected =
      uint64_t{pdu.header.data_offset} + pdu.data_bytes + (digests.data ? kDigestBytes : 0);
  if (pdu.data_bytes == 0) {
    return WrongField(offsetof(C2hData, data_bytes), "C2HData without data");
  }
  if (pdu.header.pdu_bytes != expected) {
    return WrongField(offsetof(CommonHeader, pdu_bytes),
                      fmt::format("C2HData of {} bytes, {} expected for its {} bytes of data",
                                  pdu.header.pdu_bytes, expected, pdu.data_bytes));
  }
  return std::nullopt;
}

std::optional<Refusal> CheckIcResp(const IcResp& pdu, Digests asked) {
  const auto refuse = [](size_t offset, std::string text) {
    return Refusal{TermReason::kUnsupportedParameter, static_cast<uint32_t>(offset), std::move(text)};
  };
  if (pdu.format_version != kFormatVersion) {
    return refuse(offsetof(IcResp, format_version), fmt::format("ICResp of format version {}, {} is known",
                                                                pdu.format_version, kFormatVersion));
  }
  if (pdu.controller_data_align > kDataAlignMax) {
    return refuse(
        offsetof(IcResp, controller_data_align),
        fmt::format("ICResp whose CPDA is {}, {} at most", pdu.controller_data_align, kDataAlignMax));
  }
  const auto differs = [&pdu](uint8_t bit, bool wanted) { return ((pdu.digests & bit) != 0) != wanted; };
  if (differs(kHeaderDigestEnable, asked.header) || differs(kDataDigestEnable, asked.data)) {
    return refuse(
        offsetof(IcResp, digests),
        fmt::format("ICResp that answers other digests ({:#04x}) than were asked for (header: {}, data: {}); "
                    "ask for what the controller has",
                    pdu.digests, asked.header ? "yes" : "no", asked.data ? "yes" : "no"));
  }
  if (pdu.h2c_data_max_bytes < kH2cDataLeastBytes || pdu.h2c_data_max_bytes % kDataAlignUnitBytes != 0) {
    return refuse(offsetof(IcResp, h2c_data_max_bytes),
                  fmt::format("ICResp whose MAXH2CDATA is {}, a multiple of {} from {} on expected",
                              pdu.h2c_data_max_bytes, kDataAlignUnitBytes, kH2cDataLeastBytes));
  }
  return std::nullopt;
}

}  // namespace cleat::nvme::tcp
