// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::tls {
namespace {

// Alerts and messages of the handshake by their numbers (RFC 8446, 6 and 4).
constexpr uint8_t kWarning = 1;
constexpr uint8_t kFatal = 2;
constexpr uint8_t kCloseNotify = 0;
constexpr uint8_t kUnexpectedMessage = 10;
constexpr uint8_t kBadRecordMac = 20;
constexpr uint8_t kRecordOverflow = 22;
constexpr uint8_t kIllegalParameter = 47;
constexpr uint8_t kDecodeError = 50;
constexpr uint8_t kInternalError = 80;
constexpr uint8_t kUserCanceled = 90;
constexpr uint8_t kNewSessionTicket = 4;
constexpr uint8_t kKeyUpdate = 24;
constexpr uint8_t kMessageHeaderBytes = 4;

constexpr const char* kInMessage = "a record in the midst of a message";
constexpr const char* kChanged =
    "a record that was changed on its way, or is made with another key, has come";
constexpr const char* kSpentKey = "more than one key can protect, and no KeyUpdate";
constexpr const char* kLongHello = "more bytes than a host's handshake may have";

// What a NewSessionTicket may have: two numbers, a nonce, a ticket and extensions of up to 2^16 bytes each, with their lengths.
constexpr uint32_t kTicketBytesMax = 4 + 4 + 1 + 255 + 2 + 65'535 + 2 + 65'534;

}  // namespace

Result<std::unique_ptr<Session>> Session::Make(ConnectionKey key, const SessionLimits& limits) {
  std::unique_ptr<Session> session(new Session(Role::kHost, limits));
  CLEAT_ASSIGN(session->handshake_, Handshake::Make(std::move(key), session->input_, session->output_));
  return session;
}

Result<std::unique_ptr<Session>> Session::MakeForTarget(KeyFinder find_key, const SessionLimits& limits) {
  std::unique_ptr<Session> session(new Session(Role::kTarget, limits));
  CLEAT_ASSIGN(session->handshake_,
               Handshake::MakeForTarget(std::move(find_key), session->input_, session->output_));
  return session;
}

std::span<uint8_t> Session::InputSpace() {
  // Not while data of a record is left: it would be moved from under data_.
  if (data_.empty() && input_.space().size() < kRecordHeaderBytes + kRecordPayloadBytesMax) input_.Pack();
  const auto space = input_.space();
  return established() ? space : space.first(std::min(space.size(), arrival_.wanted()));
}

void Session::Came(size_t bytes) {
  if (!established()) {
    arrival_.Take(input_.space().first(bytes));
    hello_bytes_ += bytes;
  }
  input_.Add(bytes);
}

void Session::Arrival::Take(std::span<const uint8_t> bytes) {
  CLEAT_CHECK(bytes.size() <= wanted());
  if (header_bytes == kRecordHeaderBytes) {
    payload_left -= bytes.size();
  } else {
    std::copy(bytes.begin(), bytes.end(), header.begin() + static_cast<ptrdiff_t>(header_bytes));
    header_bytes += bytes.size();
    if (header_bytes == kRecordHeaderBytes) payload_left = size_t{header[3]} << 8 | header[4];
  }
  if (wanted() == 0) header_bytes = 0;
}

Result<bool> Session::GoOn() {
  if (failed_) return *failed_;
  if (established()) return true;
  if (role_ == Role::kTarget && !is_hello_looked_at_) {
    CLEAT_ASSIGN(is_hello_looked_at_, LookAtHello());
    if (!is_hello_looked_at_) return false;
  }
  if (role_ == Role::kTarget && hello_bytes_ > kHelloBytesMax)
    return FailSent(kUnexpectedMessage, kLongHello);
  const Result<bool> is_over = handshake_->GoOn();
  if (!is_over.ok()) return Fail(is_over.error());
  if (!*is_over) return false;
  const Hash hash = handshake_->hash();
  auto seal = RecordCipher::Make(hash, std::move(handshake_->own_secret()), RecordCipher::Use::kSeal);
  if (!seal.ok()) return Fail(seal.error());
  auto open = RecordCipher::Make(hash, std::move(handshake_->peer_secret()), RecordCipher::Use::kOpen);
  if (!open.ok()) return Fail(open.error());
  seal_.emplace(std::move(seal).value());
  open_.emplace(std::move(open).value());
  identity_ = handshake_->identity();
  handshake_.reset();
  return true;
}

// OpenSSL takes as much memory as a message's header asks for, 128 KiB, from whoever has not proved anything. So the header of a host's first
// message is looked at before OpenSSL sees it; further ones come from a host that has the key. False: it is not there yet.
Result<bool> Session::LookAtHello() {
  const std::span<const uint8_t> bytes = input_.bytes();
  if (bytes.size() < kRecordHeaderBytes) return false;
  const size_t payload_bytes = size_t{bytes[3]} << 8 | bytes[4];
  if (bytes[0] != static_cast<uint8_t>(ContentType::kHandshake) || payload_bytes < kMessageHeaderBytes)
    return Result<bool>(FailSent(kUnexpectedMessage, "what is no beginning of a handshake"));
  if (bytes.size() < kRecordHeaderBytes + kMessageHeaderBytes) return false;
  const uint8_t* const message = bytes.data() + kRecordHeaderBytes;
  const size_t message_bytes = size_t{message[1]} << 16 | size_t{message[2]} << 8 | message[3];
  if (message_bytes > kHelloBytesMax) return Result<bool>(FailSent(kUnexpectedMessage, kLongHello));
  return true;
}

// ---- Errors

Error Session::Fail(const Error& error) {
  failed_ = error;
  data_ = {};
  return error;
}

Error Session::Fail(uint8_t alert, std::string_view why) {
  alert_ = alert;
  if (seal_) Push(ContentType::kAlert, std::array{kFatal, alert});
  return Fail({ErrorCode::kUnavailable, "TLS: " + std::string(why)});
}

Error Session::FailSent(uint8_t alert, std::string_view what) {
  return Fail(alert, std::string(PeerOf(role_)) + " has sent " + std::string(what));
}

// ---- What is sent

// A record of the connection's own; nothing where there is no room, as the peer has to take what is before it first.
void Session::Push(ContentType type, std::span<const uint8_t> content) {
  const size_t record_bytes = content.size() + kRecordOverheadBytes;
  if (output_.space().size() < record_bytes) output_.Pack();
  if (output_.space().size() < record_bytes) return;
  const std::span<uint8_t> record = output_.space().first(record_bytes);
  std::copy(content.begin(), content.end(), record.begin() + kRecordHeaderBytes);
  seal_->Seal(record, type);
  output_.Add(record_bytes);
}

// A KeyUpdate of ours answers one, or is for the key's age. What was encrypted before goes with the old key, and so does the message. The next
// keys are made first: without memory for them the peer is not told to expect them.
Status Session::UpdateSealingKey() {
  Result<RecordCipher> next = seal_->Next();
  if (!next.ok()) return Fail(next.error());
  answer_key_update_ = false;
  Push(ContentType::kHandshake, std::array<uint8_t, 5>{kKeyUpdate, 0, 0, 1, 0});
  seal_.emplace(std::move(next).value());
  return Ok{};
}

Result<size_t> Session::Write(std::span<const iovec> pieces, size_t skip_bytes) {
  CLEAT_CHECK(seal_.has_value());
  if (failed_) return *failed_;
  size_t taken = 0;
  size_t piece = 0;
  while (piece < pieces.size() && pieces[piece].iov_len <= skip_bytes) skip_bytes -= pieces[piece++].iov_len;
  size_t at = skip_bytes;  // in the piece
  for (;;) {
    if (output_.space().size() < kRecordDataBytesMax + kRecordOverheadBytes + kControlBytes) return taken;
    const bool is_due = answer_key_update_ || seal_->blocks() >= limits_.sealed_blocks;
    if (is_due && piece < pieces.size()) {
      const Status updated = UpdateSealingKey();
      // What was taken before counts as sent; the next call has the error.
      if (!updated.ok() && taken > 0) return taken;
      CLEAT_TRY(updated);
    }
    uint8_t* const data = output_.space().data() + kRecordHeaderBytes;
    size_t data_bytes = 0;
    while (piece < pieces.size() && data_bytes < kRecordDataBytesMax) {
      const size_t left = pieces[piece].iov_len - at;
      const size_t bytes = std::min(left, kRecordDataBytesMax - data_bytes);
      if (bytes > 0)
        std::memcpy(data + data_bytes, static_cast<const uint8_t*>(pieces[piece].iov_base) + at, bytes);
      data_bytes += bytes;
      at += bytes;
      if (bytes == left) {
        ++piece;
        at = 0;
      }
    }
    if (data_bytes == 0) return taken;
    const size_t record_bytes = data_bytes + kRecordOverheadBytes;
    seal_->Seal(output_.space().first(record_bytes), ContentType::kData);
    output_.Add(record_bytes);
    taken += data_bytes;
  }
}

void Session::Close() {
  if (seal_ && !failed_) Push(ContentType::kAlert, std::array{kWarning, kCloseNotify});
}

// ---- Memory

void Session::ReleaseBuffers() {
  input_.Release();
  output_.Release();
}

size_t Session::buffer_bytes() const {
  return (input_.has_buffer() ? kInputBytes : 0) + (output_.has_buffer() ? kOutputBytes : 0);
}

// ---- What comes

Result<size_t> Session::Read(std::span<const iovec> pieces) {
  CLEAT_CHECK(open_.has_value());
  if (failed_) return *failed_;
  size_t moved = 0;
  uint32_t records = 0;
  for (const iovec& piece : pieces) {
    std::span<uint8_t> to(static_cast<uint8_t*>(piece.iov_base), piece.iov_len);
    while (!to.empty()) {
      if (data_.empty()) {
        if (records++ == kRecordsPerReadMax) return moved;
        const Result<bool> opened = OpenRecord();
        if (!opened.ok() && moved == 0) return opened.error();
        if (!opened.ok() || !*opened) return moved;
        continue;
      }
      const size_t bytes = std::min(to.size(), data_.size());
      std::memcpy(to.data(), data_.data(), bytes);
      to = to.subspan(bytes);
      data_ = data_.subspan(bytes);
      moved += bytes;
      if (data_.empty()) input_.Take(std::exchange(record_bytes_, 0));
    }
  }
  return moved;
}

// The next whole record, if there is one: its data is in data_ then, or it had none.
Result<bool> Session::OpenRecord() {
  const std::span<uint8_t> bytes = input_.bytes();
  if (bytes.size() < kRecordHeaderBytes) return false;
  const size_t payload_bytes = size_t{bytes[3]} << 8 | bytes[4];
  if (bytes[0] != static_cast<uint8_t>(ContentType::kData)) {
    return FailSent(kUnexpectedMessage,
                    "a record of type " + std::to_string(bytes[0]) + " that is not encrypted");
  }
  if (payload_bytes > kRecordPayloadBytesMax || payload_bytes < kRecordTagBytes + 1) {
    return FailSent(payload_bytes > kRecordPayloadBytesMax ? kRecordOverflow : kDecodeError,
                    "a record of " + std::to_string(payload_bytes) + " bytes");
  }
  if (bytes.size() < kRecordHeaderBytes + payload_bytes) return false;
  if (open_->blocks() >= limits_.opened_blocks) {
    return FailSent(kInternalError, kSpentKey);
  }
  record_bytes_ = kRecordHeaderBytes + payload_bytes;
  const std::span<uint8_t> record = bytes.first(record_bytes_);
  if (!open_->Open(record)) return Fail(kBadRecordMac, kChanged);
  CLEAT_TRY(TakeContent(record.subspan(kRecordHeaderBytes, payload_bytes - kRecordTagBytes)));
  if (data_.empty()) input_.Take(std::exchange(record_bytes_, 0));
  return true;
}

// Data, a type, and zeroes as padding.
Status Session::TakeContent(std::span<uint8_t> content) {
  while (!content.empty() && content.back() == 0) content = content.first(content.size() - 1);
  if (content.empty()) return FailSent(kUnexpectedMessage, "a record without a type");
  const auto type = static_cast<ContentType>(content.back());
  content = content.first(content.size() - 1);
  if (content.size() > kRecordDataBytesMax) {
    return FailSent(kRecordOverflow, "a record of " + std::to_string(content.size()) + " bytes of data");
  }
  if (type == ContentType::kData && !content.empty()) {
    if (message_.is_begun()) return FailSent(kUnexpectedMessage, kInMessage);
    idle_records_ = 0;
    if (key_updates_left_ < kKeyUpdatesMax && ++records_toward_key_update_ == kRecordsPerKeyUpdate) {
      records_toward_key_update_ = 0;
      ++key_updates_left_;
    }
    data_ = content;
    return Ok{};
  }
  return TakeDataless(type, content);
}

Status Session::TakeDataless(ContentType type, std::span<const uint8_t> content) {
  if (message_.is_begun() && type != ContentType::kHandshake) return FailSent(kUnexpectedMessage, kInMessage);
  if (++idle_records_ > kIdleRecordsMax) {
    return FailSent(kUnexpectedMessage, std::to_string(idle_records_) +
                                            " records in a row without data (KeyUpdate, session tickets)");
  }
  switch (type) {
    case ContentType::kData:
      return Ok{};
    case ContentType::kHandshake:
      return TakeMessages(content);
    case ContentType::kAlert:
      return TakeAlert(content);
    default:
      return FailSent(kUnexpectedMessage, "a record of type " + std::to_string(static_cast<unsigned>(type)));
  }
}

Status Session::TakeMessages(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return FailSent(kUnexpectedMessage, "an empty part of a message");
  for (size_t at = 0; at < bytes.size(); ++at) CLEAT_TRY(TakeMessageByte(bytes[at], at + 1 == bytes.size()));
  return Ok{};
}

// `is_last`: of its record.
Status Session::TakeMessageByte(uint8_t byte, bool is_last) {
  if (message_.header_bytes < kMessageHeaderBytes) {
    if (message_.header_bytes == 0) message_.type = byte;
    if (message_.header_bytes > 0) message_.left_bytes = message_.left_bytes << 8 | byte;
    if (++message_.header_bytes < kMessageHeaderBytes) return Ok{};
    const bool is_ticket = message_.type == kNewSessionTicket && role_ == Role::kHost;
    if (!is_ticket && message_.type != kKeyUpdate) {
      return FailSent(kUnexpectedMessage, "a message of type " + std::to_string(message_.type));
    }
    const uint32_t most_bytes = is_ticket ? kTicketBytesMax : 1;
    if (message_.left_bytes == 0 || message_.left_bytes > most_bytes) {
      return FailSent(kDecodeError, "a message of " + std::to_string(message_.left_bytes) +
                                        " bytes of type " + std::to_string(message_.type));
    }
    return Ok{};
  }
  if (--message_.left_bytes > 0) return Ok{};
  const bool is_update = std::exchange(message_, {}).type == kKeyUpdate;
  if (!is_update) return Ok{};
  // What follows has other keys, and so is in another record (RFC 8446, 5.1).
  if (!is_last) return FailSent(kUnexpectedMessage, "something with a KeyUpdate");
  return TakeKeyUpdate(byte);
}

Status Session::TakeKeyUpdate(uint8_t asks) {
  if (asks > 1) return FailSent(kIllegalParameter, "a KeyUpdate that asks for nonsense");
  if (handed_over_) return FailFor(Unopened::kOtherKey);
  if (key_updates_left_ == 0) {
    return FailSent(kUnexpectedMessage, "more KeyUpdates than " + std::to_string(kKeyUpdatesMax) +
                                            ", and one for each " + std::to_string(kRecordsPerKeyUpdate) +
                                            " records of data");
  }
  --key_updates_left_;
  Result<RecordCipher> next = open_->Next();
  if (!next.ok()) return Fail(next.error());
  open_.emplace(std::move(next).value());
  if (asks == 1) answer_key_update_ = true;
  return Ok{};
}

Status Session::TakeAlert(std::span<const uint8_t> bytes) {
  if (bytes.size() != 2) return FailSent(kDecodeError, "an alert that is none");
  const uint8_t alert = bytes[1];
  if (alert == kUserCanceled) return Ok{};
  if (alert == kCloseNotify)
    return Fail(
        {ErrorCode::kUnavailable, "TLS: connection lost: " + std::string(PeerOf(role_)) + " has closed it"});
  return Fail({ErrorCode::kUnavailable, "TLS: connection lost: " + TextOfAlert(role_, alert)});
}

// ---- Records that the kernel makes

bool Session::is_between_records() const {
  return seal_.has_value() && !failed_ && input_.empty() && output_.empty() && data_.empty() &&
         !message_.is_begun() && !answer_key_update_;
}

Result<TrafficKeys> Session::ExportKeys() const {
  CLEAT_CHECK(is_between_records());
  TrafficKeys keys;
  CLEAT_ASSIGN(keys.seal, seal_->keys());
  CLEAT_ASSIGN(keys.open, open_->keys());
  return keys;
}

void Session::HandOver() {
  CLEAT_CHECK(is_between_records());
  sealed_blocks_ = seal_->blocks();
  opened_blocks_ = open_->blocks();
  seal_.reset();
  open_.reset();
  input_.Free();
  output_.Free();
  handed_over_ = true;
}

Status Session::MaySeal() {
  CLEAT_CHECK(handed_over_);
  if (failed_) return *failed_;
  if (sealed_blocks_ < limits_.kernel_blocks) return Ok{};
  return Fail(kInternalError, "as much was sent as one key can protect, and the kernel's can't be changed");
}

Status Session::Opened(size_t data_bytes) {
  CLEAT_CHECK(handed_over_);
  if (failed_) return *failed_;
  if (message_.is_begun()) return FailSent(kUnexpectedMessage, kInMessage);
  opened_blocks_ += BlocksOf(data_bytes);
  if (opened_blocks_ > limits_.kernel_blocks) return FailSent(kInternalError, kSpentKey);
  idle_records_ = 0;
  return Ok{};
}

Status Session::TakeRecord(ContentType type, std::span<const uint8_t> content) {
  CLEAT_CHECK(handed_over_);
  if (failed_) return *failed_;
  if (type == ContentType::kData && !content.empty())
    return Fail(kInternalError, "the kernel has given data where it said that there is none");
  return TakeDataless(type, content);
}

Error Session::FailFor(Unopened why) {
  CLEAT_CHECK(handed_over_);
  if (failed_) return *failed_;
  switch (why) {
    case Unopened::kChanged:
      return Fail(kBadRecordMac, kChanged);
    case Unopened::kTooLong:
      return FailSent(kRecordOverflow, "a record that is too long");
    case Unopened::kMalformed:
      return FailSent(kDecodeError, "what is no record");
    case Unopened::kOtherKey:
      saw_key_update_ = true;
      return Fail(kInternalError,
                  std::string(PeerOf(role_)) +
                      " has changed its key, which the kernel can't follow; the next connection does "
                      "without the kernel");
  }
  return *failed_;
}

}  // namespace cleat::nvme::tls
