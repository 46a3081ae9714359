// SPDX-License-Identifier: Apache-2.0
// A disk as the front ends see it: the stack of devices, and the entrance that checks every request before
// any layer sees it - range, alignment, access, what the disk can do. Layers below rely on these checks.
#pragma once

#include <memory>
#include <string>

#include "block/device.h"

namespace cleat::block {

// On one reactor. Counts what is in flight, so that a queue can be drained.
class PipelineChannel {
 public:
  PipelineChannel(const Geometry& geometry, AccessMode mode, std::unique_ptr<Channel> top);
  ~PipelineChannel();  // nothing in flight

  const Geometry& geometry() const { return geometry_; }
  AccessMode mode() const { return mode_; }
  uint64_t in_flight() const { return in_flight_; }

  // `request` has the front end's frame pushed. A request that fails a check is completed at once with
  // kInvalid, kReadOnly or kUnsupported. A read or write of length 0 succeeds without going further.
  void Submit(Request& request);

 private:
  IoStatus Check(const Request& request) const;
  static void Done(Request& request, const Frame& frame);

  const Geometry geometry_;
  const AccessMode mode_;
  uint64_t in_flight_ = 0;
  std::unique_ptr<Channel> top_;
};

// On the control reactor. Owns the stack.
class Pipeline {
 public:
  // Refuses a stack that needs more frames than a request has (two are kept for the front end and this
  // entrance).
  static Result<std::unique_ptr<Pipeline>> Make(std::unique_ptr<Device> top, AccessMode mode);
  ~Pipeline();

  const std::string& name() const { return top_->name(); }
  const Geometry& geometry() const { return top_->geometry(); }
  AccessMode mode() const { return mode_; }
  Device& device() { return *top_; }

  Result<std::unique_ptr<PipelineChannel>> OpenChannel(Reactor& reactor);  // on `reactor`
  Task<Status> Acquire() { return top_->Acquire(mode_); }
  Task<Status> Release() { return top_->Release(); }
  Task<Status> Close();  // every channel is gone

 private:
  Pipeline(std::unique_ptr<Device> top, AccessMode mode) : top_(std::move(top)), mode_(mode) {}
  std::unique_ptr<Device> top_;
  const AccessMode mode_;
};

}  // namespace cleat::block
