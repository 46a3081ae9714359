// SPDX-License-Identifier: Apache-2.0
#include "control/state/writes/last_requests.h"

#include "base/log_request.h"

namespace cleat::control {

void LastRequests::Note(const std::vector<std::string>& objects) {
  const std::string& request = log::CurrentRequest();
  if (request.empty()) return;
  const MutexLock lock(mutex_);
  for (const std::string& object : objects) {
    Last& last = objects_[object];
    by_turn_.erase(last.turn);
    last = {request, ++turn_};
    by_turn_[turn_] = object;
    if (objects_.size() <= kObjectsMax) continue;
    objects_.erase(by_turn_.begin()->second);
    by_turn_.erase(by_turn_.begin());
  }
}

std::string LastRequests::Of(const std::string& object) const {
  const MutexLock lock(mutex_);
  const auto found = objects_.find(object);
  return found == objects_.end() ? std::string() : found->second.request;
}

}  // namespace cleat::control
