// SPDX-License-Identifier: Apache-2.0
// A guest that always has so many requests in flight on a limited disk of its own, whose storage answers at once, or
// after spinning as long as a request takes it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/tick_clock.h"
#include "block/device.h"
#include "qos/group.h"
#include "qos/limited_device.h"

namespace cleat::bench {

// Measured once: it takes 10 ms.
inline const TickRate& Rate() {
  static const TickRate rate = TickRate::Measure();
  return rate;
}

class NullDevice final : public block::Device {
 public:
  explicit NullDevice(uint64_t request_ns)
      : Device("disks/null", block::DiskShape("disks/null", uint64_t{1} << 30, 512, 512).ToGeometry()),
        request_ns_(request_ns) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct NullChannel final : block::Channel {
      explicit NullChannel(uint64_t ns) : request_ns(ns), clock(Rate()) {}
      void Submit(block::Request& request) override {
        if (request_ns > 0) {
          const uint64_t end_ns = clock.NowNs() + request_ns;
          while (clock.NowNs() < end_ns) {
          }
        }
        request.Complete(block::IoStatus::kOk);
      }
      const uint64_t request_ns;
      const TickClock clock;
    };
    return std::unique_ptr<block::Channel>(std::make_unique<NullChannel>(request_ns_));
  }

 private:
  const uint64_t request_ns_;
};

class Guest final : public Poller {
 public:
  Guest(Reactor& reactor, const qos::Limits& own, std::shared_ptr<qos::Group> group, uint32_t depth,
        uint64_t request_ns)
      : reactor_(reactor),
        disk_(qos::LimitedDevice::Make(std::make_unique<NullDevice>(request_ns), own, std::move(group))
                  .value()),
        channel_(disk_->OpenChannel(reactor).value()) {
    for (uint32_t i = 0; i < depth; ++i) {
      requests_.push_back(std::make_unique<block::Request>());
      requests_.back()->length_bytes = 4096;
      ready_.PushBack(*requests_.back());
    }
    reactor_.AddPoller(*this);
  }
  ~Guest() override {
    stopped_ = true;
    reactor_.RemovePoller(*this);
    channel_->AbortQueued(nullptr);
    channel_.reset();
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  void Begin() { passed_ = 0; }
  uint64_t passed() const { return passed_; }

  bool Poll() override {
    if (ready_.empty()) return false;
    block::RequestList batch;
    batch.Splice(ready_);
    while (block::Request* request = batch.PopFront()) {
      request->Push(&Done, this);
      channel_->Submit(*request);
    }
    return true;
  }
  bool Arm() override { return ready_.empty(); }

 private:
  static void Done(block::Request& request, const block::Frame& frame) {
    auto& guest = *static_cast<Guest*>(frame.layer);
    ++guest.passed_;
    guest.ready_.PushBack(request);
    if (!guest.stopped_) guest.reactor_.Activate(guest);
  }

  Reactor& reactor_;
  std::unique_ptr<qos::LimitedDevice> disk_;
  std::unique_ptr<block::Channel> channel_;
  bool stopped_ = false;
  uint64_t passed_ = 0;
  std::vector<std::unique_ptr<block::Request>> requests_;
  block::RequestList ready_;
};

}  // namespace cleat::bench
