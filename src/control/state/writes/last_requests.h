// SPDX-License-Identifier: Apache-2.0
// Which request changed an object last, so that what is done about the object later - an order to its engine, its answer - is logged with
// that request's id (base/log_request.h). In memory alone: after a restart nothing is known. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace cleat::control {

class LastRequests {
 public:
  static constexpr size_t kObjectsMax =
      16'384;  // beyond that the one that was changed longest ago is forgotten

  // The thread's request (log::CurrentRequest) has changed these, which may be gone now. Without a request nothing changes here.
  void Note(const std::vector<std::string>& objects);
  // Empty: not known.
  std::string Of(const std::string& object) const;

 private:
  struct Last {
    std::string request;
    uint64_t turn = 0;
  };

  mutable Mutex mutex_;
  uint64_t turn_ CLEAT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Last> objects_ CLEAT_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> by_turn_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
