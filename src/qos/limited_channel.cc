// SPDX-License-Identifier: Apache-2.0
#include "qos/limited_channel.h"

#include <algorithm>
#include <utility>

namespace cleat::qos {

LimitedChannel::LimitedChannel(Reactor& reactor, std::unique_ptr<block::Channel> below,
                               LimitSource& limit_source, std::shared_ptr<GroupPort> port)
    : FilterChannel(std::move(below)),
      reactor_(reactor),
      port_(port.get()),
      port_holder_(std::move(port)),
      limit_source_(limit_source),
      watch_(limit_source, reactor, [this] { Reload(); }) {
  CLEAT_CHECK(FilterChannel::throttle() == nullptr);  // of what is below: one layer has limits
  const LimitSource::View view = limit_source_.view();
  own_.SetLimits(view.limits, view.accounts);
}

LimitedChannel::~LimitedChannel() {
  CLEAT_CHECK(queue_.empty());
  own_.Close();
  if (scope_ != nullptr) scope_->SetGone();
}

void LimitedChannel::Reload() {
  const LimitSource::View view = limit_source_.view();
  own_.SetLimits(view.limits, view.accounts);
  if (waits_for_ == WaitsFor::kOwn) GoOn();
}

// ---- In

// Some limit has to be asked for more, or something waits already.
void LimitedChannel::SubmitSlowly(block::Request& request) {
  if (waits_for_ != WaitsFor::kNothing) return queue_.PushBack(request);
  const Cost cost = Cost::Of(request);
  const uint64_t now = UnitsOf(reactor_.now_ns());
  if (bypass_) {
    ChargeDebt(cost, now, true);
    return below().Submit(request);
  }
  if (!TakeOwn(cost, now)) return queue_.PushBack(request);
  if (port_ == nullptr || port_->Take(cost, now)) return below().Submit(request);
  queue_.PushBack(request);
  waits_for_ = WaitsFor::kGroup;
  port_->Join(member_, cost);
}

// False: the first request waits for the disk's limits from now on.
bool LimitedChannel::TakeOwn(const Cost& cost, uint64_t now) {
  const Meters::Wait wait = own_.Take(cost, LeaseDemand{}, now);
  if (!wait) return true;
  waits_for_ = WaitsFor::kOwn;
  timer_.Cancel();
  const uint64_t at_ns = std::max(NsOf(wait.at), reactor_.now_ns() + GroupPort::kWaitNsMin);
  reactor_.AddTimer(timer_, at_ns);
  return false;
}

// ---- Out

block::Request& LimitedChannel::PopHead(uint64_t now_ns) {
  block::Request& request = *queue_.PopFront();
  request.stamps.Stamp(RequestStage::kQosOut, now_ns);
  return request;
}

// The first request waits for the disk's limits: whatever may pass them now.
void LimitedChannel::GoOn() {
  timer_.Cancel();
  const uint64_t now_ns = reactor_.now_ns();
  const uint64_t now = UnitsOf(now_ns);
  const Scope scope(*this);
  for (uint32_t passed = 0; block::Request* head = queue_.front(); ++passed) {
    timer_.Cancel();
    if (passed == GroupPort::kPassMax) return reactor_.AddTimer(timer_, now_ns);  // others have their turn
    const Cost cost = Cost::Of(*head);
    if (!TakeOwn(cost, now)) return;
    if (port_ != nullptr && !port_->Take(cost, now)) {
      waits_for_ = WaitsFor::kGroup;
      return port_->Join(member_, cost);
    }
    below().Submit(PopHead(now_ns));
    if (scope.gone() || waits_for_ != WaitsFor::kOwn) return;
  }
  waits_for_ = WaitsFor::kNothing;
  own_.GiveBackAhead(now);
}

// For the group: the first request is through. The next one has to pass the disk's own limits before it waits there too.
GroupMember::Passed LimitedChannel::PassHead(uint64_t now_ns) {
  GroupMember::Passed passed;
  passed.request = &PopHead(now_ns);
  passed.below = &below();
  const block::Request* next = queue_.front();
  if (next == nullptr) {
    waits_for_ = WaitsFor::kNothing;
    return passed;
  }
  passed.head = Cost::Of(*next);
  passed.stays = TakeOwn(passed.head, UnitsOf(now_ns));
  return passed;
}

// ---- Ways out of waiting

// What waits here is taken out first: a request that comes while those below are told is new, and not meant.
void LimitedChannel::AbortQueued(const block::Request* only) {
  block::RequestList aborted;
  if (waits_for_ != WaitsFor::kNothing) Withdraw(only, aborted);
  FilterChannel::AbortQueued(only);
  while (block::Request* request = aborted.PopFront()) request->Complete(block::IoStatus::kAborted);
}

// Something waits.
void LimitedChannel::Withdraw(const block::Request* only, block::RequestList& aborted) {
  if (only == nullptr) {
    RefundHead();
    aborted.Splice(queue_);
    waits_for_ = WaitsFor::kNothing;
    timer_.Cancel();
    return;
  }
  block::Request* found = queue_.front();
  while (found != nullptr && found != only) found = queue_.Next(*found);
  if (found == nullptr) return;
  const bool first = found == queue_.front();
  if (first) RefundHead();
  found->link.Unlink();
  aborted.PushBack(*found);
  if (!first) return;
  // The next one, at the next turn: not from within a call of the front end.
  timer_.Cancel();
  reactor_.AddTimer(timer_, reactor_.now_ns());
}

// What the first request has taken and not used.
void LimitedChannel::RefundHead() {
  if (waits_for_ == WaitsFor::kGroup) {
    own_.Return(Cost::Of(*queue_.front()));
    port_->Leave(member_);
  }
  waits_for_ = WaitsFor::kOwn;
  own_.GiveBackAhead(UnitsOf(reactor_.now_ns()));
}

void LimitedChannel::SetBypass(bool on) {
  bypass_ = on;
  if (!on && debt_until_ns_ == kNoDeadline) debt_until_ns_ = PaidUntilNs();
  if (on && waits_for_ != WaitsFor::kNothing) Flush();
}

// All that waits, and what comes behind it meanwhile, as long as all may pass.
void LimitedChannel::Flush() {
  const uint64_t now_ns = reactor_.now_ns();
  const uint64_t now = UnitsOf(now_ns);
  const Scope scope(*this);
  timer_.Cancel();
  bool own_paid = false;
  if (waits_for_ == WaitsFor::kGroup) {
    port_->Leave(member_);
    own_paid = true;
  }
  waits_for_ = WaitsFor::kOwn;
  while (bypass_ && !queue_.empty()) {
    const Cost cost = Cost::Of(*queue_.front());
    ChargeDebt(cost, now, !std::exchange(own_paid, false));
    below().Submit(PopHead(now_ns));
    if (scope.gone()) return;
  }
  GoOn();
}

// `own`: of the disk's limits too, not of the group's alone.
void LimitedChannel::ChargeDebt(const Cost& cost, uint64_t now, bool own) {
  if (own) own_.ChargeDebt(cost, now);
  if (port_ != nullptr) port_->ChargeDebt(cost, now);
  debt_until_ns_ = kNoDeadline;
}

uint64_t LimitedChannel::PaidUntilNs() const {
  const uint64_t now_ns = reactor_.now_ns();
  const uint64_t now = UnitsOf(now_ns);
  const uint64_t own = own_.PaidUntil(now);
  return now_ns + NsOf((port_ == nullptr ? own : Later(own, port_->PaidUntil(now))) - now);
}

// Others, of the disk and of its group, may be ahead for ever: no later than was known at first. But a limit that was
// raised or lifted meanwhile has moved the accounts.
uint64_t LimitedChannel::DebtUntilNs() const {
  uint64_t until_ns = 0;
  if (debt_until_ns_ > reactor_.now_ns() + kDebtNsMin) until_ns = std::min(debt_until_ns_, PaidUntilNs());
  if (until_ns <= reactor_.now_ns() + kDebtNsMin) until_ns = 0;
  return until_ns;
}

}  // namespace cleat::qos
