// SPDX-License-Identifier: Apache-2.0
// What discovery services have for this host. cleatd never speaks to one: a call waits on its own thread, while the reconciler has an engine
// ask. Nothing of it is kept. Any thread.
//
// A call that watches hears of the log as it is, and again at each change. One whose caller has gone leaves its place at once, and the engine
// is told.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/publish/state_core.h"
#include "control/state/settings/subsystems.h"

namespace cleat::control {

// A call that waits. Outlived by its question, perhaps, when it does not wait any more.
class DiscoveryCaller {
 public:
  using Answer = Result<v1::DiscoverSubsystemsResponse>;

  virtual ~DiscoveryCaller() = default;
  // `goes_on`: of a log that is watched; without, it is the last one, and those that follow are not heard.
  virtual void Hear(Answer answer, bool goes_on) = 0;
  virtual bool has_left() const = 0;
};

// What a call waits to know. An end comes: a question that nobody has any more was lost with its engine.
class DiscoveryQuestion {
 public:
  using Answer = DiscoveryCaller::Answer;
  enum class Kind : uint8_t { kOnce, kWatch };

  // `request` says who asks, and its secrets are wrapped. The id of this thread's API call goes with it.
  DiscoveryQuestion(v1::DiscoverSubsystemsRequest request, Kind kind,
                    std::shared_ptr<DiscoveryCaller> caller);
  ~DiscoveryQuestion();
  DiscoveryQuestion(const DiscoveryQuestion&) = delete;
  DiscoveryQuestion& operator=(const DiscoveryQuestion&) = delete;

  const v1::DiscoverSubsystemsRequest& request() const { return request_; }
  bool watches() const { return kind_ == Kind::kWatch; }
  const std::string& request_id() const { return request_id_; }
  bool is_told() const { return is_told_.load(std::memory_order_relaxed); }
  bool has_left() const { return caller_->has_left(); }
  // Of a log that is watched: as it is.
  void Tell(v1::DiscoverSubsystemsResponse log) const {
    is_told_.store(true, std::memory_order_relaxed);
    caller_->Hear(std::move(log), /*goes_on=*/true);
  }
  // The end.
  void Give(Answer answer) const {
    is_given_.store(true, std::memory_order_relaxed);
    caller_->Hear(std::move(answer), /*goes_on=*/false);
  }

 private:
  const v1::DiscoverSubsystemsRequest request_;
  const Kind kind_;
  const std::string request_id_;
  const std::shared_ptr<DiscoveryCaller> caller_;
  mutable std::atomic<bool> is_told_{false};
  mutable std::atomic<bool> is_given_{false};
};

class Discoveries {
 public:
  using Questions = std::vector<std::shared_ptr<const DiscoveryQuestion>>;
  using HasGone = std::function<bool()>;  // whether the caller does not wait any more; asked each kTurn

  static constexpr size_t kWaitingMax = 8;  // calls of each kind at once
  static constexpr std::chrono::seconds kServiceTime{10};
  // How long a call waits for its engine's first answer: the service's time, and for what lies between.
  static constexpr std::chrono::seconds kPatience = kServiceTime + std::chrono::seconds(5);
  static constexpr std::chrono::milliseconds kTurn{200};

  // All of them outlive it.
  Discoveries(StateCore& core, const Subsystems& subsystems, const SpecKeys& keys)
      : core_(core), subsystems_(subsystems), keys_(keys) {}

  // ---- The API. `request` is completed in place, and its plain secrets are overwritten before anybody is asked.
  Result<v1::DiscoverSubsystemsResponse> Discover(v1::DiscoverSubsystemsRequest* request,
                                                  const HasGone& has_gone);
  // Gives each log to `write`, which says whether the caller is still there. Returns why it has ended: always an error.
  using Write = std::function<bool(const v1::DiscoverSubsystemsResponse& log)>;
  Status Watch(v1::DiscoverSubsystemsRequest* request, const Write& write, const HasGone& has_gone);
  // Ends all calls, those to come too.
  void Stop();
  // For tests, before the first call.
  void SetPatience(std::chrono::milliseconds patience) { patience_ = patience; }

  // ---- Questions, for the reconciler
  Questions TakeAsked();

 private:
  using Kind = DiscoveryQuestion::Kind;
  class Waiting;
  Status Complete(v1::DiscoverSubsystemsRequest* request) const;
  Status Ask(v1::DiscoverSubsystemsRequest request, Kind kind, const std::shared_ptr<Waiting>& waiting);
  void Leave(Kind kind, const std::shared_ptr<Waiting>& waiting);
  Error NothingHeard(const v1::DiscoverSubsystemsRequest& request, const HasGone& has_gone) const;

  StateCore& core_;
  const Subsystems& subsystems_;
  const SpecKeys& keys_;
  std::chrono::milliseconds patience_ = kPatience;
  Mutex mutex_;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  std::map<Kind, std::set<std::shared_ptr<Waiting>>> waiting_ CLEAT_GUARDED_BY(mutex_);
  Questions asked_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
