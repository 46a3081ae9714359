// SPDX-License-Identifier: Apache-2.0
// Slots, sending, and one command at a time. What comes from the target is in queue_receive.cc.
#include "perf/nvme_tcp/queue.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "perf/nvme_tcp/crc32c.h"

namespace cleat::perf {

NvmeTcpQueue::NvmeTcpQueue(NvmeTcpConnection connection, uint16_t slots)
    : connection_(std::move(connection)),
      slots_(slots),
      pending_(slots),
      done_(slots),
      frames_(kFramesMax),
      received_(kReceiveBytes) {
  CLEAT_CHECK(slots > 0 && slots <= kSlotsMax);
  vectors_.reserve(kVectorsMax);
}

// ---- Slots.

void NvmeTcpQueue::Prepare(uint16_t slot, const Request& request) {
  Slot& prepared = slots_[slot];
  CLEAT_CHECK(prepared.state == State::kFree && request.data.size() <= kPiecesMax);
  prepared.request = request;
  prepared.data.assign(request.data.begin(), request.data.end());
  prepared.data_bytes = 0;
  for (const iovec& piece : prepared.data) prepared.data_bytes += static_cast<uint32_t>(piece.iov_len);
}

void NvmeTcpQueue::Post(uint16_t slot) {
  Slot& posted = slots_[slot];
  CLEAT_CHECK(posted.state == State::kFree);
  posted.state = State::kQueued;
  posted.moved_bytes = 0;
  posted.damaged = false;
  PushPending(slot);
}

void NvmeTcpQueue::PushPending(uint16_t slot) {
  size_t at = pending_first_ + pending_count_++;
  if (at >= pending_.size()) at -= pending_.size();
  pending_[at] = slot;
}

uint16_t NvmeTcpQueue::PopPending() {
  const uint16_t slot = pending_[pending_first_];
  if (++pending_first_ == pending_.size()) pending_first_ = 0;
  --pending_count_;
  return slot;
}

// ---- Sending.

void NvmeTcpQueue::Flush() {
  while (!broken()) {
    if (vector_at_ == vectors_.size()) {
      if (pending_count_ == 0) return;
      FormFrames();
    }
    msghdr message{};
    message.msg_iov = &vectors_[vector_at_];
    message.msg_iovlen = vectors_.size() - vector_at_;
    const ssize_t sent = sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      ++stats_.sends;
      Advance(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      Break(ErrnoError(errno, "sending to the target").message);
    }
  }
}

void NvmeTcpQueue::Advance(size_t sent_bytes) {
  for (; sent_bytes > 0; ++vector_at_) {
    iovec& vector = vectors_[vector_at_];
    if (sent_bytes < vector.iov_len) {
      vector.iov_base = static_cast<uint8_t*>(vector.iov_base) + sent_bytes;
      vector.iov_len -= sent_bytes;
      return;
    }
    sent_bytes -= vector.iov_len;
  }
}

// A batch is sent to its end before the next one is formed, so a frame's header stays where it is until it has gone.
void NvmeTcpQueue::FormFrames() {
  vectors_.clear();
  vector_at_ = 0;
  frames_used_ = 0;
  constexpr size_t kVectorsOfFrame = kPiecesMax + 2;
  while (pending_count_ > 0 && frames_used_ < kFramesMax &&
         vectors_.size() + kVectorsOfFrame <= kVectorsMax) {
    const uint16_t id = PopPending();
    Frame& frame = frames_[frames_used_++];
    if (slots_[id].state == State::kQueued) {
      FormCommand(frame, id);
    } else {
      FormTransfer(frame, id);
    }
  }
}

void NvmeTcpQueue::FormCommand(Frame& frame, uint16_t id) {
  Slot& slot = slots_[id];
  wire::PduCommand pdu{};
  pdu.header.type = wire::kPduCommand;
  pdu.command = *slot.request.entry;
  pdu.command.flags = wire::kNvmeFlagSgl;
  pdu.command.cid = id;
  pdu.command.sgl_bytes = slot.data_bytes;
  const bool in_capsule =
      !slot.request.to_host && slot.data_bytes > 0 && slot.data_bytes <= capsule_data_bytes_;
  pdu.command.sgl_type = in_capsule ? wire::kNvmeSglInCapsule : wire::kNvmeSglByTransport;
  std::memcpy(frame.header.data(), &pdu, sizeof pdu);
  slot.state = State::kSent;
  AddFrame(frame, sizeof pdu, slot, in_capsule ? slot.data_bytes : 0);
}

// As much of what the target has asked for as it takes in one PDU.
void NvmeTcpQueue::FormTransfer(Frame& frame, uint16_t id) {
  Slot& slot = slots_[id];
  const uint32_t left_bytes = slot.asked_to_byte - slot.moved_bytes;
  const uint32_t bytes = std::min(left_bytes, connection_.data_to_target_max);
  wire::PduTransfer pdu{};
  pdu.header.type = wire::kPduDataToTarget;
  pdu.header.flags = bytes == left_bytes ? wire::kPduLast : 0;
  pdu.cid = id;
  pdu.tag = slot.tag;
  pdu.offset_bytes = slot.moved_bytes;
  pdu.length_bytes = bytes;
  std::memcpy(frame.header.data(), &pdu, sizeof pdu);
  AddFrame(frame, sizeof pdu, slot, bytes);
  if (bytes == left_bytes) {
    slot.state = State::kSent;
  } else {
    PushPending(id);
  }
}

// The header as it lies there, its lengths, flags and digest, and the slot's next data with its own.
void NvmeTcpQueue::AddFrame(Frame& frame, size_t header_bytes, Slot& slot, uint32_t data_bytes) {
  const NvmeTcpDigests& digests = connection_.digests;
  wire::PduHeader header;
  std::memcpy(&header, frame.header.data(), sizeof header);
  const bool data_digest = digests.data && data_bytes > 0;
  size_t front_bytes = header_bytes + (digests.header ? wire::kDigestBytes : 0);
  if (data_bytes > 0) {
    const size_t alignment = connection_.data_alignment_bytes;
    const size_t end = (front_bytes + alignment - 1) / alignment * alignment;
    std::memset(frame.header.data() + front_bytes, 0, end - front_bytes);
    front_bytes = end;
    header.data_at = static_cast<uint8_t>(front_bytes);
  }
  header.header_bytes = static_cast<uint8_t>(header_bytes);
  header.flags = static_cast<uint8_t>(header.flags | (digests.header ? wire::kPduHeaderDigest : 0) |
                                      (data_digest ? wire::kPduDataDigest : 0));
  header.pdu_bytes = static_cast<uint32_t>(front_bytes + data_bytes + (data_digest ? wire::kDigestBytes : 0));
  std::memcpy(frame.header.data(), &header, sizeof header);
  if (digests.header) {
    const uint32_t digest = Crc32c(frame.header.data(), header_bytes);
    std::memcpy(frame.header.data() + header_bytes, &digest, sizeof digest);
  }
  vectors_.push_back({frame.header.data(), front_bytes});
  uint32_t digest = kCrc32cBegin;
  ForPieces(slot, slot.moved_bytes, data_bytes, [&](uint8_t* at, uint32_t bytes) {
    vectors_.push_back({at, bytes});
    if (data_digest) digest = AddCrc32c(digest, at, bytes);
  });
  slot.moved_bytes += data_bytes;
  if (!data_digest) return;
  frame.data_digest = FinishCrc32c(digest);
  vectors_.push_back({&frame.data_digest, sizeof frame.data_digest});
}

// ---- One at a time.

Result<NvmeAnswer> NvmeTcpQueue::Execute(wire::NvmeCommand command, std::span<uint8_t> data, bool to_host,
                                         const Deadline& deadline) {
  if (broken()) return Error(ErrorCode::kUnavailable, broken_reason_);
  NvmeAnswer answer;
  const iovec piece{data.data(), data.size()};
  Prepare(
      0,
      {.entry = &command, .answer = &answer, .data = {&piece, data.empty() ? 0U : 1U}, .to_host = to_host});
  Post(0);
  for (uint16_t slot = 0;;) {
    Flush();
    if (Pop(&slot)) return answer;
    if (!broken()) {
      const short events = HasUnsent() ? POLLIN | POLLOUT : POLLIN;
      Status ready = WaitForSocket(socket(), events, deadline);
      if (ready) continue;
      Break(ready.error().message);  // the answer that may come yet has no place any more
    }
    return Error(ErrorCode::kUnavailable, broken_reason_);
  }
}

void NvmeTcpQueue::Break(std::string reason) {
  if (broken()) return;
  broken_reason_ = std::move(reason);
  shutdown(socket(), SHUT_RDWR);
}

void NvmeTcpQueue::BreakRules(std::string reason) {
  Break("the target broke the rules of NVMe/TCP: " + reason);
}

}  // namespace cleat::perf
