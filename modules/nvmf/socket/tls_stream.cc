// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/socket/tls_stream.h"

#include <utility>

namespace cleat::modules {

using nvme::tls::IdentityVersion;
using nvme::tls::Psk;
using nvme::tls::Session;

namespace {

// Some targets, Linux' among them, close without an alert.
constexpr const char* kInHandshake =
    ", in the TLS handshake: see that its listener has a secure channel, and the same pre-shared key for "
    "this host's NQN "
    "and the subsystem's";

}  // namespace

TlsStream::TlsStream(StreamSocket& socket, const TlsNames& names, nvme::tls::IdentityChoice& choice,
                     IdentityVersion identity, std::unique_ptr<Session> session)
    : socket_(socket),
      psk_(names.psk),
      choice_(choice),
      queue_(names.queue),
      has_both_(Psk::HasVersion0For(names.host_nqn, names.subsystem_nqn)),
      identity_(identity),
      session_(std::move(session)) {}

Result<std::unique_ptr<TlsStream>> TlsStream::Make(StreamSocket& socket, const std::string& address,
                                                   const TlsNames& names) {
  nvme::tls::IdentityChoice& choice = names.psk->choice(address);
  const bool has_both = Psk::HasVersion0For(names.host_nqn, names.subsystem_nqn);
  const IdentityVersion identity = has_both ? choice.next() : IdentityVersion::kV1;
  CLEAT_ASSIGN(auto key, names.psk->KeyFor(names.host_nqn, names.subsystem_nqn, identity));
  CLEAT_ASSIGN(auto session, Session::Make(std::move(key)));
  return std::unique_ptr<TlsStream>(new TlsStream(socket, names, choice, identity, std::move(session)));
}

Result<bool> TlsStream::Flush() {
  is_full_ = false;
  while (wants_to_send()) {
    const auto output = session_->output();
    const iovec piece{const_cast<uint8_t*>(output.data()), output.size()};  // the kernel reads it alone
    CLEAT_ASSIGN(const size_t sent, socket_.Send({&piece, 1}));
    is_full_ = sent == 0;
    if (is_full_) return false;
    session_->Sent(sent);
  }
  return true;
}

Result<bool> TlsStream::GoOn() {
  for (;;) {
    Result<bool> is_over = session_->GoOn();
    // The target is told why, also where it is an error.
    const Result<bool> flushed = Flush();
    if (!is_over.ok() || *is_over) return is_over;
    CLEAT_TRY(flushed);
    const auto space = session_->InputSpace();
    const iovec piece{space.data(), space.size()};
    const Result<size_t> came = socket_.Receive({&piece, 1});
    if (!came.ok()) return Error(came.error().code, came.error().message + kInHandshake);
    if (*came == 0) return false;
    session_->Came(*came);
  }
}

Result<bool> TlsStream::Handshake() {
  const bool is_admin = queue_ == TlsNames::Queue::kAdmin;
  Result<bool> is_over = GoOn();
  if (is_over.ok()) {
    if (*is_over && is_admin) choice_.Accepted(identity_);
    return is_over;
  }
  Error error = is_over.error();
  const bool says_so = error.code == ErrorCode::kPermissionDenied;
  if (!is_admin) {
    // The target has just let the admin queue in by this key, and so has some trouble; the queue's next try may find it over.
    if (says_so) error.code = ErrorCode::kUnavailable;
    return error;
  }
  // Errors of this machine say nothing of what the target knows. A target that knows no such identity may also close without a word.
  if (!says_so && error.code != ErrorCode::kUnavailable) return error;
  const bool may_go = choice_.Refused(identity_, session_->refusal());
  if (says_so && may_go && has_both_) error.code = ErrorCode::kUnavailable;
  return error;
}

// An error is told only where nothing of these pieces was taken: what went before it counts as sent. The next call has the error again.
Result<size_t> TlsStream::Send(std::span<const iovec> pieces) {
  size_t taken = 0;
  for (;;) {
    const Result<bool> flushed = Flush();
    if (!flushed.ok() && taken == 0) return flushed.error();
    if (!flushed.ok() || !*flushed) return taken;
    const Result<size_t> more = session_->Write(pieces, taken);
    if (!more.ok() && taken == 0) return more.error();
    if (!more.ok() || *more == 0) return taken;
    taken += *more;
  }
}

Result<size_t> TlsStream::Receive(std::span<const iovec> pieces) {
  for (;;) {
    Result<size_t> got = session_->Read(pieces);
    if (!got.ok()) (void)Flush();  // says why
    if (!got.ok() || *got > 0) return got;
    const auto space = session_->InputSpace();
    const iovec piece{space.data(), space.size()};
    CLEAT_ASSIGN(const size_t came, socket_.Receive({&piece, 1}));
    if (came == 0) return size_t{0};
    session_->Came(came);
  }
}

void TlsStream::SayGoodbye() {
  session_->Close();
  (void)Flush();
}

}  // namespace cleat::modules
