// SPDX-License-Identifier: Apache-2.0
// The record of every change that somebody asked for, granted or refused: a line of JSON in a file of its own, if there
// is one, and in cleatd's log. Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "control/callers/access.h"

namespace cleat::control {

struct AuditRecord {
  std::string caller;
  Role role = Role::kNone;
  std::string method;    // "AttachDisk"
  std::string resource;  // its name, or what was asked for as one
  std::string code;      // gRPC's, by name
  std::string reason;    // empty when it is OK
  uint64_t duration_us = 0;
};

// {"time":"2026-01-02T03:04:05.678Z","caller":"uid 0, pid 12","role":"admin","method":...}
std::string ToJson(const AuditRecord& record, int64_t unix_ms);

class AuditLog {
 public:
  // No file: the log alone. The file is made with mode 0640, and appended to with one write a record.
  static Result<std::unique_ptr<AuditLog>> Open(const std::string& path);
  void Write(const AuditRecord& record);
  // After somebody moved the file away. The old one stays in use when there can't be a new one.
  Status Reopen();

 private:
  explicit AuditLog(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  Mutex mutex_;
  UniqueFd file_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
