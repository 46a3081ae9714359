// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/socket/target_stream.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nvmf/socket/tcp_options.h"

namespace cleat::nvmf_target {

namespace {

// A record of TLS that has a part of the handshake; ICReq begins with 0 (TCP transport 1.0, 3.6.1.1).
constexpr uint8_t kTlsHandshake = 0x16;

constexpr uint32_t kEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP;

}  // namespace

TargetStream::TargetStream(UniqueFd fd, const std::string& peer, const StreamTuning& tuning,
                           KeyOfHost key_of_host)
    : fd_(std::move(fd)),
      peer_(peer),
      connection_({.name = peer}),
      key_of_host_(std::move(key_of_host)),
      tuning_(tuning) {
  connection_.SetLooksAhead(tuning.looks_ahead);
}

// The first byte that comes here says nothing of TLS.
TargetStream::TargetStream(SavedQueue& saved, const StreamTuning& tuning)
    : TargetStream(std::move(saved.socket), TextOfAddress(saved.peer), tuning, nullptr) {
  knows_kind_ = true;
  zero_copy_next_ = saved.zero_copy_next;
  connection_.Restore(saved.connection);
}

TargetStream::~TargetStream() {
  Stop();
}

Status TargetStream::Start(Reactor& reactor, TransportOwner& owner, Kind kind) {
  CLEAT_CHECK(reactor_ == nullptr && fd_.valid());
  CLEAT_TRY(watch_.Start(reactor, fd_.get(), kEvents));
  reactor_ = &reactor;
  owner_ = &owner;
  kind_ = kind;
  readable_ = writable_ = true;
  reactor.AddPoller(*this);
  return Ok{};
}

const TransportTraits& TargetStream::traits() const {
  static const TransportTraits kTraits;
  return kTraits;
}

void TargetStream::Stop() {
  if (reactor_ == nullptr) return;
  watch_.Stop();
  stall_.Cancel();
  if (tls_ != nullptr) tls_->release.Cancel();
  reactor_->RemovePoller(*this);
  reactor_ = nullptr;
}

void TargetStream::Close() {
  if (sends_in_kernel()) EndSends();
  if (tls_ != nullptr && fd_.valid()) SayGoodbye();
  Stop();
  fd_.Reset();
}

SavedQueue TargetStream::Save() {
  Stop();
  SavedQueue saved;
  saved.zero_copy_next = zero_copy_ == nullptr ? zero_copy_next_ : zero_copy_->next();
  saved.socket = std::move(fd_);
  saved.connection = connection_.Save();
  GiveUpKept();
  return saved;
}

// A connection is served without it as well.
void TargetStream::SetDscp(uint8_t dscp) {
  if (const Status set = nvmf::SetDscp(fd_.get(), dscp); !set.ok())
    spdlog::debug("{}: packets to the host carry no DSCP: {}", peer_, set.error().message);
}

int TargetStream::incoming_cpu() const {
  int cpu = -1;
  socklen_t bytes = sizeof(cpu);
  return getsockopt(fd_.get(), SOL_SOCKET, SO_INCOMING_CPU, &cpu, &bytes) == 0 ? cpu : -1;
}

void TargetStream::Watch::OnEvent(FdWatch& watch, uint32_t events) {
  TargetStream& stream = static_cast<Watch&>(watch).stream;
  if (events == EPOLLOUT && stream.writable_) return;  // it is back in epoll, and that is no news
  stream.readable_ = stream.writable_ = true;
  stream.reactor_->Activate(stream);
}

bool TargetStream::Poll() {
  owner_->BeginTurn();
  bool worked = false;
  if (knows_kind_ || LookAtFirstByte()) {
    worked = tls_ == nullptr ? ReceiveSome() : ReceiveByTls();
    worked |= tls_ == nullptr ? SendSome() : SendByTls();
  }
  if (sends_in_kernel() &&
      (!worked || zero_copy_->in_kernel() >= kCollectAt || ++turns_ % kTurnsToCollect == 0))
    worked |= CollectSends();
  if (tls_ != nullptr && worked) ReleaseLater();
  if (worked && ++busy_turns_ >= kTurnsToLeave && watch_.watching()) LeaveEpoll();
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
  busy_turns_ = 0;
  if (!watch_.watching() && !EnterEpoll()) return false;
  const bool may_have_data = reads_ && (readable_ || (tls_ != nullptr && tls_->may_have_data));
  return !(may_have_data && !connection_.waits()) && !(writable_ && wants_to_send());
}

// Each packet of a connection that epoll watches costs its event, on the core that processes the packet and with the socket locked meanwhile, and
// another look here. Who reads all the time learns nothing from it; who waits for room to send does.
void TargetStream::LeaveEpoll() {
  if (tuning_.leaves_epoll && tuning_.reads_without_event && reads_ && writable_) watch_.Stop();
}

// What has come meanwhile is an event at once.
bool TargetStream::EnterEpoll() {
  return watch_.Start(*reactor_, fd_.get(), kEvents).ok();
}

bool TargetStream::owes_data() const {
  return reads_ && (connection_.expects_data() ||
                    (tls_ != nullptr && tls_->session->has_input() && !tls_->may_have_data));
}

bool TargetStream::stalls() const {
  // While a PDU waits for room here nothing is read, and the host is not to blame.
  return !connection_.ended() &&
         ((owes_data() && !connection_.waits()) || wants_to_send() || sends_in_kernel());
}

void TargetStream::StallTimer::Fire(Timer& timer) {
  TargetStream& stream = static_cast<StallTimer&>(timer).stream;
  if (!stream.stalls()) return;
  if (stream.moved_bytes_ - stream.stall_begun_at_ >= kStallBytesLeast) {
    stream.stall_begun_at_ = stream.moved_bytes_;
    stream.reactor_->AddTimer(timer, stream.reactor_->now_ns() + kStallNs);
    return;
  }
  // Some network drivers let go of what they have sent only when they send the next.
  if (!stream.owes_data() && !stream.wants_to_send() && stream.HostHasAll()) return stream.GiveUpKept();
  const char* const what = stream.owes_data() ? "does not send the data that it has begun or was asked for"
                                              : "does not take what is sent to it";
  stream.connection_.Abort(
      {ErrorCode::kDeadlineExceeded,
       fmt::format("{}: the host {} for {} s", stream.peer_, what, kStallNs / kNsPerSecond)});
  stream.owner_->EndTurn();
}

bool TargetStream::LookAtFirstByte() {
  uint8_t first = 0;
  ssize_t seen = 0;
  do {
    seen = recv(fd_.get(), &first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);
  } while (seen < 0 && errno == EINTR);
  if (seen <= 0) {
    readable_ = false;
    if (seen == 0 || errno != EAGAIN) Broken("receiving", seen == 0 ? 0 : errno);
    return false;
  }
  knows_kind_ = true;
  if (first != kTlsHandshake) return true;
  const Status begun = BeginTls();
  if (!begun.ok()) EndTls(begun.error());
  return true;
}

size_t TargetStream::Write(std::span<iovec> pieces, int flags) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    writable_ = false;
    if (errno != EAGAIN) {
      Broken("sending", errno);
    } else if (!watch_.watching()) {
      writable_ = !EnterEpoll();  // nobody says when there is room: it is tried at the next turn
    }
    return 0;
  }
  moved_bytes_ += static_cast<size_t>(sent);
  return static_cast<size_t>(sent);
}

// One piece, as nearly always, is read without a message header, which the kernel would copy and check.
size_t TargetStream::Read(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  ssize_t received = 0;
  do {
    received = pieces.size() == 1 ? recv(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                                  : recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) {
    readable_ = false;
    if (received == 0 || errno != EAGAIN) Broken("receiving", received == 0 ? 0 : errno);
    return 0;
  }
  moved_bytes_ += static_cast<size_t>(received);
  return static_cast<size_t>(received);
}

bool TargetStream::SendSome() {
  bool worked = false;
  for (int sends = 0; sends < kSendsMax && writable_ && connection_.wants_to_send(); ++sends) {
    std::array<iovec, kPieces> pieces;
    const auto room = std::span(pieces).first(tuning_.batches_sends ? kPieces : 1);
    const nvme::tcp::Gather gather = connection_.FillSend(room, AloneFrom());
    const auto filled = room.first(gather.count);
    size_t sent = 0;
    if (gather.alone != nullptr) [[unlikely]] {
      sent = SendAlone(*gather.alone, filled);
    } else if (gather.more) [[unlikely]] {
      sent = SendBeforeAlone(filled);
    } else {
      sent = Write(filled);
    }
    if (sent == 0) return worked;
    worked = true;
    connection_.Sent(sent);
  }
  return worked;
}

// A short read does not clear the flag: the peer's end may have come with the event of the data before it.
bool TargetStream::ReceiveSome() {
  bool worked = false;
  for (int reads = 0; reads < kReadsMax && may_receive() && may_read(); ++reads) {
    std::array<iovec, kPieces> pieces;
    const uint32_t count = connection_.ReceiveSpace(pieces, owner_->ReceiveBuffer());
    const size_t received = Read(std::span(pieces).first(count));
    if (received == 0) return worked;
    worked = true;
    size_t room = 0;
    for (size_t i = 0; i < count; ++i) room += pieces[i].iov_len;
    if (!owner_->MayReceive()) return true;
    connection_.Received(received);
    if (received < room) return true;
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
