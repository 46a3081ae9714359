// SPDX-License-Identifier: Apache-2.0
#include "reactor/reactor.h"

#include "base/no_stack_buffer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

namespace cleat {
namespace {

thread_local Reactor* current_reactor = nullptr;

class CurrentScope {
 public:
  explicit CurrentScope(Reactor* reactor) : previous_(std::exchange(current_reactor, reactor)) {}
  ~CurrentScope() { current_reactor = previous_; }
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;

 private:
  Reactor* previous_;
};

struct CallMail : Mail {
  explicit CallMail(std::function<void()> f) : Mail(&Deliver), function(std::move(f)) {}
  static void Deliver(Mail& mail) {
    const std::unique_ptr<CallMail> self(&static_cast<CallMail&>(mail));
    self->function();
  }
  std::function<void()> function;
};

}  // namespace

Status FdWatch::Start(Reactor& reactor, int fd, uint32_t epoll_events) {
  CLEAT_CHECK(!watching());
  epoll_event event{};
  event.events = epoll_events | EPOLLET;
  event.data.ptr = this;
  if (epoll_ctl(reactor.epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError(errno, "watching a descriptor with epoll");
  }
  reactor_ = &reactor;
  fd_ = fd;
  return Ok{};
}

void FdWatch::Stop() {
  if (reactor_ == nullptr) return;
  epoll_ctl(reactor_->epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  for (int i = reactor_->event_index_; i < reactor_->event_count_; ++i) {
    if (reactor_->events_[i].data.ptr == this) reactor_->events_[i].data.ptr = nullptr;
  }
  reactor_ = nullptr;
  fd_ = -1;
}

Result<std::unique_ptr<Reactor>> Reactor::Make(const Clock& clock, Options options) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoError(errno, "epoll_create1 for " + options.name);
  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return ErrnoError(errno, "eventfd for " + options.name);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = nullptr;  // nothing to call: it only ends the sleep
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoError(errno, "epoll_ctl for " + options.name);
  }
  return std::unique_ptr<Reactor>(new Reactor(clock, std::move(options), std::move(epoll), std::move(wake)));
}

Reactor::Reactor(const Clock& clock, Options options, UniqueFd epoll, UniqueFd wake)
    : clock_(clock),
      options_(std::move(options)),
      random_(options_.random_seed),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      now_ns_(clock.NowNs()),
      timers_(now_ns_) {}

Reactor::~Reactor() {
  CLEAT_CHECK(active_.empty() && armed_.empty());
  const CurrentScope scope(this);
  while (Mail* mail = mailbox_.Receive()) mail->deliver(*mail);
}

Reactor* Reactor::Current() {
  return current_reactor;
}

bool Reactor::RunOnce() {
  const CurrentScope scope(this);
  turns_.store(turns() + 1, std::memory_order_relaxed);
  RefreshNow();
  bool worked = DeliverMail();
  worked |= timers_.Advance(now_ns_) > 0;
  worked |= ResumeReady();
  if (now_ns_ - fds_checked_ns_ >= options_.fd_check_interval_ns) worked |= CheckFds();
  worked |= PollAll();
  // Nothing is left but to wait for descriptors. Virtual time stands still, so the interval alone would never
  // look.
  if (!worked && CanSleep()) worked |= CheckFds();
  return worked;
}

void Reactor::Run() {
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!RunOnce() && CanSleep()) SleepUntilWoken();
  }
}

void Reactor::Stop() {
  stop_.store(true);
  Wake();
}

bool Reactor::CanSleep() const {
  return active_.empty() && ready_.empty() && !mailbox_.MaybePending();
}

void Reactor::Post(Mail& mail) {
  mailbox_.Send(mail);
  // All four accesses are seq_cst (here and in SleepUntilWoken): either we see it sleeping, or it sees the
  // mail.
  if (sleeping_.load(std::memory_order_seq_cst)) Wake();
}

void Reactor::PostCall(std::function<void()> function) {
  Post(*new CallMail(std::move(function)));
}

void Reactor::Wake() {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the reactor is awake.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void Reactor::AddPoller(Poller& poller) {
  poller.armed_ = false;
  poller.last_work_ns_ = now_ns_;
  poller.spin_ns_ = options_.spin_ns;
  active_.PushBack(poller);
}

void Reactor::RemovePoller(Poller& poller) {
  CLEAT_CHECK(poller.hook_.linked());
  if (polling_ == &poller) polling_ = nullptr;
  if (polling_next_ == &poller) polling_next_ = active_.Next(poller);
  poller.hook_.Unlink();
}

void Reactor::Activate(Poller& poller) {
  if (!poller.armed_) return;
  poller.hook_.Unlink();
  poller.armed_ = false;
  // Would polling on have found this work? Then twice that time is spent on it the next time; if not, half of what was.
  const uint64_t gap_ns = now_ns_ - poller.last_work_ns_;
  poller.spin_ns_ = gap_ns <= options_.spin_ns ? std::min(2 * gap_ns, options_.spin_ns) : poller.spin_ns_ / 2;
  poller.last_work_ns_ = now_ns_;
  poller.Disarm();
  active_.PushBack(poller);
}

bool Reactor::DeliverMail() {
  bool any = false;
  // Bounded, so that senders who are faster than we are can't starve the rest of the turn.
  for (int i = 0; i < 256; ++i) {
    Mail* mail = mailbox_.Receive();
    if (mail == nullptr) break;
    any = true;
    mail->deliver(*mail);
  }
  return any;
}

CLEAT_NO_STACK_BUFFER bool Reactor::ResumeReady() {
  // Only what is ready now: a coroutine that yields goes on at the next turn.
  IntrusiveList<Ready, &Ready::hook> batch;
  batch.Splice(ready_);
  bool any = false;
  while (Ready* ready = batch.PopFront()) {
    any = true;
    ready->handle.resume();
  }
  return any;
}

// With many active pollers each finds the cache full of the others' memory.
inline void Reactor::HintNext() {
  if (polling_next_ == nullptr) return;
  polling_next_->Hint(true);
  Poller* const second = active_.Next(*polling_next_);
  if (second == nullptr) return;
  second->Hint(false);
  Poller* const third = active_.Next(*second);
  if (third != nullptr) __builtin_prefetch(third);
}

bool Reactor::PollAll() {
  bool any = false;
  for (Poller* poller = active_.front(); poller != nullptr; poller = polling_next_) {
    polling_next_ = active_.Next(*poller);
    polling_ = poller;
    HintNext();
    const bool worked = poller->Poll();
    any |= worked;
    if (polling_ != poller) continue;  // it removed itself and may be gone
    if (worked) {
      poller->last_work_ns_ = now_ns_;
    } else if (now_ns_ - poller->last_work_ns_ >= poller->spin_ns_ && poller->Arm() && polling_ == poller) {
      poller->hook_.Unlink();
      poller->armed_ = true;
      armed_.PushBack(*poller);
    }
  }
  polling_ = polling_next_ = nullptr;
  return any;
}

bool Reactor::CheckFds() {
  fds_checked_ns_ = now_ns_;
  return HandleEvents(epoll_wait(epoll_.get(), events_, kEventsMax, 0));
}

bool Reactor::HandleEvents(int count) {
  event_count_ = std::max(count, 0);  // interrupted: none
  bool any = false;
  for (event_index_ = 0; event_index_ < event_count_;) {
    const epoll_event event = events_[event_index_++];
    if (event.data.ptr == nullptr) continue;
    any = true;
    auto& watch = *static_cast<FdWatch*>(event.data.ptr);
    watch.on_event_(watch, event.events);
  }
  event_count_ = event_index_ = 0;
  return any;
}

void Reactor::SleepUntilWoken() {
  sleeping_.store(true, std::memory_order_seq_cst);
  if (!mailbox_.MaybePending() && !stop_.load()) {
    const CurrentScope scope(this);
    const uint64_t next_ns = timers_.NextNs();
    const uint64_t now_ns = clock_.NowNs();
    // epoll_pwait2 has the resolution that epoll_wait lacks.
    timespec timeout{};
    const uint64_t wait_ns = next_ns <= now_ns ? 0 : next_ns - now_ns;
    timeout.tv_sec = static_cast<time_t>(wait_ns / kNsPerSecond);
    timeout.tv_nsec = static_cast<long>(wait_ns % kNsPerSecond);
    const int ready =
        epoll_pwait2(epoll_.get(), events_, kEventsMax, next_ns == kNoDeadline ? nullptr : &timeout, nullptr);
    sleeping_.store(false, std::memory_order_relaxed);
    RefreshNow();
    fds_checked_ns_ = now_ns_;
    HandleEvents(ready);
  }
  sleeping_.store(false, std::memory_order_relaxed);
}

void Reactor::SleepAwaiter::await_suspend(std::coroutine_handle<> awaiting) {
  ready_.handle = awaiting;
  reactor_.AddTimer(timer_, deadline_ns_);
  if (cancel_ != nullptr) cancel_->Add(cancelled_);
}

void Reactor::SleepAwaiter::SleepTimer::Fire(Timer& timer) {
  SleepAwaiter& sleep = static_cast<SleepTimer&>(timer).sleep;
  sleep.timer_fired_ = true;
  sleep.cancelled_.Remove();
  sleep.reactor_.Resume(sleep.ready_);
}

void Reactor::SleepAwaiter::OnCancel::Cancelled() {
  sleep.timer_.Cancel();
  sleep.reactor_.Resume(sleep.ready_);
}

}  // namespace cleat
