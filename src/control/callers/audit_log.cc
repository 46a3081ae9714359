// SPDX-License-Identifier: Apache-2.0
#include "control/callers/audit_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>

#include "base/log.h"

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
  return fmt::format(
      R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","caller":{},"role":"{}","method":"{}","resource":{},)"
      R"("code":"{}","reason":"{}","duration_us":{}}})",
      fmt::gmtime(seconds), unix_ms % 1000, Quote(record.caller), RoleName(record.role), record.method,
      Quote(record.resource), record.code, record.reason, record.duration_us);
}

Result<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path) {
  std::unique_ptr<AuditLog> log(new AuditLog(path));
  CLEAT_TRY(log->Reopen());
  return log;
}

Status AuditLog::Reopen() {
  if (path_.empty()) return Ok{};
  UniqueFd file(open(path_.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, kFileMode));
  if (!file.valid()) return ErrnoError(errno, fmt::format("audit log '{}' can't be opened", path_));
  const MutexLock lock(mutex_);
  file_ = std::move(file);
  return Ok{};
}

void AuditLog::Write(const AuditRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string line =
      ToJson(record, std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) + "\n";
  spdlog::info("audit: {}", std::string_view(line).substr(0, line.size() - 1));
  const MutexLock lock(mutex_);
  if (!file_.valid()) return;
  if (write(file_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    spdlog::error("audit log '{}': record not written: {}; the line above has it: see to the file system",
                  path_, ErrnoError(errno, "write").message);
  }
}

}  // namespace cleat::control
