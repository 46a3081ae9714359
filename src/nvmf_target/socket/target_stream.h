// SPDX-License-Identifier: Apache-2.0
// The socket of one host's connection, and what moves bytes between it and the connection's protocol (nvme/tcp_target): polled by the reactor
// that has it while there is something to do, woken by the socket when not.
//
// Many PDUs go and come with one system call: all that a poll has answered is sent in one gather, and what has come is read into the
// reactor's buffer, which all of its connections share, so that an idle one has none. The data of a large write is read in its place.
//
// A connection begins on the control reactor and may move to another one, with Stop there and Start here. A host that owes data, or does not
// take what is sent to it, without an end for kStallNs ends its connection, as what waits for it has memory that others need.
//
// One thread at a time: that of the reactor between Start and Stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "nvme/tcp_target/target_connection.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// Hears of a stream's turns, on its reactor.
class StreamOwner {
 public:
  // What is received from here on has come by now.
  virtual void BeginTurn() {}
  // Something was read, and is handed to the connection next. False: the connection has ended.
  virtual bool MayReceive() { return true; }
  // What was to be answered is with the kernel, as far as it takes it. The stream may be stopped and destroyed.
  virtual void EndTurn() = 0;

 protected:
  ~StreamOwner() = default;
};

// What can be switched off, to measure what it is worth.
struct StreamTuning {
  bool batches_sends = true;        // all that a poll has answered in one system call; else one PDU each
  bool reads_without_event = true;  // while it is polled; else when the socket says so
};

class TargetStream final : private Poller {
 public:
  static constexpr uint64_t kStallNs = 20 * kNsPerSecond;
  static constexpr uint64_t kStallBytesLeast = 16 * 1024;  // that have to move in that time

  // `peer`: who it is, for errors. The connection outlives the stream.
  TargetStream(UniqueFd fd, std::string peer, nvme::tcp::TargetConnection& connection);
  ~TargetStream() override;

  // `receive_buffer` (receiver.h) is shared by the reactor's streams; it and both references outlive what is started.
  Status Start(Reactor& reactor, std::span<uint8_t> receive_buffer, StreamOwner& owner,
               const StreamTuning& tuning);
  // Off the reactor; the socket stays open. Also from EndTurn.
  void Stop();
  // With Stop. What the kernel has is still sent.
  void Close();
  // There is something to send, or room again for what waits.
  void Wake() {
    if (added()) reactor_->Activate(*this);
  }
  const std::string& peer() const { return peer_; }

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
  static constexpr size_t kPieces = 256;
  static constexpr int kReadsMax = 4;  // of one turn, so that others have theirs
  static constexpr int kSendsMax = 8;

  bool Poll() override;
  bool Arm() override;
  bool SendSome();
  bool ReceiveSome();
  bool stalls() const;
  void Broken(const char* doing, int error_number);

  UniqueFd fd_;
  const std::string peer_;
  nvme::tcp::TargetConnection& connection_;
  Reactor* reactor_ = nullptr;  // nullptr: stopped
  std::span<uint8_t> receive_buffer_;
  StreamOwner* owner_ = nullptr;
  StreamTuning tuning_;
  Watch watch_{*this};
  StallTimer stall_{*this};
  uint64_t moved_bytes_ = 0;     // either way
  uint64_t stall_begun_at_ = 0;  // moved_bytes_ when stall_ was set
  bool readable_ = false;
  bool writable_ = false;
};

}  // namespace cleat::nvmf_target
