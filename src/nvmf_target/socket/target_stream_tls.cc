// SPDX-License-Identifier: Apache-2.0
// TLS of a host's connection. The handshake takes the control reactor some tenths of a millisecond, and nothing worth mentioning for a host that
// has no key; the time for Connect bounds how long it lasts.
#include <sys/socket.h>

#include <array>
#include <utility>

#include "nvmf_target/socket/target_stream.h"

namespace cleat::nvmf_target {

using nvme::tls::ConnectionKey;
using nvme::tls::Session;

namespace {

// Of one turn: a host's handshake comes in two or three records, each by two reads.
constexpr int kHandshakeReadsMax = 8;

size_t BytesOf(std::span<const iovec> pieces) {
  size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

// Keys are looked for in the handshake alone, which is over before the stream moves to another reactor.
Status TargetStream::BeginTls() {
  auto tls = std::make_unique<Tls>(*this);
  const auto find_key = [this, &as = tls->as](std::string_view identity) -> Result<ConnectionKey> {
    CLEAT_ASSIGN(nvme::target::SecuredKey found, key_of_host_(identity));
    as = std::move(found.as);
    return std::move(found.key);
  };
  CLEAT_ASSIGN(tls->session, Session::MakeForTarget(find_key));
  tls_ = std::move(tls);
  return Ok{};
}

// An alert that says so to the host is in the output, which is still sent.
void TargetStream::EndTls(const Error& error) {
  connection_.Abort({error.code, peer_ + ": " + error.message});
}

size_t TargetStream::ReadRecords() {
  const auto space = tls_->session->InputSpace();
  iovec piece{space.data(), space.size()};
  const size_t came = Read({&piece, 1});
  if (came > 0) tls_->session->Came(came);
  return came;
}

bool TargetStream::ShakeHands(bool& worked) {
  for (int reads = 0; reads < kHandshakeReadsMax && !connection_.ended(); ++reads) {
    const Result<bool> is_over = tls_->session->GoOn();
    if (!is_over.ok()) EndTls(is_over.error());
    if (!is_over.ok()) return false;
    if (*is_over) return true;
    if (!readable_ || ReadRecords() == 0) return false;
    worked = true;
  }
  return false;
}

// Each turn of the loop opens records that are there, or reads where none is.
bool TargetStream::ReceiveByTls() {
  bool worked = false;
  if (!tls_->session->established() && !ShakeHands(worked)) return worked;
  for (int turns = 0; turns < 2 * kReadsMax && may_receive(); ++turns) {
    if (!tls_->may_have_data && (!may_read() || ReadRecords() == 0)) return worked;
    worked = true;
    std::array<iovec, kPieces> pieces;
    const uint32_t count = connection_.ReceiveSpace(pieces, owner_->ReceiveBuffer());
    const Result<size_t> got = tls_->session->Read(std::span(pieces).first(count));
    tls_->may_have_data = got.ok() && *got > 0;
    if (!got.ok()) {
      EndTls(got.error());
      return true;
    }
    if (*got == 0) continue;
    if (!owner_->MayReceive()) return true;
    connection_.Received(*got);
  }
  return worked;
}

// As much as there is room for: what a poll has answered goes out in one record, or in as many as it needs.
void TargetStream::SealSome() {
  while (connection_.wants_to_send()) {
    std::array<iovec, kPieces> pieces;
    const uint32_t count = connection_.FillSend(std::span(pieces).first(tuning_.batches_sends ? kPieces : 1));
    const auto filled = std::span(pieces).first(count);
    const Result<size_t> sealed = tls_->session->Write(filled);
    if (!sealed.ok()) return EndTls(sealed.error());
    if (*sealed == 0) return;
    const bool all = *sealed == BytesOf(filled);
    connection_.Sent(*sealed);
    if (!all || !tuning_.batches_sends) return;
  }
}

// What has ended may have an alert in the output.
bool TargetStream::SendByTls() {
  bool worked = false;
  Session& session = *tls_->session;
  for (int sends = 0; sends < kSendsMax && writable_; ++sends) {
    if (session.established()) SealSome();
    const auto output = session.output();
    if (output.empty()) return worked;
    iovec piece{const_cast<uint8_t*>(output.data()), output.size()};  // the kernel reads it alone
    const size_t sent = Write({&piece, 1});
    if (sent == 0) return worked;
    worked = true;
    session.Sent(sent);
  }
  return worked;
}

void TargetStream::SayGoodbye() {
  Session& session = *tls_->session;
  if (!session.established()) return;
  session.Close();
  const auto output = session.output();
  if (output.empty()) return;
  const ssize_t sent = send(fd_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) session.Sent(static_cast<size_t>(sent));
}

// ---- Memory

void TargetStream::ReleaseLater() {
  if (reactor_ == nullptr || tls_->release.pending()) return;
  tls_->release_begun_at = moved_bytes_;
  reactor_->AddTimer(tls_->release, reactor_->now_ns() + kReleaseNs);
}

void TargetStream::ReleaseTimer::Fire(Timer& timer) {
  TargetStream& stream = static_cast<ReleaseTimer&>(timer).stream;
  if (stream.moved_bytes_ != stream.tls_->release_begun_at) return stream.ReleaseLater();
  stream.tls_->session->ReleaseBuffers();
}

}  // namespace cleat::nvmf_target
