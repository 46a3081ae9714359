// SPDX-License-Identifier: Apache-2.0
// What coroutines of one reactor wait on: Event (with a Deadline), AsyncMutex, Gate. None of it is for two threads; a coroutine
// moves to the object's reactor first (Reactor::Enter). Waiters go on at the reactor's next turn, in the
// order in which they came.
#pragma once

#include <coroutine>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "reactor/reactor.h"

namespace cleat {

// Set or not; waiting for a set one goes straight on. `Pulse` lets the present waiters go without setting it.
class Event {
 public:
  explicit Event(Reactor& reactor) : reactor_(reactor) {}
  ~Event() { CLEAT_CHECK(waiters_.empty()); }

  bool is_set() const { return set_; }
  void Reset() { set_ = false; }
  void Set() {
    set_ = true;
    Pulse();
  }
  void Pulse() {
    while (Waiter* waiter = waiters_.PopFront()) waiter->Done(true);
  }

  // co_await event.Wait([cancel]): true when it was set or pulsed, false when cancelled.
  class Waiter : private CancelCallback {
   public:
    Waiter(Event& event, CancelToken* cancel) : event_(event), cancel_(cancel) {}
    bool await_ready() const { return event_.set_ || (cancel_ != nullptr && cancel_->cancelled()); }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting) {
      ready_.handle = awaiting;
      suspended_ = true;
      event_.waiters_.PushBack(*this);
      if (cancel_ != nullptr) cancel_->Add(*this);
    }
    bool await_resume() const { return suspended_ ? happened_ : event_.set_; }

   private:
    friend class Event;
    void Cancelled() override {
      hook_.Unlink();
      Done(false);
    }
    void Done(bool happened) {
      happened_ = happened;
      CancelCallback::Remove();
      event_.reactor_.Resume(ready_);
    }
    Event& event_;
    CancelToken* cancel_;
    ListHook hook_;
    Ready ready_;
    bool suspended_ = false;
    bool happened_ = false;
  };
  Waiter Wait(CancelToken* cancel = nullptr) { return {*this, cancel}; }

 private:
  Reactor& reactor_;
  bool set_ = false;
  IntrusiveList<Waiter, &Waiter::hook_> waiters_;
};

// A wait for an event has an end: pulses it once when that time has come. On the event's reactor.
class Deadline {
 public:
  // kNoDeadline: never. It lives no longer than the event.
  Deadline(Reactor& reactor, Event& event, uint64_t at_ns) : timer_(*this), event_(event) {
    if (at_ns != kNoDeadline) reactor.AddTimer(timer_, at_ns);
  }
  ~Deadline() { timer_.Cancel(); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  bool passed() const { return passed_; }

 private:
  struct PulseTimer : Timer {
    explicit PulseTimer(Deadline& d) : Timer(&Fire), deadline(d) {}
    static void Fire(Timer& timer) {
      Deadline& deadline = static_cast<PulseTimer&>(timer).deadline;
      deadline.passed_ = true;
      deadline.event_.Pulse();
    }
    Deadline& deadline;
  };
  PulseTimer timer_;
  Event& event_;
  bool passed_ = false;
};

// One at a time, first come, first served. For one operation at a time on an object.
class AsyncMutex {
 public:
  explicit AsyncMutex(Reactor& reactor) : reactor_(reactor) {}
  ~AsyncMutex() { CLEAT_CHECK(!locked_ && waiters_.empty()); }

  class Guard {
   public:
    explicit Guard(AsyncMutex* mutex) : mutex_(mutex) {}
    Guard(Guard&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
    Guard& operator=(Guard&&) = delete;
    ~Guard() {
      if (mutex_ != nullptr) mutex_->Unlock();
    }
    explicit operator bool() const { return mutex_ != nullptr; }  // false: cancelled, nothing is held

   private:
    AsyncMutex* mutex_;
  };

  class Locker : private CancelCallback {
   public:
    Locker(AsyncMutex& mutex, CancelToken* cancel) : mutex_(mutex), cancel_(cancel) {}
    bool await_ready() {
      if (cancel_ != nullptr && cancel_->cancelled()) return true;
      if (mutex_.locked_) return false;
      locked_ = mutex_.locked_ = true;
      return true;
    }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting) {
      ready_.handle = awaiting;
      mutex_.waiters_.PushBack(*this);
      if (cancel_ != nullptr) cancel_->Add(*this);
    }
    Guard await_resume() const { return Guard(locked_ ? &mutex_ : nullptr); }

   private:
    friend class AsyncMutex;
    void Cancelled() override {
      hook_.Unlink();
      mutex_.reactor_.Resume(ready_);
    }
    void Locked() {
      locked_ = true;
      CancelCallback::Remove();
      mutex_.reactor_.Resume(ready_);
    }
    AsyncMutex& mutex_;
    CancelToken* cancel_;
    ListHook hook_;
    Ready ready_;
    bool locked_ = false;
  };
  // Nothing is held when somebody else has it.
  Guard TryLock() {
    const bool free = !std::exchange(locked_, true);
    return Guard(free ? this : nullptr);
  }
  // auto guard = co_await mutex.Lock([cancel]);
  Locker Lock(CancelToken* cancel = nullptr) { return {*this, cancel}; }

 private:
  void Unlock() {
    CLEAT_CHECK(locked_);
    if (Locker* next = waiters_.PopFront()) {
      next->Locked();  // the lock passes straight on
    } else {
      locked_ = false;
    }
  }
  Reactor& reactor_;
  bool locked_ = false;
  IntrusiveList<Locker, &Locker::hook_> waiters_;
};

// Counts who is inside; closing it lets nobody in any more and waits until the last one has left. The end of
// every object's life that others may be using.
class Gate {
 public:
  explicit Gate(Reactor& reactor) : drained_(reactor) {}
  ~Gate() { CLEAT_CHECK(inside_ == 0); }

  bool closed() const { return closed_; }
  uint64_t inside() const { return inside_; }

  [[nodiscard]] bool TryEnter() {
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void Leave() {
    CLEAT_CHECK(inside_ > 0);
    if (--inside_ == 0 && closed_) drained_.Set();
  }

  // For a scope: `Gate::Holder holder(gate); if (!holder) co_return ...;`
  class Holder {
   public:
    explicit Holder(Gate& gate) : gate_(gate.TryEnter() ? &gate : nullptr) {}
    Holder(Holder&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Holder& operator=(Holder&&) = delete;
    ~Holder() {
      if (gate_ != nullptr) gate_->Leave();
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    Gate* gate_;
  };

  // co_await gate.Close(). May be awaited by several, and again.
  Event::Waiter Close() {
    closed_ = true;
    if (inside_ == 0) drained_.Set();
    return drained_.Wait();
  }

 private:
  uint64_t inside_ = 0;
  bool closed_ = false;
  Event drained_;
};

}  // namespace cleat
