// SPDX-License-Identifier: Apache-2.0
// What filters have in common: they own what is below them, and pass on what they don't change. A filter overrides the
// calls that it is for, and passes those on itself when it has done its part. Threads and lifetimes as in device.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block/device.h"

namespace cleat::block {

// All but Submit, which is what a filter is for.
class FilterChannel : public Channel {
 public:
  bool wants_prefetch() const override { return below_->wants_prefetch(); }
  void Prefetch(Op op, uint64_t offset_bytes) override { below_->Prefetch(op, offset_bytes); }
  void Resized() override { below_->Resized(); }
  void AbortQueued(const Request* only) override { below_->AbortQueued(only); }
  ThrottleControl* throttle() override { return below_->throttle(); }

 protected:
  explicit FilterChannel(std::unique_ptr<Channel> below) : below_(std::move(below)) {}
  Channel& below() { return *below_; }

 private:
  const std::unique_ptr<Channel> below_;
};

class FilterDevice : public Device {
 public:
  std::string io_path() const override { return below_->io_path(); }
  // Of a filter that pushes none, and that has nothing to do with the requests.
  uint32_t frames() const override { return below_->frames(); }
  Result<std::unique_ptr<Channel>> OpenChannel(Reactor& reactor) override {
    return below_->OpenChannel(reactor);
  }
  Task<Status> Acquire(AccessMode mode) override { return below_->Acquire(mode); }
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) override { below_->SetAcquireTimeout(wait_ns); }
  void SetUser(const std::string& user) override { below_->SetUser(user); }
  Task<Status> Release() override { return below_->Release(); }
  Task<Status> Extend(const std::vector<pool::ExtentRun>& extents) override {
    return below_->Extend(extents);
  }
  Task<Status> Resize(uint64_t size_bytes) override;
  void SetInDoubt(const InDoubt& rule) override { below_->SetInDoubt(rule); }
  void SetParting(Parting parting) override { below_->SetParting(parting); }
  void SetLeaving(uint64_t attachment) override { below_->SetLeaving(attachment); }
  bool IsLeaving(uint64_t attachment) const override { return below_->IsLeaving(attachment); }
  std::optional<PathsReport> paths() const override { return below_->paths(); }
  Task<Status> Close() override { return below_->Close(); }

 protected:
  // With the name of the disk below, and with its geometry unless the filter shows another.
  explicit FilterDevice(std::unique_ptr<Device> below);
  FilterDevice(std::unique_ptr<Device> below, const Geometry& geometry);
  Device& below() { return *below_; }

 private:
  const std::unique_ptr<Device> below_;
};

}  // namespace cleat::block
