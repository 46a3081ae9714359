// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/pdu_check.h"

#include <fmt/format.h>

#include <cstddef>

namespace cleat::nvme::tcp {
namespace {

Refusal WrongField(size_t offset, std::string text) {
  return {TermReason::kInvalidHeaderField, static_cast<uint32_t>(offset), std::move(text)};
}

std::optional<Refusal> CheckFlags(const CommonHeader& header, const PduShape& shape, Digests digests) {
  const bool header_digest = shape.has_header_digest && digests.header;
  // Where nothing says that there is data, there is none to have a digest.
  const bool has_data =
      shape.data == PduData::kAlways || (shape.data == PduData::kSome && header.data_offset != 0);
  const bool data_digest = has_data && digests.data;
  if (shape.has_header_digest && ((header.flags & kFlagHeaderDigest) != 0) != header_digest) {
    return WrongField(offsetof(CommonHeader, flags),
                      fmt::format("{} that has {} header digest, against what was agreed",
                                  NameOf(header.type), header_digest ? "no" : "a"));
  }
  if (has_data && ((header.flags & kFlagDataDigest) != 0) != data_digest) {
    return WrongField(offsetof(CommonHeader, flags),
                      fmt::format("{} that has {} data digest, against what was agreed", NameOf(header.type),
                                  data_digest ? "no" : "a"));
  }
  return std::nullopt;
}

std::optional<Refusal> CheckLengths(const CommonHeader& header, const PduShape& shape, uint32_t header_end) {
  const uint32_t digest = header_end - header.header_bytes;
  if (shape.data == PduData::kNone || (shape.data == PduData::kSome && header.data_offset == 0)) {
    const bool fits = header.pdu_bytes >= header_end && header.pdu_bytes <= shape.pdu_max_bytes + digest;
    if (fits) return std::nullopt;
    return WrongField(offsetof(CommonHeader, pdu_bytes),
                      fmt::format("{} of {} bytes, {} to {} expected", NameOf(header.type), header.pdu_bytes,
                                  header_end, shape.pdu_max_bytes + digest));
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

// The two that carry data alone have it at the same place.
static_assert(offsetof(C2hData, data_bytes) == offsetof(H2cData, data_bytes));
std::optional<Refusal> CheckDataLength(const CommonHeader& header, uint32_t data_bytes, Digests digests) {
  const uint64_t expected = uint64_t{header.data_offset} + data_bytes + (digests.data ? kDigestBytes : 0);
  if (data_bytes == 0)
    return WrongField(offsetof(C2hData, data_bytes), fmt::format("{} without data", NameOf(header.type)));
  if (header.pdu_bytes != expected) {
    return WrongField(offsetof(CommonHeader, pdu_bytes),
                      fmt::format("{} of {} bytes, {} expected for its {} bytes of data", NameOf(header.type),
                                  header.pdu_bytes, expected, data_bytes));
  }
  return std::nullopt;
}

Refusal Unsupported(size_t offset, std::string text) {
  return {TermReason::kUnsupportedParameter, static_cast<uint32_t>(offset), std::move(text)};
}

}  // namespace

std::optional<Refusal> CheckCommonHeader(const CommonHeader& header, Digests digests,
                                         const PduShapes& shapes) {
  const PduShape shape = ShapeOf(header.type, shapes);
  if (shape.header_bytes == 0) {
    return WrongField(
        offsetof(CommonHeader, type),
        fmt::format("{} ({:#04x}), which no {} receives", NameOf(header.type),
                    static_cast<uint8_t>(header.type), &shapes == &kHostReceives ? "host" : "controller"));
  }
  if (header.header_bytes != shape.header_bytes) {
    return WrongField(offsetof(CommonHeader, header_bytes),
                      fmt::format("{} with a header of {} bytes, {} expected", NameOf(header.type),
                                  header.header_bytes, shape.header_bytes));
  }
  if (auto refusal = CheckFlags(header, shape, digests)) return refusal;
  return CheckLengths(header, shape, HeaderEnd(header, digests, shape));
}

std::optional<Refusal> CheckDataLength(const C2hData& pdu, Digests digests) {
  return CheckDataLength(pdu.header, pdu.data_bytes, digests);
}

std::optional<Refusal> CheckDataLength(const H2cData& pdu, Digests digests) {
  return CheckDataLength(pdu.header, pdu.data_bytes, digests);
}

uint32_t DataInCapsule(const CapsuleCmd& pdu, Digests digests) {
  if (pdu.header.data_offset == 0) return 0;
  const uint32_t rest = pdu.header.pdu_bytes - pdu.header.data_offset;
  const uint32_t digest = digests.data ? kDigestBytes : 0;
  return rest > digest ? rest - digest : 0;
}

std::optional<Refusal> CheckIcResp(const IcResp& pdu, Digests asked) {
  if (pdu.format_version != kFormatVersion) {
    return Unsupported(
        offsetof(IcResp, format_version),
        fmt::format("ICResp of format version {}, {} is known", pdu.format_version, kFormatVersion));
  }
  if (pdu.controller_data_align > kDataAlignMax) {
    return Unsupported(
        offsetof(IcResp, controller_data_align),
        fmt::format("ICResp whose CPDA is {}, {} at most", pdu.controller_data_align, kDataAlignMax));
  }
  const auto differs = [&pdu](uint8_t bit, bool wanted) { return ((pdu.digests & bit) != 0) != wanted; };
  if (differs(kHeaderDigestEnable, asked.header) || differs(kDataDigestEnable, asked.data)) {
    return Unsupported(
        offsetof(IcResp, digests),
        fmt::format("ICResp that answers other digests ({:#04x}) than were asked for (header: {}, data: {}); "
                    "ask for what the controller has",
                    pdu.digests, asked.header ? "yes" : "no", asked.data ? "yes" : "no"));
  }
  if (pdu.h2c_data_max_bytes < kH2cDataLeastBytes || pdu.h2c_data_max_bytes % kDataAlignUnitBytes != 0) {
    return Unsupported(offsetof(IcResp, h2c_data_max_bytes),
                       fmt::format("ICResp whose MAXH2CDATA is {}, a multiple of {} from {} on expected",
                                   pdu.h2c_data_max_bytes, kDataAlignUnitBytes, kH2cDataLeastBytes));
  }
  return std::nullopt;
}

std::optional<Refusal> CheckIcReq(const IcReq& pdu) {
  if (pdu.format_version != kFormatVersion) {
    return Unsupported(offsetof(IcReq, format_version), fmt::format("ICReq of format version {}, {} is known",
                                                                    pdu.format_version, kFormatVersion));
  }
  if (pdu.host_data_align > kDataAlignMax) {
    return Unsupported(offsetof(IcReq, host_data_align),
                       fmt::format("ICReq whose HPDA is {}, {} at most", pdu.host_data_align, kDataAlignMax));
  }
  return std::nullopt;
}

}  // namespace cleat::nvme::tcp
