// SPDX-License-Identifier: Apache-2.0
// One end of a TLS 1.3 connection, a host's or a target's, without a socket: bytes that have come go in, bytes to be sent come out, and in
// between are the handshake (handshake.h), and records of data and data of records (record_cipher.h).
//
// The peer is not trusted. Whatever breaks a rule of TLS ends the session with an error, and with an alert in the output that says so to
// the peer. Data that came before an error is given first. Session tickets of a target are read over, and nothing is resumed with them; a
// host may send none. What a peer can make this end do is bounded:
//
//   kHelloBytesMax       bytes of a host before the handshake is over, which are what OpenSSL may keep of it
//   kIdleRecordsMax      records in a row that bring no data: KeyUpdates, session tickets, empty records; one more ends the session
//   kKeyUpdatesMax       KeyUpdates at once, each of which takes some ten microseconds; kRecordsPerKeyUpdate records with data earn one
//                        more, up to as many again, and one that was not earned ends the session. Data of any size counts as a record, so
//                        that a slow connection earns them too; an idle one does not, whose peer changes keys by the clock alone
//   kRecordsPerReadMax   records that one Read opens, so that small ones keep no reactor from its other work
//
// Memory: kInputBytes + kOutputBytes and two contexts of ciphers, whatever the peer sends; OpenSSL's while the handshake lasts. The
// buffers are made when they are used, and again after ReleaseBuffers. Once the handshake is over nothing else is allocated but for a
// KeyUpdate, which makes the next cipher before the present one goes, and the text of an error. Where
// OpenSSL has no memory for keys, the session ends (kResourceExhausted), and has sent no KeyUpdate that its keys do not follow. What
// Write is given is copied before it is encrypted and not used after it, so that it may be a guest's memory, which may be changed or taken
// away at any time (block/memory_guard.h).
//
// Keys grow old: AES-GCM hides less the more one key has encrypted (RFC 8446, 5.5). Before the next data this end sends a KeyUpdate, which
// asks for none in return, and goes on to its next key once the present one has encrypted SessionLimits::sealed_blocks. The peer's key is
// the peer's to change, and most never do; a session in which it has encrypted SessionLimits::opened_blocks ends.
//
// Records may be made by somebody else, the kernel, once the handshake is over: HandOver gives the keys away, and from then on the session keeps
// the rules alone. Until then InputSpace has room for no byte behind the record that is coming, so that whoever goes on finds the next one
// where the bytes come from. A KeyUpdate is an error then, as most kernels can't follow it.
//
// Source: RFC 8446. One thread at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "nvme/tls/byte_queue.h"
#include "nvme/tls/handshake.h"
#include "nvme/tls/psk.h"
#include "nvme/tls/record_cipher.h"

namespace cleat::nvme::tls {

// How many blocks of AES (kBlockBytes) a key may encrypt; a test has smaller ones.
struct SessionLimits {
  // 16 TiB: told from noise with a chance of 2^-49. RFC 8446, 5.5 would have 2^-57, which is 256 GiB; but Linux' target takes no KeyUpdate and
  // ends the connection, with writes in doubt, which may not happen each few minutes.
  static constexpr uint64_t kSealedBlocks = uint64_t{1} << 40;
  // 4 PiB: whoever sees them tells them from noise with a chance of 2^-33 (draft-irtf-cfrg-aead-limits, 5.1.1).
  static constexpr uint64_t kOpenedBlocks = uint64_t{1} << 48;

  // 4 PiB as well, of a key that can't be changed: the kernel's, whichever way its records go.
  static constexpr uint64_t kKernelBlocks = kOpenedBlocks;

  uint64_t sealed_blocks = kSealedBlocks;
  uint64_t opened_blocks = kOpenedBlocks;
  uint64_t kernel_blocks = kKernelBlocks;
};

// Of both directions.
struct TrafficKeys {
  RecordKeys seal;
  RecordKeys open;
};

// Why the kernel has not opened a record.
enum class Unopened : uint8_t {
  kChanged,    // it was not made with the peer's key, or changed on its way
  kTooLong,    // it has more bytes than a record may have
  kMalformed,  // its header is that of no record
  kOtherKey,   // it follows a KeyUpdate
};

class Session {
 public:
  static constexpr size_t kInputBytes = 32 * 1024;
  // Output that is kept for the connection's own records: an answer to a KeyUpdate, an alert.
  static constexpr size_t kControlBytes = 64;
  static constexpr size_t kOutputBytes = 2 * (kRecordDataBytesMax + kRecordOverheadBytes) + kControlBytes;
  // Two first messages of a host with some keys of groups to come, which have 2 KiB each, and its last message.
  static constexpr size_t kHelloBytesMax = 16 * 1024;
  static constexpr uint32_t kIdleRecordsMax = 32;
  static constexpr uint32_t kKeyUpdatesMax = 32;
  static constexpr uint32_t kRecordsPerKeyUpdate = 64;
  // Among so many records some have data, or the session ends.
  static constexpr uint32_t kRecordsPerReadMax = 64;
  static_assert(kRecordsPerReadMax > kIdleRecordsMax);

  // A host's. kInternal: OpenSSL can't begin; kResourceExhausted: no memory for keys.
  static Result<std::unique_ptr<Session>> Make(ConnectionKey key, const SessionLimits& limits = {});
  // A target's, which is told by `find_key` which keys there are, from within GoOn.
  static Result<std::unique_ptr<Session>> MakeForTarget(KeyFinder find_key, const SessionLimits& limits = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // ---- Bytes that come, and bytes to be sent.
  // Where the next bytes go: never empty once GoOn or Read has used all that it can. Until the handshake is over it ends with the record
  // that is coming, at the latest.
  std::span<uint8_t> InputSpace();
  void Came(size_t bytes);
  std::span<const uint8_t> output() const { return output_.bytes(); }
  void Sent(size_t bytes) { output_.Take(bytes); }

  // Goes on with the handshake as far as the input goes; to be called again after Came. True: it is over.
  //   kPermissionDenied   the two have no key in common
  //   kResourceExhausted  no memory for keys
  //   kUnavailable        whatever else is wrong
  Result<bool> GoOn();
  // After an error of GoOn's at a host: what it says of the key's identity.
  IdentityRefusal refusal() const { return handshake_ ? handshake_->refusal() : IdentityRefusal::kSilent; }
  bool established() const { return seal_.has_value() || handed_over_; }
  // Of the key that the connection was made with. Once it is established.
  const std::string& identity() const { return identity_; }

  // ---- Once the handshake is over. An error is for good: kUnavailable, or kResourceExhausted where there is no memory for new keys.
  // Encrypts into the output what the pieces have behind their first `skip_bytes`, as much as there is room for; returns how much that is.
  Result<size_t> Write(std::span<const iovec> pieces, size_t skip_bytes = 0);
  // Decrypts into the pieces what has come; returns how much that is: less than there is room for where
  // that is all, or came in kRecordsPerReadMax records. 0: more has to come.
  Result<size_t> Read(std::span<const iovec> pieces);
  // Whether bytes have come that Read has not given yet: a part of a record, or more data than there was room for.
  bool has_input() const { return !input_.empty(); }
  // Says the orderly end in the output, if there is room.
  void Close();
  // Gives the buffers back that are empty, until they are used again: for a connection on which nothing has moved for a while.
  void ReleaseBuffers();
  size_t buffer_bytes() const;

  // ---- For a kernel that is to make the records from here on.
  // Nothing is half sent, half received or due, so that the next record of either direction begins behind this. Only where it is
  // established.
  bool is_between_records() const;
  // Between records. kResourceExhausted: no memory for keys. The session goes on as if nothing had happened unless HandOver follows.
  Result<TrafficKeys> ExportKeys() const;
  // The keys are wiped here and the buffers freed: in the place of Write, Read and Close there is only what follows.
  void HandOver();
  bool handed_over() const { return handed_over_; }
  // Before more data is sealed. kUnavailable: the key may encrypt no more.
  Status MaySeal();
  void Sealed(size_t data_bytes) { sealed_blocks_ += BlocksOf(data_bytes); }
  // Of data that has come.
  Status Opened(size_t data_bytes);
  // Of a record without data that has come, or of a part of it.
  Status TakeRecord(ContentType type, std::span<const uint8_t> content);
  // The next record can't be opened.
  Error FailFor(Unopened why);
  // After an error: the alert that says so to the peer. nullopt: there is none.
  std::optional<uint8_t> alert() const { return alert_; }
  bool failed() const { return failed_.has_value(); }
  bool saw_key_update() const { return saw_key_update_; }

 private:
  // How far the record has come that is coming.
  struct Arrival {
    std::array<uint8_t, kRecordHeaderBytes> header;
    size_t header_bytes = 0;
    size_t payload_left = 0;
    size_t wanted() const {
      return header_bytes < kRecordHeaderBytes ? kRecordHeaderBytes - header_bytes : payload_left;
    }
    void Take(std::span<const uint8_t> bytes);
  };
  // The peer's messages of the handshake's kind, which may be cut by records anywhere: how far the present one has come.
  struct Message {
    uint8_t header_bytes = 0;
    uint8_t type = 0;
    uint32_t left_bytes = 0;
    bool is_begun() const { return header_bytes > 0; }
  };

  Session(Role role, const SessionLimits& limits) : role_(role), limits_(limits) {}
  // With the block that makes the tag, for each record, of which there are no more than that.
  static uint64_t BlocksOf(size_t data_bytes) {
    return data_bytes / kBlockBytes + 2 * (data_bytes / kRecordDataBytesMax + 1);
  }
  Result<bool> LookAtHello();
  Result<bool> OpenRecord();
  Status TakeContent(std::span<uint8_t> content);
  Status TakeDataless(ContentType type, std::span<const uint8_t> content);
  Status TakeMessages(std::span<const uint8_t> bytes);
  Status TakeMessageByte(uint8_t byte, bool is_last);
  Status TakeAlert(std::span<const uint8_t> bytes);
  Status TakeKeyUpdate(uint8_t asks);
  Status UpdateSealingKey();
  void Push(ContentType type, std::span<const uint8_t> content);
  // Ends the session; `alert` is for the peer.
  Error Fail(uint8_t alert, std::string_view why);
  // ... because of what it has sent.
  Error FailSent(uint8_t alert, std::string_view what);
  Error Fail(const Error& error);

  const Role role_;
  const SessionLimits limits_;
  ByteQueue input_{kInputBytes};
  ByteQueue output_{kOutputBytes};
  std::unique_ptr<Handshake> handshake_;  // until it is over
  std::optional<RecordCipher> seal_;      // from then on
  std::optional<RecordCipher> open_;
  // The record at the beginning of the input, while data of it is left to be given.
  size_t record_bytes_ = 0;
  std::span<const uint8_t> data_;
  Message message_;
  uint32_t idle_records_ = 0;
  uint32_t key_updates_left_ = kKeyUpdatesMax;
  uint32_t records_toward_key_update_ = 0;
  bool answer_key_update_ = false;  // before the next data of ours
  std::optional<Error> failed_;
  std::optional<uint8_t> alert_;
  // Until the handshake is over.
  Arrival arrival_;
  size_t hello_bytes_ = 0;
  bool is_hello_looked_at_ = false;
  std::string identity_;
  // Once the kernel has the keys.
  bool handed_over_ = false;
  bool saw_key_update_ = false;
  uint64_t sealed_blocks_ = 0;
  uint64_t opened_blocks_ = 0;
};

}  // namespace cleat::nvme::tls
