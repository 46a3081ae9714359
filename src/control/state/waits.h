// SPDX-License-Identifier: Apache-2.0
// Waiting: each change wakes every waiter, which looks at the resource as it is then. A failure is not missed by that: a status counts its
// failures until the next success. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/names.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

// How long a request may wait: 30 s when it does not say, an hour at most.
Result<std::chrono::nanoseconds> CheckTimeout(const google::protobuf::Duration& timeout);

class Waits {
 public:
  explicit Waits(StateCore& core) : core_(core) {}  // which outlives it

  // Blocks until the condition is true, the time has passed, or `cancelled` (asked now and then) says so.
  Result<v1::WaitResponse> Wait(const v1::WaitRequest& request, const std::function<bool()>& cancelled);
  // Blocks until something is published after `revision`, or the deadline; returns the newest revision.
  uint64_t AwaitChange(uint64_t revision, std::chrono::steady_clock::time_point deadline);
  // Ends every wait, those to come too, as soon as the publisher wakes them.
  void Stop();

 private:
  // What a Wait finds: what it waited for, why that won't come, or (neither) what is instead.
  struct Finding {
    std::optional<v1::WaitResponse> done = std::nullopt;
    std::optional<Error> failed = std::nullopt;
    std::string state = {};
  };

  static std::optional<Finding> FindAbsence(const v1::WaitRequest& request, bool exists, bool leaving,
                                            const std::string& state);
  template <typename Entry, typename Show>
  static Finding FindSettings(const v1::WaitRequest& request, const Entry* entry, const std::string& behind,
                              Show show) CLEAT_REQUIRES(holds_state);
  Finding Find(const v1::WaitRequest& request) CLEAT_REQUIRES(holds_state);
  Finding FindDiskState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(holds_state);
  Finding FindClusterState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(holds_state);
  Finding FindSubsystemState(const v1::WaitRequest& request, const std::string& id)
      CLEAT_REQUIRES(holds_state);
  Finding FindPoolState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(holds_state);
  Finding FindGroupState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(holds_state);
  Finding FindControllerState(const v1::WaitRequest& request, const std::string& id)
      CLEAT_REQUIRES(holds_state);
  Finding FindAttachmentState(const v1::WaitRequest& request, const AttachmentIds& ids)
      CLEAT_REQUIRES(holds_state);
  Finding FindEngineState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  size_t waiters_ CLEAT_GUARDED_BY(holds_state) = 0;
  bool stopping_ CLEAT_GUARDED_BY(holds_state) = false;
};

}  // namespace cleat::control
