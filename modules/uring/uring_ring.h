// SPDX-License-Identifier: Apache-2.0
// One reactor's io_uring: takes operations from the channels on this reactor, submits them in batches (one
// system call a turn), reaps completions. Sleeps when only slow storage is waited for: completions then write
// an eventfd.
//
// One operation is under way for a request at a time, so a request needs nothing but its frame: user_data is
// the Request, whose topmost frame's layer is the UringClient. What finds no room waits in line and is never
// lost. On its reactor's thread; owned by the UringHub.
#pragma once

#include <liburing.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "block/request.h"
#include "modules/uring/io_lifetime.h"
#include "reactor/poller.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// A channel, as the ring sees it.
class UringClient {
 public:
  virtual ~UringClient() = default;
  // Fills in the request's next operation. `iovecs` is good until the ring has submitted it.
  virtual void Prepare(block::Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) = 0;
  // The operation is over: `result` as the system call would have it, -errno for an error.
  virtual void Finished(block::Request& request, int32_t result) = 0;
  // A bounce buffer has come free for a request that waited for one.
  virtual void BounceReady(block::Request& request, uint8_t* buffer) = 0;
};

class UringRing final : private Poller {
 public:
  static constexpr uint32_t kSubmitMax = 256;       // operations a system call takes
  static constexpr uint32_t kUnderWayMax = 2048;    // in the kernel or on their way; more wait in line
  static constexpr uint32_t kIovecsMax = 1024;      // of one operation: the kernel's limit (IOV_MAX)
  static constexpr uint32_t kBounceBytes = 131072;  // a request takes larger I/O in steps of this
  static constexpr uint32_t kBounceBuffers = 64;    // 8 MiB a reactor, taken from the host as they are used
  static constexpr uint32_t kZeroBytes = 1 << 20;

  // Before the reactor's thread starts, or on it. `lifetime`: what the ring keeps open as long as it has I/O (UringHub).
  static Result<std::unique_ptr<UringRing>> Make(Reactor& reactor, const IoLifetime* lifetime = nullptr);
  ~UringRing() override;  // nothing under way

  Reactor& reactor() { return reactor_; }

  // Has the client prepare an operation for `request`, now or when there is room.
  void Start(block::Request& request);

  // A buffer of kBounceBytes, page-aligned, until GiveBounce. nullptr: none is free; the request waits (its
  // `link` is the ring's) and BounceReady will be called.
  uint8_t* TakeBounce(block::Request& request);
  void GiveBounce(uint8_t* buffer);

  uint8_t* zeroes() { return zeroes_; }  // kZeroBytes of them, for writing only

 private:
  class RingWatch : public FdWatch {
   public:
    explicit RingWatch(UringRing& r);
    UringRing& ring;
  };

  explicit UringRing(Reactor& reactor) : reactor_(reactor), watch_(*this) {}
  Status SetUp();
  Status Keep(const IoLifetime& lifetime);
  bool Poll() override;
  bool Arm() override;
  void Disarm() override;

  static UringClient& ClientOf(block::Request& request) {
    return *static_cast<UringClient*>(request.top().layer);
  }
  bool TryIssue(block::Request& request);
  void IssueWaiting();
  bool SubmitPrepared();
  bool Reap();

  Reactor& reactor_;
  io_uring ring_{};
  bool ring_made_ = false;
  UniqueFd event_;  // written by the kernel on a completion while armed
  RingWatch watch_;
  uint32_t under_way_ = 0;      // prepared or in the kernel
  block::RequestList waiting_;  // in line for room

  std::array<iovec, 4 * kIovecsMax> iovecs_;
  uint32_t iovecs_used_ = 0;  // by operations that are not submitted yet

  uint8_t* bounce_memory_ = nullptr;
  std::vector<uint8_t*> bounce_free_;
  block::RequestList bounce_waiting_;
  uint8_t* zeroes_ = nullptr;
};

}  // namespace cleat::modules
