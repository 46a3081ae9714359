// SPDX-License-Identifier: Apache-2.0
#include "nvmf/socket/tls_stream.h"

#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "nvmf/socket/kernel_tls.h"

namespace cleat::nvmf {

using nvme::tls::IdentityVersion;
using nvme::tls::Psk;
using nvme::tls::Session;
using nvme::tls::Unopened;

namespace {

// Some targets, Linux' among them, close without an alert.
constexpr const char* kInHandshake =
    ", in the TLS handshake: see that its listener has a secure channel, and the same pre-shared key for "
    "this host's NQN "
    "and the subsystem's";

// Alerts' levels, and the one that says the orderly end (RFC 8446, 6).
constexpr uint8_t kWarning = 1;
constexpr uint8_t kFatal = 2;
constexpr uint8_t kCloseNotify = 0;

std::string TextOf(int error_number) {
  return ErrnoError(error_number, "").message.substr(std::string_view(": ").size());
}

// What the kernel says of a record that it can't open (net/tls/tls_sw.c of Linux).
std::optional<Unopened> UnopenedFor(int error_number) {
  switch (error_number) {
    case EBADMSG:
      return Unopened::kChanged;
    case EMSGSIZE:
      return Unopened::kTooLong;
    case EINVAL:
      return Unopened::kMalformed;
    case EKEYEXPIRED:
      return Unopened::kOtherKey;
    default:
      return std::nullopt;
  }
}

}  // namespace

TlsStream::TlsStream(StreamSocket& socket, const TlsNames& names, nvme::tls::IdentityChoice& choice,
                     IdentityVersion identity, std::unique_ptr<Session> session)
    : socket_(socket),
      psk_(names.psk),
      choice_(choice),
      queue_(names.queue),
      by_kernel_(names.by_kernel),
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
  while (!session_->output().empty()) {
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
    if (!is_over.ok()) return is_over;
    if (*is_over) {
      if (!flushed.ok()) return is_over;  // which the next Send has
      if (!*flushed) return false;
      CLEAT_TRY(TryHandOver());
      return true;
    }
    CLEAT_TRY(flushed);
    const auto space = session_->InputSpace();
    const iovec piece{space.data(), space.size()};
    const Result<size_t> came = socket_.Receive({&piece, 1});
    if (!came.ok()) return Error(came.error().code, came.error().message + kInHandshake);
    if (*came == 0) return false;
    session_->Came(*came);
  }
}

// What the kernel can't do leaves the connection as it is, until it has one direction's keys: that can't be taken back.
Status TlsStream::TryHandOver() {
  not_by_kernel_ = "it is switched off";
  if (!by_kernel_) return Ok{};
  not_by_kernel_ = "it can't follow this target";
  if (choice_.is_kept_from_kernel()) return Ok{};
  not_by_kernel_ = "more than the handshake has come";
  if (!session_->is_between_records()) return Ok{};
  const int fd = socket_.fd();
  kernel_error_ = kernel_tls::Attach(fd);
  not_by_kernel_ = kernel_error_ == ENOENT ? "it has no module tls" : "it refuses";
  if (kernel_error_ != 0) return Ok{};
  const auto keys = session_->ExportKeys();
  not_by_kernel_ = "no memory for keys";
  if (!keys.ok()) return Ok{};
  kernel_error_ = kernel_tls::GiveKeys(fd, kernel_tls::Direction::kSeal, keys->seal);
  not_by_kernel_ = "it has not this cipher, or no memory for it";
  if (kernel_error_ != 0) return Ok{};
  kernel_error_ = kernel_tls::GiveKeys(fd, kernel_tls::Direction::kOpen, keys->open);
  if (kernel_error_ != 0) {
    choice_.KeepFromKernel();
    return Error(ErrorCode::kResourceExhausted,
                 "TLS: the kernel seals records and can't open them: " + TextOf(kernel_error_) +
                     "; the next connection does without it");
  }
  session_->HandOver();
  not_by_kernel_ = nullptr;
  return Ok{};
}

std::string TlsStream::maker() const {
  if (not_by_kernel_ == nullptr) return "the kernel";
  std::string text = std::string("the engine, not the kernel: ") + not_by_kernel_;
  if (kernel_error_ != 0 && kernel_error_ != ENOENT) text += " (" + TextOf(kernel_error_) + ")";
  return text;
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
  if (session_->handed_over()) return SendByKernel(pieces);
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
  if (session_->handed_over()) return ReceiveByKernel(pieces);
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

// ---- By the kernel

// A call that fails may have sent records all the same, where the cipher works on its own time: all that it was given counts as sent, and the next
// call has the error. Otherwise a command that the target may have would not be in doubt.
Result<size_t> TlsStream::SendByKernel(std::span<const iovec> pieces) {
  is_full_ = false;
  if (send_error_) return *send_error_;
  if (const Status may = session_->MaySeal(); !may.ok()) return EndFor(may.error());
  int error_number = 0;
  Result<size_t> sent = socket_.Send(pieces, &error_number);
  if (!sent.ok()) {
    // A record that could not be opened stands as the socket's error, and whichever call comes next has it.
    const auto unopened = UnopenedFor(error_number);
    send_error_ = unopened ? EndFor(session_->FailFor(*unopened)) : sent.error();
    size_t given = 0;
    for (const iovec& piece : pieces) given += piece.iov_len;
    return given;
  }
  is_full_ = *sent == 0;
  session_->Sealed(*sent);
  return sent;
}

// A call without room for a record's type is the cheapest one, and fails where that is not data; the record stays.
Result<size_t> TlsStream::ReceiveByKernel(std::span<const iovec> pieces) {
  for (;;) {
    int error_number = 0;
    Result<size_t> got = socket_.Receive(pieces, &error_number);
    if (got.ok()) {
      if (*got == 0) return got;
      if (const Status may = session_->Opened(*got); !may.ok()) return EndFor(may.error());
      return got;
    }
    if (const auto unopened = UnopenedFor(error_number)) return EndFor(session_->FailFor(*unopened));
    if (error_number != EIO) return got;
    const Result<bool> taken = TakeDataless();
    if (!taken.ok()) return EndFor(taken.error());
    if (!*taken) return got;
  }
}

// Whether there was one.
Result<bool> TlsStream::TakeDataless() {
  std::array<uint8_t, nvme::tls::kRecordDataBytesMax> content;
  const auto record = kernel_tls::TakeDataless(socket_.fd(), content);
  if (!record) return false;
  CLEAT_TRY(session_->TakeRecord(record->type, std::span(content).first(record->bytes)));
  return true;
}

Error TlsStream::EndFor(Error error) {
  if (session_->saw_key_update()) choice_.KeepFromKernel();
  const auto alert = session_->alert();
  if (alert && !std::exchange(is_told_, true)) kernel_tls::SendAlert(socket_.fd(), kFatal, *alert);
  return error;
}

void TlsStream::SayGoodbye() {
  if (session_->handed_over()) {
    if (!session_->failed()) kernel_tls::SendAlert(socket_.fd(), kWarning, kCloseNotify);
    return;
  }
  session_->Close();
  (void)Flush();
}

}  // namespace cleat::nvmf
