// SPDX-License-Identifier: Apache-2.0
// Of Store: a file that can't be written is served from a private copy, and from the file again once that can be written. Until it is
// known to be the one that was copied, it is read and nothing more: another file may have come in its place, or none be there.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "control/model/reasons.h"
#include "control/store/migrations.h"
#include "control/store/store.h"
#include "control/store/stored_rows.h"

namespace cleat::control {
namespace {

// A file that was refused is read again when it has changed, or so much later: whether it can be read may depend on more than itself.
constexpr std::chrono::seconds kCompareAgain{30};

// Adds what tells a row from another one. The sum of a row is over all of its columns.
template <typename Row>
uint64_t Mixed(uint64_t sum, const std::vector<Row>& rows) {
  for (const Row& row : rows) sum = RowSum({SqlValue(sum), SqlValue(RowSum(ValuesOf(row)))});
  return sum;
}

}  // namespace

Status Store::OpenCopy(const Error& cause) {
  CloseConnection();
  auto copy = OpenPrivateCopy(path_);
  if (!copy.ok()) {
    Error both = cause;
    both.message += fmt::format(". It can't be served from memory either: {}", copy.error().message);
    return both;
  }
  db_ = *copy;
  CLEAT_TRY(CheckIntegrity());
  CLEAT_ASSIGN(const auto version, Number("PRAGMA user_version"));
  // A store of another version can't be served before it was migrated, which takes a write.
  if (version != kSchemaVersion) return cause;
  CLEAT_ASSIGN(number_, ReadNumber());
  CLEAT_ASSIGN(copied_, Fingerprint());
  refusal_ = cause;
  (void)Noted(cause);
  return Ok{};
}

Result<uint64_t> Store::Fingerprint() {
  CLEAT_ASSIGN(const Rows rows, LoadRows());
  CLEAT_ASSIGN(const uint64_t number, ReadNumber());
  CLEAT_ASSIGN(const uint64_t next, Number("SELECT next FROM revisions"));
  uint64_t sum = RowSum({SqlValue(number), SqlValue(next), SqlValue(rows.paths_checked_from)});
  sum = Mixed(sum, rows.disks);
  sum = Mixed(sum, rows.deleted_disks);
  sum = Mixed(sum, rows.groups);
  sum = Mixed(sum, rows.clusters);
  sum = Mixed(sum, rows.subsystems);
  sum = Mixed(sum, rows.pools);
  sum = Mixed(sum, rows.controllers);
  sum = Mixed(sum, rows.attachments);
  sum = Mixed(sum, rows.upgrades);
  return Mixed(sum, rows.lost);
}

Status Store::CheckAsCopied() {
  CLEAT_ASSIGN(const uint64_t version, Number("PRAGMA user_version"));
  if (version == kSchemaVersion) {
    CLEAT_ASSIGN(const uint64_t found, Fingerprint());
    if (found == *copied_) return Ok{};
  }
  return Refuse(v1::REASON_STORE_UNWRITABLE,
                fmt::format("store '{}': another one than the one that was loaded is in its place: restart "
                            "cleatd, which loads it",
                            path_));
}

Status Store::ReadAndCompare() {
  CLEAT_ASSIGN(sqlite3* const found, OpenPrivateCopy(path_));
  sqlite3* const served = std::exchange(db_, found);
  auto prepared = std::exchange(prepared_, {});
  Status status = CheckAsCopied();
  CloseConnection();
  db_ = served;
  prepared_ = std::move(prepared);
  return status;
}

Status Store::CompareFile() {
  if (access(path_.c_str(), W_OK) != 0) {
    const int error = errno;
    return UnwritableError(
        path_, error == ENOENT ? "it is not there any more" : "it can be opened for reading alone", error);
  }
  const auto now = std::chrono::steady_clock::now();
  FileStamp stamp = StampOf(path_);
  const bool known = compared_ && compared_->stamp == stamp;
  if (!known || (!compared_->verdict.ok() && now >= compared_->until))
    compared_.emplace(Compared{.stamp = stamp, .verdict = ReadAndCompare(), .until = now + kCompareAgain});
  return compared_->verdict;
}

Status Store::OpenExisting() {
  CLEAT_TRY(OpenConnection(SQLITE_OPEN_READWRITE));
  CLEAT_TRY(Configure());
  CLEAT_TRY(CheckAsCopied());  // again: another file may have come since it was compared
  CLEAT_TRY(CheckIntegrity());
  return MarkFolder();
}

Status Store::GoFromCopyToFile() {
  CLEAT_TRY(CompareFile());
  sqlite3* const copy = std::exchange(db_, nullptr);
  auto prepared = std::exchange(prepared_, {});
  Status status = OpenExisting();
  if (!status.ok()) {
    CloseConnection();
    db_ = copy;
    prepared_ = std::move(prepared);
    return status;
  }
  for (const auto& [sql, statement] : prepared) sqlite3_finalize(statement);
  sqlite3_close(copy);
  copied_.reset();
  compared_.reset();
  return Ok{};
}

}  // namespace cleat::control
