// SPDX-License-Identifier: Apache-2.0
#include "control/callers/audited_call.h"

#include <chrono>
#include <iterator>
#include <utility>

#include "control/model/names.h"
#include "control/model/reasons.h"

namespace cleat::control {
AuditedCall::AuditedCall(AuditLog& audit, AuditRecord call)
    : audit_(audit), call_(std::move(call)), started_(std::chrono::steady_clock::now()) {}

Status AuditedCall::Begin() {
  if (!audit_.required()) return Ok{};
  AuditRecord record = call_;
  record.intent = true;
  return audit_.Write(record);
}

Status AuditedCall::Announce(const ObjectChanges& changes) {
  if (!audit_.required()) return Ok{};
  {
    // The call's own intent is on record, and somebody waits: a guest, while its controller is moved.
    const MutexLock lock(mutex_);
    if (ended_) return Ok{};
  }
  std::vector<AuditRecord> records;
  for (const ObjectChange& change : changes) {
    records.push_back(OfObject(change));
    records.back().intent = true;
  }
  return audit_.Write(records);
}

void AuditedCall::Made(ObjectChanges changes) {
  const AuditRecord outcome = Outcome(nullptr);
  std::vector<AuditRecord> records;
  for (const ObjectChange& change : changes) {
    AuditRecord& record = records.emplace_back(OfObject(change));
    record.code = outcome.code;
    record.duration_us = outcome.duration_us;
    record.unix_ms = outcome.unix_ms;
  }
  Add(std::move(records));
}

void AuditedCall::Refused(const std::string& object, const Error& error) {
  AuditRecord record = Outcome(&error);
  record.kind = KindOfName(object);
  record.object = object;
  Add({std::move(record)});
}

void AuditedCall::Add(std::vector<AuditRecord> records) {
  const MutexLock lock(mutex_);
  // Too late to refuse anything: the log counts and tells what is not written.
  if (ended_) return (void)audit_.Write(records);
  records_.insert(records_.end(), std::make_move_iterator(records.begin()),
                  std::make_move_iterator(records.end()));
}

void AuditedCall::End(const Error* error) {
  AuditRecord outcome = Outcome(error);
  const MutexLock lock(mutex_);
  ended_ = true;
  std::vector<AuditRecord> records = std::exchange(records_, {});
  if (error == nullptr && records.size() == 1 && records.front().object == call_.resource) {
    outcome.kind = std::move(records.front().kind);
    outcome.object = std::move(records.front().object);
    outcome.before = std::move(records.front().before);
    outcome.after = std::move(records.front().after);
    records.clear();
  }
  records.push_back(std::move(outcome));
  (void)audit_.Write(records);
}

AuditRecord AuditedCall::Outcome(const Error* error) const {
  AuditRecord record = call_;
  record.code = error == nullptr ? "OK" : InfoOf(ReasonOf(*error)).code();
  if (error != nullptr) record.reason = ReasonName(ReasonOf(*error));
  const auto took = std::chrono::steady_clock::now() - started_;
  record.duration_us =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  record.unix_ms = NowUnixMs();
  return record;
}

AuditRecord AuditedCall::OfObject(const ObjectChange& change) const {
  AuditRecord record = call_;
  record.kind = change.kind;
  record.object = change.object;
  record.before = change.before;
  record.after = change.after;
  return record;
}

}  // namespace cleat::control
