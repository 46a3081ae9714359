// SPDX-License-Identifier: Apache-2.0
// What discovery services have for this host. cleatd never speaks to one: a call waits on its own thread, while the reconciler has an engine
// ask. Nothing of it is kept. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/publish/state_core.h"
#include "control/state/settings/subsystems.h"

namespace cleat::control {

// What a call waits to know. The first answer counts, and one comes: a question that nobody has any more was lost with its engine.
class DiscoveryQuestion {
 public:
  using Answer = Result<v1::DiscoverSubsystemsResponse>;
  using Deliver = std::function<void(Answer answer)>;

  // `request` says who asks. The id of this thread's API call goes with it. `deliver` is called at least once.
  DiscoveryQuestion(v1::DiscoverSubsystemsRequest request, Deliver deliver);
  ~DiscoveryQuestion();
  DiscoveryQuestion(const DiscoveryQuestion&) = delete;
  DiscoveryQuestion& operator=(const DiscoveryQuestion&) = delete;

  const v1::DiscoverSubsystemsRequest& request() const { return request_; }
  const std::string& request_id() const { return request_id_; }
  void Give(Answer answer) const {
    is_given_.store(true, std::memory_order_relaxed);
    deliver_(std::move(answer));
  }

 private:
  const v1::DiscoverSubsystemsRequest request_;
  const std::string request_id_;
  const Deliver deliver_;
  mutable std::atomic<bool> is_given_{false};
};

class Discoveries {
 public:
  using Questions = std::vector<std::shared_ptr<const DiscoveryQuestion>>;

  static constexpr size_t kWaitingMax = 8;  // calls at once
  static constexpr std::chrono::seconds kServiceTime{10};
  // How long a call waits for its engine: the service's time, and for what lies between.
  static constexpr std::chrono::seconds kPatience = kServiceTime + std::chrono::seconds(5);

  // Both outlive it.
  Discoveries(StateCore& core, const Subsystems& subsystems) : core_(core), subsystems_(subsystems) {}

  // ---- The API
  Result<v1::DiscoverSubsystemsResponse> Discover(const v1::DiscoverSubsystemsRequest& request);
  // Ends all calls, those to come too.
  void Stop();
  // For tests, before the first call.
  void SetPatience(std::chrono::milliseconds patience) { patience_ = patience; }

  // ---- Questions, for the reconciler
  Questions TakeAsked();

 private:
  struct Waiting;
  Status Ask(v1::DiscoverSubsystemsRequest request, const std::shared_ptr<Waiting>& waiting);

  StateCore& core_;
  const Subsystems& subsystems_;
  std::chrono::milliseconds patience_ = kPatience;
  Mutex mutex_;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<Waiting>> waiting_ CLEAT_GUARDED_BY(mutex_);
  Questions asked_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
