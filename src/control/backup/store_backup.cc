// SPDX-License-Identifier: Apache-2.0
#include "control/backup/store_backup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>

#include "base/clock.h"
#include "control/store/sqlite_row.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {
namespace {

constexpr std::string_view kCopyPrefix = ".cleat.db.backup-";  // nobody else's
constexpr int kKeptInASecondMax = 100;

// As 20260228T130501Z.
std::string UtcTime(uint64_t seconds) {
  const auto time = static_cast<time_t>(seconds);
  tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// A file, and what SQLite puts beside it; all of it goes with this.
class TemporaryDatabase {
 public:
  explicit TemporaryDatabase(const std::string& folder)
      : path_(fmt::format("{}/{}XXXXXX", folder, kCopyPrefix)) {}
  ~TemporaryDatabase() {
    sqlite3_close(db_);
    for (const char* suffix : {"", "-journal", "-wal"}) unlink((path_ + suffix).c_str());
  }
  TemporaryDatabase(const TemporaryDatabase&) = delete;
  TemporaryDatabase& operator=(const TemporaryDatabase&) = delete;

  // Makes the file, of mode 0600.
  Status Open() {
    const UniqueFd made(mkostemp(path_.data(), O_CLOEXEC));
    if (!made.valid()) return UnwritableError(path_, "a backup can't be made there", errno);
    if (sqlite3_open_v2(path_.c_str(), &db_, SQLITE_OPEN_READWRITE, nullptr) != SQLITE_OK)
      return Failed("open");
    // SQLite need not protect the copy from a crash: one that is not finished is thrown away.
    return Execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF");
  }
  Status Execute(const char* sql) {
    return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? Status(Ok{})
                                                                          : Status(Failed(sql));
  }
  // `take` gets each row.
  template <typename Take>
  Status Read(const char* sql, Take take) {
    sqlite3_stmt* prepared = nullptr;
    if (sqlite3_prepare_v2(db_, sql, -1, &prepared, nullptr) != SQLITE_OK) return Failed(sql);
    const std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> statement(prepared, &sqlite3_finalize);
    SqlRun run(prepared);
    int code = SQLITE_OK;
    while ((code = run.Step()) == SQLITE_ROW) take(run);
    return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(sql));
  }
  Error Failed(std::string_view doing) const { return SqlError(db_, path_, doing); }
  sqlite3* db() const { return db_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  sqlite3* db_ = nullptr;
};

Status CheckCopy(TemporaryDatabase& copy) {
  std::string verdict;
  auto status = copy.Read("PRAGMA integrity_check(1)", [&](SqlRun& run) { verdict = run.Bytes(0); });
  if (!status.ok() || verdict == "ok") return status;
  return Error(
      ErrorCode::kDataLoss,
      fmt::format("store: its copy is damaged ({}): look at the host's storage and memory", verdict));
}

// `sql` asks for specs of that kind; adds what their keys are wrapped under.
template <typename Spec>
Status AddKeks(TemporaryDatabase& copy, const char* sql, std::set<std::string>& keks) {
  return copy.Read(sql, [&](SqlRun& run) {
    Spec spec;
    if (!spec.ParseFromString(run.Bytes(0))) return;
    for (const v1::WrappedKey* const key : WrappedKeysIn(spec)) keks.insert(key->key_encryption_key());
  });
}

Status DescribeCopy(TemporaryDatabase& copy, v1::StoreInfo& info) {
  std::set<std::string> keks;
  const auto numbers = [&](SqlRun& run) {
    info.set_schema(static_cast<uint32_t>(run.Number(0)));
    info.set_disks(static_cast<uint32_t>(run.Number(1)));
    info.set_deleted_disks(static_cast<uint32_t>(run.Number(2)));
    info.set_controllers(static_cast<uint32_t>(run.Number(3)));
  };
  CLEAT_TRY(
      AddKeks<v1::DiskSpec>(copy, "SELECT spec FROM disks UNION ALL SELECT spec FROM deleted_disks", keks));
  CLEAT_TRY(AddKeks<v1::ClusterSpec>(copy, "SELECT spec FROM clusters", keks));
  CLEAT_TRY(AddKeks<v1::SubsystemSpec>(copy, "SELECT spec FROM subsystems", keks));
  CLEAT_TRY(AddKeks<v1::ControllerSpec>(copy, "SELECT spec FROM controllers", keks));
  for (const std::string& kek : keks) info.add_key_encryption_keys(kek);
  info.mutable_time()->set_seconds(static_cast<int64_t>(SecondsSince1970()));
  return copy.Read(
      "SELECT user_version, (SELECT count(*) FROM disks), (SELECT count(*) FROM deleted_disks), (SELECT "
      "count(*) FROM "
      "controllers) FROM pragma_user_version",
      numbers);
}

}  // namespace

Result<StoreBackup> BackUp(Store& store, uint64_t newest) {
  TemporaryDatabase copy(store.folder());
  CLEAT_TRY(copy.Open());
  CLEAT_TRY(store.CopyInto(copy.db()));
  // One file, complete without a log beside it.
  CLEAT_TRY(copy.Execute("PRAGMA journal_mode = DELETE"));
  // What was written while it was being copied is newer than `newest`.
  const std::string go_on = fmt::format(
      "UPDATE revisions SET next = 1 + max({}, (SELECT ifnull(max(r), 0) FROM (SELECT intent_revision AS r "
      "FROM disks UNION "
      "ALL SELECT intent_revision FROM deleted_disks UNION ALL SELECT intent_revision FROM pools UNION "
      "ALL SELECT intent_revision FROM subsystems UNION ALL SELECT intent_revision FROM clusters UNION "
      "ALL SELECT "
      "spec_revision FROM clusters UNION ALL SELECT intent_revision FROM groups UNION ALL SELECT "
      "intent_revision FROM "
      "controllers UNION ALL SELECT intent_revision FROM attachments)))",
      newest);
  CLEAT_TRY(copy.Execute(go_on.c_str()));
  CLEAT_TRY(CheckCopy(copy));
  StoreBackup backup;
  CLEAT_TRY(DescribeCopy(copy, backup.info));
  backup.file = UniqueFd(open(copy.path().c_str(), O_RDONLY | O_CLOEXEC));
  struct stat file {};
  if (!backup.file.valid() || fstat(backup.file.get(), &file) != 0)
    return ErrnoError(errno, fmt::format("the backup '{}' can't be read", copy.path()));
  backup.info.set_size_bytes(static_cast<uint64_t>(file.st_size));
  return backup;
}

Result<std::string> KeepBeside(Store& store) {
  TemporaryDatabase copy(store.folder());
  CLEAT_TRY(copy.Open());
  CLEAT_TRY(store.CopyInto(copy.db()));
  CLEAT_TRY(copy.Execute("PRAGMA journal_mode = DELETE"));
  const UniqueFd file(open(copy.path().c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd folder(open(store.folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string name =
      fmt::format("{}/{}.before-restore-{}", store.folder(), Store::kFileName, UtcTime(SecondsSince1970()));
  std::string path = name;
  for (int again = 2; link(copy.path().c_str(), path.c_str()) != 0; ++again) {
    if (errno != EEXIST || again > kKeptInASecondMax)
      return UnwritableError(path, "the present store can't be kept there", errno);
    path = fmt::format("{}-{}", name, again);
  }
  if (!file.valid() || !folder.valid() || fsync(file.get()) != 0 || fsync(folder.get()) != 0) {
    Error error = UnwritableError(path, "the present store can't be kept there", errno);
    unlink(path.c_str());
    return error;
  }
  return path;
}

void RemoveUnfinishedBackups(const std::string& folder) {
  std::error_code failed;
  std::filesystem::directory_iterator file(folder, failed);
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    std::error_code ignored;
    if (file->path().filename().string().starts_with(kCopyPrefix))
      std::filesystem::remove(file->path(), ignored);
  }
}

}  // namespace cleat::control
