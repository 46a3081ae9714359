// SPDX-License-Identifier: Apache-2.0
// All that an engine shows: its segment, and a ReactorCounters for each of its I/O reactors. Made before the reactors run
// and destroyed after they have stopped; they outlive it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "observe/reactor_counters.h"
#include "observe/segment.h"
#include "reactor/reactor.h"

namespace cleat::observe {

class EngineCounters {
 public:
  static Result<std::unique_ptr<EngineCounters>> Make(const std::string& engine, uint64_t incarnation,
                                                      const std::vector<Reactor*>& reactors,
                                                      uint64_t slow_after_ns = kSlowAfterNs);

  ReactorCounters* On(const Reactor& reactor) const;  // any thread
  // On control, at `now_ns`. nullptr, and a line in the log, when there are too many.
  std::unique_ptr<DiskCounters> AddDisk(const std::string& controller, const std::string& disk,
                                        uint32_t target, const Reactor& reactor, uint64_t now_ns);
  Result<UniqueFd> OpenForReaders() const { return segment_->OpenForReaders(); }

 private:
  EngineCounters(std::unique_ptr<Segment> segment, const std::vector<Reactor*>& reactors);

  const std::unique_ptr<Segment> segment_;
  std::vector<Reactor*> reactors_;
  std::vector<std::unique_ptr<ReactorCounters>> on_reactors_;  // by position in reactors_
};

}  // namespace cleat::observe
