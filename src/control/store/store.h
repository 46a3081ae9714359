// SPDX-License-Identifier: Apache-2.0
// The durable intent: one SQLite file (WAL, synchronous=FULL), one table a kind of resource. A call that
// returned OK is on disk: it survives kill -9 and a power cut. Each call is one transaction.
//
// A store that can't be read back whole is refused with kDataLoss, never taken for an empty one: SQLite's own check of
// the file, a checksum in each row, and a mark in the lock file that says that there is a store.
//
// A file that can be read and not written - its file system is full, or mounted read-only - is served from a copy in memory that has
// its write-ahead log applied (private_copy.h). Writes are refused with the reason until ReserveRevisions has succeeded, since what is
// numbered before could be numbered so again by the next process.
//
// One process a file (held by a lock beside it). Any thread; one at a time writes.
#pragma once

#include <sqlite3.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/own_files.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "control/model/model.h"
#include "control/store/private_copy.h"
#include "control/store/sqlite_row.h"
#include "control/store/store_change.h"

namespace cleat::control {

class Store {
 public:
  static constexpr const char* kFileName = OwnFiles::kStoreName;
  static constexpr uint64_t kApplicationId = OwnFiles::kStoreApplicationId;

  // Opens or makes `folder`/cleat.db, and migrates an older one. kAlreadyExists when another process has it,
  // kFailedPrecondition when it is of a newer version; kDataLoss when it is damaged or missing though it was there. STORE_FULL or STORE_UNWRITABLE when it can't
  // be written and there is nothing to serve meanwhile: no file yet, or one that has to be migrated.
  static Result<std::unique_ptr<Store>> Open(const std::string& folder);
  // Whether Open would know what is there, as far as the file's header says; looks at no lock, so that another process may have it.
  // kFailedPrecondition or kDataLoss, as Open.
  static Status CheckFile(const std::string& folder);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Everything; kDataLoss when a row can't be read back.
  Result<Rows> Load();

  // All of the changes, in their order, in one transaction, or nothing.
  Status Apply(std::span<const StoreChange* const> changes);
  Status Apply(const StoreChange& change);
  // Takes erased rows out of the store's log, too. For rows with keys; it costs several syncs.
  void CutLog();

  // Copies the whole store, as it is when this returns, into an empty database; others write meanwhile.
  Status CopyInto(sqlite3* copy);
  std::string folder() const { return path_.substr(0, path_.rfind('/')); }

  // ---- Restoring. (store_restore.cc has the whole way.)
  // The first revision that no process has reserved.
  Result<uint64_t> NextRevision();
  // Of a store that nobody serves from: goes on with that revision, and takes those for lost. Which disk a blk controller's guest had last
  // is not known then: its engine knows, or it is another one than any.
  Status GoOnFrom(uint64_t next, std::vector<LostRevisions> lost);
  // All of `restored` takes the place of what is here, in one transaction: a crash leaves the one or the other. From then on nothing is
  // written any more (STORE_RESTORED): who serves from this has to load everything anew. `restored` is of the same schema.
  Status Replace(Store& restored);

  // The store's own number, of 24 bits and never 0: DiskIdentity::Of. The same for as long as the store is open.
  uint64_t number() const { return number_; }
  // The first of `count` revisions that no process has handed out before and none will hand out again. After an error all writes are
  // refused, with that error, until this succeeds.
  Result<uint64_t> ReserveRevisions(uint64_t count);

  // Whether the last write succeeded, and none is refused.
  bool writable() const { return writable_.load(std::memory_order_relaxed); }
  // Called, on the thread of the write, when one fails after one that did not. Set before other threads write, or with
  // none that does.
  void SetOnFailure(std::function<void()> on_failure);
  // Writes something that changes nothing. What is served from a copy is served from the file from then on, if that is still the one that
  // was loaded.
  Status Probe();

 private:
  // `expected`: the lock file says that there is a store.
  Store(UniqueFd lock, std::string path, bool expected);
  // `flags`: SQLite's. Refused when the file can be opened for reading alone.
  Status OpenConnection(int flags) CLEAT_REQUIRES(mutex_);
  Status OpenFile() CLEAT_REQUIRES(mutex_);
  // Instead of the file, which can't be written because of `cause`.
  Status OpenCopy(const Error& cause) CLEAT_REQUIRES(mutex_);
  Status GoFromCopyToFile() CLEAT_REQUIRES(mutex_);
  // Whether the file is the one that was copied; reads alone, and a file that was refused not again while it is as it was.
  Status CompareFile() CLEAT_REQUIRES(mutex_);
  Status ReadAndCompare() CLEAT_REQUIRES(mutex_);
  // Whether what is in db_ is what was copied.
  Status CheckAsCopied() CLEAT_REQUIRES(mutex_);
  // The file, which is the one that was copied, for writing.
  Status OpenExisting() CLEAT_REQUIRES(mutex_);
  void CloseConnection() CLEAT_REQUIRES(mutex_);
  Status Configure() CLEAT_REQUIRES(mutex_);
  Status Prepare() CLEAT_REQUIRES(mutex_);
  Status Migrate(uint64_t version) CLEAT_REQUIRES(mutex_);
  Result<uint64_t> ReadNumber() CLEAT_REQUIRES(mutex_);
  Status MarkFolder() CLEAT_REQUIRES(mutex_);
  // Of all rows and revisions: another one when anything differs.
  Result<uint64_t> Fingerprint() CLEAT_REQUIRES(mutex_);
  Status CheckIntegrity() CLEAT_REQUIRES(mutex_);
  Status CheckApplication() CLEAT_REQUIRES(mutex_);
  Result<uint64_t> Number(const char* sql) CLEAT_REQUIRES(mutex_);
  Status Execute(const char* sql) CLEAT_REQUIRES(mutex_);
  // Runs a prepared statement that gives no rows.
  Status Step(const char* sql, const std::vector<SqlValue>& values) CLEAT_REQUIRES(mutex_);
  // Runs `work` in one transaction, which is undone if it fails.
  Status InTransaction(const std::function<Status()>& work);
  template <typename Row>
  Status StepChange(const Row& row) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseDiskRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseDeletedDiskRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseGroupRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseClusterRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseSubsystemRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const ErasePoolRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseControllerRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseAttachmentRow& erased) CLEAT_REQUIRES(mutex_);
  Status StepChange(const EraseUpgradeRow& erased) CLEAT_REQUIRES(mutex_);
  // Of a write: notes whether the store takes them, and logs when that changes.
  Status Noted(Status status) CLEAT_REQUIRES(mutex_);
  Result<SqlRun> Prepared(const char* sql) CLEAT_REQUIRES(mutex_);
  Error Failed(const char* sql) CLEAT_REQUIRES(mutex_);
  Result<uint64_t> StepReserve(uint64_t count) CLEAT_REQUIRES(mutex_);
  Result<Rows> LoadRows() CLEAT_REQUIRES(mutex_);
  // All rows of the kind; kDataLoss when one can't be read back.
  template <typename Row>
  Status LoadAll(std::vector<Row>& rows) CLEAT_REQUIRES(mutex_);
  Status CheckNotReplaced() const CLEAT_REQUIRES(mutex_);
  // Before every write.
  Status CheckTakesWrites() const CLEAT_REQUIRES(mutex_);

  UniqueFd lock_;
  Mutex mutex_;
  sqlite3* db_ CLEAT_GUARDED_BY(mutex_) = nullptr;
  std::string path_;
  bool expected_;
  uint64_t number_ = 0;                                      // set before anybody else has the store
  std::optional<uint64_t> copied_ CLEAT_GUARDED_BY(mutex_);  // db_ is a copy of the file, of that fingerprint
  // The file as it was last compared with the copy.
  struct Compared {
    FileStamp stamp;
    Status verdict;
    std::chrono::steady_clock::time_point until;  // the verdict, when it is a refusal, is taken for
  };
  std::optional<Compared> compared_ CLEAT_GUARDED_BY(mutex_);
  std::optional<Error> refusal_ CLEAT_GUARDED_BY(mutex_);  // of all writes, until revisions are reserved
  std::chrono::steady_clock::time_point unwritable_since_ CLEAT_GUARDED_BY(mutex_);
  bool replaced_ CLEAT_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<const char*, sqlite3_stmt*>> prepared_
      CLEAT_GUARDED_BY(mutex_);  // by the address of their text
  std::atomic<bool> writable_ = true;
  Mutex on_failure_mutex_;
  std::function<void()> on_failure_ CLEAT_GUARDED_BY(on_failure_mutex_);
};

}  // namespace cleat::control
