// SPDX-License-Identifier: Apache-2.0
// An RBD disk on one I/O reactor: submits to librbd, which never waits there (microseconds, and a copy of what is
// written), and collects what librbd's threads report.
//
// librbd's threads push finished requests on a list without a lock; a thread that finds the list empty posts the
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
#include "modules/rbd/rbd_image.h"
#include "reactor/mailbox.h"

namespace cleat::modules {

class RbdChannel final : public block::Channel {
 public:
  // At librbd at a time, on one reactor; more wait in line here. The bytes bound what librbd's copies of writes take
  // when a cluster hangs; a single larger request goes all the same.
  static constexpr uint32_t kInFlightMax = 128;
  static constexpr uint64_t kInFlightBytesMax = uint64_t{8} << 20;

  // `shut_out` is called on the reactor for each request that failed because this client was blocklisted.
  RbdChannel(std::shared_ptr<RbdImage> image, Reactor& reactor, std::function<void()> shut_out);
  ~RbdChannel() override;  // nothing in flight, nothing in line

  void Submit(block::Request& request) override;

  // Requests in line are completed with kAborted.
  void AbortQueued(const block::Request* only) override;

 private:
  // What of a request is the channel's business stands in its frame's scratch.
  enum Scratch : uint8_t {
    kNext,    // in the list of those that are done
    kResult,  // what librbd said
    kSync,    // the data is there, and being made durable
    kIovecs,  // of a read: librbd looks at them until it is done
    kBytes,   // that it counts for in bytes_
  };

  struct Arrival : Mail {
    explicit Arrival(RbdChannel& c) : Mail(&Deliver), channel(c) {}
    static void Deliver(Mail& mail) { static_cast<Arrival&>(mail).channel.Collect(); }
    RbdChannel& channel;
  };
  using Iovecs = std::vector<iovec>;

  static void Completed(rbd_completion_t completion, void* request);  // a thread of librbd's
  void Collect();
  bool HasRoom(const block::Request& request) const;
  void Start(block::Request& request);
  void Issue(block::Request& request);
  int Hand(block::Request& request, rbd_completion_t completion);
  int HandVector(block::Request& request, rbd_completion_t completion);
  int HandZeroes(block::Request& request, rbd_completion_t completion) const;
  void Finished(block::Request& request, int64_t result);
  void End(block::Request& request, block::IoStatus status);
  Iovecs* TakeIovecs();

  const std::shared_ptr<RbdImage> image_;
  Reactor& reactor_;
  const std::function<void()> shut_out_;
  uint32_t in_flight_ = 0;
  uint64_t bytes_ = 0;
  block::RequestList waiting_;
  std::vector<std::unique_ptr<Iovecs>> iovecs_;  // all that were ever needed at a time
  std::vector<Iovecs*> iovecs_free_;
  Arrival arrival_;
  alignas(64) std::atomic<block::Request*> done_{nullptr};  // the latest first
};

}  // namespace cleat::modules
