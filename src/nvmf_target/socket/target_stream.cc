// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/socket/target_stream.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cleat::nvmf_target {

TargetStream::TargetStream(UniqueFd fd, std::string peer, nvme::tcp::TargetConnection& connection)
    : fd_(std::move(fd)), peer_(std::move(peer)), connection_(connection) {}

TargetStream::~TargetStream() {
  Stop();
}

Status TargetStream::Start(Reactor& reactor, std::span<uint8_t> receive_buffer, StreamOwner& owner,
                           const StreamTuning& tuning) {
  CLEAT_CHECK(reactor_ == nullptr && fd_.valid());
  CLEAT_TRY(watch_.Start(reactor, fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP));
  reactor_ = &reactor;
  receive_buffer_ = receive_buffer;
  owner_ = &owner;
  tuning_ = tuning;
  readable_ = writable_ = true;
  reactor.AddPoller(*this);
  return Ok{};
}

void TargetStream::Stop() {
  if (reactor_ == nullptr) return;
  watch_.Stop();
  stall_.Cancel();
  reactor_->RemovePoller(*this);
  reactor_ = nullptr;
}

void TargetStream::Close() {
  Stop();
  fd_.Reset();
}

void TargetStream::Watch::OnEvent(FdWatch& watch, uint32_t /*events*/) {
  TargetStream& stream = static_cast<Watch&>(watch).stream;
  stream.readable_ = stream.writable_ = true;
  stream.reactor_->Activate(stream);
}

bool TargetStream::Poll() {
  owner_->BeginTurn();
  bool worked = ReceiveSome();
  worked |= SendSome();
  if (!stalls()) {
    stall_.Cancel();
  } else if (!stall_.pending()) {
    stall_begun_at_ = moved_bytes_;
    reactor_->AddTimer(stall_, reactor_->now_ns() + kStallNs);
  }
  owner_->EndTurn();
  return worked;
}

// An event that comes after this look sets its flag and activates the poller again.
bool TargetStream::Arm() {
  return !(readable_ && !connection_.waits()) && !(writable_ && connection_.wants_to_send());
}

bool TargetStream::stalls() const {
  // While a PDU waits for room here nothing is read, and the host is not to blame.
  return !connection_.ended() &&
         ((connection_.expects_data() && !connection_.waits()) || connection_.wants_to_send());
}

void TargetStream::StallTimer::Fire(Timer& timer) {
  TargetStream& stream = static_cast<StallTimer&>(timer).stream;
  if (!stream.stalls()) return;
  if (stream.moved_bytes_ - stream.stall_begun_at_ >= kStallBytesLeast) {
    stream.stall_begun_at_ = stream.moved_bytes_;
    stream.reactor_->AddTimer(timer, stream.reactor_->now_ns() + kStallNs);
    return;
  }
  const char* const what = stream.connection_.expects_data()
                               ? "does not send the data that it has begun or was asked for"
                               : "does not take what is sent to it";
  stream.connection_.Abort(
      {ErrorCode::kDeadlineExceeded,
       fmt::format("{}: the host {} for {} s", stream.peer_, what, kStallNs / kNsPerSecond)});
  stream.owner_->EndTurn();
}

bool TargetStream::SendSome() {
  bool worked = false;
  for (int sends = 0; sends < kSendsMax && writable_ && connection_.wants_to_send(); ++sends) {
    std::array<iovec, kPieces> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = connection_.FillSend(std::span(pieces).first(tuning_.batches_sends ? kPieces : 1));
    ssize_t sent = 0;
    do {
      sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
      writable_ = false;
      if (errno != EAGAIN) Broken("sending", errno);
      return worked;
    }
    worked = true;
    moved_bytes_ += static_cast<size_t>(sent);
    connection_.Sent(static_cast<size_t>(sent));
  }
  return worked;
}

// A short read does not clear the flag: the peer's end may have come with the event of the data before it.
bool TargetStream::ReceiveSome() {
  bool worked = false;
  for (int reads = 0; reads < kReadsMax; ++reads) {
    if (connection_.ended() || connection_.waits() || !(readable_ || tuning_.reads_without_event))
      return worked;
    std::array<iovec, kPieces> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = connection_.ReceiveSpace(pieces, receive_buffer_);
    ssize_t received = 0;
    // One piece, as nearly always, without a message header, which the kernel would copy and check.
    do {
      received = message.msg_iovlen == 1 ? recv(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, 0)
                                         : recvmsg(fd_.get(), &message, 0);
    } while (received < 0 && errno == EINTR);
    if (received <= 0) {
      readable_ = false;
      if (received == 0) Broken("receiving", 0);
      if (received < 0 && errno != EAGAIN) Broken("receiving", errno);
      return worked;
    }
    worked = true;
    size_t room = 0;
    for (size_t i = 0; i < message.msg_iovlen; ++i) room += pieces[i].iov_len;
    moved_bytes_ += static_cast<size_t>(received);
    if (!owner_->MayReceive()) return true;
    connection_.Received(static_cast<size_t>(received));
    if (static_cast<size_t>(received) < room) return true;
  }
  return worked;
}

void TargetStream::Broken(const char* doing, int error_number) {
  connection_.Abort({ErrorCode::kUnavailable,
                     error_number == 0
                         ? peer_ + ": the host has closed the connection"
                         : fmt::format("{}: connection lost while {}: {}", peer_, doing,
                                       ErrnoError(error_number, "").message.substr(std::strlen(": ")))});
}

}  // namespace cleat::nvmf_target
