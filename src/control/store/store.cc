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
constexpr char kEraseSubsystem[] = "DELETE FROM subsystems WHERE id = ?";
constexpr char kErasePool[] = "DELETE FROM pools WHERE id = ?";
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

// Of one cleatd at a time. On a read-only file system the lock can still be taken, of a file that is there.
Result<UniqueFd> LockFolder(const std::string& folder) {
  const std::string path = folder + "/lock";
  UniqueFd lock(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const int error = errno;
  if (!lock.valid()) lock = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock.valid() && (error == EROFS || error == ENOSPC || error == EDQUOT))
    return UnwritableError(path, "there is none, and none can be made", error);
  if (!lock.valid()) return ErrnoError(error, "store: '" + path + "' can't be opened");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  return Error(
      ErrorCode::kAlreadyExists,
      fmt::format("store: '{}' is used by another cleatd: stop that one, or give this one a --state-dir of "
                  "its own",
                  folder));
}

Error Newer(const std::string& path, uint64_t version) {
  return {ErrorCode::kFailedPrecondition,
          fmt::format("store: '{}' was written by a newer cleatd (schema {}, this one knows {}): run that "
                      "version, or restore a copy made before the upgrade",
                      path, version, kSchemaVersion)};
}

// A number of the file's header (https://www.sqlite.org/fileformat.html, 1.3).
uint64_t HeaderNumber(std::string_view header, size_t at) {
  uint64_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(header[at + i]);
  return number;
}

}  // namespace

Store::Store(UniqueFd lock, std::string path, bool expected)
    : lock_(std::move(lock)), path_(std::move(path)), expected_(expected) {}

Store::~Store() {
  const MutexLock lock(mutex_);
  CloseConnection();
}

void Store::CloseConnection() {
  for (const auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  prepared_.clear();
  sqlite3_close(std::exchange(db_, nullptr));
}

Result<std::unique_ptr<Store>> Store::Open(const std::string& folder) {
  CLEAT_ASSIGN(UniqueFd lock, LockFolder(folder));
  struct stat mark {};
  const bool expected = fstat(lock.get(), &mark) == 0 && mark.st_size != 0;
  const std::string path = folder + "/" + kFileName;
  struct stat file {};
  if (expected && (stat(path.c_str(), &file) != 0 || file.st_size == 0)) {
    return Damaged(
        path, fmt::format("the file is missing or empty, but there was a store (to start with an empty one, "
                          "remove '{}/lock')",
                          folder));
  }
  std::unique_ptr<Store> store(new Store(std::move(lock), path, expected));
  const MutexLock held(store->mutex_);
  Status opened = store->OpenFile();
  if (!opened.ok() && IsUnwritable(opened.error())) opened = store->OpenCopy(opened.error());
  CLEAT_TRY(opened);
  return store;
}

Status Store::CheckFile(const std::string& folder) {
  constexpr size_t kHeaderBytes = 100;
  constexpr size_t kVersionAt = 60;
  constexpr size_t kApplicationIdAt = 68;
  const std::string path = folder + "/" + kFileName;
  struct stat mark {};
  const bool expected = stat((folder + "/lock").c_str(), &mark) == 0 && mark.st_size != 0;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT && !expected) return Ok{};
  if (!file.valid() && errno == ENOENT) return Damaged(path, "the file is missing, but there was a store");
  if (!file.valid()) return ErrnoError(errno, fmt::format("store: '{}' can't be read", path));
  std::string header(kHeaderBytes, '\0');
  const ssize_t got = pread(file.get(), header.data(), header.size(), 0);
  if (got == 0 && !expected) return Ok{};
  if (got != static_cast<ssize_t>(kHeaderBytes) || !header.starts_with("SQLite format 3"))
    return Damaged(path, "it is no database");
  const uint64_t id = HeaderNumber(header, kApplicationIdAt);
  if (id != 0 && id != kApplicationId)
    return Damaged(path, fmt::format("it is another program's database (application_id {:#x})", id));
  const uint64_t version = HeaderNumber(header, kVersionAt);
  return version > kSchemaVersion ? Status(Newer(path, version)) : Status(Ok{});
}

Status Store::OpenConnection(int flags) {
  if (sqlite3_open_v2(path_.c_str(), &db_, flags, nullptr) != SQLITE_OK) return Failed("open");
  // SQLite opens for reading what it may not write.
  if (sqlite3_db_readonly(db_, "main") != 1) return Ok{};
  return UnwritableError(path_, "it can be opened for reading alone",
                         access(path_.c_str(), W_OK) == 0 ? EROFS : errno);
}

Status Store::OpenFile() {
  const mode_t mask = umask(0077);
  Status status = OpenConnection(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (status.ok()) status = Prepare();
  umask(mask);
  return status;
}

Status Store::Configure() {
  // locking_mode: the flock already keeps others out; with it WAL needs no shared memory file. secure_delete: wrapped keys
  // are destroyed with their disk.
  for (const char* sql : {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL",
                          "PRAGMA synchronous = FULL", "PRAGMA secure_delete = ON"}) {
    CLEAT_TRY(Execute(sql));
  }
  return Ok{};
}

Status Store::Prepare() {
  CLEAT_TRY(Configure());
  const auto version = Number("PRAGMA user_version");
  CLEAT_TRY(version);
  if (*version > kSchemaVersion) return Newer(path_, *version);
  CLEAT_TRY(CheckIntegrity());
  CLEAT_ASSIGN(const auto tables, Number("SELECT count(*) FROM sqlite_master"));
  if (*version == 0 && (expected_ || tables != 0)) return Damaged(path_, "it has no schema version");
  CLEAT_TRY(CheckApplication());
  CLEAT_TRY(Migrate(*version));
  CLEAT_ASSIGN(number_, ReadNumber());
  return MarkFolder();
}

Status Store::Migrate(uint64_t version) {
  if (version == kSchemaVersion) return Ok{};
  CLEAT_TRY(MigrateSchema(db_, version, path_));
  spdlog::info("store '{}': schema migrated: {}, was {}", path_, kSchemaVersion, version);
  // The schema itself is in the file from now on, not in the log beside it.
  return Execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

Result<uint64_t> Store::ReadNumber() {
  CLEAT_ASSIGN(const uint64_t number, Number("SELECT number FROM host"));
  if (number == 0 || number > DiskIdentity::kStoreMax) return Damaged(path_, "its number is damaged");
  return number;
}

Status Store::MarkFolder() {
  if (expected_) return Ok{};
  const std::string path = folder() + "/lock";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid() || pwrite(file.get(), kMark, sizeof(kMark) - 1, 0) < 0 || fsync(file.get()) != 0)
    return UnwritableError(path_, "its lock file can't be written", errno);
  expected_ = true;
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
  using std::chrono::steady_clock;
  if (status.ok()) {
    if (!writable_.exchange(true)) {
      spdlog::info("store '{}': can be written again after {:.1f} s; changes are taken", path_,
                   std::chrono::duration<double>(steady_clock::now() - unwritable_since_).count());
    }
  } else if (writable_.exchange(false)) {
    unwritable_since_ = steady_clock::now();
    spdlog::error("{}; changes are refused until then", status.error().message);
    const MutexLock lock(on_failure_mutex_);
    if (on_failure_) on_failure_();
  }
  return status;
}

Status Store::CheckTakesWrites() const {
  CLEAT_TRY(CheckNotReplaced());
  return refusal_ ? Status(*refusal_) : Status(Ok{});
}

Status Store::CheckNotReplaced() const {
  if (!replaced_) return Ok{};
  return Refuse(v1::REASON_STORE_RESTORED,
                "the store was just restored from a backup, and cleatd loads it: repeat in a moment");
}

Status Store::InTransaction(const std::function<Status()>& work) {
  const MutexLock lock(mutex_);
  CLEAT_TRY(CheckTakesWrites());
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
Status Store::StepChange(const EraseSubsystemRow& erased) {
  return Step(kEraseSubsystem, {erased.id});
}
Status Store::StepChange(const ErasePoolRow& erased) {
  return Step(kErasePool, {erased.id});
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
  const MutexLock lock(mutex_);
  CLEAT_TRY(CheckNotReplaced());
  Status status = copied_ ? GoFromCopyToFile() : Status(Ok{});
  if (status.ok()) status = Step(kProbe, {});
  if (!refusal_) return Noted(std::move(status));
  if (!status.ok()) refusal_ = status.error();  // why it can't be written now
  return status;
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
  CLEAT_TRY(CheckTakesWrites());
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
  if (copied_) return *refusal_;
  auto first = StepReserve(count);
  Status status;
  if (!first.ok()) status = first.error();
  refusal_ = first.ok() ? std::nullopt : std::optional(first.error());
  CLEAT_TRY(Noted(std::move(status)));
  return first;
}

Result<uint64_t> Store::StepReserve(uint64_t count) {
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
  return LoadRows();
}

Result<Rows> Store::LoadRows() {
  Rows rows;
  CLEAT_TRY(LoadAll(rows.disks));
  CLEAT_TRY(LoadAll(rows.deleted_disks));
  CLEAT_TRY(LoadAll(rows.groups));
  CLEAT_TRY(LoadAll(rows.clusters));
  CLEAT_TRY(LoadAll(rows.subsystems));
  CLEAT_TRY(LoadAll(rows.pools));
  CLEAT_TRY(LoadAll(rows.controllers));
  CLEAT_TRY(LoadAll(rows.attachments));
  CLEAT_TRY(LoadAll(rows.upgrades));
  CLEAT_TRY(LoadAll(rows.lost));
  CLEAT_ASSIGN(rows.paths_checked_from, Number(kPathsCheckedFrom));
  return rows;
}

}  // namespace cleat::control
