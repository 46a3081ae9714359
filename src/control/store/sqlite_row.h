// SPDX-License-Identifier: Apache-2.0
// What the store and its migrations share of SQLite: a statement that cleans up after itself, and what a row's
// columns hold beside plain numbers and texts.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "control/model/model.h"

namespace cleat::control {

// A text, a blob or a number.
struct SqlValue {
  SqlValue(std::string t) : bytes(std::move(t)), kind(kText) {}                                // NOLINT
  SqlValue(const google::protobuf::Message& m) : bytes(m.SerializeAsString()), kind(kBlob) {}  // NOLINT
  SqlValue(uint64_t n) : number(static_cast<sqlite3_int64>(n)), kind(kNumber) {}               // NOLINT
  std::string bytes;
  sqlite3_int64 number = 0;
  enum Kind { kText, kBlob, kNumber } kind;
};

// One run of a prepared statement; reset, so that it holds no lock, when it goes. Whoever prepared it finalizes it.
class SqlRun {
 public:
  explicit SqlRun(sqlite3_stmt* statement) : statement_(statement) {}
  SqlRun(SqlRun&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  SqlRun& operator=(SqlRun&&) = delete;
  ~SqlRun();

  // Values must outlive the run. Positions count from 1, columns from 0, as SQLite's own.
  int Bind(int position, const SqlValue& value);
  int Step() { return sqlite3_step(statement_); }
  uint64_t Number(int column) { return static_cast<uint64_t>(sqlite3_column_int64(statement_, column)); }
  std::string Bytes(int column);
  // The first columns as they are, for RowSum.
  std::vector<SqlValue> Values(int columns);

 private:
  sqlite3_stmt* statement_;
};

// STORE_FULL when the file system is full, STORE_DAMAGED when the file is, else STORE_UNWRITABLE. Names the file, the system's error and
// the next step.
Error SqlError(sqlite3* db, const std::string& path, std::string_view doing);
// STORE_FULL or STORE_UNWRITABLE, as the system's error says.
Error UnwritableError(const std::string& path, std::string_view what, int error_number);
// Whether it is one of the two: what is in the file may be served all the same.
bool IsUnwritable(const Error& error);

// A row's last column: a checksum of all others, so that a damaged row is not taken for another intent.
uint64_t RowSum(const std::vector<SqlValue>& values);

// Sets and maps as text. Ids have no commas; label keys have no '=', values no line ends.
std::string JoinIds(const std::set<std::string>& ids);
std::set<std::string> SplitIds(const std::string& text);
std::string JoinLabels(const Labels& labels);
Labels SplitLabels(const std::string& text);

}  // namespace cleat::control
