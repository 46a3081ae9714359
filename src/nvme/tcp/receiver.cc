// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "block/segments.h"

namespace cleat::nvme::tcp {

Receiver::Receiver(uint32_t buffer_bytes, PduSink& sink) : sink_(sink), buffer_(buffer_bytes) {
  CLEAT_CHECK(buffer_bytes >= kReceiveBufferLeastBytes);
}

uint32_t Receiver::Space(std::span<iovec> iovecs) {
  CLEAT_CHECK(!iovecs.empty());
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
  // A header that came in part goes to the front: there is always room for what is missing of it.
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  if (payload_given_whole_ && count < iovecs.size())
    iovecs[count++] = {buffer_.data() + end_, buffer_.size() - end_};
  return count;
}

void Receiver::Received(size_t bytes) {
  const size_t placed = std::min(bytes, placed_bytes_);
  placed_bytes_ = 0;
  if (placed > 0) TakePlaced(placed);
  bytes -= placed;
  CLEAT_CHECK(bytes == 0 || (payload_given_whole_ && bytes <= buffer_.size() - end_));
  end_ += static_cast<uint32_t>(bytes);
  while (Parse()) {
  }
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
  const uint8_t* const at = buffer_.data() + begin_;
  std::memcpy(&common, at, sizeof(common));
  if (const auto refusal = CheckCommonHeader(common, digests_)) return Refuse(*refusal, sizeof(common));
  const uint32_t header_end = HeaderEnd(common, digests_);
  if (buffered() < header_end) return false;
  if (header_end > common.header_bytes) {
    uint32_t digest = 0;
    std::memcpy(&digest, at + common.header_bytes, sizeof(digest));
    const uint32_t right = Crc32cOf(at, common.header_bytes);
    if (digest != right) {
      return Refuse({TermReason::kHeaderDigest, right,
                     fmt::format("{} whose header digest is wrong", NameOf(common.type))},
                    common.header_bytes);
    }
  }
  PduHeader pdu;
  // A size that is known makes a copy without a call.
  if (common.header_bytes == sizeof(C2hData)) [[likely]] {
    std::memcpy(static_cast<void*>(&pdu), at, sizeof(C2hData));
  } else {
    std::memcpy(&pdu, at, common.header_bytes);
  }
  payload_ = {};
  if (common.type == PduType::kC2hData) {
    if (const auto refusal = CheckDataLength(pdu.c2h_data, digests_))
      return Refuse(*refusal, common.header_bytes);
    part_ = Part::kPadding;
    padding_bytes_ = common.data_offset - header_end;
  }
  // Before the sink hears of it, as it may change the digests, and the PDU is used whatever comes of it.
  begin_ += header_end;
  if (!sink_.HeaderCame(pdu, payload_)) return false;
  CLEAT_CHECK(common.type != PduType::kC2hData || payload_.bytes == pdu.c2h_data.data_bytes);
  return true;
}

bool Receiver::ParsePadding() {
  const uint32_t bytes = std::min(padding_bytes_, buffered());
  begin_ += bytes;
  padding_bytes_ -= bytes;
  if (padding_bytes_ > 0) return false;
  part_ = Part::kPayload;
  digest_ = {};
  return true;
}

bool Receiver::ParsePayload() {
  const uint32_t bytes = std::min(payload_.bytes, buffered());
  if (bytes > 0) {
    const uint8_t* from = buffer_.data() + begin_;
    if (digests_.data) digest_.Update(from, bytes);
    block::ForEachPiece(payload_.to, payload_.offset_bytes, bytes, [&from](uint8_t* to, size_t length) {
      std::memcpy(to, from, length);
      from += length;
    });
    begin_ += bytes;
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
    std::memcpy(&digest, buffer_.data() + begin_, sizeof(digest));
    begin_ += sizeof(digest);
    right = digest == digest_.value();
  }
  part_ = Part::kHeader;
  return sink_.PayloadCame(right);
}

bool Receiver::Refuse(const Refusal& refusal, uint32_t header_bytes) {
  sink_.Refused(refusal, {buffer_.data() + begin_, header_bytes});
  return false;
}

}  // namespace cleat::nvme::tcp
