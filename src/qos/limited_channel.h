// SPDX-License-Identifier: Apache-2.0
// A limited disk on one reactor. Requests that need not wait never touch its queue. Of those that wait, the first is
//   - waiting for the disk's own limits (kOwn: its timer is set), or
//   - through them, and waiting for the group's (kGroup: it is in a ring of the group's port).
// All others are behind it, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "block/filter_device.h"
#include "qos/group_port.h"
#include "qos/limit_source.h"
#include "qos/meters.h"

namespace cleat::qos {

class alignas(2 * 64) LimitedChannel final : public block::FilterChannel {
 public:
  // `port`: nullptr without a group. Nothing below has limits.
  LimitedChannel(Reactor& reactor, std::unique_ptr<block::Channel> below, LimitSource& limit_source,
                 std::shared_ptr<GroupPort> port);
  ~LimitedChannel() override;  // nothing waits

  void Submit(block::Request& request) override {
    if (waits_for_ == WaitsFor::kNothing) [[likely]] {
      const Cost cost = Cost::Of(request);
      const uint64_t now = UnitsOf(reactor_.now_ns());
      if (own_.TryUse(cost, now)) [[likely]] {
        if (port_ == nullptr || port_->TryUse(cost, now)) [[likely]]
          return below().Submit(request);
        own_.Return(cost);
      }
    }
    SubmitSlowly(request);
  }
  void AbortQueued(const block::Request* only) override;
  block::ThrottleControl* throttle() override { return &throttle_; }
  block::Channel& unlimited() override { return below(); }

  // A smaller debt is not reported: what reactors have taken ahead looks the same.
  static constexpr uint64_t kDebtNsMin = 5 * kNsPerMs;

 private:
  enum class WaitsFor : uint8_t { kNothing, kOwn, kGroup };
  struct OwnTimer : Timer {
    explicit OwnTimer(LimitedChannel& c)
        : Timer([](Timer& timer) { static_cast<OwnTimer&>(timer).channel.GoOn(); }), channel(c) {}
    LimitedChannel& channel;
  };

  struct Member final : GroupMember {
    explicit Member(LimitedChannel& c) : channel(c) {}
    Passed PassHead(uint64_t now_ns) override { return channel.PassHead(now_ns); }
    LimitedChannel& channel;
  };

  // A member rather than a base, so that Meters begin where they do.
  struct Throttle final : block::ThrottleControl {
    explicit Throttle(LimitedChannel& c) : channel(c) {}
    void SetBypass(bool on) override { channel.SetBypass(on); }
    uint64_t DebtUntilNs() const override { return channel.DebtUntilNs(); }
    bool HasWaiting() const override { return channel.waits_for_ != WaitsFor::kNothing; }
    LimitedChannel& channel;
  };

  // While what is submitted below may end the channel. They nest.
  class Scope {
   public:
    explicit Scope(LimitedChannel& channel)
        : channel_(channel), outer_(std::exchange(channel.scope_, this)) {}
    ~Scope() {
      if (!gone_) {
        channel_.scope_ = outer_;
      } else if (outer_ != nullptr) {
        outer_->gone_ = true;
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    bool gone() const { return gone_; }
    void SetGone() { gone_ = true; }

   private:
    LimitedChannel& channel_;
    Scope* const outer_;
    bool gone_ = false;
  };

  void SetBypass(bool on);
  uint64_t DebtUntilNs() const;
  void SubmitSlowly(block::Request& request);
  void GoOn();
  bool TakeOwn(const Cost& cost, uint64_t now);
  GroupMember::Passed PassHead(uint64_t now_ns);
  block::Request& PopHead(uint64_t now_ns);
  void Withdraw(const block::Request* only, block::RequestList& aborted);
  void RefundHead();
  void Flush();
  void ChargeDebt(const Cost& cost, uint64_t now, bool own);
  uint64_t PaidUntilNs() const;
  void Reload();

  // Hot: what Submit looks at, what is below included, is one cache line, and one more for the two leases of most disks,
  // which begin where the next line does. Two lines that the processor fetches together.
  Reactor& reactor_;
  GroupPort* const port_;
  WaitsFor waits_for_ = WaitsFor::kNothing;
  bool bypass_ = false;
  Meters own_;
  // What waits, and for changes.
  Member member_{*this};
  block::RequestList queue_;
  Scope* scope_ = nullptr;  // innermost
  OwnTimer timer_{*this};
  Throttle throttle_{*this};
  // For what was let pass: as the accounts were when that ended. kNoDeadline: it goes on. 0: never.
  uint64_t debt_until_ns_ = 0;
  const std::shared_ptr<GroupPort> port_holder_;
  LimitSource& limit_source_;
  LimitSource::Watch watch_;
};

}  // namespace cleat::qos
