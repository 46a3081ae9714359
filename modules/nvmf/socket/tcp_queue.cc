// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/socket/tcp_queue.h"

#include <sys/uio.h>

#include <array>
#include <span>

namespace cleat::modules {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::Reached;

TcpQueue::TcpQueue(const TcpQueueOptions& options, Reactor& reactor, nvme::fabrics::QueuePairOwner& owner)
    : options_(options),
      reactor_(reactor),
      owner_(owner),
      socket_(reactor, *this),
      connection_(options.connection, *this) {}

TcpQueue::~TcpQueue() {
  CLEAT_CHECK(!started_ || ended());
}

void TcpQueue::Start() {
  CLEAT_CHECK(!started_);
  started_ = true;
  const nvmf::StreamOptions stream{
      .unread_bytes = options_.tuning.unread_bytes, .source = options_.source, .dscp = options_.dscp};
  if (const Status begun = socket_.Connect(options_.address, stream); !begun.ok())
    return connection_.Abort({begun.error().code, options_.connection.name + ": " + begun.error().message});
  reactor_.AddTimer(connect_over_, reactor_.now_ns() + options_.connect_timeout_ns);
  reactor_.AddPoller(*this);
}

void TcpQueue::Submit(const nvme::fabrics::QueuedCommand& command) {
  connection_.Submit(command);
  ++in_flight_;
  reactor_.Activate(*this);
}

// The connection tells the owner, by way of Unanswered and Ended below, which close the socket first.
void TcpQueue::Abort(const Error& reason) {
  connection_.Abort(reason);
}

void TcpQueue::TooLate() {
  const char* lacks = "no TCP connection: look for a firewall, or a host that is down";
  if (stage_ == Stage::kTls) lacks = "no answer in the TLS handshake: has its listener a secure channel?";
  if (stage_ == Stage::kOpen) lacks = "no answer to ICReq: is it an NVMe/TCP target?";
  Abort({ErrorCode::kDeadlineExceeded,
         options_.connection.name + ": " + nvme::fabrics::TextOfAddress(options_.address) +
             ": not connected within " + std::to_string(options_.connect_timeout_ns / kNsPerMs) + " ms, " +
             lacks});
}

// ---- What the reactor calls

void TcpQueue::SocketReady() {
  readable_ = writable_ = true;
  reactor_.Activate(*this);
}

bool TcpQueue::Poll() {
  if (stage_ != Stage::kOpen && !GoOnConnecting()) return false;
  bool worked = SendSome();
  if (!ended()) worked |= ReceiveSome();
  // Data that was asked for, and commands that followed upon completions.
  if (worked && !ended()) SendSome();
  return worked;
}

// An event that comes after this look sets its flag and activates the poller again.
bool TcpQueue::Arm() {
  return !readable_ && !(writable_ && wants_to_send());
}

// Whether PDUs may go and come by now; it is asked after each event.
bool TcpQueue::GoOnConnecting() {
  if (!writable_) return false;
  writable_ = readable_ = false;
  return stage_ == Stage::kTcp ? FinishConnect() : Handshake();
}

bool TcpQueue::FinishConnect() {
  const Result<bool> connected = socket_.FinishConnect();
  if (!connected.ok()) AbortFor(connected.error());
  if (!connected.ok() || !*connected) return false;
  if (options_.tls.psk == nullptr) return Begin();
  auto tls = nvmf::TlsStream::Make(socket_, nvme::fabrics::TextOfAddress(options_.address), options_.tls);
  if (!tls.ok()) {
    AbortFor(tls.error());
    return false;
  }
  tls_ = std::move(tls).value();
  stage_ = Stage::kTls;
  return Handshake();
}

bool TcpQueue::Handshake() {
  const Result<bool> is_over = tls_->Handshake();
  if (!is_over.ok()) AbortFor(is_over.error());
  return is_over.ok() && *is_over && Begin();
}

bool TcpQueue::Begin() {
  stage_ = Stage::kOpen;
  writable_ = readable_ = true;
  connection_.Start();
  return true;
}

void TcpQueue::AbortFor(const Error& error) {
  Abort({error.code, options_.connection.name + ": " + error.message});
}

Result<size_t> TcpQueue::Send(std::span<const iovec> pieces) {
  return tls_ != nullptr ? tls_->Send(pieces) : socket_.Send(pieces);
}

Result<size_t> TcpQueue::Receive(std::span<const iovec> pieces) {
  return tls_ != nullptr ? tls_->Receive(pieces) : socket_.Receive(pieces);
}

bool TcpQueue::SendSome() {
  bool worked = false;
  for (int sends = 0; sends < kSendsMax && writable_ && wants_to_send(); ++sends) {
    std::array<iovec, kPieces> pieces;
    const uint32_t count =
        connection_.FillSend(std::span(pieces).first(options_.tuning.batches_sends ? kPieces : 1));
    if (count == 0 && !has_backlog()) return worked;
    const Result<size_t> sent = Send(std::span(pieces).first(count));
    if (!sent.ok()) {
      AbortFor(sent.error());
      return true;
    }
    // An event will come only where the kernel has said that it is full. That it took a part alone may have other causes, as memory that
    // it could not read or could not get, and the next send finds them.
    writable_ = tls_ != nullptr ? !tls_->is_full() : *sent > 0;
    if (*sent == 0) return worked;
    worked = true;
    connection_.Sent(*sent);
  }
  return worked;
}

// A short read does not clear the flag: the peer's end may have come with the event of the data before it.
bool TcpQueue::ReceiveSome() {
  bool worked = false;
  for (int reads = 0; reads < kReadsMax && (readable_ || reads_without_event()); ++reads) {
    std::array<iovec, kPieces> pieces;
    const uint32_t count = connection_.ReceiveSpace(pieces);
    const Result<size_t> received = Receive(std::span(pieces).first(count));
    if (!received.ok()) {
      AbortFor(received.error());
      return true;
    }
    readable_ = *received > 0;
    if (!readable_) return worked;
    worked = true;
    connection_.Received(*received);
    if (ended()) return true;
    size_t all = 0;
    for (const iovec& piece : std::span(pieces).first(count)) all += piece.iov_len;
    if (*received < all) return true;
  }
  return worked;
}

// ---- What the connection says

// The last PDU says why, if the kernel takes it at once and sends it before the reset.
void TcpQueue::CloseSocket() {
  if (!socket_.open()) return;
  if (stage_ == Stage::kOpen && connection_.wants_to_send()) {
    std::array<iovec, kPieces> pieces;
    const uint32_t count = connection_.FillSend(pieces);
    if (count > 0) (void)Send(std::span(pieces).first(count));
  }
  if (stage_ == Stage::kOpen && tls_ != nullptr) tls_->SayGoodbye();
  socket_.Close();
  connect_over_.Cancel();
  reactor_.RemovePoller(*this);
}

void TcpQueue::Connected() {
  connect_over_.Cancel();
  owner_.Connected();
}

void TcpQueue::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (ended()) [[unlikely]]
    CloseSocket();
  --in_flight_;
  owner_.Completed(cookie, entry, data_bytes);
}

void TcpQueue::Unanswered(uint64_t cookie, Reached reached) {
  CloseSocket();
  --in_flight_;
  owner_.Unanswered(cookie, reached);
}

void TcpQueue::Ended(const Error& reason) {
  CloseSocket();
  owner_.Ended(reason);
}

}  // namespace cleat::modules
