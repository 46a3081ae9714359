// SPDX-License-Identifier: Apache-2.0
#include "control/store/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "control/model/reasons.h"
#include "control/store/migrations.h"
#include "control/store/stored_rows.h"

namespace cleat::control {
namespace {

// In the lock file once there is a store.
constexpr char kMark[] = "A Cleat store is beside this file. Remove both to start with an empty one.\n";

constexpr char kEraseDisk[] = "DELETE FROM disks WHERE id = ?";
constexpr char kEraseDeletedDisk[] = "DELETE FROM deleted_disks WHERE revision = ?";
constexpr char kEraseGroup[] = "DELETE FROM groups WHERE id = ?";
constexpr char kEraseCluster[] = "DELETE FROM clusters WHERE id = ?";
constexpr char kEraseController[] = "DELETE FROM controllers WHERE id = ?";
constexpr char kEraseAttachment[] = "DELETE FROM attachments WHERE controller = ? AND id = ?";
constexpr char kEraseUpgrade[] = "DELETE FROM upgrades WHERE engine = ?";
constexpr char kEraseLost[] = "DELETE FROM lost_revisions";
constexpr char kNextRevision[] = "SELECT next FROM revisions";
constexpr char kPathsCheckedFrom[] = "SELECT paths_checked_from FROM revisions";
constexpr char kSetNextRevision[] = "UPDATE revisions SET next = ?";
constexpr char kReserveRevisions[] = "UPDATE revisions SET next = next + ? RETURNING next - ?";

constexpr char kBegin[] = "BEGIN IMMEDIATE";
constexpr char kCommit[] = "COMMIT";
constexpr char kRollback[] = "ROLLBACK";

// Pages that a backup copies at a time, about 1 MiB; other writers have their turn in between.
constexpr int kCopiedPages = 256;

// Skips a revision: SQLite writes no page for a row that does not change.
constexpr char kProbe[] = "UPDATE revisions SET next = next + 1";

// All columns of the row.
template <typename Row>
std::vector<SqlValue> WithSum(const Row& row) {
  std::vector<SqlValue> values = ValuesOf(row);
  CLEAT_CHECK(values.size() == StoredAs<Row>::kColumns);
  values.emplace_back(RowSum(values));
  return values;
}

Error Damaged(const std::string& path, std::string_view what) {
  return Refuse(
      v1::REASON_STORE_DAMAGED,
      fmt::format("store '{}': {}. Put a copy of the file in its place, or follow docs/operations.md, \"A "
                  "damaged store\"; engines serve on meanwhile",
                  path, what));
}

}  // namespace

Store::Store(UniqueFd lock, sqlite3* db, std::string path)
    : lock_(std::move(lock)), db_(db), path_(std::move(path)) {}

Store::~Store() {
  for (const auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

Result<std::unique_ptr<Store>> Store::Open(const std::string& folder) {
  const std::string lock_path = folder + "/lock";
  UniqueFd lock(open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError(errno, "store: '" + lock_path + "' can't be opened");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("store: '{}' is used by another cleatd: stop that one, or give this one a --state-dir of "
                    "its own",
                    folder));
  }
  struct stat mark {};
  const bool expected = fstat(lock.get(), &mark) == 0 && mark.st_size != 0;
  const std::string path = folder + "/" + kFileName;
  struct stat file {};
  if (expected && (stat(path.c_str(), &file) != 0 || file.st_size == 0)) {
    return Damaged(
        path, fmt::format("the file is missing or empty, but there was a store (to start with an empty one, "
                          "remove '{}')",
                          lock_path));
  }
  const mode_t mask = umask(0077);
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<Store> store(new Store(std::move(lock), db, path));
  Status status;
  {
    const MutexLock held(store->mutex_);
    status = code == SQLITE_OK ? store->Prepare(expected) : Status(store->Failed("open"));
  }
  umask(mask);
  CLEAT_TRY(status);
  return store;
}

Status Store::Prepare(bool expected) {
  // locking_mode: the flock already keeps others out; with it WAL needs no shared memory file. secure_delete: wrapped keys
  // are destroyed with their disk.
  for (const char* sql : {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL",
                          "PRAGMA synchronous = FULL", "PRAGMA secure_delete = ON"}) {
    CLEAT_TRY(Execute(sql));
  }
  const auto version = Number("PRAGMA user_version");
  CLEAT_TRY(version);
  if (*version > kSchemaVersion) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("store: '{}' was written by a newer cleatd (schema {}, this one knows {}): run that "
                    "version, or restore a copy made before the upgrade",
                    path_, *version, kSchemaVersion));
  }
  CLEAT_TRY(CheckIntegrity());
  CLEAT_ASSIGN(const auto tables, Number("SELECT count(*) FROM sqlite_master"));
  if (*version == 0 && (expected || tables != 0)) return Damaged(path_, "it has no schema version");
  CLEAT_TRY(CheckApplication());
  if (*version < kSchemaVersion) {
    CLEAT_TRY(MigrateSchema(db_, *version, path_));
    spdlog::info("store '{}': schema migrated: {}, was {}", path_, kSchemaVersion, *version);
    // The schema itself is in the file from now on, not in the log beside it.
    CLEAT_TRY(Execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  }
  const auto number = Number("SELECT number FROM host");
  CLEAT_TRY(number);
  if (*number == 0 || *number > DiskIdentity::kStoreMax) return Damaged(path_, "its number is damaged");
  number_ = *number;
  if (!expected && (pwrite(lock_.get(), kMark, sizeof(kMark) - 1, 0) < 0 || fsync(lock_.get()) != 0)) {
    return ErrnoError(errno, fmt::format("store '{}': its lock file can't be written", path_));
  }
  return Ok{};
}

// A store of schema 7 or older has no application_id yet.
Status Store::CheckApplication() {
  CLEAT_ASSIGN(const auto id, Number("PRAGMA application_id"));
  if (id == kApplicationId) return Ok{};
  if (id != 0)
    return Damaged(path_, fmt::format("it is another program's database (application_id {:#x})", id));
  return Execute(fmt::format("PRAGMA application_id = {}", kApplicationId).c_str());
}

Status Store::CopyInto(sqlite3* copy) {
  const MutexLock lock(mutex_);
  sqlite3_backup* const backup = sqlite3_backup_init(copy, "main", db_, "main");
  if (backup == nullptr) return SqlError(copy, path_, "copying");
  int code = SQLITE_OK;
  // SQLite puts what this connection writes in between into the copy by itself.
  while ((code = sqlite3_backup_step(backup, kCopiedPages)) == SQLITE_OK) {
    const MutexUnlock unlocked(mutex_);
    std::this_thread::yield();
  }
  sqlite3_backup_finish(backup);
  return code == SQLITE_DONE ? Status(Ok{}) : Status(SqlError(copy, path_, "copying"));
}

Status Store::CheckIntegrity() {
  CLEAT_ASSIGN(auto run, Prepared("PRAGMA quick_check(1)"));
  if (run.Step() != SQLITE_ROW) return Failed("PRAGMA quick_check");
  const std::string verdict = run.Bytes(0);
  return verdict == "ok" ? Status(Ok{}) : Status(Damaged(path_, "the file is damaged: " + verdict));
}

Result<uint64_t> Store::Number(const char* sql) {
  CLEAT_ASSIGN(auto run, Prepared(sql));
  if (run.Step() != SQLITE_ROW) return Failed(sql);
  return run.Number(0);
}

Error Store::Failed(const char* sql) {
  return SqlError(db_, path_, sql);
}

Status Store::Execute(const char* sql) {
  return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? Status(Ok{}) : Status(Failed(sql));
}

Result<SqlRun> Store::Prepared(const char* sql) {
  const auto known =
      std::find_if(prepared_.begin(), prepared_.end(), [&](const auto& p) { return p.first == sql; });
  if (known != prepared_.end()) return SqlRun(known->second);
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  // A table or column that is not there: nobody but a damaged file takes one away.
  if (code == SQLITE_ERROR)
    return Damaged(path_, fmt::format("its schema is damaged: {}", sqlite3_errmsg(db_)));
  if (code != SQLITE_OK) return Failed(sql);
  prepared_.emplace_back(sql, statement);
  return SqlRun(statement);
}

Status Store::Step(const char* sql, const std::vector<SqlValue>& values) {
  CLEAT_ASSIGN(auto run, Prepared(sql));
  int position = 0;
  for (const SqlValue& value : values) CLEAT_CHECK(run.Bind(++position, value) == SQLITE_OK);
  return run.Step() == SQLITE_DONE ? Status(Ok{}) : Status(Failed(sql));
}

Status Store::Noted(Status status) {
  if (status.ok()) {
    writable_.store(true, std::memory_order_relaxed);
  } else if (writable_.exchange(false)) {
    const MutexLock lock(on_failure_mutex_);
    if (on_failure_) on_failure_();
  }
  return status;
}

Status Store::CheckNotReplaced() const {
  if (!replaced_) return Ok{};
  return Refuse(v1::REASON_STORE_RESTORED,
                "the store was just restored from a backup, and cleatd loads it: repeat in a moment");
}

Status Store::Run(const char* sql, const std::vector<SqlValue>& values) {
  const MutexLock lock(mutex_);
  CLEAT_TRY(CheckNotReplaced());
  return Noted(Step(sql, values));
}

Status Store::InTransaction(const std::function<Status()>& work) {
  const MutexLock lock(mutex_);
  CLEAT_TRY(CheckNotReplaced());
  Status status = Step(kBegin, {});
  if (status.ok()) status = work();
  if (status.ok()) status = Step(kCommit, {});
  // Some failures end the transaction by themselves.
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0) {
    const Status rolled_back = Step(kRollback, {});
    CLEAT_CHECK(rolled_back.ok() || sqlite3_get_autocommit(db_) != 0);
  }
  return Noted(std::move(status));
}

template <typename Row>
Status Store::StepChange(const Row& row) {
  return Step(StoredAs<Row>::kPut, WithSum(row));
}
Status Store::StepChange(const EraseDiskRow& erased) {
  return Step(kEraseDisk, {erased.id});
}
Status Store::StepChange(const EraseDeletedDiskRow& erased) {
  return Step(kEraseDeletedDisk, {erased.revision});
}
Status Store::StepChange(const EraseGroupRow& erased) {
  return Step(kEraseGroup, {erased.id});
}
Status Store::StepChange(const EraseClusterRow& erased) {
  return Step(kEraseCluster, {erased.id});
}
Status Store::StepChange(const EraseControllerRow& erased) {
  return Step(kEraseController, {erased.id});
}
Status Store::StepChange(const EraseAttachmentRow& erased) {
  return Step(kEraseAttachment, {erased.controller, erased.id});
}
Status Store::StepChange(const EraseUpgradeRow& erased) {
  return Step(kEraseUpgrade, {erased.engine});
}

Status Store::Apply(std::span<const StoreChange* const> changes) {
  return InTransaction([&]() CLEAT_REQUIRES(mutex_) -> Status {
    for (const StoreChange* change : changes) {
      for (const RowChange& row : *change) {
        CLEAT_TRY(std::visit(
            [this](const auto& changed) CLEAT_REQUIRES(mutex_) { return StepChange(changed); }, row));
      }
    }
    return Ok{};
  });
}

Status Store::Apply(const StoreChange& change) {
  const StoreChange* const only = &change;
  return Apply(std::span(&only, 1));
}

// A failure is logged and no more: the rows have gone, and the log is overwritten sooner or later.
void Store::CutLog() {
  const MutexLock lock(mutex_);
  if (auto cut = Execute("PRAGMA wal_checkpoint(TRUNCATE)"); !cut.ok())
    spdlog::warn("store: log not cut after a purge: {}; it may have what was purged until it is overwritten",
                 cut.error().message);
}

void Store::SetOnFailure(std::function<void()> on_failure) {
  const MutexLock lock(on_failure_mutex_);
  on_failure_ = std::move(on_failure);
}

Status Store::Probe() {
  return Run(kProbe, {});
}

Result<uint64_t> Store::NextRevision() {
  const MutexLock lock(mutex_);
  return Number(kNextRevision);
}

Status Store::GoOnFrom(uint64_t next, std::vector<LostRevisions> lost) {
  auto rows = Load();
  CLEAT_TRY(rows);
  return InTransaction([&]() CLEAT_REQUIRES(mutex_) {
    Status status = Step(kSetNextRevision, {next});
    if (status.ok()) status = Step(kEraseLost, {});
    for (const LostRevisions& range : lost) {
      if (status.ok()) status = Step(StoredAs<LostRevisions>::kPut, WithSum(range));
    }
    for (ControllerRow& row : rows->controllers) {
      if (row.spec.type() != v1::CONTROLLER_TYPE_BLK || !status.ok()) continue;
      row.last_disk = DiskIdentity::SomeOf(number_);
      row.last_disk_name.clear();
      status = Step(StoredAs<ControllerRow>::kPut, WithSum(row));
    }
    return status;
  });
}

Status Store::Replace(Store& restored) {
  const MutexLock lock(mutex_);
  const MutexLock restored_lock(
      restored.mutex_);  // in this order: it is a file of its own, that nobody serves from
  CLEAT_TRY(CheckNotReplaced());
  sqlite3_backup* const copy = sqlite3_backup_init(db_, "main", restored.db_, "main");
  if (copy == nullptr) return Failed("restoring");
  // All pages in one step: it commits at its end, and a copy that ends before is undone.
  const int code = sqlite3_backup_step(copy, -1);
  sqlite3_backup_finish(copy);
  if (code != SQLITE_DONE) return Failed("restoring");
  replaced_ = true;
  return Ok{};
}

Result<uint64_t> Store::ReserveRevisions(uint64_t count) {
  const MutexLock lock(mutex_);
  CLEAT_TRY(CheckNotReplaced());
  CLEAT_ASSIGN(auto run, Prepared(kReserveRevisions));
  const SqlValue value(count);
  CLEAT_CHECK(run.Bind(1, value) == SQLITE_OK && run.Bind(2, value) == SQLITE_OK);
  if (run.Step() != SQLITE_ROW) return Failed(kReserveRevisions);
  const uint64_t first = run.Number(0);
  // The row comes before the commit.
  if (run.Step() != SQLITE_DONE) return Failed(kReserveRevisions);
  return first;
}

template <typename Row>
Status Store::LoadAll(std::vector<Row>& rows) {
  using Stored = StoredAs<Row>;
  CLEAT_ASSIGN(auto run, Prepared(Stored::kLoad));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    Row& row = rows.emplace_back();
    const bool sound = ReadRow(run, row);
    if (!sound || RowSum(run.Values(Stored::kColumns)) != run.Number(Stored::kColumns))
      return Damaged(path_, "the row of " + Describe(row) + " is damaged");
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(Stored::kLoad));
}

Result<Rows> Store::Load() {
  const MutexLock lock(mutex_);
  Rows rows;
  CLEAT_TRY(LoadAll(rows.disks));
  CLEAT_TRY(LoadAll(rows.deleted_disks));
  CLEAT_TRY(LoadAll(rows.groups));
  CLEAT_TRY(LoadAll(rows.clusters));
  CLEAT_TRY(LoadAll(rows.controllers));
  CLEAT_TRY(LoadAll(rows.attachments));
  CLEAT_TRY(LoadAll(rows.upgrades));
  CLEAT_TRY(LoadAll(rows.lost));
  CLEAT_ASSIGN(rows.paths_checked_from, Number(kPathsCheckedFrom));
  return rows;
}

}  // namespace cleat::control
