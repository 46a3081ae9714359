// SPDX-License-Identifier: Apache-2.0
#include "control/callers/audit_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "control/model/json.h"
#include "control/model/reasons.h"

namespace cleat::control {
namespace {

constexpr mode_t kFileMode = 0640;

std::string Omitted(const std::string& state) {
  return fmt::format(R"({{"omitted_bytes":{}}})", state.size());
}

void OmitStates(AuditRecord& record, size_t longer_than) {
  for (std::string* state : {&record.before, &record.after}) {
    if (state->size() > longer_than) *state = Omitted(*state);
  }
}

}  // namespace

int64_t NowUnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string ToJson(const AuditRecord& record, int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::string line = fmt::format(
      R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","caller":{},"role":"{}","method":"{}","resource":{},)"
      R"("code":"{}","reason":"{}","duration_us":{})",
      fmt::gmtime(seconds), unix_ms % 1000, JsonString(record.caller), RoleName(record.role), record.method,
      JsonString(record.resource), record.code, record.reason, record.duration_us);
  if (!record.object.empty())
    line += fmt::format(R"(,"kind":"{}","object":{})", record.kind, JsonString(record.object));
  if (!record.before.empty()) line += R"(,"before":)" + record.before;
  if (!record.after.empty()) line += R"(,"after":)" + record.after;
  if (!record.request_id.empty()) line += fmt::format(R"(,"request":{})", JsonString(record.request_id));
  if (record.intent) line += R"(,"phase":"intent")";
  return line + '}';
}

// The records' lines, each of which this process' log has as well.
std::string AuditLog::LogLines(std::span<const AuditRecord> records) {
  // A record names its request itself, and ends where its JSON does.
  const log::RequestScope none("");
  std::string lines;
  for (AuditRecord record : records) {
    OmitStates(record, lines.size() < kBatchBytesMax ? kStateBytesMax : 0);
    const std::string line = ToJson(record, record.unix_ms != 0 ? record.unix_ms : NowUnixMs());
    spdlog::info("audit: {}", line);
    lines += line + '\n';
  }
  return lines;
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

Status AuditLog::Append(std::string lines, bool durably) {
  // The file may have been moved away, or onto another file system, to make room.
  if (failing_ || !file_.valid()) CLEAT_TRY(OpenFile());
  if (torn_) lines.insert(0, "\n");
  const ssize_t written = write(file_.get(), lines.data(), lines.size());
  if (written == static_cast<ssize_t>(lines.size())) {
    torn_ = false;
    const bool synced =
        !durably || fdatasync(file_.get()) == 0 || errno == EINVAL;  // a device has nothing to sync
    return synced ? Status(Ok{})
                  : Status(ErrnoError(errno, fmt::format("audit log '{}' can't be synced", path_)));
  }
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0) TakeBack(lines, static_cast<size_t>(written));
  return ErrnoError(error, fmt::format("audit log '{}' can't be written", path_));
}

// A piece of a line is told by the line end that follows it. Whole lines would pass for all that there are.
void AuditLog::TakeBack(std::string_view lines, size_t written) {
  const bool was_torn = std::exchange(torn_, true);
  if (lines.substr(0, written).find('\n', was_torn ? 1 : 0) == std::string_view::npos) return;
  struct stat file {};
  if (fstat(file_.get(), &file) != 0 || !S_ISREG(file.st_mode)) return;
  const off_t before = file.st_size - static_cast<off_t>(written);
  if (before >= 0 && ftruncate(file_.get(), before) == 0) torn_ = was_torn;
}

Status AuditLog::Write(std::span<const AuditRecord> records) {
  std::string lines = LogLines(records);
  if (path_.empty() || records.empty()) return Ok{};
  const MutexLock lock(mutex_);
  const Status appended = Append(std::move(lines), records.front().intent);
  if (appended.ok()) {
    if (std::exchange(failing_, false))
      spdlog::info("audit log '{}': records are written again; it lacks {} since cleatd's start", path_,
                   lost());
    return Ok{};
  }
  lost_ += records.size();
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
