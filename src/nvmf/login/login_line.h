// SPDX-License-Identifier: Apache-2.0
// Which queue's login has its arithmetic computed next. After a switch's restart hundreds of queues log in at once, each for up to a tenth of a
// second of a processor, as the other end chooses. So there are few threads, a peer - a host's subsystem, a target's host - has one login
// computed at a time, and peers take turns: one that keeps this end busy, however many queues it has, delays a login of another one by one
// job. Of one peer's logins the one goes first that has come first.
//
// Waiting here is no fault of the peer's. A host's login whose connection is lost meanwhile comes back to the place that it had, and nothing has
// been computed for it. A login that comes to nothing after it was computed is counted: PauseNs of its path grows, and shrinks with those that
// succeed. A target, which cannot choose when its hosts come, does not count.
//
// Ownership and thread: whoever has the queues owns one line for all of them, and it outlives them; any thread, none of them for long. Limits:
// as many wait as there are queues; a path is remembered while its logins fail, until it is forgotten.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "reactor/blocking.h"

namespace cleat::nvmf {

// A place in the line, numbered through the process: the earlier one has the lower number. 0: none yet.
using LoginPlace = uint64_t;

class LoginLine {
 public:
  // Hands work to a thread, which does it after what was handed in before.
  using Post = std::function<void(std::function<void()>)>;

  // The pause of a path whose logins come to nothing, from the first one on; each one more doubles it.
  static constexpr uint64_t kPauseMinNs = 100 * kNsPerMs;
  static constexpr uint64_t kPauseMaxNs = 5 * kNsPerSecond;
  // Before a login whose connection was lost in the line connects again: its place does not get lost.
  static constexpr uint64_t kTurnPauseNs = 250 * kNsPerMs;

  // A line with up to `threads_max` threads of its own. 0: a login is computed as it enters, for virtual time.
  explicit LoginLine(uint32_t threads_max);
  // What was posted is done, or dropped, before the line goes.
  explicit LoginLine(Post post);
  ~LoginLine();
  LoginLine(const LoginLine&) = delete;
  LoginLine& operator=(const LoginLine&) = delete;

  // `peer`: its name, whatever that is. `compute` is called once, when it is this login's turn, unless it has left before. `place`: the one it
  // had, or 0. Its place is returned.
  LoginPlace Enter(const std::string& peer, LoginPlace place, std::function<void()> compute);
  // False: it is not in the line any more, as its turn has come.
  bool Leave(const std::string& peer, LoginPlace place);

  // A login by this path was computed, and has come to this.
  void Failed(const std::string& path);
  void Succeeded(const std::string& path);
  void Forget(const std::string& path);
  // The least pause before the path's next try; 0 if its logins succeed.
  uint64_t PauseNs(const std::string& path) const;

 private:
  // There is one while a turn of its peer is posted or under way, and only then.
  using Waiting = std::map<LoginPlace, std::function<void()>>;
  static constexpr uint32_t kFailuresMax = 7;  // what kPauseMaxNs is reached with
  static_assert(kPauseMinNs << (kFailuresMax - 1) >= kPauseMaxNs);

  void PostTurn(const std::string& peer);
  void TakeTurn(const std::string& peer);

  mutable Mutex mutex_;
  LoginPlace last_place_ CLEAT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Waiting> peers_ CLEAT_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> failures_ CLEAT_GUARDED_BY(mutex_);  // by path; not 0
  Post post_;
  std::unique_ptr<BlockingPool> threads_;  // goes first: turns that are under way end
};

}  // namespace cleat::nvmf
