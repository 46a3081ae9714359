// SPDX-License-Identifier: Apache-2.0
// A TCP connection that never blocks, on one reactor: connected, read and written by whoever polls it, with a watch that says when there is
// something to do again.
//
// Its end. The socket lingers for no time from its creation on (SO_LINGER 0): Close(), or this process's death, resets the connection at
// once and drops what the kernel has not sent. Each send is a plain copy (no MSG_ZEROCOPY): once Send has returned the kernel has bytes of
// its own and no reference to memory of ours, so memory may be used again from Close() on whatever a network card still has queued. What
// was sent before may all the same reach the target later: Close() takes nothing back.
//
// Memory of a guest that its owner has taken away is sent as zeroes, and what is received there is seen by nobody (block/memory_guard.h): the
// connection goes on.
//
// One thread: its reactor's, which outlives it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "nvme/fabrics/names.h"
#include "reactor/reactor.h"

namespace cleat::nvmf {

// Hears of a socket, in a turn of the socket's reactor.
class SocketEvents {
 public:
  // There may be something to read, room to write again, or an end: once after each change (edge-triggered). May close the socket and
  // destroy it.
  virtual void SocketReady() = 0;

 protected:
  ~SocketEvents() = default;
};

// What a connection has from its first packet on.
struct StreamOptions {
  uint32_t unread_bytes = 0;  // see TcpTuning
  // The local address, of the peer's family, whose port the kernel chooses. nullopt: the kernel chooses both.
  std::optional<nvme::fabrics::TransportAddress> source = std::nullopt;
  uint8_t dscp = 0;  // SetDscp; 0: whatever sockets of this process have
};

class StreamSocket {
 public:
  // The most pieces of memory that one system call takes here.
  static constexpr size_t kPiecesMax = 256;

  // `events` outlives the socket.
  StreamSocket(Reactor& reactor, SocketEvents& events) : reactor_(reactor), events_(events), watch_(*this) {}
  ~StreamSocket() { Close(); }
  StreamSocket(const StreamSocket&) = delete;
  StreamSocket& operator=(const StreamSocket&) = delete;

  // Begins to connect; the deadline is the caller's. Not connected or connecting before.
  //   kResourceExhausted   no descriptor, no local port
  //   kFailedPrecondition  the source is no address of this host (EADDRNOTAVAIL), or none to connect from
  //   kUnavailable         refused, no route; perhaps later, by FinishConnect
  Status Connect(const nvme::fabrics::TransportAddress& address, const StreamOptions& options = {});
  // Whether it is connected by now; kUnavailable names the address and the cause.
  Result<bool> FinishConnect();

  // Copies the beginning of the pieces, at most kPiecesMax of them, to the kernel. Returns how many bytes went. 0: the kernel takes
  // nothing more now, SocketReady will come. Fewer than asked say nothing of that: the next Send finds the cause.
  Result<size_t> Send(std::span<const iovec> pieces, int* error_number = nullptr);
  // Reads into the pieces. 0: nothing is there now, SocketReady will come. The peer's end of the connection is an error, kUnavailable.
  // `error_number`: where the kernel's number of an error goes, which is 0 where the peer has closed.
  Result<size_t> Receive(std::span<const iovec> pieces, int* error_number = nullptr);

  // Resets the connection, see above. Nothing when it is closed. No event comes after it.
  void Close();

  bool open() const { return fd_.valid(); }
  // For what kernel_tls.h does with it.
  int fd() const { return fd_.get(); }

 private:
  struct Watch : FdWatch {
    explicit Watch(StreamSocket& s)
        : FdWatch([](FdWatch& watch, uint32_t) { static_cast<Watch&>(watch).socket.events_.SocketReady(); }),
          socket(s) {}
    StreamSocket& socket;
  };

  Status Prepare(int fd, const StreamOptions& options) const;
  Status BindTo(int fd, const nvme::fabrics::TransportAddress& source) const;
  Error Broken(int error_number, const char* doing) const;

  Reactor& reactor_;
  SocketEvents& events_;
  UniqueFd fd_;
  Watch watch_;  // ends before the descriptor
  std::string peer_;
};

}  // namespace cleat::nvmf
