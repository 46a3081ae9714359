// SPDX-License-Identifier: Apache-2.0
// One event loop a core. A turn of the loop: mail from other threads, timers that are due, coroutines that
// are ready, descriptors that are ready (now and then while busy), one Poll() of every active poller. While
// there is work it polls; when every poller is armed and nothing is ready it sleeps in epoll until a
// descriptor, the mailbox's eventfd or the next timer.
//
// Everything but Post, PostCall, Stop, Enter, turns and asleep is for the reactor's own thread. Time is taken from the Clock
// once a turn (now_ns), and after a batch of requests by the queue that served it; timers, queues and stage stamps use
// that. RunOnce never blocks, so that one
// thread can run several reactors in virtual time.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/intrusive_list.h"
#include "base/random.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/await_suspend.h"
#include "reactor/cancel.h"
#include "reactor/mailbox.h"
#include "reactor/poller.h"
#include "reactor/timer_wheel.h"

namespace cleat {

class Reactor;

// A suspended coroutine in the reactor's queue of those to resume.
struct Ready {
  ListHook hook;
  std::coroutine_handle<> handle;
};

// A watched descriptor, edge-triggered: an eventfd need not be read. Owned by what waits; its destructor ends
// the watch, also from within its own callback. The descriptor stays the owner's and must stay open while it
// is watched; the reactor outlives the watch.
class FdWatch {
 public:
  using EventFn = void (*)(FdWatch&, uint32_t epoll_events);
  explicit FdWatch(EventFn on_event) : on_event_(on_event) {}
  ~FdWatch() { Stop(); }
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

  // Not watching before. `epoll_events`: EPOLLIN, EPOLLOUT, EPOLLRDHUP; an event may come late or twice,
  // never after Stop.
  Status Start(Reactor& reactor, int fd, uint32_t epoll_events);
  void Stop();
  bool watching() const { return reactor_ != nullptr; }

 private:
  friend class Reactor;
  EventFn on_event_;
  Reactor* reactor_ = nullptr;
  int fd_ = -1;
};

class Reactor {
 public:
  struct Options {
    std::string name = "reactor";
    uint32_t index = 0;
    // A poller without work for so long is armed: of one that finds its work within that time. One that was polled in
    // vain lately is armed sooner, since waiting would have cost nobody anything.
    uint64_t spin_ns = 50 * kNsPerUs;
    uint64_t fd_check_interval_ns = 10 * kNsPerUs;  // while busy, descriptors are looked at so often
    uint64_t random_seed = 1;
  };

  // `clock` outlives the reactor. Any thread; the reactor belongs to the thread that calls RunOnce or Run.
  static Result<std::unique_ptr<Reactor>> Make(const Clock& clock, Options options);
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  const std::string& name() const { return options_.name; }
  uint32_t index() const { return options_.index; }
  uint64_t now_ns() const { return now_ns_; }  // as of this turn's beginning, or the last RefreshNow
  // In the middle of a turn, after work that took time and before what wants to know how much.
  void RefreshNow() { now_ns_ = std::max(now_ns_, clock_.NowNs()); }
  Random& random() { return random_; }

  // The reactor whose turn this thread is in, or nullptr.
  static Reactor* Current();

  // ---- The loop
  bool RunOnce();         // one turn; true when anything was done
  void Run();             // until Stop
  void Stop();            // any thread
  bool CanSleep() const;  // nothing active, nothing ready, no mail
  uint64_t NextTimerNs() const { return timers_.NextNs(); }
  // How often RunOnce was called: stands still while it sleeps. Any thread, both.
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }
  bool asleep() const { return sleeping_.load(std::memory_order_relaxed); }

  // ---- Other threads' way in. Who posts makes sure that the reactor outlives the call.
  void Post(Mail& mail);                          // any thread; see mailbox.h for the mail's life
  void PostCall(std::function<void()> function);  // any thread; allocates: control flows only

  // ---- Pollers. Not added twice; removed before they die, if need be by their own Poll.
  void AddPoller(Poller& poller);
  void RemovePoller(Poller& poller);
  void Activate(Poller& poller);  // from a wake-up; nothing when it is active

  // ---- Coroutines
  void Resume(Ready& ready) { ready_.PushBack(ready); }  // at the next turn

  // co_await reactor.Enter(): goes on in this reactor's thread. From any reactor, or from a thread that has
  // none.
  struct EnterAwaiter : Mail {
    explicit EnterAwaiter(Reactor& r) : Mail(&Deliver), reactor(r) {}
    bool await_ready() const { return Current() == &reactor; }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting) {
      handle = awaiting;
      reactor.Post(*this);
    }
    void await_resume() const {}
    static void Deliver(Mail& mail) { static_cast<EnterAwaiter&>(mail).handle.resume(); }
    Reactor& reactor;
    std::coroutine_handle<> handle;
  };
  EnterAwaiter Enter() { return EnterAwaiter(*this); }

  // co_await reactor.Yield(): goes on at the next turn.
  struct YieldAwaiter {
    explicit YieldAwaiter(Reactor& r) : reactor(r) {}
    bool await_ready() const { return false; }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting) {
      ready.handle = awaiting;
      reactor.Resume(ready);
    }
    void await_resume() const {}
    Reactor& reactor;
    Ready ready;
  };
  YieldAwaiter Yield() { return YieldAwaiter(*this); }

  // co_await reactor.SleepFor(ns[, cancel]): true when the time is over, false when it was cancelled.
  class SleepAwaiter {
   public:
    SleepAwaiter(Reactor& reactor, uint64_t deadline_ns, CancelToken* cancel)
        : reactor_(reactor), deadline_ns_(deadline_ns), cancel_(cancel), timer_(*this), cancelled_(*this) {}
    bool await_ready() const { return cancel_ != nullptr && cancel_->cancelled(); }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting);
    bool await_resume() const { return timer_fired_; }

   private:
    struct SleepTimer : Timer {
      explicit SleepTimer(SleepAwaiter& s) : Timer(&Fire), sleep(s) {}
      static void Fire(Timer& timer);
      SleepAwaiter& sleep;
    };
    struct OnCancel : CancelCallback {
      explicit OnCancel(SleepAwaiter& s) : sleep(s) {}
      void Cancelled() override;
      SleepAwaiter& sleep;
    };
    Reactor& reactor_;
    uint64_t deadline_ns_;
    CancelToken* cancel_;
    SleepTimer timer_;
    OnCancel cancelled_;
    Ready ready_;
    bool timer_fired_ = false;
  };
  SleepAwaiter SleepFor(uint64_t duration_ns, CancelToken* cancel = nullptr) {
    const uint64_t deadline_ns = duration_ns > kNoDeadline - now_ns_ ? kNoDeadline : now_ns_ + duration_ns;
    return {*this, deadline_ns, cancel};
  }

  // ---- Timers
  void AddTimer(Timer& timer, uint64_t deadline_ns) { timers_.Add(timer, deadline_ns); }

 private:
  friend class FdWatch;
  using PollerList = IntrusiveList<Poller, &Poller::hook_>;

  Reactor(const Clock& clock, Options options, UniqueFd epoll, UniqueFd wake);
  bool DeliverMail();
  bool ResumeReady();
  bool PollAll();
  void HintNext();
  bool CheckFds();
  bool HandleEvents(int count);
  void SleepUntilWoken();
  void Wake();

  const Clock& clock_;
  const Options options_;
  Random random_;
  UniqueFd epoll_;
  UniqueFd wake_;  // eventfd; written when mail comes to a sleeping reactor
  uint64_t now_ns_;
  std::atomic<uint64_t> turns_{0};  // written by this thread alone
  uint64_t fds_checked_ns_ = 0;

  TimerWheel timers_;
  IntrusiveList<Ready, &Ready::hook> ready_;
  PollerList active_;
  PollerList armed_;
  Poller* polling_ = nullptr;       // whose Poll or Arm is running; nullptr when it removed itself
  Poller* polling_next_ = nullptr;  // so that a poller may remove any poller from within Poll

  static constexpr int kEventsMax = 64;
  epoll_event events_[kEventsMax];
  int event_count_ = 0;  // of the batch being handled; a watch that stops is taken out of it
  int event_index_ = 0;

  Mailbox mailbox_;
  alignas(64) std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace cleat
