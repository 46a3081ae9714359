// SPDX-License-Identifier: Apache-2.0
// A uring disk on one I/O reactor: turns each request into one operation after another until it is done -
// short reads and writes go on where they stopped, a request that needs a bounce buffer goes in steps of its
// size, one whose extents lie apart goes from one to the next, write zeroes falls back to writing them.
#pragma once

#include "block/device.h"
#include "modules/uring/uring_file.h"
#include "modules/uring/uring_ring.h"

namespace cleat::modules {

class UringChannel final : public block::Channel, private UringClient {
 public:
  // `file` and `ring` outlive the channel.
  UringChannel(const UringFile& file, UringRing& ring) : file_(file), extents_(file.extents), ring_(ring) {}
  ~UringChannel() override { CLEAT_CHECK(in_flight_ == 0); }

  void Submit(block::Request& request) override;
  // What is under way lies where it lay: a disk only gets more.
  void Resized() override { extents_ = file_.extents; }

 private:
  // What of a request is the channel's business stands in its frame's scratch.
  enum Scratch : uint8_t {
    kDone,    // bytes that are done
    kBounce,  // the bounce buffer's address
    kTries,   // of the present operation
    kMode,    // of the fallocate under way; 0: none, zeroes are being written
    kPlain,   // fallocate refused this very range: write the zeroes
    kSync,    // of zeroes, below
  };
  // Zeroes by fallocate that have to be durable: when all are there, a sync makes them so.
  enum Sync : uint8_t { kSyncNone, kSyncOwed, kSyncUnderWay };
  static constexpr uint64_t kTriesMax = 64;  // of an operation that was interrupted or found no resources

  bool Prepare(block::Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) override;
  void Finished(block::Request& request, int32_t result) override;
  void BounceReady(block::Request& request, uint8_t* buffer) override;

  bool NeedsBounce(const block::Request& request) const;
  int ZeroMode(block::Request& request) const;
  void PrepareTransfer(block::Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs);
  void PrepareZeroes(block::Request& request, io_uring_sqe& sqe);
  void Failed(block::Request& request, int error_number);
  bool TryAnotherWay(block::Request& request, int error_number);
  bool IsGone() const;
  void Progressed(block::Request& request, uint64_t bytes);
  void ZeroesDone(block::Request& request);
  void AllDone(block::Request& request);
  pool::DriveRange Next(const block::Request& request) const;
  void End(block::Request& request, block::IoStatus status);

  const UringFile& file_;
  pool::ExtentMap
      extents_;  // the file's, which changes on another thread, as it was when the channel was told
  UringRing& ring_;
  uint64_t in_flight_ = 0;
  bool punch_works_ = true;  // until the file system says otherwise
  bool zero_range_works_ = true;
};

}  // namespace cleat::modules
