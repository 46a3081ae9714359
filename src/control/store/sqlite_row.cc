// SPDX-License-Identifier: Apache-2.0
#include "control/store/sqlite_row.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "control/model/reasons.h"

namespace cleat::control {

SqlRun::~SqlRun() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

int SqlRun::Bind(int position, const SqlValue& value) {
  const int size = static_cast<int>(value.bytes.size());
  switch (value.kind) {
    case SqlValue::kText:
      return sqlite3_bind_text(statement_, position, value.bytes.data(), size, SQLITE_STATIC);
    case SqlValue::kBlob:
      return sqlite3_bind_blob(statement_, position, value.bytes.data(), size, SQLITE_STATIC);
    case SqlValue::kNumber:
      break;
  }
  return sqlite3_bind_int64(statement_, position, value.number);
}

std::string SqlRun::Bytes(int column) {
  const void* data = sqlite3_column_blob(statement_, column);
  return {static_cast<const char*>(data),
          data == nullptr ? 0 : static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

std::vector<SqlValue> SqlRun::Values(int columns) {
  std::vector<SqlValue> values;
  for (int i = 0; i < columns; ++i) {
    if (sqlite3_column_type(statement_, i) == SQLITE_INTEGER) {
      values.emplace_back(Number(i));
    } else {
      values.emplace_back(Bytes(i));
    }
  }
  return values;
}

namespace {

// Of the last system call that failed on the file or its log: a commit has no number of its own.
int LastErrnoOf(sqlite3* db) {
  int error = 0;
  for (const int which : {SQLITE_FCNTL_JOURNAL_POINTER, SQLITE_FCNTL_FILE_POINTER}) {
    sqlite3_file* file = nullptr;
    if (error != 0 || sqlite3_file_control(db, "main", which, &file) != SQLITE_OK) continue;
    if (file == nullptr || file->pMethods == nullptr) continue;
    file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &error);
  }
  return error;
}

// What the system said; 0: nothing.
int ErrnoOf(sqlite3* db, const std::string& path) {
  const int code = sqlite3_errcode(db) & 0xff;
  if (code == SQLITE_FULL) return ENOSPC;  // SQLite keeps no number of that
  if (const int error = sqlite3_system_errno(db); error != 0) return error;
  if (code == SQLITE_IOERR) return LastErrnoOf(db);
  const bool refused = code == SQLITE_READONLY || code == SQLITE_CANTOPEN;
  return refused && access(path.c_str(), W_OK) != 0 ? errno : 0;
}

}  // namespace

Error SqlError(sqlite3* db, const std::string& path, std::string_view doing) {
  const int code = sqlite3_errcode(db) & 0xff;
  const std::string what = fmt::format("{} (in: {:.60})", sqlite3_errmsg(db), doing);
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
    return Refuse(v1::REASON_STORE_DAMAGED,
                  fmt::format("store '{}': {}. The file is damaged: put a copy of it in its place, or follow "
                              "docs/operations.md, \"A damaged store\"; engines serve on meanwhile",
                              path, what));
  }
  return UnwritableError(path, what, ErrnoOf(db, path));
}

Error UnwritableError(const std::string& path, std::string_view what, int error_number) {
  std::string message = fmt::format("store '{}': {}", path, what);
  if (error_number != 0)
    message += fmt::format(": {} ({})", std::generic_category().message(error_number),
                           strerrorname_np(error_number));
  constexpr std::string_view kGoesOn =
      "cleatd tries again each second. Nothing that was acknowledged is lost, and engines serve on";
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Refuse(
          v1::REASON_STORE_FULL,
          fmt::format(
              "{}. Its file system, or a limit on its files, is full: free space there, and repeat; {}",
              message, kGoesOn));
    case EROFS:
      return Refuse(
          v1::REASON_STORE_UNWRITABLE,
          fmt::format("{}. Its file system is read-only: look for the cause in the kernel's log, mount it "
                      "writable, and repeat; {}",
                      message, kGoesOn));
    case EACCES:
    case EPERM:
      return Refuse(
          v1::REASON_STORE_UNWRITABLE,
          fmt::format("{}. cleatd's user may not write there: make it the owner of the folder and its files, "
                      "and repeat; {}",
                      message, kGoesOn));
    default:
      return Refuse(v1::REASON_STORE_UNWRITABLE,
                    fmt::format("{}. See to its file system, and repeat; {}", message, kGoesOn));
  }
}

bool IsUnwritable(const Error& error) {
  const v1::Reason reason = ReasonOf(error);
  return reason == v1::REASON_STORE_FULL || reason == v1::REASON_STORE_UNWRITABLE;
}

uint64_t RowSum(const std::vector<SqlValue>& values) {
  uint64_t sum = 14695981039346656037ULL;  // FNV-1a
  const auto add = [&](const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 1099511628211ULL;
  };
  for (const SqlValue& value : values) {
    const uint64_t size = value.bytes.size();
    add(&size, sizeof(size));
    add(value.bytes.data(), value.bytes.size());
    add(&value.number, sizeof(value.number));
  }
  return sum;
}

std::string JoinIds(const std::set<std::string>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

std::set<std::string> SplitIds(const std::string& text) {
  std::set<std::string> ids;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    ids.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return ids;
}

std::string JoinLabels(const Labels& labels) {
  std::string text;
  for (const auto& [key, value] : labels) text.append(key).append("=").append(value).append("\n");
  return text;
}

Labels SplitLabels(const std::string& text) {
  Labels labels;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const size_t equals = std::min(text.find('=', begin), end);
    labels[text.substr(begin, equals - begin)] =
        equals == end ? "" : text.substr(equals + 1, end - equals - 1);
    begin = end + 1;
  }
  return labels;
}

}  // namespace cleat::control
