// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "block/segments.h"

namespace cleat::nvme::tcp {
namespace {

// What is kept without a PDU that waits: a header with its digest, less a byte.
constexpr size_t kKeptBytes = kHeaderMaxBytes + kDigestBytes;
static_assert(kKeptBytes < kReceiveBufferLeastBytes);

// A size that is known makes a copy without a call.
void CopyHeader(const uint8_t* at, uint32_t bytes, PduHeader& pdu) {
  if (bytes == sizeof(C2hData)) [[likely]] {
    std::memcpy(static_cast<void*>(&pdu), at, sizeof(C2hData));
  } else if (bytes == sizeof(CapsuleCmd)) {
    std::memcpy(static_cast<void*>(&pdu), at, sizeof(CapsuleCmd));
  } else {
    std::memcpy(static_cast<void*>(&pdu), at, bytes);
  }
}

}  // namespace

Receiver::Receiver(const PduShapes& shapes, PduSink& sink) : shapes_(shapes), sink_(sink) {
  kept_.reserve(kKeptBytes);
}

uint32_t Receiver::Space(std::span<iovec> iovecs, std::span<uint8_t> buffer) {
  CLEAT_CHECK(!iovecs.empty() && !waits_ && buffer.size() >= kReceiveBufferLeastBytes);
  uint32_t count = 0;
  placed_bytes_ = 0;
  payload_given_whole_ = true;
  if (part_ == Part::kPayload) {
    block::ForEachPiece(payload_.to, payload_.offset_bytes, payload_.bytes, [&](uint8_t* at, size_t bytes) {
      if (count == iovecs.size()) return;
      iovecs[count++] = {at, bytes};
      placed_bytes_ += bytes;
    });
    payload_given_whole_ = placed_bytes_ == payload_.bytes;
  }
  // The buffer goes on behind what was kept, so that all of it lies together.
  buffer_ = buffer;
  CLEAT_CHECK(kept_.size() < buffer.size());
  if (!kept_.empty()) std::memcpy(buffer.data(), kept_.data(), kept_.size());
  if (payload_given_whole_ && count < iovecs.size())
    iovecs[count++] = {buffer.data() + kept_.size(), buffer.size() - kept_.size()};
  return count;
}

void Receiver::Received(size_t bytes) {
  const size_t placed = std::min(bytes, placed_bytes_);
  placed_bytes_ = 0;
  if (placed > 0) TakePlaced(placed);
  bytes -= placed;
  CLEAT_CHECK(bytes == 0 || (payload_given_whole_ && bytes <= buffer_.size() - kept_.size()));
  at_ = buffer_.data();
  end_ = at_ + kept_.size() + bytes;
  in_buffer_ = true;
  ParseAll();
  in_buffer_ = false;
}

// What waits stays where it is, however often it finds no room.
void Receiver::Resume() {
  CLEAT_CHECK(waits_);
  waits_ = false;
  at_ = kept_.data() + kept_from_;
  end_ = kept_.data() + kept_.size();
  while (Parse()) {
  }
  kept_from_ = static_cast<size_t>(at_ - kept_.data());
  if (waits_) return;
  KeepHeader();
  const std::vector<uint8_t> rest(at_, end_);
  kept_ = std::vector<uint8_t>();
  kept_.reserve(kKeptBytes);
  kept_.assign(rest.begin(), rest.end());
  kept_from_ = 0;
}

void Receiver::ParseAll() {
  kept_.clear();
  if (looks_ahead_ && part_ == Part::kHeader) LookAhead(0);
  while (Parse()) {
  }
  kept_.assign(at_, end_);
  KeepHeader();
}

// The buffer goes, and the PDU may have to begin anew in another process.
void Receiver::KeepHeader() {
  if (part_ != Part::kHeader && header_at_ != nullptr) std::memcpy(header_.data(), header_at_, header_bytes_);
  header_at_ = nullptr;
}

bool Receiver::Parse() {
  switch (part_) {
    case Part::kHeader:
      return ParseHeader();
    case Part::kPadding:
      return ParsePadding();
    case Part::kPayload:
      return ParsePayload();
    case Part::kDigest:
      return ParseDigest();
  }
  return false;
}

bool Receiver::ParseHeader() {
  CommonHeader common;
  if (buffered() < sizeof(common)) return false;
  std::memcpy(&common, at_, sizeof(common));
  if (const auto refusal = CheckCommonHeader(common, digests_, shapes_))
    return Refuse(*refusal, sizeof(common));
  const uint32_t header_end = HeaderEnd(common, digests_, ShapeOf(common.type, shapes_));
  if (buffered() < header_end) return false;
  if (header_end > common.header_bytes) {
    uint32_t digest = 0;
    std::memcpy(&digest, at_ + common.header_bytes, sizeof(digest));
    const uint32_t right = Crc32cOf(at_, common.header_bytes);
    if (digest != right) {
      return Refuse({TermReason::kHeaderDigest, right,
                     fmt::format("{} whose header digest is wrong", NameOf(common.type))},
                    common.header_bytes);
    }
  }
  PduHeader pdu;
  CopyHeader(at_, common.header_bytes, pdu);
  payload_ = {};
  if (const auto refusal = MeasurePayload(pdu)) return Refuse(*refusal, common.header_bytes);
  FindPayload(common);
  if (looks_ahead_) LookAhead(common.pdu_bytes);
  // Before the sink hears of it, as it may change the digests.
  const uint32_t payload_bytes = payload_.bytes;
  const uint8_t* const begin = std::exchange(at_, at_ + header_end);
  const After after = sink_.HeaderCame(pdu, payload_);
  if (after == After::kEnded) return false;
  if (after == After::kLater) {
    at_ = begin;
    waits_ = true;
    return false;
  }
  CLEAT_CHECK(payload_.bytes == payload_bytes);
  if (payload_bytes == 0) return true;
  part_ = Part::kPadding;
  padding_bytes_ = common.data_offset - header_end;
  payload_bytes_ = payload_bytes;
  header_bytes_ = header_end;
  header_at_ = begin;
  return true;
}

// How much data follows the header.
std::optional<Refusal> Receiver::MeasurePayload(const PduHeader& pdu) {
  const PduType type = pdu.common.type;
  if (type == PduType::kC2hData) {
    payload_.bytes = pdu.c2h_data.data_bytes;
    return CheckDataLength(pdu.c2h_data, digests_);
  }
  if (type == PduType::kH2cData) {
    payload_.bytes = pdu.h2c_data.data_bytes;
    return CheckDataLength(pdu.h2c_data, digests_);
  }
  if (type != PduType::kCapsuleCmd) return std::nullopt;
  payload_.bytes = DataInCapsule(pdu.capsule_cmd, digests_);
  if (payload_.bytes > 0 || pdu.common.data_offset == 0) return std::nullopt;
  return Refusal{TermReason::kInvalidHeaderField, offsetof(CommonHeader, pdu_bytes),
                 fmt::format("CapsuleCmd of {} bytes, which ends before its data", pdu.common.pdu_bytes)};
}

void Receiver::FindPayload(const CommonHeader& common) {
  if (!in_buffer_ || payload_.bytes == 0) return;
  const uint64_t end = uint64_t{common.data_offset} + payload_.bytes + (digests_.data ? kDigestBytes : 0);
  if (end <= buffered()) payload_.here = {at_ + common.data_offset, payload_.bytes};
}

void Receiver::LookAhead(uint32_t pdu_bytes) {
  if (buffered() < uint64_t{pdu_bytes} + sizeof(CapsuleCmd)) return;
  CapsuleCmd pdu;
  std::memcpy(static_cast<void*>(&pdu), at_ + pdu_bytes, sizeof(pdu));
  if (pdu.header.type == PduType::kCapsuleCmd) sink_.CommandAhead(pdu);
}

bool Receiver::ParsePadding() {
  const uint32_t bytes = std::min(padding_bytes_, buffered());
  at_ += bytes;
  padding_bytes_ -= bytes;
  if (padding_bytes_ > 0) return false;
  part_ = Part::kPayload;
  digest_ = {};
  return true;
}

bool Receiver::ParsePayload() {
  const uint32_t bytes = std::min(payload_.bytes, buffered());
  if (bytes > 0) {
    const uint8_t* from = at_;
    if (digests_.data) digest_.Update(from, bytes);
    block::ForEachPiece(payload_.to, payload_.offset_bytes, bytes, [&from](uint8_t* to, size_t length) {
      if (to != from) std::memcpy(to, from, length);  // else it stays
      from += length;
    });
    at_ += bytes;
    payload_.offset_bytes += bytes;
    payload_.bytes -= bytes;
  }
  if (payload_.bytes > 0) return false;
  part_ = Part::kDigest;
  return true;
}

void Receiver::TakePlaced(size_t bytes) {
  if (digests_.data) {
    block::ForEachPiece(payload_.to, payload_.offset_bytes, bytes,
                        [this](const uint8_t* at, size_t length) { digest_.Update(at, length); });
  }
  payload_.offset_bytes += bytes;
  payload_.bytes -= static_cast<uint32_t>(bytes);
}

bool Receiver::ParseDigest() {
  bool right = true;
  if (digests_.data) {
    uint32_t digest = 0;
    if (buffered() < sizeof(digest)) return false;
    std::memcpy(&digest, at_, sizeof(digest));
    at_ += sizeof(digest);
    right = digest == digest_.value();
  }
  part_ = Part::kHeader;
  return sink_.PayloadCame(right);
}

// ---- To another process

// What is padding has no meaning, and no digest.
void Receiver::SaveTo(std::vector<uint8_t>& received) const {
  if (part_ != Part::kHeader) {
    CommonHeader common;
    std::memcpy(&common, header_.data(), sizeof(common));
    const uint32_t padding = common.data_offset - header_bytes_;
    received.insert(received.end(), header_.begin(), header_.begin() + header_bytes_);
    received.resize(received.size() + (part_ == Part::kPadding ? padding - padding_bytes_ : padding));
  }
  if (part_ == Part::kPayload || part_ == Part::kDigest) {
    const uint32_t came = payload_bytes_ - payload_.bytes;
    received.resize(received.size() + came);
    block::Gather(payload_.to, payload_.offset_bytes - came, received.data() + received.size() - came, came);
  }
  received.insert(received.end(), kept_.begin() + static_cast<ptrdiff_t>(kept_from_), kept_.end());
}

void Receiver::Restore(std::vector<uint8_t> received) {
  CLEAT_CHECK(kept_.empty() && part_ == Part::kHeader);
  waits_ = !received.empty();
  if (waits_) kept_ = std::move(received);
}

bool Receiver::Refuse(const Refusal& refusal, uint32_t header_bytes) {
  sink_.Refused(refusal, {at_, header_bytes});
  return false;
}

}  // namespace cleat::nvme::tcp
