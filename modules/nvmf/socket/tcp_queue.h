// SPDX-License-Identifier: Apache-2.0
// One NVMe queue pair over a TCP connection of its own, on one reactor: the rules of NVMe/TCP (nvme/tcp_host/host_connection.h) with a socket.
//
// The reactor polls it while there is work, and for its spin time after: what was submitted since the last poll goes out in one system
// call, and what has come is read without waiting for an event. Then it is armed, also with commands in flight (an admin queue always has
// some, for events), is woken up by the socket alone, and takes no time.
//
// A queue that has a pre-shared key goes through TLS (tls_stream.h), whose handshake comes first.
//
// Its end. The socket is closed before the owner hears of any command that was not answered, so that from then on nothing of this
// connection is sent but what is in the kernel's queue to the network card, the card or the network already; the memory of commands is not
// used any more (stream_socket.h). What the target may have of each command, Reached says.
//
// Ownership and thread: transport_queue.h. Nothing is allocated after Start but for TLS, until its handshake is over, and the text of the error
// that ends it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/transport/tcp_tuning.h"
#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/tcp_host/host_connection.h"
#include "nvmf/socket/stream_socket.h"
#include "nvmf/socket/tls_stream.h"
#include "reactor/poller.h"
#include "reactor/reactor.h"

namespace cleat::modules {

struct TcpQueueOptions {
  TcpQueueOptions(const nvme::fabrics::TransportAddress& a, nvme::tcp::HostConnectionOptions c)
      : address(a), connection(std::move(c)) {}

  nvme::fabrics::TransportAddress address;
  std::optional<nvme::fabrics::TransportAddress> source = std::nullopt;  // these two: nvmf::StreamOptions'
  uint8_t dscp = 0;
  nvme::tcp::HostConnectionOptions connection;
  nvmf::TlsNames tls;
  TcpTuning tuning;  // but for its receive buffer, which is the connection's
  // The time until the target has answered ICReq, the TCP connection and TLS included.
  uint64_t connect_timeout_ns = 10 * kNsPerSecond;
};

class TcpQueue final : public TransportQueue,
                       private Poller,
                       private nvmf::SocketEvents,
                       private nvme::fabrics::QueuePairOwner {
 public:
  // System calls that read, in one poll: a queue with much to read leaves the reactor to the others.
  static constexpr int kReadsMax = 4;
  static constexpr int kSendsMax = 4;
  // Pieces of memory of one system call.
  static constexpr size_t kPieces = 64;

  // `reactor` and `owner` outlive it.
  TcpQueue(const TcpQueueOptions& options, Reactor& reactor, nvme::fabrics::QueuePairOwner& owner);
  ~TcpQueue() override;
  TcpQueue(const TcpQueue&) = delete;
  TcpQueue& operator=(const TcpQueue&) = delete;

  // ---- TransportQueue
  void Start() override;
  void set_in_capsule_bytes(uint32_t bytes) override { connection_.set_in_capsule_bytes(bytes); }
  bool ended() const override { return connection_.ended(); }
  std::string tls_maker() const override { return tls_ != nullptr ? tls_->maker() : std::string(); }

  // ---- QueuePair
  uint32_t room() const override { return connection_.room(); }
  void Submit(const nvme::fabrics::QueuedCommand& command) override;
  void Abort(const Error& reason) override;

  uint32_t in_flight() const { return in_flight_; }

 private:
  enum class Stage : uint8_t { kTcp, kTls, kOpen };  // kOpen: PDUs go and come

  struct ConnectTimer : Timer {
    explicit ConnectTimer(TcpQueue& q)
        : Timer([](Timer& timer) { static_cast<ConnectTimer&>(timer).queue.TooLate(); }), queue(q) {}
    TcpQueue& queue;
  };

  // ---- Poller
  bool Poll() override;
  bool Arm() override;
  // ---- nvmf::SocketEvents
  void SocketReady() override;
  // ---- QueuePairOwner: of the connection, for the owner
  void Connected() override;
  void Completed(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry, uint64_t data_bytes) override;
  void Unanswered(uint64_t cookie, nvme::fabrics::Reached reached) override;
  void Ended(const Error& reason) override;

  bool GoOnConnecting();
  bool FinishConnect();
  bool Handshake();
  bool Begin();
  void AbortFor(const Error& error);
  Result<size_t> Send(std::span<const iovec> pieces);
  Result<size_t> Receive(std::span<const iovec> pieces);
  // Encrypted bytes that the kernel has not taken.
  bool has_backlog() const { return tls_ != nullptr && tls_->wants_to_send(); }
  bool wants_to_send() const { return connection_.wants_to_send() || has_backlog(); }
  bool reads_without_event() const { return in_flight_ > 0 && options_.tuning.reads_without_event; }
  bool SendSome();
  bool ReceiveSome();
  void TooLate();
  void CloseSocket();

  const TcpQueueOptions options_;
  Reactor& reactor_;
  nvme::fabrics::QueuePairOwner& owner_;
  nvmf::StreamSocket socket_;
  std::unique_ptr<nvmf::TlsStream> tls_;  // over the socket, from its connection on
  nvme::tcp::HostConnection connection_;
  ConnectTimer connect_over_{*this};
  bool started_ = false;
  Stage stage_ = Stage::kTcp;
  // False from the moment that the kernel had nothing, or took nothing more, until the socket's next event.
  bool readable_ = false;
  bool writable_ = false;
  uint32_t in_flight_ = 0;
};

}  // namespace cleat::modules
