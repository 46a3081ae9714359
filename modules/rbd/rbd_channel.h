// SPDX-License-Identifier: Apache-2.0
// An RBD disk on one I/O reactor: submits to librbd, which never waits there (microseconds, and a copy of what is
// written), and collects what librbd's threads report.
//
// That copy is what a large write costs the reactor, so one of more than kPieceBytes is handed over in pieces, one a turn, all of
// which may be under way at once; others have their turns in between. What is read librbd's threads copy.
//
// librbd's threads push finished pieces on a list without a lock; a thread that finds the list empty posts the
// channel's mail, so that a batch of completions wakes the reactor once, and a reactor that has nothing else to do sleeps
// in between.
//
// A request in flight can't be called back, and librbd writes into its memory until it ends: a channel of a cluster that
// hangs stays until the cluster goes on.
#pragma once

#include <rbd/librbd.h>
#include <sys/uio.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "block/device.h"
#include "reactor/mailbox.h"

namespace cleat::modules {

// An open image, as far as I/O goes.
struct RbdHandle {
  rbd_image_t image = nullptr;
  bool read_only = false;
  std::shared_ptr<const void> keep;  // what it belongs to
};

class RbdChannel final : public block::Channel {
 public:
  // At librbd at a time, on one reactor; more wait in line here. The bytes bound what librbd's copies of writes take
  // when a cluster hangs; a single larger request goes all the same.
  static constexpr uint32_t kInFlightMax = 128;
  static constexpr uint64_t kInFlightBytesMax = uint64_t{8} << 20;
  // Of a write, in a turn: some tens of microseconds of copying. A smaller write is one piece.
  static constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

  // `shut_out` is called on the reactor for each request that failed because this client was blocklisted.
  RbdChannel(RbdHandle image, Reactor& reactor, std::function<void()> shut_out);
  ~RbdChannel() override;  // nothing in flight, nothing in line

  void Submit(block::Request& request) override;

  // Requests in line are completed with kAborted.
  void AbortQueued(const block::Request* only) override;

 private:
  // What of a request is the channel's business stands in its frame's scratch.
  enum Scratch : uint8_t {
    kPieces,  // at librbd
    kHanded,  // bytes of a write that librbd has got
    kResult,  // what librbd said: the first error
    kSync,    // the data is there, and being made durable
    kBytes,   // that it counts for in bytes_
  };
  // One operation of librbd's.
  struct Piece {
    block::Request* request = nullptr;
    Piece* next = nullptr;  // of those that are done
    int64_t result = 0;
    std::vector<iovec> iovecs;  // librbd looks at them until it is done
  };

  struct Arrival : Mail {
    explicit Arrival(RbdChannel& c) : Mail(&Deliver), channel(c) {}
    static void Deliver(Mail& mail) { static_cast<Arrival&>(mail).channel.Collect(); }
    RbdChannel& channel;
  };
  // Polled once a turn while there are writes to be cut, and once more: it stays until it finds none, so that one that comes
  // within the turn waits for the next.
  struct Cutter final : Poller {
    explicit Cutter(RbdChannel& c) : channel(c) {}
    bool Poll() override { return channel.CutNext(); }
    bool Arm() override { return false; }
    using Poller::added;
    RbdChannel& channel;
  };

  static void Completed(rbd_completion_t completion, void* piece);  // a thread of librbd's
  void Collect();
  bool HasRoom(const block::Request& request) const;
  void Start(block::Request& request);
  bool CutNext();
  void Issue(block::Request& request, uint64_t bytes);
  int Hand(Piece& piece, uint64_t bytes, rbd_completion_t completion);
  int HandVector(Piece& piece, uint64_t bytes, rbd_completion_t completion);
  int HandZeroes(const block::Request& request, rbd_completion_t completion) const;
  void PieceDone(Piece& piece);
  void Finished(block::Request& request, int64_t result);
  void End(block::Request& request, block::IoStatus status);
  Piece& TakePiece();

  const RbdHandle image_;
  Reactor& reactor_;
  const std::function<void()> shut_out_;
  uint32_t in_flight_ = 0;
  uint64_t bytes_ = 0;
  block::RequestList waiting_;
  block::RequestList cutting_;                  // started writes, of which more pieces are to go
  std::vector<std::unique_ptr<Piece>> pieces_;  // all that were ever needed at a time
  std::vector<Piece*> pieces_free_;
  Cutter cutter_{*this};
  Arrival arrival_;
  alignas(64) std::atomic<Piece*> done_{nullptr};  // the latest first
};

}  // namespace cleat::modules
