// SPDX-License-Identifier: Apache-2.0
// What a reactor polls: a virtqueue, an io_uring. A poller is active (polled at every turn) or armed (costs
// nothing; the world was asked to wake it up). An idle disk is an armed poller: 3,000 of them take no time.
#pragma once

#include <cstdint>

#include "base/intrusive_list.h"

namespace cleat {

class Poller {
 public:
  virtual ~Poller() = default;

  // A bounded piece of work. True when there was some.
  virtual bool Poll() = 0;

  // Soon to be polled, after others that are busy: time to have what Poll looks at first brought into the cache. Called
  // twice, first `near` = false, then true when it is the next one. Prefetches alone.
  virtual void Hint(bool /*near*/) {}

  // After a while without work: ask for wake-ups (enable the ring's notifications, say), then look once more.
  // True: armed, and whoever wakes it calls Reactor::Activate. False: work turned up in between, or it can't
  // be armed; undo the asking, it stays active. A wake-up between Arm's look and the reactor's sleep must not
  // be lost: it has to come through a watched descriptor or the mailbox.
  virtual bool Arm() = 0;

  // Active again after having been armed: wake-ups are not needed any more.
  virtual void Disarm() {}

 protected:
  bool added() const { return hook_.linked(); }  // to a reactor, active or armed

 private:
  friend class Reactor;
  ListHook hook_;
  uint64_t last_work_ns_ = 0;
  uint64_t spin_ns_ = 0;  // how long it is polled without work
  bool armed_ = false;
};

}  // namespace cleat
