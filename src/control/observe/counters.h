// SPDX-License-Identifier: Apache-2.0
// The engines' counters (observe/layout.h), as far as they sent a descriptor of them with their hello. It stays
// readable after the engine has died, until its successor's hello: the last counters of an engine that crashed are
// what one wants to see.
//
// Any thread. Readers are opened for one use, or kept by their one user: nothing is locked while they read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/v1/cleat.pb.h"
#include "observe/reader.h"

namespace cleat::control {

// The counters of one engine, or why there are none.
struct CountersOf {
  std::string engine;  // its id
  bool connected = false;
  uint64_t serial = 0;  // another one: another segment
  std::string why_none;
  std::unique_ptr<observe::SegmentReader> reader;  // may be null
};

class Counters {
 public:
  static constexpr size_t kEnginesMax = 64;  // dead ones that nobody succeeded are forgotten beyond that

  explicit Counters(const Clock& clock) : clock_(clock) {}  // outlives it

  // What came with the engine's hello: nothing, if `fd` is invalid. What can't be read is logged, and that is all.
  void OnHello(const std::string& engine, uint64_t incarnation, UniqueFd fd);
  void OnGone(const std::string& engine);

  // What that engine sent, for somebody who goes on from there; invalid when there is none.
  UniqueFd Share(const std::string& engine) const;
  // All engines, each with a reader of its own.
  std::vector<CountersOf> Open() const;
  // As the API says of GetStats; `name` is not looked up.
  Result<v1::GetStatsResponse> Stats(const v1::GetStatsRequest& request) const;
  uint64_t NowNs() const { return clock_.NowNs(); }

 private:
  struct Entry {
    uint64_t incarnation = 0;
    bool connected = false;
    uint64_t serial = 0;
    UniqueFd fd;  // invalid: it has none that can be read
    std::string why_none;
  };
  void ForgetDead() CLEAT_REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  uint64_t last_serial_ CLEAT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Entry> engines_ CLEAT_GUARDED_BY(mutex_);
};

// kInvalidArgument unless it is empty or the name of a disk, controller or engine.
Status CheckStatsName(const std::string& name);

}  // namespace cleat::control
