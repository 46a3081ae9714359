// SPDX-License-Identifier: Apache-2.0
// Guests with a fixed number of requests in flight on limited disks whose storage answers at once, in virtual time: what
// limits let pass is what is counted. Each guest checks that its requests pass in the order in which it submitted them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "block/device.h"
#include "qos/group.h"
#include "qos/limited_device.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::qos::test {

class SinkChannel final : public block::Channel {
 public:
  void Submit(block::Request& request) override { request.Complete(block::IoStatus::kOk); }
};

class SinkDevice final : public block::Device {
 public:
  SinkDevice()
      : Device("disks/sink", block::DiskShape{"disks/sink", uint64_t{1} << 40, 512, 512}.ToGeometry()) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<SinkChannel>());
  }
};

inline Limits Iops(uint64_t per_second) {
  Limits limits;
  limits[Meter::kIops] = {per_second, 0, 0};
  return limits;
}
inline Limits Bytes(uint64_t per_second) {
  Limits limits;
  limits[Meter::kBytes] = {per_second, 0, 0};
  return limits;
}

inline std::unique_ptr<LimitedDevice> MakeDisk(const Limits& limits, std::shared_ptr<Group> group = nullptr) {
  auto made = LimitedDevice::Make(std::make_unique<SinkDevice>(), limits, std::move(group));
  CLEAT_CHECK(made.ok());
  return std::move(made).value();
}

// Submits `depth` requests and each again when it is done, until Stop.
class Guest final : public Poller {
 public:
  using Shape =
      std::function<void(block::Request&)>;  // fills the next request in; none: the same reads for ever

  Guest(Reactor& reactor, LimitedDevice& disk, uint32_t depth, uint64_t bytes,
        block::Op op = block::Op::kRead, Shape shape = nullptr)
      : reactor_(reactor), channel_(disk.OpenChannel(reactor).value()), shape_(std::move(shape)) {
    for (uint32_t i = 0; i < depth; ++i) {
      auto io = std::make_unique<Io>();
      io->guest = this;
      io->request.op = op;
      io->request.length_bytes = bytes;
      ready_.PushBack(io->request);
      ios_.push_back(std::move(io));
    }
    reactor_.AddPoller(*this);
  }
  ~Guest() override {
    if (added()) reactor_.RemovePoller(*this);
    EXPECT_EQ(in_flight_, 0U);
  }

  // Nothing new is submitted.
  void Stop() { stopped_ = true; }
  // ... and what waits is taken back.
  void End() {
    Stop();
    channel_->AbortQueued(nullptr);
  }
  void Start() {
    stopped_ = false;
    reactor_.Activate(*this);
  }
  block::Channel& channel() { return *channel_; }
  void CloseChannel() { channel_.reset(); }

  uint64_t passed() const { return passed_; }
  uint64_t passed_bytes() const { return passed_bytes_; }
  uint64_t aborted() const { return aborted_; }
  uint64_t submitted() const { return next_sequence_; }
  uint64_t in_flight() const { return in_flight_; }
  uint64_t worst_wait_ns() const { return worst_wait_ns_; }
  bool in_order() const { return in_order_; }
  uint64_t stamped() const { return stamped_; }

  bool Poll() override {
    if (stopped_ || ready_.empty()) return false;
    block::RequestList batch;
    batch.Splice(ready_);
    while (block::Request* request = batch.PopFront()) SubmitOne(*request);
    return true;
  }
  bool Arm() override { return stopped_ || ready_.empty(); }

 private:
  struct Io {
    block::Request request;
    Guest* guest = nullptr;
    uint64_t sequence = 0;
    uint64_t submitted_ns = 0;
  };

  void SubmitOne(block::Request& request) {
    if (shape_) shape_(request);
    auto& frame = request.Push(&Done, this);
    frame.scratch[0] = next_sequence_++;
    frame.scratch[1] = reactor_.now_ns();
    request.stamps.Seen(reactor_.now_ns(), reactor_.now_ns(), 0);
    ++in_flight_;
    channel_->Submit(request);
  }
  static void Done(block::Request& request, const block::Frame& frame) {
    auto& guest = *static_cast<Guest*>(frame.layer);
    guest.in_order_ &= frame.scratch[0] == guest.next_done_++;
    guest.worst_wait_ns_ = std::max(guest.worst_wait_ns_, guest.reactor_.now_ns() - frame.scratch[1]);
    --guest.in_flight_;
    if (request.status == block::IoStatus::kOk) {
      ++guest.passed_;
      guest.passed_bytes_ += request.length_bytes;
    } else {
      ++guest.aborted_;
    }
    if (request.stamps.at_ns(RequestStage::kQosOut) != 0) ++guest.stamped_;
    guest.ready_.PushBack(request);
    guest.reactor_.Activate(guest);
  }

  Reactor& reactor_;
  std::unique_ptr<block::Channel> channel_;
  const Shape shape_;
  bool stopped_ = false;
  bool in_order_ = true;
  uint64_t next_sequence_ = 0;
  uint64_t next_done_ = 0;
  uint64_t in_flight_ = 0;
  uint64_t passed_ = 0;
  uint64_t passed_bytes_ = 0;
  uint64_t aborted_ = 0;
  uint64_t stamped_ = 0;
  uint64_t worst_wait_ns_ = 0;
  std::vector<std::unique_ptr<Io>> ios_;
  block::RequestList ready_;  // behind the requests: a list must not outlive what is in it
};

// Time goes on by `duration_ns`.
inline void RunFor(cleat::test::VirtualReactors& reactors, uint64_t duration_ns) {
  const uint64_t until_ns = reactors.clock().NowNs() + duration_ns;
  struct Alarm : Timer {
    Alarm() : Timer([](Timer& timer) { static_cast<Alarm&>(timer).rung = true; }) {}
    bool rung = false;
  } alarm;
  reactors[0].AddTimer(alarm, until_ns);
  EXPECT_TRUE(reactors.RunUntil([&] { return alarm.rung; }));
}

// How long a limit is watched: ten seconds, or one where ten million requests would take minutes.
inline uint64_t SecondsFor([[maybe_unused]] uint64_t per_second) {
#if defined(CLEAT_ASAN) || defined(CLEAT_TSAN)
  if (per_second > 100'000) return 1;
#endif
  return 10;
}

// What a limit promises for a time in which all of it was asked for: within 1 %, or one request.
inline void ExpectWithinOnePercent(uint64_t got, double limit_per_second, double seconds, uint64_t one = 1) {
  const double promised = limit_per_second * seconds;
  const double slack = std::max(promised * 0.01, static_cast<double>(one));
  EXPECT_GE(static_cast<double>(got), promised - slack);
  EXPECT_LE(static_cast<double>(got), promised + slack);
}

inline double Jain(const std::vector<double>& shares) {
  double sum = 0;
  double squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return sum * sum / (static_cast<double>(shares.size()) * squares);
}

}  // namespace cleat::qos::test
