// SPDX-License-Identifier: Apache-2.0
// What a disk or a group may use: its limits, the accounts in which its use is kept, and the reactors that have to hear
// when either changes. Limits change on the control reactor; each reactor that uses them takes the new ones at its next
// turn. However fast they change, one message at most is under way to each, and the last change is what arrives.
//
// Any thread; a lock that only changing limits, opening and closing take. It outlives its watches.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "qos/accounts.h"
#include "qos/limits.h"
#include "reactor/reactor.h"

namespace cleat::qos {

class LimitSource {
 private:
  struct ChangeNotifier;

 public:
  struct View {
    Limits limits;
    std::shared_ptr<Accounts> accounts;
  };

  // The limits are in force from the first Begin or Change on: with nothing saved.
  LimitSource(const Limits& limits, std::shared_ptr<Accounts> accounts);
  ~LimitSource();  // no watch
  LimitSource(const LimitSource&) = delete;
  LimitSource& operator=(const LimitSource&) = delete;

  void Begin(uint64_t now_ns);  // again: nothing
  void Change(const Limits& limits, uint64_t now_ns);
  // Goes on in other accounts, which take over what is saved or owed unless they are in use already.
  void Move(std::shared_ptr<Accounts> accounts, uint64_t now_ns);
  View view() const;

  // A reactor that uses the limits; made and destroyed on it. `changed` is called there, never after the destructor.
  class Watch {
   public:
    Watch(LimitSource& limit_source, Reactor& reactor, std::function<void()> changed);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    LimitSource& limit_source_;
    std::shared_ptr<ChangeNotifier> notifier_;
  };

 private:
  void Tell() CLEAT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  bool begun_ CLEAT_GUARDED_BY(mutex_) = false;
  View view_ CLEAT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ChangeNotifier>> notifiers_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::qos
