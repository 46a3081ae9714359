// SPDX-License-Identifier: Apache-2.0
// A call that changes something, on its way into the audit log: who asks, and what becomes of which object. The records of a call are written
// together when it ends, before it is answered: one of the call, and one of each object that it changed, unless that is the call's own. Where
// records are required, intents are durable before the call begins, and before each write to the store.
//
// What is changed for the call after its end, as an upgrade's moves are, is written at once. Any thread; who changes something for it keeps it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "control/callers/audit_log.h"
#include "control/model/change_recorder.h"

namespace cleat::control {

class AuditedCall : public ChangeRecorder {
 public:
  // `call`: who asks for what. The log outlives it.
  AuditedCall(AuditLog& audit, AuditRecord call);

  // Before anything is done. An error: the intent can't be recorded as it has to be.
  Status Begin();
  // What came of it; null: it was granted, and done. Once.
  void End(const Error* error);

  Status Announce(const ObjectChanges& changes) override;
  void Made(ObjectChanges changes) override;
  void Refused(const std::string& object, const Error& error) override;

 private:
  AuditRecord Outcome(const Error* error) const;
  AuditRecord OfObject(const ObjectChange& change) const;
  void Add(std::vector<AuditRecord> records);

  AuditLog& audit_;
  const AuditRecord call_;
  const std::chrono::steady_clock::time_point started_;
  Mutex mutex_;
  std::vector<AuditRecord> records_ CLEAT_GUARDED_BY(mutex_);  // of objects, until the end
  bool ended_ CLEAT_GUARDED_BY(mutex_) = false;
};

}  // namespace cleat::control
