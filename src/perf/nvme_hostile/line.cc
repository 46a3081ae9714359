// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_hostile/line.h"

#include <algorithm>

#include "perf/nvme_tcp/crc32c.h"

namespace cleat::perf {
namespace {

void Append(std::vector<uint8_t>* bytes, const void* from, size_t size_bytes) {
  const auto* const first = static_cast<const uint8_t*>(from);
  bytes->insert(bytes->end(), first, first + size_bytes);
}

void AppendDigest(std::vector<uint8_t>* bytes, uint32_t digest, bool wrong) {
  const uint32_t sent = wrong ? ~digest : digest;
  Append(bytes, &sent, sizeof sent);
}

template <typename Pdu>
Pdu As(std::span<const uint8_t> bytes) {
  Pdu pdu{};
  std::memcpy(&pdu, bytes.data(), std::min(sizeof pdu, bytes.size()));
  return pdu;
}

// What a whole PDU says; too short a one says zeroes.
RawHeard Read(std::span<const uint8_t> bytes) {
  const auto head = As<wire::PduHeader>(bytes);
  RawHeard heard;
  heard.flags = head.flags;
  switch (head.type) {
    case wire::kPduIcResp:
      heard.what = RawHeard::What::kInitialized;
      break;
    case wire::kPduTargetTermination:
      heard.what = RawHeard::What::kTermination;
      heard.reason = As<wire::PduTermination>(bytes).reason;
      break;
    case wire::kPduResponse: {
      const auto pdu = As<wire::PduResponse>(bytes);
      heard.what = RawHeard::What::kResponse;
      heard.cid = pdu.completion.cid;
      heard.status = static_cast<uint16_t>(pdu.completion.status >> 1 & wire::kNvmeStatusMask);
      break;
    }
    case wire::kPduDataToHost:
    case wire::kPduReadyToTransfer: {
      const auto pdu = As<wire::PduTransfer>(bytes);
      const bool is_data = head.type == wire::kPduDataToHost;
      heard.what = is_data ? RawHeard::What::kData : RawHeard::What::kReady;
      heard.cid = pdu.cid;
      heard.tag = pdu.tag;
      heard.offset_bytes = pdu.offset_bytes;
      heard.length_bytes = pdu.length_bytes;
      if (is_data && head.data_at <= bytes.size()) {
        const std::span<const uint8_t> data = bytes.subspan(head.data_at);
        const size_t size_bytes = std::min<size_t>(data.size(), pdu.length_bytes);
        heard.data.assign(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(size_bytes));
      }
      break;
    }
    default:
      heard.what = RawHeard::What::kOther;
      break;
  }
  return heard;
}

}  // namespace

void RawPdu::Measure(uint32_t alignment_bytes) {
  if (digests.header) head.flags |= wire::kPduHeaderDigest;
  if (digests.data) head.flags |= wire::kPduDataDigest;
  const size_t header_bytes = sizeof head + rest.size() + (digests.header ? wire::kDigestBytes : 0);
  size_t data_at = header_bytes;
  if (!data.empty()) data_at = (header_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  padding_bytes = static_cast<uint32_t>(data_at - header_bytes);
  head.data_at = data.empty() ? uint8_t{0} : static_cast<uint8_t>(data_at);
  head.pdu_bytes =
      static_cast<uint32_t>(data_at + data.size() + (digests.data ? size_t{wire::kDigestBytes} : 0));
}

std::vector<uint8_t> RawPdu::Bytes() const {
  std::vector<uint8_t> bytes;
  bytes.reserve(sizeof head + rest.size() + padding_bytes + data.size() + 2 * wire::kDigestBytes);
  Append(&bytes, &head, sizeof head);
  Append(&bytes, rest.data(), rest.size());
  if (digests.header) AppendDigest(&bytes, Crc32c(bytes.data(), bytes.size()), wrong_header_digest);
  bytes.resize(bytes.size() + padding_bytes);
  Append(&bytes, data.data(), data.size());
  if (digests.data) AppendDigest(&bytes, Crc32c(data.data(), data.size()), wrong_data_digest);
  return bytes;
}

bool RawLine::SendSplit(const RawPdu& pdu, Random& random) {
  constexpr size_t kBytewiseMax = 512;  // of a PDU, from whose beginning on each byte goes alone
  const std::vector<uint8_t> bytes = pdu.Bytes();
  const std::span<const uint8_t> all = bytes;
  size_t at = 0;
  if (random.Chance(1, 2)) {
    for (; at < std::min(all.size(), kBytewiseMax); ++at)
      if (!Send(all.subspan(at, 1))) return false;
  }
  while (at < all.size()) {
    const size_t piece = random.Between(1, all.size() - at);
    if (!Send(all.subspan(at, piece))) return false;
    at += piece;
  }
  return true;
}

RawHeard RawLine::Hear(uint64_t patience_ns) {
  const Deadline deadline(patience_ns);
  const auto without = [](const Status& status) {
    RawHeard heard;
    if (status.error().code != ErrorCode::kDeadlineExceeded) heard.what = RawHeard::What::kClosed;
    return heard;
  };
  std::vector<uint8_t> bytes(sizeof(wire::PduHeader));
  if (Status got = ReceiveWhole(socket_, bytes, deadline); !got) return without(got);
  const auto head = As<wire::PduHeader>(bytes);
  if (head.pdu_bytes < bytes.size() || head.pdu_bytes > kHeardBytesMax) {
    RawHeard heard;
    heard.what = RawHeard::What::kOther;
    return heard;
  }
  bytes.resize(head.pdu_bytes);
  if (Status got = ReceiveWhole(socket_, std::span(bytes).subspan(sizeof head), deadline); !got)
    return without(got);
  return Read(bytes);
}

RawHeard RawLine::HearTheEnd() {
  RawHeard heard;
  for (uint32_t skipped = 0; skipped < kPdusSkippedMax; ++skipped) {
    heard = Hear();
    const bool goes_on = heard.what == RawHeard::What::kReady ||
                         (heard.what == RawHeard::What::kData && (heard.flags & wire::kPduSuccess) == 0);
    if (!goes_on) break;
  }
  return heard;
}

}  // namespace cleat::perf
