// SPDX-License-Identifier: Apache-2.0
// TLS over a connected StreamSocket, with the same Send and Receive. The handshake is this process's. Then the records are made by the kernel
// where it can (kernel_tls.h), and Send and Receive are the socket's: nothing is copied here, and the session keeps the rules alone. Elsewhere
// what is sent is encrypted into a buffer of the session's and from there goes to the kernel, what comes is decrypted from one.
//
// The kernel gets the keys when all that this end has sent of the handshake is in the socket and nothing behind it was read: the session has
// room for no byte more (session.h). A kernel that can't have them changes nothing. One that takes those of one direction alone ends
// the connection; neither it nor a target that changes its keys is let near the next connections to the same address.
//
// What Send has taken may be in the buffer yet; it counts as sent, as the target may come to have it. The memory that it was given is not
// used any more when it returns. Close of the socket drops the buffer with what the kernel has not sent.
//
// Memory of a guest that its owner has taken away is read as zeroes, and what is received there is seen by nobody: the copy meets a SIGBUS,
// which the guard answers (block/memory_guard.h), and the connection goes on.
//
// Readiness: an event of the socket comes once (edge-triggered), so each method goes on until the kernel has nothing, or takes nothing
// more. But records that have come may hold more data than Receive had room for, which no event tells of: the caller receives until it gets
// 0.
//
// Memory: the session's (nvme/tls/session.h). One thread: the socket's reactor. The handshake takes that thread some tenths of a
// millisecond in all.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/tls/psk.h"
#include "nvme/tls/session.h"
#include "nvmf/socket/stream_socket.h"

namespace cleat::nvmf {

// The two ends of a connection, and their key.
struct TlsNames {
  // Which identity of the key a target knows is found out by admin queues; an I/O queue uses the one that its admin queue was let in with.
  enum class Queue : uint8_t { kAdmin, kIo };

  std::shared_ptr<const nvme::tls::Psk> psk;  // nullptr: no TLS
  std::string host_nqn;
  std::string subsystem_nqn;
  Queue queue = Queue::kAdmin;
  bool by_kernel = false;  // where it can (TcpTuning::kernel_tls)
};

class TlsStream {
 public:
  // `socket`, which is connected to `address`, outlives it. kInternal: OpenSSL can't begin; kResourceExhausted: no memory for keys.
  static Result<std::unique_ptr<TlsStream>> Make(StreamSocket& socket, const std::string& address,
                                                 const TlsNames& names);

  // Goes on with the handshake, after each event. True: it is over.
  //   kPermissionDenied   the target does not take the key by either of its two identities. Said of an admin queue alone
  //   kResourceExhausted  no memory for keys
  //   kUnavailable        the target does not take the key by this one, and the next try may be with the other; or whatever else is wrong
  Result<bool> Handshake();

  // ---- Once the handshake is over; as StreamSocket's.
  Result<size_t> Send(std::span<const iovec> pieces);
  Result<size_t> Receive(std::span<const iovec> pieces);
  // The kernel has not taken all that was sent, and Send is to be called again, if need be with nothing: after the event where is_full(),
  // at once where not.
  bool wants_to_send() const { return !session_->output().empty() || send_error_.has_value(); }
  // The records' maker, for people: "the kernel", or "the engine" and why. Once the handshake is over.
  std::string maker() const;
  // The kernel has said that it takes nothing more now. Without that no event will come: not after an error, which the next Send has.
  bool is_full() const { return is_full_; }
  // Tells the target that this is the end, if the kernel takes it at once.
  void SayGoodbye();

 private:
  TlsStream(StreamSocket& socket, const TlsNames& names, nvme::tls::IdentityChoice& choice,
            nvme::tls::IdentityVersion identity, std::unique_ptr<nvme::tls::Session> session);

  // Whether the kernel has taken all of the output.
  Result<bool> Flush();
  Result<bool> GoOn();
  Status TryHandOver();
  Result<size_t> SendByKernel(std::span<const iovec> pieces);
  Result<size_t> ReceiveByKernel(std::span<const iovec> pieces);
  Result<bool> TakeDataless();
  Error EndFor(Error error);

  StreamSocket& socket_;
  const std::shared_ptr<const nvme::tls::Psk> psk_;
  nvme::tls::IdentityChoice& choice_;  // the key's, for this address
  const TlsNames::Queue queue_;
  const bool by_kernel_;                                     // if it can
  const char* not_by_kernel_ = "the handshake is not over";  // why not; nullptr: by the kernel
  int kernel_error_ = 0;                                     // ... and with which error
  const bool has_both_;                                      // identities, or version 1 alone
  const nvme::tls::IdentityVersion identity_;
  const std::unique_ptr<nvme::tls::Session> session_;
  bool is_full_ = false;
  bool is_told_ = false;             // an alert has gone to the target by the kernel
  std::optional<Error> send_error_;  // by the kernel, which may have sent what was given all the same
};

}  // namespace cleat::nvmf
