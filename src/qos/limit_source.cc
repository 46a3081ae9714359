// SPDX-License-Identifier: Apache-2.0
#include "qos/limit_source.h"

#include <utility>

#include "base/check.h"

namespace cleat::qos {

// Belongs to its reactor's mailbox while `under_way`, and then to itself, so that a watch may end meanwhile.
struct LimitSource::ChangeNotifier : Mail {
  ChangeNotifier(Reactor& r, std::function<void()> f) : Mail(&Deliver), reactor(r), changed(std::move(f)) {}

  // A notifier that is on its way already will do: it looks at the limits only after it has arrived.
  static void Send(const std::shared_ptr<ChangeNotifier>& notifier) {
    if (notifier->under_way.exchange(true)) return;
    notifier->self = notifier;
    notifier->reactor.Post(*notifier);
  }
  static void Deliver(Mail& mail) {
    const std::shared_ptr<ChangeNotifier> notifier = std::move(static_cast<ChangeNotifier&>(mail).self);
    notifier->under_way.store(false);
    if (notifier->changed != nullptr) notifier->changed();
  }

  Reactor& reactor;
  std::function<void()> changed;  // on the reactor; nullptr: the watch has ended
  std::atomic<bool> under_way{false};
  std::shared_ptr<ChangeNotifier> self;
};

LimitSource::LimitSource(const Limits& limits, std::shared_ptr<Accounts> accounts)
    : view_{limits, std::move(accounts)} {}

LimitSource::~LimitSource() {
  CLEAT_CHECK(notifiers_.empty());
}

void LimitSource::Begin(uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (std::exchange(begun_, true)) return;
  SetPrices(*view_.accounts, view_.limits, UnitsOf(now_ns), nullptr);
}

void LimitSource::Change(const Limits& limits, uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (std::exchange(begun_, true) && limits == view_.limits) return;
  view_.limits = limits;
  SetPrices(*view_.accounts, limits, UnitsOf(now_ns), nullptr);
  Tell();
}

void LimitSource::Move(std::shared_ptr<Accounts> accounts, uint64_t now_ns) {
  const MutexLock lock(mutex_);
  begun_ = true;
  SetPrices(*accounts, view_.limits, UnitsOf(now_ns), view_.accounts.get());
  view_.accounts = std::move(accounts);
  Tell();
}

LimitSource::View LimitSource::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

void LimitSource::Tell() {
  for (const auto& notifier : notifiers_) ChangeNotifier::Send(notifier);
}

LimitSource::Watch::Watch(LimitSource& limit_source, Reactor& reactor, std::function<void()> changed)
    : limit_source_(limit_source), notifier_(std::make_shared<ChangeNotifier>(reactor, std::move(changed))) {
  const MutexLock lock(limit_source_.mutex_);
  limit_source_.notifiers_.push_back(notifier_);
}

LimitSource::Watch::~Watch() {
  notifier_->changed = nullptr;
  const MutexLock lock(limit_source_.mutex_);
  std::erase(limit_source_.notifiers_, notifier_);
}

}  // namespace cleat::qos
