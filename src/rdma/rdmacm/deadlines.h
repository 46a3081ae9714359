// SPDX-License-Identifier: Apache-2.0
// When connections that are being made have to be there. The connection manager has no limit of its own that a caller could set: it tries for a minute.
//
// One thread. Limits: each connection that is being made, once; a call of Expire looks at all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::rdma {

class Deadline {
 public:
  virtual ~Deadline() = default;
  // Once, and not a moment early. The deadline is out of the list by then, and may be destroyed in here.
  virtual void Expired() = 0;

 private:
  friend class Deadlines;
  ListHook hook_;
  uint64_t at_ns_ = 0;
};

class Deadlines {
 public:
  static Result<std::unique_ptr<Deadlines>> Make();

  // Readable: Expire.
  int descriptor() const { return timer_.get(); }
  // In so many milliseconds from now. Not in it.
  void Add(Deadline& deadline, uint32_t timeout_ms);
  // Again is no error.
  void Remove(Deadline& deadline);
  void Expire();

 private:
  explicit Deadlines(UniqueFd timer) : timer_(std::move(timer)) {}
  void SetTimer();

  const UniqueFd timer_;
  IntrusiveList<Deadline, &Deadline::hook_> waiting_;
};

}  // namespace cleat::rdma
