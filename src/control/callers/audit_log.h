// SPDX-License-Identifier: Apache-2.0
// The records of every change that somebody asked for, granted or refused: lines of JSON in a file of their own, if there
// is one, and in cleatd's log. What belongs together is written at once: all of its lines, or none. A record that the file does not take is counted, and logged once an episode; the file is opened anew then.
// Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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
  std::string request_id = {};  // the caller's, or one that was drawn for it
  bool intent = false;          // before the change, so that code, reason and duration say nothing yet
  // The object that the call changed, or (a code that is not OK) was refused to change. Empty: the record is of the call alone.
  std::string kind = {};
  std::string object = {};
  std::string before = {};  // JSON of at most kStateBytesMax; empty: it was not there
  std::string after = {};
  int64_t unix_ms = 0;  // 0: now
};

// A longer state is shown as {"omitted_bytes":N}, and so is every one beyond the first kBatchBytesMax of what is written at once.
inline constexpr size_t kStateBytesMax = size_t{16} * 1024;
inline constexpr size_t kBatchBytesMax = size_t{32} * 1024 * 1024;

int64_t NowUnixMs();

// {"time":"2026-01-02T03:04:05.678Z","caller":"uid 0, pid 12","role":"admin","method":...}
std::string ToJson(const AuditRecord& record, int64_t unix_ms);

class AuditLog {
 public:
  // No file: the log alone. The file is made with mode 0640, and appended to with one write a record. One that can't be made since its file
  // system is full or read-only is tried again with each record. `required`: no change is made without a record of the intent.
  static Result<std::unique_ptr<AuditLog>> Open(const std::string& path, bool required = false);
  // All of them or none, in one piece. An error: the file lacks them (AUDIT_UNWRITABLE). Intents are durable when this returns OK.
  Status Write(std::span<const AuditRecord> records);
  Status Write(const AuditRecord& record) { return Write({&record, 1}); }
  bool required() const { return required_; }
  // How many records the file lacks, since the start.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  // After somebody moved the file away. The old one stays in use when there can't be a new one.
  Status Reopen();

 private:
  AuditLog(std::string path, bool required) : path_(std::move(path)), required_(required) {}
  static std::string LogLines(std::span<const AuditRecord> records);
  Status OpenFile() CLEAT_REQUIRES(mutex_);
  Status Append(std::string lines, bool durably) CLEAT_REQUIRES(mutex_);
  // A write ended within `lines`, of which `written` bytes are in the file.
  void TakeBack(std::string_view lines, size_t written) CLEAT_REQUIRES(mutex_);

  const std::string path_;
  const bool required_;
  std::atomic<uint64_t> lost_ = 0;
  Mutex mutex_;
  UniqueFd file_ CLEAT_GUARDED_BY(mutex_);
  bool failing_ CLEAT_GUARDED_BY(mutex_) = false;  // the last record was not written
  bool torn_ CLEAT_GUARDED_BY(mutex_) = false;     // the file ends within a record
};

}  // namespace cleat::control
