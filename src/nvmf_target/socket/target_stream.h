// SPDX-License-Identifier: Apache-2.0
// A queue over TCP: the socket of one host's connection, and what moves bytes between it and the connection's protocol (nvme/tcp_target). Polled by the
// reactor that has it while there is something to do, woken by the socket when not.
//
// Many PDUs go and come with one system call: all that a poll has answered is sent in one gather, and what has come is read into the
// reactor's buffer, which all of its connections share, so that an idle one has none. The data of a large write is read in its place.
//
// A connection that begins with a handshake record of TLS is TLS from then on: what comes is decrypted into the same memory (nvme/tls), and all
// that a poll has answered is sealed into the session's output and sent from there. Which key a host has, KeyOfHost says. Any other first byte
// is left to the protocol in plain TCP.
//
// A connection begins on the control reactor and may move to another one, with Stop there and Start here. A host that owes data, or does not
// take what is sent to it, without an end for kStallNs ends its connection, as what waits for it has memory that others need. One that has
// begun a record of TLS owes the rest of it.
//
// Large data of a plain connection the kernel may send from where it is (zero_copy_sends.h). It is the stream's until the kernel is through with
// it, and a host that does not take it in time is one that does not take what is sent to it.
//
// Memory: of a TLS connection the session's, some 65 KiB while bytes move, which it gives back after kReleaseNs without any; of a plain one some
// 3 KiB once it has had large data to send.
//
// One thread at a time: that of the reactor between Start and Stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "nvme/target/access/host_access.h"
#include "nvme/tcp_target/target_connection.h"
#include "nvme/tls/session.h"
#include "nvmf_target/socket/zero_copy_sends.h"
#include "nvmf_target/transport/queue_transport.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// What can be switched off, to measure what it is worth.
struct StreamTuning {
  bool batches_sends = true;        // all that a poll has answered in one system call; else one PDU each
  bool reads_without_event = true;  // while it is polled; else when the socket says so
  bool leaves_epoll = true;         // while polling finds enough to do, so that no packet has an event
  bool follows_packets = true;      // to the reactor on whose core they are processed; else in turn
  bool keeps_data = true;           // that has come with its command, where it is; else copies it
  bool looks_ahead = true;          // to the next command, for what storage may bring into the cache
  ZeroCopy zero_copy = ZeroCopy::kLearned;
};

// The key that a host names by an identity, which may be anything (Target::KeyFor). Called on the reactor that the connection begins on.
using KeyOfHost = std::function<Result<nvme::target::SecuredKey>(std::string_view identity)>;

class TargetStream final : public QueueTransport, private Poller {
 public:
  static constexpr uint64_t kStallNs = 20 * kNsPerSecond;
  static constexpr uint64_t kStallBytesLeast = 16 * 1024;  // that have to move in that time
  static constexpr uint64_t kReleaseNs = 10 * kNsPerSecond;

  // `peer`: who it is, for errors.
  TargetStream(UniqueFd fd, const std::string& peer, const StreamTuning& tuning, KeyOfHost key_of_host);
  // Of a queue that another process had, whose commands are left in `saved`.
  TargetStream(SavedQueue& saved, const StreamTuning& tuning);
  ~TargetStream() override;

  // ---- QueueTransport
  nvme::fabrics::TargetQueue& queue() override { return connection_; }
  const TransportTraits& traits() const override;
  const std::string& peer() const override { return peer_; }
  Status Start(Reactor& reactor, TransportOwner& owner, Kind kind) override;
  // The socket stays open.
  void Stop() override;
  // What the kernel has is still sent, unless some of it is lent memory, and the orderly end of TLS if the kernel takes it at once.
  void Close() override;
  void Wake() override {
    if (added()) reactor_->Activate(*this);
  }
  void SetReads(bool reads) override { reads_ = reads; }
  bool reads() const override { return reads_; }
  // Something is left that the kernel has not taken.
  bool wants_to_send() const override {
    return connection_.wants_to_send() || (tls_ != nullptr && !tls_->session->output().empty());
  }
  bool Keep(const block::Segment& piece) override { return zero_copy_->Keep(piece); }
  const nvme::target::SecuredAs* secured() const override { return tls_ == nullptr ? nullptr : &tls_->as; }
  bool in_handshake() const override { return tls_ != nullptr && !tls_->session->established(); }
  void SetDscp(uint8_t dscp) override;
  int incoming_cpu() const override;
  // Sockets go from one process to the next in plain TCP.
  bool may_be_saved() const override { return knows_kind_ && tls_ == nullptr; }
  SavedQueue Save() override;
  void TakeBack(nvme::fabrics::TargetCommand& command, nvme::tcp::SavedCommand& saved) override {
    connection_.TakeBack(command, saved);
  }

  // ---- For tests
  // That a TLS session has at the moment.
  size_t buffer_bytes() const { return tls_ == nullptr ? 0 : tls_->session->buffer_bytes(); }
  // nullptr: the stream has had no data to send that is large enough.
  const ZeroCopySends* zero_copy() const { return zero_copy_.get(); }
  // Whether each packet is an event (StreamTuning::leaves_epoll).
  bool in_epoll() const { return watch_.watching(); }

 private:
  struct Watch : FdWatch {
    explicit Watch(TargetStream& s) : FdWatch(&OnEvent), stream(s) {}
    static void OnEvent(FdWatch& watch, uint32_t events);
    TargetStream& stream;
  };
  struct StallTimer : Timer {
    explicit StallTimer(TargetStream& s) : Timer(&Fire), stream(s) {}
    static void Fire(Timer& timer);
    TargetStream& stream;
  };
  struct ReleaseTimer : Timer {
    explicit ReleaseTimer(TargetStream& s) : Timer(&Fire), stream(s) {}
    static void Fire(Timer& timer);
    TargetStream& stream;
  };
  struct Tls {
    explicit Tls(TargetStream& stream) : release(stream) {}
    std::unique_ptr<nvme::tls::Session> session;
    nvme::target::SecuredAs as;  // of the key that was found last, which is the one that was taken
    bool may_have_data = false;  // in the session, beside what comes
    ReleaseTimer release;
    uint64_t release_begun_at = 0;  // moved_bytes_ when `release` was set
  };
  static constexpr size_t kPieces = 256;
  static constexpr int kReadsMax = 4;  // of one turn, so that others have theirs
  static constexpr int kSendsMax = 8;
  static constexpr uint32_t kTurnsToLeave = 64;  // that found something, since it was armed
  // Notifications are read once so many sends are with the kernel, each so many turns, and when there is nothing else to do.
  static constexpr uint32_t kCollectAt = 8;
  static constexpr uint32_t kTurnsToCollect = 32;

  bool Poll() override;
  bool Arm() override;
  void LeaveEpoll();
  // False: the kernel can't, and it has to be tried again.
  bool EnterEpoll();
  bool SendSome();
  bool ReceiveSome();
  // Whether the first byte is there, which says whether the connection is TLS.
  bool LookAtFirstByte();
  bool may_receive() const { return reads_ && !connection_.ended() && !connection_.waits(); }
  bool may_read() const { return readable_ || tuning_.reads_without_event; }
  bool owes_data() const;
  bool stalls() const;
  void Broken(const char* doing, int error_number);
  // What the kernel has given or taken. 0: nothing now, or the connection has ended with this.
  size_t Read(std::span<iovec> pieces);
  size_t Write(std::span<iovec> pieces, int flags = 0);

  // ---- Data by itself (target_stream_zero_copy.cc)
  uint32_t AloneFrom();
  size_t SendBeforeAlone(std::span<iovec> pieces);
  size_t SendAlone(nvme::fabrics::TargetCommand& command, std::span<iovec> data);
  bool sends_in_kernel() const { return zero_copy_ != nullptr && zero_copy_->in_kernel() > 0; }
  // Reads the kernel's notifications. Returns whether there was any.
  bool CollectSends();
  void EndSends();
  // Gives all that is kept back to the owner, though the kernel may still send from it. Close does the same, and drops what the host has not
  // acknowledged.
  void GiveUpKept();
  // Whether the host has acknowledged all that was sent.
  bool HostHasAll() const;

  // ---- TLS (target_stream_tls.cc)
  Status BeginTls();
  // Whether the handshake is over.
  bool ShakeHands(bool& worked);
  bool ReceiveByTls();
  bool SendByTls();
  void SealSome();
  size_t ReadRecords();
  void EndTls(const Error& error);
  void SayGoodbye();
  void ReleaseLater();

  UniqueFd fd_;
  const std::string peer_;
  nvme::tcp::TargetConnection connection_;
  const KeyOfHost key_of_host_;
  StreamTuning tuning_;
  std::unique_ptr<Tls> tls_;                    // nullptr: plain, or not known yet
  bool knows_kind_ = false;                     // LookAtFirstByte
  std::unique_ptr<ZeroCopySends> zero_copy_;    // nullptr: not needed yet
  std::optional<uint32_t> zero_copy_next_ = 0;  // for it
  uint64_t before_cost_ns_ = 0;                 // of a header that went before data
  bool begins_alone_ = false;                   // nothing of the data that comes by itself has gone
  uint32_t turns_ = 0;
  bool reads_ = true;
  Kind kind_ = Kind::kAdmin;
  Reactor* reactor_ = nullptr;  // nullptr: stopped
  TransportOwner* owner_ = nullptr;
  Watch watch_{*this};
  StallTimer stall_{*this};
  uint32_t busy_turns_ = 0;
  uint64_t moved_bytes_ = 0;     // either way
  uint64_t stall_begun_at_ = 0;  // moved_bytes_ when stall_ was set
  bool readable_ = false;
  bool writable_ = false;
};

}  // namespace cleat::nvmf_target
