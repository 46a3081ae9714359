// SPDX-License-Identifier: Apache-2.0
#include "qos/allowance.h"

#include <utility>

#include "base/check.h"

namespace cleat::qos {

// Belongs to its reactor's mailbox while `under_way`, and then to itself, so that a watch may end meanwhile.
struct Allowance::Courier : Mail {
  Courier(Reactor& r, std::function<void()> f) : Mail(&Deliver), reactor(r), changed(std::move(f)) {}

  // A courier that is on its way already will do: it looks at the limits only after it has arrived.
  static void Send(const std::shared_ptr<Courier>& courier) {
    if (courier->under_way.exchange(true)) return;
    courier->self = courier;
    courier->reactor.Post(*courier);
  }
  static void Deliver(Mail& mail) {
    const std::shared_ptr<Courier> courier = std::move(static_cast<Courier&>(mail).self);
    courier->under_way.store(false);
    if (courier->changed != nullptr) courier->changed();
  }

  Reactor& reactor;
  std::function<void()> changed;  // on the reactor; nullptr: the watch has ended
  std::atomic<bool> under_way{false};
  std::shared_ptr<Courier> self;
};

Allowance::Allowance(const Limits& limits, std::shared_ptr<Accounts> accounts)
    : view_{limits, std::move(accounts)} {}

Allowance::~Allowance() {
  CLEAT_CHECK(couriers_.empty());
}

void Allowance::Begin(uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (std::exchange(begun_, true)) return;
  SetPrices(*view_.accounts, view_.limits, UnitsOf(now_ns), nullptr);
}

void Allowance::Change(const Limits& limits, uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (std::exchange(begun_, true) && limits == view_.limits) return;
  view_.limits = limits;
  SetPrices(*view_.accounts, limits, UnitsOf(now_ns), nullptr);
  Tell();
}

void Allowance::Move(std::shared_ptr<Accounts> accounts, uint64_t now_ns) {
  const MutexLock lock(mutex_);
  begun_ = true;
  SetPrices(*accounts, view_.limits, UnitsOf(now_ns), view_.accounts.get());
  view_.accounts = std::move(accounts);
  Tell();
}

Allowance::View Allowance::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

void Allowance::Tell() {
  for (const auto& courier : couriers_) Courier::Send(courier);
}

Allowance::Watch::Watch(Allowance& allowance, Reactor& reactor, std::function<void()> changed)
    : allowance_(allowance), courier_(std::make_shared<Courier>(reactor, std::move(changed))) {
  const MutexLock lock(allowance_.mutex_);
  allowance_.couriers_.push_back(courier_);
}

Allowance::Watch::~Watch() {
  courier_->changed = nullptr;
  const MutexLock lock(allowance_.mutex_);
  std::erase(allowance_.couriers_, courier_);
}

}  // namespace cleat::qos
