// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp_target/response_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "block/segments.h"
#include "nvme/tcp/crc32c.h"
#include "nvme/tcp/pieces.h"

namespace cleat::nvme::tcp {
namespace {

// What goes out together, but for the last command's: digests of it are made in one go, while others on the thread wait.
constexpr uint64_t kBatchMaxBytes = 2 << 20;

// The pieces after the last that has room are walked as well: a command's segments are few.
void AddPdus(const TargetCommand& command, Pieces& pieces) {
  const Wire& wire = WireOf(command);
  pieces.Add(wire.head, wire.head_bytes);
  block::ForEachPiece(command.data, 0, wire.sent_data_bytes,
                      [&pieces](const uint8_t* at, size_t bytes) { pieces.Add(at, bytes); });
  pieces.Add(wire.tail, wire.tail_bytes);
}

}  // namespace

void ResponseQueue::PushIcResp(const IcReq& request, uint32_t h2c_data_max_bytes) {
  CLEAT_CHECK(empty());
  digests_ = {.header = (request.digests & kHeaderDigestEnable) != 0,
              .data = (request.digests & kDataDigestEnable) != 0};
  data_align_bytes_ = (uint32_t{request.host_data_align} + 1) * kDataAlignUnitBytes;
  IcResp response;
  response.header = {PduType::kIcResp, 0, sizeof(IcResp), 0, sizeof(IcResp)};
  response.format_version = kFormatVersion;
  response.digests = (digests_.header ? kHeaderDigestEnable : 0) | (digests_.data ? kDataDigestEnable : 0);
  response.h2c_data_max_bytes = h2c_data_max_bytes;
  std::memcpy(own_, &response, sizeof(response));
  own_bytes_ = sizeof(response);
  own_sent_ = 0;
}

void ResponseQueue::PushTermReq(TermReason reason, uint32_t information, std::span<const uint8_t> header) {
  const bool possible = !half_sent();
  Clear();
  if (!possible) return;
  header = header.first(std::min<size_t>(header.size(), kTermDataMaxBytes));
  own_bytes_ = static_cast<uint32_t>(sizeof(TermReq) + header.size());
  TermReq request;
  request.header = {PduType::kC2hTermReq, 0, sizeof(TermReq), 0, own_bytes_};
  request.reason = static_cast<uint16_t>(reason);
  request.information_low = static_cast<uint16_t>(information);
  request.information_high = static_cast<uint16_t>(information >> 16);
  std::memcpy(own_, &request, sizeof(request));
  if (!header.empty()) std::memcpy(own_ + sizeof(request), header.data(), header.size());
}

// Writes the header with its digest to `to`, and padding before data. Returns how many bytes that takes. A template, so that the copy has a
// size that is known.
template <typename Header>
uint32_t ResponseQueue::SetHeader(uint8_t* to, Header& header, uint32_t data_bytes) const {
  constexpr uint32_t kBytes = sizeof(Header);
  const uint32_t end = kBytes + (digests_.header ? kDigestBytes : 0);
  const uint32_t begin_of_data =
      data_bytes == 0 ? end : (end + data_align_bytes_ - 1) / data_align_bytes_ * data_align_bytes_;
  const uint32_t digest_bytes = data_bytes > 0 && digests_.data ? kDigestBytes : 0;
  if (digests_.header) header.header.flags |= kFlagHeaderDigest;
  if (digest_bytes > 0) header.header.flags |= kFlagDataDigest;
  header.header.header_bytes = kBytes;
  header.header.data_offset = static_cast<uint8_t>(data_bytes > 0 ? begin_of_data : 0);
  header.header.pdu_bytes = begin_of_data + data_bytes + digest_bytes;
  std::memcpy(to, &header, kBytes);
  if (begin_of_data > kBytes) std::memset(to + kBytes, 0, begin_of_data - kBytes);
  if (digests_.header) {
    const uint32_t digest = Crc32cOf(to, kBytes);
    std::memcpy(to + kBytes, &digest, sizeof(digest));
  }
  return begin_of_data;
}

void ResponseQueue::PushR2t(TargetCommand& command) {
  R2t pdu;
  pdu.header.type = PduType::kR2t;
  pdu.cid = command.entry.cid;
  pdu.ttag = command.tag;
  pdu.data_bytes = command.data_bytes;
  Wire& wire = WireOf(command);
  wire.head_bytes = SetHeader(wire.head, pdu, 0);
  wire.sent_data_bytes = wire.tail_bytes = 0;
  wire.makes_digest = false;
  queue_.PushBack(command);
}

void ResponseQueue::PushResponse(TargetCommand& command, const fabrics::CompletionEntry& entry,
                                 uint32_t data_bytes, Success success) {
  CLEAT_CHECK(data_bytes <= fabrics::kTransferBytesMax);
  Wire& wire = WireOf(command);
  wire.head_bytes = wire.tail_bytes = 0;
  wire.sent_data_bytes = data_bytes;
  wire.makes_digest = data_bytes > 0 && digests_.data;
  const bool succeeds_with_data = data_bytes > 0 && success == Success::kWithData;
  if (data_bytes > 0) {
    C2hData pdu;
    pdu.header.type = PduType::kC2hData;
    pdu.header.flags = kFlagLast | (succeeds_with_data ? kFlagSuccess : 0);
    pdu.cid = command.entry.cid;
    pdu.data_bytes = data_bytes;
    wire.head_bytes = SetHeader(wire.head, pdu, data_bytes);
    wire.tail_bytes = digests_.data ? kDigestBytes : 0;
  }
  if (!succeeds_with_data) {
    CapsuleResp pdu;
    pdu.header.type = PduType::kCapsuleResp;
    pdu.entry = entry;
    wire.tail_bytes += SetHeader(wire.tail + wire.tail_bytes, pdu, 0);
  }
  queue_.PushBack(command);
}

// The digest lies first in the tail.
void ResponseQueue::MakeDigest(TargetCommand& command) const {
  Wire& wire = WireOf(command);
  wire.makes_digest = false;
  Crc32c crc;
  block::ForEachPiece(command.data, 0, wire.sent_data_bytes,
                      [&crc](const uint8_t* at, size_t bytes) { crc.Update(at, bytes); });
  const uint32_t digest = crc.value();
  std::memcpy(wire.tail, &digest, sizeof(digest));
}

void ResponseQueue::Restore(Digests digests, uint32_t data_align_bytes, std::vector<uint8_t> unsent) {
  CLEAT_CHECK(empty());
  digests_ = digests;
  data_align_bytes_ = data_align_bytes;
  restored_ = std::move(unsent);
  own_bytes_ = static_cast<uint32_t>(restored_.size());
  own_sent_ = 0;
}

void ResponseQueue::Clear() {
  while (queue_.PopFront() != nullptr) {
  }
  head_sent_ = 0;
  own_bytes_ = 0;
  own_sent_ = 0;
  restored_ = {};
}

uint32_t ResponseQueue::DataThatIsNext() {
  const TargetCommand* const first = queue_.front();
  if (own_sent_ < own_bytes_ || first == nullptr || head_sent_ < WireOf(*first).head_bytes) return 0;
  const Wire& wire = WireOf(*first);
  const uint64_t sent = head_sent_ - wire.head_bytes;
  return sent < wire.sent_data_bytes ? static_cast<uint32_t>(wire.sent_data_bytes - sent) : 0;
}

Gather ResponseQueue::Fill(std::span<iovec> iovecs, uint32_t alone_from) {
  if (DataThatIsNext() >= alone_from) [[unlikely]] {
    TargetCommand& first = *queue_.front();
    Pieces data(iovecs, head_sent_ - WireOf(first).head_bytes);
    block::ForEachPiece(first.data, 0, WireOf(first).sent_data_bytes,
                        [&data](const uint8_t* at, size_t bytes) { data.Add(at, bytes); });
    return {.count = data.count(), .alone = &first};
  }
  Pieces own(iovecs, own_sent_);
  own.Add(restored_.empty() ? own_ : restored_.data(), own_bytes_);
  Pieces pieces(iovecs.subspan(own.count()), head_sent_);
  uint64_t bytes = 0;
  for (TargetCommand* command = queue_.front();
       command != nullptr && !pieces.full() && bytes < kBatchMaxBytes; command = queue_.Next(*command)) {
    const Wire& wire = WireOf(*command);
    bytes += wire.pdu_bytes();
    if (wire.makes_digest) MakeDigest(*command);
    const bool is_begun = command == queue_.front() && head_sent_ >= wire.head_bytes;
    if (wire.sent_data_bytes >= alone_from && !is_begun) [[unlikely]] {
      pieces.Add(wire.head, wire.head_bytes);
      return {.count = own.count() + pieces.count(), .more = true};
    }
    AddPdus(*command, pieces);
  }
  return {.count = own.count() + pieces.count()};
}

TargetCommand* ResponseQueue::Consume(size_t& bytes) {
  if (own_sent_ < own_bytes_) {
    const size_t went = std::min<size_t>(bytes, own_bytes_ - own_sent_);
    own_sent_ += static_cast<uint32_t>(went);
    bytes -= went;
    if (own_sent_ == own_bytes_) restored_ = {};
    return nullptr;
  }
  if (bytes == 0) return nullptr;
  TargetCommand* const command = queue_.front();
  CLEAT_CHECK(command != nullptr);  // more was sent than was given
  const uint64_t rest = WireOf(*command).pdu_bytes() - head_sent_;
  if (bytes < rest) {
    head_sent_ += bytes;
    bytes = 0;
    return nullptr;
  }
  bytes -= rest;
  head_sent_ = 0;
  command->to_send.Unlink();
  return command;
}

}  // namespace cleat::nvme::tcp
