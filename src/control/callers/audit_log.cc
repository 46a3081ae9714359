// SPDX-License-Identifier: Apache-2.0
#include "control/callers/audit_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "control/model/reasons.h"

namespace cleat::control {
namespace {

constexpr mode_t kFileMode = 0640;

std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

std::string ToJson(const AuditRecord& record, int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::string line = fmt::format(
      R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","caller":{},"role":"{}","method":"{}","resource":{},)"
      R"("code":"{}","reason":"{}","duration_us":{})",
      fmt::gmtime(seconds), unix_ms % 1000, Quote(record.caller), RoleName(record.role), record.method,
      Quote(record.resource), record.code, record.reason, record.duration_us);
  if (!record.request_id.empty()) line += fmt::format(R"(,"request":{})", Quote(record.request_id));
  if (record.intent) line += R"(,"phase":"intent")";
  return line + '}';
}

Result<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path, bool required) {
  std::unique_ptr<AuditLog> log(new AuditLog(path, required));
  const Status opened = log->Reopen();
  if (opened.ok()) return log;
  // Full, or read-only: not a mistake in the configuration.
  const ErrorCode code = opened.error().code;
  if (code != ErrorCode::kResourceExhausted && code != ErrorCode::kFailedPrecondition) return opened.error();
  spdlog::error("{}; tried again with each record: see to the file system", opened.error().message);
  return log;
}

Status AuditLog::Reopen() {
  const MutexLock lock(mutex_);
  return OpenFile();
}

Status AuditLog::OpenFile() {
  if (path_.empty()) return Ok{};
  UniqueFd file(open(path_.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, kFileMode));
  if (!file.valid()) return ErrnoError(errno, fmt::format("audit log '{}' can't be opened", path_));
  file_ = std::move(file);
  return Ok{};
}

Status AuditLog::Append(std::string line, bool durably) {
  // The file may have been moved away, or onto another file system, to make room.
  if (failing_ || !file_.valid()) CLEAT_TRY(OpenFile());
  if (torn_) line.insert(0, "\n");
  const ssize_t written = write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    torn_ = false;
    const bool synced =
        !durably || fdatasync(file_.get()) == 0 || errno == EINVAL;  // a device has nothing to sync
    return synced ? Status(Ok{})
                  : Status(ErrnoError(errno, fmt::format("audit log '{}' can't be synced", path_)));
  }
  torn_ = torn_ || written > 0;
  return ErrnoError(written < 0 ? errno : ENOSPC, fmt::format("audit log '{}' can't be written", path_));
}

Status AuditLog::Write(const AuditRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string line = ToJson(record, std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  spdlog::info("audit: {}", line);
  if (path_.empty()) return Ok{};
  const MutexLock lock(mutex_);
  const Status appended = Append(line + "\n", record.intent);
  if (appended.ok()) {
    if (std::exchange(failing_, false))
      spdlog::info("audit log '{}': records are written again; it lacks {} since cleatd's start", path_,
                   lost());
    return Ok{};
  }
  ++lost_;
  if (!std::exchange(failing_, true)) {
    spdlog::error("{}; this log has the record, and those to come: see to the file system",
                  appended.error().message);
  }
  return Refuse(
      v1::REASON_AUDIT_UNWRITABLE,
      fmt::format("{}: cleatd makes no change without a record (--audit-required): see to its file system, "
                  "and repeat; nothing was changed",
                  appended.error().message));
}

}  // namespace cleat::control
