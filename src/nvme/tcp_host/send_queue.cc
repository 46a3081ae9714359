// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp_host/send_queue.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "block/segments.h"
#include "nvme/tcp/crc32c.h"
#include "nvme/tcp/pieces.h"

namespace cleat::nvme::tcp {
namespace {

// The pieces after the last that has room are walked as well: a command's segments are few.
void AddPdu(const CommandSlot& slot, Pieces& pieces) {
  const SendPdu& pdu = slot.pdu;
  pieces.Add(pdu.bytes, pdu.header_bytes);
  block::ForEachPiece(slot.to_target, pdu.data_offset_bytes, pdu.data_bytes,
                      [&pieces](const uint8_t* at, size_t bytes) { pieces.Add(at, bytes); });
  pieces.Add(&pdu.digest, pdu.digest_bytes);
}

}  // namespace

void SendQueue::set_controller_limits(uint8_t data_align, uint32_t h2c_data_max_bytes) {
  CLEAT_CHECK(data_align <= kDataAlignMax && h2c_data_max_bytes >= kH2cDataLeastBytes);
  data_align_bytes_ = (uint32_t{data_align} + 1) * kDataAlignUnitBytes;
  h2c_data_max_bytes_ = std::min(h2c_data_max_bytes, kH2cDataMostBytes);
}

void SendQueue::PushIcReq() {
  CLEAT_CHECK(empty());
  IcReq request;
  request.header = {PduType::kIcReq, 0, sizeof(IcReq), 0, sizeof(IcReq)};
  request.format_version = kFormatVersion;
  request.digests = (digests_.header ? kHeaderDigestEnable : 0) | (digests_.data ? kDataDigestEnable : 0);
  std::memcpy(own_, &request, sizeof(request));
  own_bytes_ = sizeof(request);
  own_sent_ = 0;
}

void SendQueue::PushTermReq(TermReason reason, uint32_t information, std::span<const uint8_t> header) {
  const bool possible = !half_sent();
  Clear();
  if (!possible) return;
  header = header.first(std::min<size_t>(header.size(), kTermDataMaxBytes));
  own_bytes_ = static_cast<uint32_t>(sizeof(TermReq) + header.size());
  TermReq request;
  request.header = {PduType::kH2cTermReq, 0, sizeof(TermReq), 0, own_bytes_};
  request.reason = static_cast<uint16_t>(reason);
  request.information_low = static_cast<uint16_t>(information);
  request.information_high = static_cast<uint16_t>(information >> 16);
  std::memcpy(own_, &request, sizeof(request));
  if (!header.empty()) std::memcpy(own_ + sizeof(request), header.data(), header.size());
}

// The header with all that its data makes of it. A template, so that the copy has a size that is known.
template <typename Header>
void SendQueue::SetHeader(CommandSlot& slot, Header& header) const {
  SendPdu& pdu = slot.pdu;
  constexpr uint32_t kBytes = sizeof(Header);
  static_assert(kBytes + kDigestBytes <= kSendHeaderMaxBytes);
  const uint32_t end = kBytes + (digests_.header ? kDigestBytes : 0);
  const bool has_data = pdu.data_bytes > 0;
  pdu.header_bytes = has_data ? Aligned(end) : end;
  pdu.digest_bytes = has_data && digests_.data ? kDigestBytes : 0;
  pdu.digest_made = false;
  CLEAT_CHECK(pdu.header_bytes <= kSendHeaderMaxBytes);
  if (digests_.header) header.header.flags |= kFlagHeaderDigest;
  if (pdu.digest_bytes > 0) header.header.flags |= kFlagDataDigest;
  header.header.header_bytes = kBytes;
  header.header.data_offset = static_cast<uint8_t>(has_data ? pdu.header_bytes : 0);
  header.header.pdu_bytes = static_cast<uint32_t>(pdu.size_bytes());
  std::memcpy(pdu.bytes, &header, kBytes);
  if (pdu.header_bytes > kBytes) std::memset(pdu.bytes + kBytes, 0, pdu.header_bytes - kBytes);
  if (!digests_.header) return;
  const uint32_t digest = Crc32cOf(pdu.bytes, kBytes);
  std::memcpy(pdu.bytes + kBytes, &digest, sizeof(digest));
}

void SendQueue::PushCapsule(CommandSlot& slot, const fabrics::SubmissionEntry& entry) {
  CapsuleCmd capsule;
  capsule.entry = entry;
  capsule.entry.cid = slot.cid;
  capsule.entry.flags = fabrics::kFlagsSgl;
  capsule.entry.data = {};
  capsule.entry.data.length_bytes = slot.data_bytes;
  capsule.entry.data.type = slot.in_capsule ? fabrics::kSglInCapsule : fabrics::kSglByTransport;
  capsule.header.type = PduType::kCapsuleCmd;
  slot.pdu.data_offset_bytes = 0;
  slot.pdu.data_bytes = slot.in_capsule ? slot.data_bytes : 0;
  SetHeader(slot, capsule);
  Push(slot);
}

void SendQueue::PushData(CommandSlot& slot) {
  const uint32_t rest = slot.asked_bytes - slot.moved_bytes;
  const uint32_t bytes = std::min(rest, h2c_data_max_bytes_);
  CLEAT_CHECK(bytes > 0);
  H2cData data;
  data.header.type = PduType::kH2cData;
  data.header.flags = bytes == rest ? kFlagLast : 0;
  data.cid = slot.cid;
  data.ttag = slot.ttag;
  data.offset_bytes = slot.moved_bytes;
  data.data_bytes = bytes;
  slot.pdu.data_offset_bytes = slot.moved_bytes;
  slot.pdu.data_bytes = bytes;
  SetHeader(slot, data);
  slot.data_queued = true;
  Push(slot);
}

uint32_t SendQueue::Aligned(uint32_t bytes) const {
  return (bytes + data_align_bytes_ - 1) / data_align_bytes_ * data_align_bytes_;
}

void SendQueue::MakeDigest(CommandSlot& slot) const {
  SendPdu& pdu = slot.pdu;
  if (pdu.digest_bytes == 0 || pdu.digest_made) return;
  Crc32c crc;
  block::ForEachPiece(slot.to_target, pdu.data_offset_bytes, pdu.data_bytes,
                      [&crc](const uint8_t* at, size_t bytes) { crc.Update(at, bytes); });
  pdu.digest = crc.value();
  pdu.digest_made = true;
}

void SendQueue::Push(CommandSlot& slot) {
  CLEAT_CHECK(count_ < queue_.size());
  At(count_++) = &slot;
}

bool SendQueue::Withdraw(CommandSlot& slot) {
  if (head_sent_ > 0 && At(0) == &slot) return false;
  for (uint32_t place = 0; place < count_; ++place) {
    if (At(place) != &slot) continue;
    for (; place + 1 < count_; ++place) At(place) = At(place + 1);
    --count_;
    slot.data_queued = false;
    return true;
  }
  return false;
}

void SendQueue::Clear() {
  count_ = 0;
  head_sent_ = 0;
  own_bytes_ = 0;
  own_sent_ = 0;
}

uint32_t SendQueue::Fill(std::span<iovec> iovecs) {
  Pieces pieces(iovecs, own_sent_);
  pieces.Add(own_, own_bytes_);
  if (count_ == 0) return pieces.count();
  Pieces of_commands(iovecs.subspan(pieces.count()), head_sent_);
  for (uint32_t place = 0; place < count_ && !of_commands.full(); ++place) {
    CommandSlot& slot = *At(place);
    MakeDigest(slot);
    AddPdu(slot, of_commands);
  }
  return pieces.count() + of_commands.count();
}

CommandSlot* SendQueue::Consume(size_t& bytes) {
  if (own_sent_ < own_bytes_) {
    const size_t went = std::min<size_t>(bytes, own_bytes_ - own_sent_);
    own_sent_ += static_cast<uint32_t>(went);
    bytes -= went;
    return nullptr;
  }
  if (bytes == 0) return nullptr;
  CLEAT_CHECK(count_ > 0);  // more was sent than was given
  CommandSlot& slot = *At(0);
  if (slot.data_queued) {
    slot.data_begun = true;
  } else {
    slot.capsule_begun = true;
  }
  const size_t went = std::min<uint64_t>(bytes, slot.pdu.size_bytes() - head_sent_);
  head_sent_ += went;
  bytes -= went;
  if (head_sent_ < slot.pdu.size_bytes()) return nullptr;
  head_sent_ = 0;
  first_ = (first_ + 1) & (queue_.size() - 1);
  --count_;
  return &slot;
}

}  // namespace cleat::nvme::tcp
