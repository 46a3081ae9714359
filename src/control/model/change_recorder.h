// SPDX-License-Identifier: Apache-2.0
// How what a call changes gets on record, though the state that changes it knows no callers: the call sets up its recorder for the thread that
// carries it out (RecorderScope), and each write to the store tells that recorder (state/writes/store_writes.h). A write that no call
// asked for has no recorder.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log_request.h"
#include "base/result.h"

namespace cleat::control {

// What becomes of one object. `before` and `after`: what callers can set of it, as JSON without keys; empty: it is not there.
struct ObjectChange {
  std::string kind;    // "disk"
  std::string object;  // "disks/a"
  std::string before;
  std::string after;
};
using ObjectChanges = std::vector<ObjectChange>;

// Any thread.
class ChangeRecorder {
 public:
  virtual ~ChangeRecorder() = default;

  // Before the changes are made, all of them or none. An error: the changes are not to be made.
  virtual Status Announce(const ObjectChanges& changes) = 0;
  // The changes are durable.
  virtual void Made(ObjectChanges changes) = 0;
  // A change that a call wanted among others was refused.
  virtual void Refused(const std::string& object, const Error& error) = 0;

  // This thread's recorder; null: the thread carries out nobody's call.
  static const std::shared_ptr<ChangeRecorder>& Current() { return current_; }

 private:
  friend class RecorderScope;
  static inline thread_local std::shared_ptr<ChangeRecorder> current_;
};

// What this thread changes until the end of the scope is that recorder's, or (null) nobody's.
class [[nodiscard]] RecorderScope {
 public:
  explicit RecorderScope(std::shared_ptr<ChangeRecorder> recorder)
      : outer_(std::exchange(ChangeRecorder::current_, std::move(recorder))) {}
  ~RecorderScope() { ChangeRecorder::current_ = std::move(outer_); }
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  std::shared_ptr<ChangeRecorder> outer_;
};

// The call for which something is done after its end: an upgrade's moves. A value; nobody's, when it is empty.
struct AskedBy {
  std::shared_ptr<ChangeRecorder> recorder = nullptr;
  std::string request = {};  // log::CurrentRequest

  static AskedBy Current() { return {ChangeRecorder::Current(), log::CurrentRequest()}; }
};

}  // namespace cleat::control
