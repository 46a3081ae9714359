// SPDX-License-Identifier: Apache-2.0
// What the target sends: PDUs out of the stream, each checked against the command that it is about.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "perf/nvme_tcp/crc32c.h"
#include "perf/nvme_tcp/queue.h"

namespace cleat::perf {

void NvmeTcpQueue::PushDone(uint16_t slot) {
  size_t at = done_first_ + done_count_++;
  if (at >= done_.size()) at -= done_.size();
  done_[at] = slot;
}

uint16_t NvmeTcpQueue::TakeDone() {
  const uint16_t slot = done_[done_first_];
  if (++done_first_ == done_.size()) done_first_ = 0;
  --done_count_;
  return slot;
}

// Until a command has ended; false when nothing more is there. A receive that was not full took all that there was: asking again at once
// would cost a system call that finds nothing.
bool NvmeTcpQueue::ReceiveSome() {
  while (!std::exchange(drained_, false)) {
    if (broken() || !ReceiveOnce()) return false;
    Parse();
    if (done_count_ > 0) return true;
  }
  return false;
}

// Data of a PDU that has begun goes straight to its place; what may come behind it goes to the buffer.
bool NvmeTcpQueue::ReceiveOnce() {
  std::array<iovec, kPiecesMax + 1> vectors;
  size_t count = 0;
  size_t room_bytes = 0;
  const uint32_t direct_bytes = incoming_.left_bytes;
  if (direct_bytes > 0) {
    const Slot& slot = slots_[incoming_.slot];
    ForPieces(slot, slot.moved_bytes, direct_bytes, [&](uint8_t* at, uint32_t bytes) {
      vectors[count++] = {at, bytes};
    });
  }
  const size_t kept_bytes = received_end_ - received_first_;
  if (received_first_ > 0) std::memmove(received_.data(), received_.data() + received_first_, kept_bytes);
  received_first_ = 0;
  received_end_ = kept_bytes;
  vectors[count++] = {received_.data() + kept_bytes, received_.size() - kept_bytes};
  for (size_t i = 0; i < count; ++i) room_bytes += vectors[i].iov_len;
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  const ssize_t got = recvmsg(socket(), &message, MSG_DONTWAIT);
  if (got <= 0) {
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    Break(got == 0 ? "the target closed the connection"
                   : ErrnoError(errno, "receiving from the target").message);
    return false;
  }
  ++stats_.receives;
  drained_ = static_cast<size_t>(got) < room_bytes;
  const auto landed_bytes = static_cast<uint32_t>(std::min<size_t>(static_cast<size_t>(got), direct_bytes));
  if (landed_bytes > 0) Landed(landed_bytes);
  received_end_ += static_cast<size_t>(got) - landed_bytes;
  return true;
}

void NvmeTcpQueue::Parse() {
  while (!broken()) {
    const bool more = incoming_.left_bytes > 0 || incoming_.digest_follows ? ParseData() : ParseHeader();
    if (!more) return;
  }
}

// Data, or the digest behind it; false when more has to come first.
bool NvmeTcpQueue::ParseData() {
  const size_t there_bytes = received_end_ - received_first_;
  if (incoming_.left_bytes > 0) {
    const auto bytes = static_cast<uint32_t>(std::min<size_t>(there_bytes, incoming_.left_bytes));
    if (bytes == 0) return false;
    const Slot& slot = slots_[incoming_.slot];
    ForPieces(slot, slot.moved_bytes, bytes, [&](uint8_t* to, uint32_t piece_bytes) {
      std::memcpy(to, received_.data() + received_first_, piece_bytes);
      received_first_ += piece_bytes;
    });
    Landed(bytes);
    return true;
  }
  uint32_t digest = 0;
  if (there_bytes < sizeof digest) return false;
  std::memcpy(&digest, received_.data() + received_first_, sizeof digest);
  received_first_ += sizeof digest;
  // A wrong digest of data fails its command, not the connection (NVMe/TCP 1.0, 3.3.1.1).
  if (digest != FinishCrc32c(incoming_.digest)) slots_[incoming_.slot].damaged = true;
  incoming_.digest_follows = false;
  EndIncoming();
  return true;
}

// So many bytes of the PDU's data are at their place.
void NvmeTcpQueue::Landed(uint32_t bytes) {
  Slot& slot = slots_[incoming_.slot];
  if (incoming_.digest_follows) {
    ForPieces(slot, slot.moved_bytes, bytes, [&](const uint8_t* at, uint32_t piece_bytes) {
      incoming_.digest = AddCrc32c(incoming_.digest, at, piece_bytes);
    });
  }
  slot.moved_bytes += bytes;
  incoming_.left_bytes -= bytes;
  if (incoming_.left_bytes == 0 && !incoming_.digest_follows) EndIncoming();
}

void NvmeTcpQueue::EndIncoming() {
  if (!incoming_.success) return;
  incoming_.success = false;
  ++stats_.answers_with_data;
  Complete(incoming_.slot, 0, 0);
}

// One header with its digest; false when more has to come first.
bool NvmeTcpQueue::ParseHeader() {
  const size_t there_bytes = received_end_ - received_first_;
  wire::PduHeader header;
  if (there_bytes < sizeof header) return false;
  const uint8_t* const at = received_.data() + received_first_;
  std::memcpy(&header, at, sizeof header);
  // Every PDU that a target sends after its ICResp has a header of this length.
  constexpr size_t kHeaderBytes = sizeof(wire::PduTransfer);
  static_assert(sizeof(wire::PduResponse) == kHeaderBytes && sizeof(wire::PduTermination) == kHeaderBytes);
  if (header.header_bytes != kHeaderBytes || header.pdu_bytes < kHeaderBytes) {
    BreakRules(fmt::format("a PDU of type {:#x} with a header of {} bytes, {} in all", header.type,
                           header.header_bytes, header.pdu_bytes));
    return false;
  }
  const bool digest = connection_.digests.header && header.type != wire::kPduTargetTermination;
  const bool data = header.type == wire::kPduDataToHost;
  const size_t front_bytes = data ? size_t{header.data_at} : kHeaderBytes + (digest ? wire::kDigestBytes : 0);
  if (front_bytes < kHeaderBytes + (digest ? wire::kDigestBytes : 0) || front_bytes > header.pdu_bytes) {
    BreakRules(fmt::format("a PDU of type {:#x} whose data begins at byte {} of {}", header.type, front_bytes,
                           header.pdu_bytes));
    return false;
  }
  if (there_bytes < front_bytes) return false;
  received_first_ += front_bytes;
  if (digest) {
    uint32_t theirs = 0;
    std::memcpy(&theirs, at + kHeaderBytes, sizeof theirs);
    if ((header.flags & wire::kPduHeaderDigest) == 0 || theirs != Crc32c(at, kHeaderBytes)) {
      Break(fmt::format("the digest of a header of type {:#x} is wrong", header.type));
      return false;
    }
  }
  wire::PduTransfer transfer;
  std::memcpy(&transfer, at, sizeof transfer);
  wire::PduResponse response;
  std::memcpy(&response, at, sizeof response);
  wire::PduTermination termination;
  std::memcpy(&termination, at, sizeof termination);
  if (!data && header.type != wire::kPduTargetTermination && header.pdu_bytes != front_bytes) {
    BreakRules(fmt::format("a PDU of type {:#x} with {} bytes", header.type, header.pdu_bytes));
  } else if (data) {
    TakeDataHeader(transfer);
  } else if (header.type == wire::kPduReadyToTransfer) {
    TakeReadyToTransfer(transfer);
  } else if (header.type == wire::kPduResponse) {
    TakeResponse(response);
  } else if (header.type == wire::kPduTargetTermination) {
    Break(fmt::format("the target ended the connection: {}", TerminationReason(termination.reason)));
  } else {
    BreakRules(fmt::format("a PDU of type {:#x}", header.type));
  }
  return !broken();
}

NvmeTcpQueue::Slot* NvmeTcpQueue::Waiting(uint16_t id) {
  return id < slots_.size() && slots_[id].state == State::kSent ? &slots_[id] : nullptr;
}

void NvmeTcpQueue::TakeDataHeader(const wire::PduTransfer& pdu) {
  Slot* const slot = Waiting(pdu.cid);
  if (slot == nullptr || !slot->request.to_host) {
    return BreakRules(fmt::format("data for command {}, which waits for none", pdu.cid));
  }
  const bool digest = (pdu.header.flags & wire::kPduDataDigest) != 0;
  const uint64_t pdu_bytes =
      uint64_t{pdu.header.data_at} + pdu.length_bytes + (digest ? wire::kDigestBytes : 0);
  if (digest != (connection_.digests.data && pdu.length_bytes > 0) || pdu_bytes != pdu.header.pdu_bytes) {
    return BreakRules(fmt::format("{} bytes of data in a PDU of {}", pdu.length_bytes, pdu.header.pdu_bytes));
  }
  if (pdu.length_bytes == 0 || pdu.offset_bytes != slot->moved_bytes ||
      pdu.length_bytes > slot->data_bytes - slot->moved_bytes) {
    return BreakRules(fmt::format("{} bytes of data at {} for command {}, which has {} of {}",
                                  pdu.length_bytes, pdu.offset_bytes, pdu.cid, slot->moved_bytes,
                                  slot->data_bytes));
  }
  const bool success = (pdu.header.flags & wire::kPduSuccess) != 0;
  const bool whole = pdu.length_bytes == slot->data_bytes - slot->moved_bytes;
  if (success && ((pdu.header.flags & wire::kPduLast) == 0 || !whole)) {
    return BreakRules(fmt::format("command {} ends before the last of its data", pdu.cid));
  }
  incoming_ = {.slot = pdu.cid,
               .left_bytes = pdu.length_bytes,
               .digest = kCrc32cBegin,
               .digest_follows = digest,
               .success = success};
}

void NvmeTcpQueue::TakeReadyToTransfer(const wire::PduTransfer& pdu) {
  Slot* const slot = Waiting(pdu.cid);
  if (slot == nullptr || slot->request.to_host) {
    return BreakRules(fmt::format("command {} is asked for data and has none, or is asked twice", pdu.cid));
  }
  if (pdu.length_bytes == 0 || pdu.offset_bytes != slot->moved_bytes ||
      pdu.length_bytes > slot->data_bytes - slot->moved_bytes) {
    return BreakRules(fmt::format("command {} is asked for {} bytes at {}, {} of {} are sent", pdu.cid,
                                  pdu.length_bytes, pdu.offset_bytes, slot->moved_bytes, slot->data_bytes));
  }
  slot->asked_to_byte = pdu.offset_bytes + pdu.length_bytes;
  slot->tag = pdu.tag;
  slot->state = State::kTransfer;
  ++stats_.ready_to_transfer;
  PushPending(pdu.cid);
}

void NvmeTcpQueue::TakeResponse(const wire::PduResponse& pdu) {
  const Slot* const slot = Waiting(pdu.completion.cid);
  if (slot == nullptr)
    return BreakRules(fmt::format("an answer to command {}, which waits for none", pdu.completion.cid));
  const auto status = static_cast<uint16_t>(pdu.completion.status >> 1);
  if (status == 0 && slot->moved_bytes != slot->data_bytes) {
    return BreakRules(fmt::format("command {} ends with success, {} of its {} bytes of data have gone over",
                                  pdu.completion.cid, slot->moved_bytes, slot->data_bytes));
  }
  Complete(pdu.completion.cid, status, pdu.completion.result);
}

void NvmeTcpQueue::Complete(uint16_t id, uint16_t status, uint64_t result) {
  Slot& slot = slots_[id];
  slot.state = State::kFree;
  slot.request.answer->status = status == 0 && slot.damaged ? wire::kNvmeDataTransferError : status;
  slot.request.answer->result = result;
  PushDone(id);
}

}  // namespace cleat::perf
