// SPDX-License-Identifier: Apache-2.0
#include "control/store.h"

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
#include "control/migrations.h"
#include "control/names.h"
#include "control/reasons.h"
#include "control/store_backup.h"
#include "control/store_restore.h"

namespace cleat::control {
namespace {

// In the lock file once there is a store.
constexpr char kMark[] = "A Cleat store is beside this file. Remove both to start with an empty one.\n";

constexpr char kPutDisk[] = "REPLACE INTO disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr char kPutDeletedDisk[] =
    "REPLACE INTO deleted_disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr char kPutGroup[] = "REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
constexpr char kPutCluster[] = "REPLACE INTO clusters VALUES (?, ?, ?, ?, ?, ?, ?)";
constexpr char kPutController[] = "REPLACE INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr char kPutAttachment[] = "REPLACE INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?)";
constexpr char kPutUpgrade[] = "REPLACE INTO upgrades VALUES (?, ?, ?)";
constexpr char kEraseDisk[] = "DELETE FROM disks WHERE id = ?";
constexpr char kEraseDeletedDisk[] = "DELETE FROM deleted_disks WHERE revision = ?";
constexpr char kEraseGroup[] = "DELETE FROM groups WHERE id = ?";
constexpr char kEraseCluster[] = "DELETE FROM clusters WHERE id = ?";
constexpr char kEraseController[] = "DELETE FROM controllers WHERE id = ?";
constexpr char kEraseAttachment[] = "DELETE FROM attachments WHERE controller = ? AND id = ?";
constexpr char kLoadDisks[] =
    "SELECT id, spec, revision, deleting, reached_engine, kept_by, labels, intent_revision, limits_revision, "
    "image_bytes, sum FROM disks";
constexpr char kLoadDeletedDisks[] =
    "SELECT id, spec, revision, deleting, reached_engine, kept_by, labels, intent_revision, limits_revision, "
    "image_bytes, delete_time, purge_time, sum FROM deleted_disks";
constexpr char kLoadGroups[] =
    "SELECT id, spec, revision, slot, labels, intent_revision, limits_revision, sum FROM groups";
constexpr char kLoadClusters[] =
    "SELECT id, spec, revision, labels, intent_revision, spec_revision, sum FROM clusters";
constexpr char kLoadControllers[] =
    "SELECT id, spec, revision, deleting, engine, labels, intent_revision, last_disk, last_disk_name, sum "
    "FROM "
    "controllers";
constexpr char kLoadAttachments[] =
    "SELECT controller, id, spec, revision, deleting, intent_revision, sum FROM attachments";
constexpr char kLoadUpgrades[] = "SELECT engine, status, sum FROM upgrades";
constexpr char kLoadLost[] = "SELECT first, until, sum FROM lost_revisions ORDER BY first";
constexpr char kPutLost[] = "INSERT INTO lost_revisions VALUES (?, ?, ?)";
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

// The columns of a row, all but the checksum.
std::vector<SqlValue> ValuesOf(const DiskRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          uint64_t{row.deleting},
          uint64_t{row.reached_engine},
          JoinIds(row.kept_by),
          JoinLabels(row.labels),
          row.intent_revision,
          row.limits_revision,
          row.image_bytes};
}

std::vector<SqlValue> ValuesOf(const DeletedDiskRow& row) {
  std::vector<SqlValue> values = ValuesOf(row.disk);
  values.emplace_back(row.delete_time_s);
  values.emplace_back(row.purge_time_s);
  return values;
}

std::vector<SqlValue> ValuesOf(const GroupRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          uint64_t{row.slot},
          JoinLabels(row.labels),
          row.intent_revision,
          row.limits_revision};
}

std::vector<SqlValue> ValuesOf(const ClusterRow& row) {
  return {row.id, row.spec, row.revision, JoinLabels(row.labels), row.intent_revision, row.spec_revision};
}

std::vector<SqlValue> ValuesOf(const ControllerRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          uint64_t{row.deleting},
          row.engine,
          JoinLabels(row.labels),
          row.intent_revision,
          row.last_disk.value(),
          row.last_disk_name};
}

std::vector<SqlValue> ValuesOf(const AttachmentRow& row) {
  return {row.controller, row.id, row.spec, row.revision, uint64_t{row.deleting}, row.intent_revision};
}

std::vector<SqlValue> ValuesOf(const UpgradeRow& row) {
  return {row.engine, row.status};
}

std::vector<SqlValue> ValuesOf(const LostRevisions& lost) {
  return {lost.first, lost.until};
}

// Reads the columns that `disks` and `deleted_disks` share. False when they can't be right.
bool ReadDisk(SqlRun& run, DiskRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.deleting = run.Number(3) != 0;
  row.reached_engine = run.Number(4) != 0;
  row.kept_by = SplitIds(run.Bytes(5));
  row.labels = SplitLabels(run.Bytes(6));
  row.intent_revision = run.Number(7);
  row.limits_revision = run.Number(8);
  row.image_bytes = run.Number(9);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
}

std::vector<SqlValue> WithSum(std::vector<SqlValue> values) {
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
  RemoveUnfinishedBackups(folder);
  RemoveUnfinishedUploads(folder);
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
    spdlog::info("store '{}': schema {}, was {}", path_, kSchemaVersion, *version);
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
Status Store::PutTogether(const char* sql, std::span<const Row* const> rows) {
  return InTransaction([&]() CLEAT_REQUIRES(mutex_) {
    Status status;
    for (const Row* row : rows) {
      if (status.ok()) status = Step(sql, WithSum(ValuesOf(*row)));
    }
    return status;
  });
}

Status Store::Put(std::span<const AttachmentRow* const> rows) {
  return PutTogether(kPutAttachment, rows);
}
Status Store::Put(std::span<const DiskRow* const> rows) {
  return PutTogether(kPutDisk, rows);
}
Status Store::Put(std::span<const DeletedDiskRow* const> rows) {
  return PutTogether(kPutDeletedDisk, rows);
}
Status Store::Put(std::span<const ControllerRow* const> rows) {
  return PutTogether(kPutController, rows);
}

Status Store::Put(const GroupRow& row) {
  return Run(kPutGroup, WithSum(ValuesOf(row)));
}
Status Store::Put(const ClusterRow& row) {
  return Run(kPutCluster, WithSum(ValuesOf(row)));
}
Status Store::Put(const DiskRow& row) {
  return Run(kPutDisk, WithSum(ValuesOf(row)));
}
Status Store::Put(const ControllerRow& row) {
  return Run(kPutController, WithSum(ValuesOf(row)));
}
Status Store::Put(const AttachmentRow& row) {
  return Run(kPutAttachment, WithSum(ValuesOf(row)));
}

Status Store::Put(const UpgradeRow& row) {
  return Run(kPutUpgrade, WithSum(ValuesOf(row)));
}

Status Store::EraseDisk(const std::string& id) {
  return Run(kEraseDisk, {id});
}

Status Store::RemoveDisk(const std::string& id, const DiskRow* tombstone, const DeletedDiskRow* kept) {
  return InTransaction([&]() CLEAT_REQUIRES(mutex_) {
    Status status =
        tombstone == nullptr ? Step(kEraseDisk, {id}) : Step(kPutDisk, WithSum(ValuesOf(*tombstone)));
    if (status.ok() && kept != nullptr) status = Step(kPutDeletedDisk, WithSum(ValuesOf(*kept)));
    return status;
  });
}

Status Store::UndeleteDisk(uint64_t kept_revision, const DiskRow& row) {
  return InTransaction([&]() CLEAT_REQUIRES(mutex_) {
    Status status = Step(kEraseDeletedDisk, {kept_revision});
    if (status.ok()) status = Step(kPutDisk, WithSum(ValuesOf(row)));
    return status;
  });
}

Status Store::PurgeDisks(std::span<const uint64_t> kept_revisions) {
  Status status = InTransaction([&]() CLEAT_REQUIRES(mutex_) {
    Status erased;
    for (const uint64_t revision : kept_revisions) {
      if (erased.ok()) erased = Step(kEraseDeletedDisk, {revision});
    }
    return erased;
  });
  if (status.ok()) CutLog();
  return status;
}

// A failure is logged and no more: the rows have gone, and the log is overwritten sooner or later.
void Store::CutLog() {
  const MutexLock lock(mutex_);
  if (auto cut = Execute("PRAGMA wal_checkpoint(TRUNCATE)"); !cut.ok())
    spdlog::warn("what was purged may still be in the store's log: {}", cut.error().message);
}

Status Store::EraseGroup(const std::string& id) {
  return Run(kEraseGroup, {id});
}
Status Store::EraseCluster(const std::string& id) {
  return Run(kEraseCluster, {id});
}
Status Store::EraseController(const std::string& id) {
  return Run(kEraseController, {id});
}
Status Store::EraseAttachment(const std::string& controller, const std::string& id) {
  return Run(kEraseAttachment, {controller, id});
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
      if (status.ok()) status = Step(kPutLost, WithSum(ValuesOf(range)));
    }
    for (ControllerRow& row : rows->controllers) {
      if (row.spec.type() != v1::CONTROLLER_TYPE_BLK || !status.ok()) continue;
      row.last_disk = DiskIdentity::SomeOf(number_);
      row.last_disk_name.clear();
      status = Step(kPutController, WithSum(ValuesOf(row)));
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

Result<Rows> Store::Load() {
  const MutexLock lock(mutex_);
  Rows rows;
  CLEAT_TRY(LoadDisks(rows.disks));
  CLEAT_TRY(LoadDeletedDisks(rows.deleted_disks));
  CLEAT_TRY(LoadGroups(rows.groups));
  CLEAT_TRY(LoadClusters(rows.clusters));
  CLEAT_TRY(LoadControllers(rows.controllers));
  CLEAT_TRY(LoadAttachments(rows.attachments));
  CLEAT_TRY(LoadUpgrades(rows.upgrades));
  CLEAT_TRY(LoadLost(rows.lost));
  CLEAT_ASSIGN(rows.paths_checked_from, Number(kPathsCheckedFrom));
  return rows;
}

Status Store::CheckRow(SqlRun& run, int columns, bool parsed, const std::string& what) const {
  if (parsed && RowSum(run.Values(columns)) == run.Number(columns)) return Ok{};
  return Damaged(path_, "the row of " + what + " is damaged");
}

Status Store::LoadDisks(std::vector<DiskRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadDisks));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    DiskRow& row = rows.emplace_back();
    const bool parsed = ReadDisk(run, row);
    const std::string what = fmt::format("disk '{}'", row.id);
    CLEAT_TRY(CheckRow(run, 10, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadDisks));
}

Status Store::LoadDeletedDisks(std::vector<DeletedDiskRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadDeletedDisks));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    DeletedDiskRow& row = rows.emplace_back();
    const bool parsed = ReadDisk(run, row.disk);
    row.delete_time_s = run.Number(10);
    row.purge_time_s = run.Number(11);
    const std::string what = fmt::format("deleted disk '{}'", row.disk.id);
    CLEAT_TRY(CheckRow(run, 12, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadDeletedDisks));
}

Status Store::LoadGroups(std::vector<GroupRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadGroups));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    GroupRow& row = rows.emplace_back();
    row.id = run.Bytes(0);
    const bool parsed = row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id) && run.Number(3) < kGroupsMax;
    row.revision = run.Number(2);
    row.slot = static_cast<uint32_t>(run.Number(3));
    row.labels = SplitLabels(run.Bytes(4));
    row.intent_revision = run.Number(5);
    row.limits_revision = run.Number(6);
    const std::string what = fmt::format("group '{}'", row.id);
    CLEAT_TRY(CheckRow(run, 7, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadGroups));
}

Status Store::LoadClusters(std::vector<ClusterRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadClusters));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    ClusterRow& row = rows.emplace_back();
    row.id = run.Bytes(0);
    const bool parsed = row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
    row.revision = run.Number(2);
    row.labels = SplitLabels(run.Bytes(3));
    row.intent_revision = run.Number(4);
    row.spec_revision = run.Number(5);
    const std::string what = fmt::format("cluster '{}'", row.id);
    CLEAT_TRY(CheckRow(run, 6, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadClusters));
}

Status Store::LoadControllers(std::vector<ControllerRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadControllers));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    ControllerRow& row = rows.emplace_back();
    row.id = run.Bytes(0);
    const bool parsed = row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
    row.revision = run.Number(2);
    row.deleting = run.Number(3) != 0;
    row.engine = run.Bytes(4);
    row.labels = SplitLabels(run.Bytes(5));
    row.intent_revision = run.Number(6);
    row.last_disk = DiskIdentity(run.Number(7));
    row.last_disk_name = run.Bytes(8);
    const std::string what = fmt::format("controller '{}'", row.id);
    CLEAT_TRY(CheckRow(run, 9, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadControllers));
}

Status Store::LoadAttachments(std::vector<AttachmentRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadAttachments));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    AttachmentRow& row = rows.emplace_back();
    row.controller = run.Bytes(0);
    row.id = run.Bytes(1);
    const bool parsed = row.spec.ParseFromString(run.Bytes(2)) && IsId(row.id);
    row.revision = run.Number(3);
    row.deleting = run.Number(4) != 0;
    row.intent_revision = run.Number(5);
    const std::string what = fmt::format("attachment '{}' of controller '{}'", row.id, row.controller);
    CLEAT_TRY(CheckRow(run, 6, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadAttachments));
}

Status Store::LoadUpgrades(std::vector<UpgradeRow>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadUpgrades));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    UpgradeRow& row = rows.emplace_back();
    row.engine = run.Bytes(0);
    const bool parsed = row.status.ParseFromString(run.Bytes(1)) && IsId(row.engine);
    const std::string what = fmt::format("the upgrade of engine '{}'", row.engine);
    CLEAT_TRY(CheckRow(run, 2, parsed, what));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadUpgrades));
}

Status Store::LoadLost(std::vector<LostRevisions>& rows) {
  CLEAT_ASSIGN(auto run, Prepared(kLoadLost));
  int code = SQLITE_OK;
  while ((code = run.Step()) == SQLITE_ROW) {
    const LostRevisions& row = rows.emplace_back(LostRevisions{run.Number(0), run.Number(1)});
    const bool parsed = row.first < row.until;
    CLEAT_TRY(CheckRow(run, 2, parsed, "lost revisions"));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadLost));
}

}  // namespace cleat::control
