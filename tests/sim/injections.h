// SPDX-License-Identifier: Apache-2.0
// Failures that the simulation injects carry a number, so that an error that nobody injected is seen as one. Also used
// for refusals that are right at the time ("in use"). On control.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>

#include "base/result.h"

namespace cleat::sim {

class Injections {
 public:
  Error Make(ErrorCode code, const std::string& what) {
    const uint64_t number = next_++;
    open_.insert(number);
    return {code, what + " (" + kTag + std::to_string(number) + ")"};
  }

  // True, once for each injection: the message is of an error that was injected.
  bool Take(const std::string& message) {
    const size_t at = message.find(kTag);
    if (at == std::string::npos) return false;
    return open_.erase(std::strtoull(message.c_str() + at + kTag.size(), nullptr, 10)) == 1;
  }

  // Errors that never came out where they should have.
  size_t swallowed() const { return open_.size(); }

 private:
  const std::string kTag = "injected #";
  std::set<uint64_t> open_;
  uint64_t next_ = 1;
};

}  // namespace cleat::sim
