// SPDX-License-Identifier: Apache-2.0
// A store whose file system is full or read-only when cleatd starts: what is in it is served as it is, with the log beside the file,
// changes are refused with the reason until it can be written, and no revision is given twice.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "control/model/reasons.h"
#include "control/state/host_state.h"
#include "control/store/private_copy.h"
#include "control/store/sqlite_row.h"
#include "control/store/store.h"
#include "full_disk.h"
#include "requests.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::unwritable_store_test {
namespace {

DiskRow Disk(const std::string& id, uint64_t revision) {
  DiskRow row;
  row.id = id;
  row.spec.set_size_bytes(4096);
  row.spec.set_serial(std::string(20, 's'));
  row.spec.mutable_null();
  row.revision = row.intent_revision = revision;
  return row;
}

std::string IdsIn(const Rows& rows) {
  std::string ids;
  for (const DiskRow& row : rows.disks) ids += row.id + " ";
  return ids;
}

// What SQLite reads of the file alone.
std::string IdsWithoutTheLog(const std::string& path) {
  sqlite3* db = nullptr;
  const std::string uri = "file:" + path + "?immutable=1";
  EXPECT_EQ(sqlite3_open_v2(uri.c_str(), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr), SQLITE_OK);
  std::string ids;
  const auto add = [](void* to, int, char** values, char**) {
    static_cast<std::string*>(to)->append(values[0]).append(" ");
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(db, "SELECT id FROM disks ORDER BY id", add, &ids, nullptr), SQLITE_OK);
  sqlite3_close(db);
  return ids;
}

// How often SQLite opens a file, all of this process, while this lives.
class CountedOpens {
 public:
  CountedOpens() {
    count_ = 0;
    Set(reinterpret_cast<sqlite3_syscall_ptr>(&Open));
  }
  ~CountedOpens() { Set(nullptr); }
  CountedOpens(const CountedOpens&) = delete;
  CountedOpens& operator=(const CountedOpens&) = delete;
  int count() const { return count_; }

 private:
  static int Open(const char* path, int flags, int mode) {
    ++count_;
    return open(path, flags, mode);
  }
  static void Set(sqlite3_syscall_ptr call) {
    sqlite3_vfs* const vfs = sqlite3_vfs_find(nullptr);
    vfs->xSetSystemCall(vfs, "open", call);
  }
  static inline std::atomic<int> count_;
};

// A store folder as a process leaves it that is killed: "old" is in the file, "new" in the log alone.
class UnwritableStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const test::TempDir live;
    {
      auto store = std::move(Store::Open(live.path()).value());
      first_ = store->ReserveRevisions(1000).value();
      ASSERT_TRUE(store->Apply({Disk("old", first_)}).ok());
    }
    auto store = std::move(Store::Open(live.path()).value());
    ASSERT_TRUE(store->Apply({Disk("new", first_ + 1)}).ok());
    std::filesystem::create_directory(folder_);
    for (const char* name : {"cleat.db", "cleat.db-wal", "lock"})
      std::filesystem::copy_file(live / name, folder_ + "/" + name);
    ASSERT_EQ(IdsWithoutTheLog(folder_ + "/cleat.db"), "old ")
        << "the control: an older intent is there to be served";
  }

  // Runs `work` where the folder is mounted read-only, in a mount namespace of a thread's own; `remount` makes it writable.
  using Remount = std::function<void()>;
  void ReadOnly(const std::function<void(const Remount& remount)>& work) {
    if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
    bool mounted = false;
    std::thread([&] {
      const char* const at = folder_.c_str();
      mounted = unshare(CLONE_FS | CLONE_NEWNS) == 0 &&
                mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                mount(at, at, nullptr, MS_BIND, nullptr) == 0 &&
                mount(nullptr, at, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
      if (mounted) work([at] { ASSERT_EQ(mount(nullptr, at, nullptr, MS_REMOUNT | MS_BIND, nullptr), 0); });
    }).join();
    if (!mounted) GTEST_SKIP() << "no mount namespace";
  }

  void Load() {
    auto store = Store::Open(folder_);
    ASSERT_TRUE(store.ok()) << store.error().message;
    store_ = std::move(*store);
    auto state = HostState::Load(*store_, memory_);
    ASSERT_TRUE(state.ok()) << state.error().message;
    state_ = std::move(*state);
  }
  void Close() {
    state_.reset();
    store_.reset();
  }
  v1::Reason ReasonOfCreate(const std::string& id) {
    const auto made = state_->disks().Create(NullDisk(id));
    message_ = made.ok() ? "" : made.error().message;
    return made.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(made.error());
  }
  uint64_t RevisionOf(const std::string& id) { return state_->disks().Get(GetDisk(id))->revision(); }

  test::TempDir dir_;
  const std::string folder_ = dir_ / "state";
  uint64_t first_ = 0;
  MemfdKeeper memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
  std::string message_;
};

TEST_F(UnwritableStoreTest, OfAReadOnlyFileSystemItsLogIsServedToo) {
  ReadOnly([&](const Remount&) {
    Load();
    EXPECT_EQ(IdsIn(*store_->Load()), "new old ");
    EXPECT_TRUE(state_->disks().Get(GetDisk("new")).ok());
    EXPECT_FALSE(state_->CheckStore());
    EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_STORE_UNWRITABLE);
    for (const char* part : {"cleat.db", "EROFS", "mount it writable"})
      EXPECT_NE(message_.find(part), std::string::npos) << message_;
    Close();
  });
}

TEST_F(UnwritableStoreTest, ASecondCleatdIsRefusedThereToo) {
  ReadOnly([&](const Remount&) {
    Load();
    const auto second = Store::Open(folder_);
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("used by another cleatd"), std::string::npos)
        << second.error().message;
    Close();
  });
}

TEST_F(UnwritableStoreTest, ChangesAreTakenOnceItCanBeWritten) {
  ReadOnly([&](const Remount& remount) {
    Load();
    EXPECT_FALSE(state_->CheckStore());
    remount();
    EXPECT_TRUE(state_->CheckStore());
    EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_UNSPECIFIED) << message_;
    Close();
    Load();
    EXPECT_EQ(IdsIn(*store_->Load()), "more new old ") << "in the file, not in the copy";
    Close();
  });
}

TEST_F(UnwritableStoreTest, NotIfAnotherStoreHasTakenItsPlace) {
  ReadOnly([&](const Remount& remount) {
    Load();
    remount();
    std::filesystem::remove(folder_ + "/cleat.db-wal");  // an older state of it
    EXPECT_FALSE(state_->CheckStore());
    EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_STORE_UNWRITABLE);
    EXPECT_NE(message_.find("restart cleatd"), std::string::npos) << message_;
    EXPECT_TRUE(state_->disks().Get(GetDisk("new")).ok()) << "what was loaded is served on";
    Close();
  });
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The store's file is gone as if its file system were not mounted any more, and later comes back.
TEST_F(UnwritableStoreTest, NothingIsMadeWhereItsFileHasGone) {
  ReadOnly([&](const Remount& remount) {
    Load();
    remount();
    const std::string away = dir_ / "away";
    std::filesystem::create_directory(away);
    for (const char* name : {"/cleat.db", "/cleat.db-wal"}) {
      std::filesystem::copy_file(folder_ + name, away + name);
      std::filesystem::remove(folder_ + name);
    }
    EXPECT_FALSE(state_->CheckStore());
    EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_STORE_UNWRITABLE);
    EXPECT_NE(message_.find("ENOENT"), std::string::npos) << message_;
    for (const char* name : {"/cleat.db", "/cleat.db-wal", "/cleat.db-journal"})
      EXPECT_FALSE(std::filesystem::exists(folder_ + name)) << name;
    for (const char* name : {"/cleat.db", "/cleat.db-wal"})
      std::filesystem::copy_file(away + name, folder_ + name);
    EXPECT_TRUE(state_->CheckStore());
    EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_UNSPECIFIED) << message_;
    Close();
  });
}

TEST_F(UnwritableStoreTest, AnotherStoreIsNotTouchedNorReadAgainUntilItChanges) {
  ReadOnly([&](const Remount& remount) {
    Load();
    const uint64_t number = store_->number();
    remount();
    const std::string file = folder_ + "/cleat.db";
    const std::string other = test::SourceFile("tests/unit/control/data/schema3.db");
    const std::string own = BytesOf(file);
    std::filesystem::remove(file + "-wal");
    std::filesystem::copy_file(other, file, std::filesystem::copy_options::overwrite_existing);
    {
      const CountedOpens opens;
      EXPECT_FALSE(state_->CheckStore());
      EXPECT_GT(opens.count(), 0) << "the control: it is read";
    }
    {
      const CountedOpens opens;
      EXPECT_FALSE(state_->CheckStore());
      EXPECT_EQ(opens.count(), 0);
    }
    EXPECT_EQ(BytesOf(file), BytesOf(other)) << "of an older schema, and not migrated";
    EXPECT_FALSE(std::filesystem::exists(file + "-wal"));
    EXPECT_EQ(store_->number(), number);
    EXPECT_TRUE(state_->disks().Get(GetDisk("new")).ok()) << "what was loaded is served on";
    std::ofstream(file, std::ios::binary | std::ios::trunc) << own;
    const CountedOpens opens;
    EXPECT_FALSE(state_->CheckStore()) << "without its log it is not what was loaded";
    EXPECT_GT(opens.count(), 0) << "it has changed";
    Close();
  });
}

TEST_F(UnwritableStoreTest, OfAFullFileSystemTheLogIsServedAndChangesAreTakenLater) {
  {
    const FullDisk full;
    Load();
    EXPECT_EQ(IdsIn(*store_->Load()), "new old ");
    EXPECT_FALSE(state_->CheckStore());
    EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_STORE_FULL);
    for (const char* part : {"cleat.db", "ENOSPC", "free space there"})
      EXPECT_NE(message_.find(part), std::string::npos) << message_;
  }
  EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_STORE_FULL) << "not before its revisions are reserved";
  EXPECT_TRUE(state_->CheckStore());
  EXPECT_EQ(ReasonOfCreate("more"), v1::REASON_UNSPECIFIED) << message_;
}

TEST_F(UnwritableStoreTest, RevisionsStandStillAndNoneIsGivenTwice) {
  uint64_t stood = 0;
  {
    const FullDisk full;
    for (int life = 0; life < 2; ++life) {
      Close();
      Load();
      auto watcher = state_->Watch();
      ASSERT_TRUE(watcher.ok());
      v1::EngineStatus status;
      status.set_connected(true);
      state_->engines().Report("e", status);
      uint64_t last = 0;
      for (bool synced = false, changed = false; !changed;) {
        const auto event = (*watcher)->Next(std::chrono::seconds(60));
        ASSERT_TRUE(event.ok());
        last = (*event)->revision();
        EXPECT_LT(last, store_->NextRevision().value()) << "what is not reserved is given by a later life";
        changed = synced && (*event)->has_engine();
        synced = synced || (*event)->has_synced();
      }
      EXPECT_EQ(last, stood == 0 ? last : stood);
      stood = last;
      const auto from_there = state_->Watch(stood);
      ASSERT_FALSE(from_there.ok()) << "changes with that revision may have come since";
      EXPECT_EQ(ReasonOf(from_there.error()), v1::REASON_WATCH_REVISION_GONE);
      ASSERT_NE(ReasonOfCreate("refused"), v1::REASON_UNSPECIFIED);
    }
  }
  auto watcher = state_->Watch();
  ASSERT_TRUE(state_->CheckStore());
  EXPECT_GT(RevisionOf("new"), stood);
  EXPECT_FALSE(state_->Watch(stood).ok());
  // Who watched meanwhile sees all of it anew.
  std::set<std::string> seen;
  while (seen.size() < 2) {
    const auto event = (*watcher)->Next(std::chrono::seconds(60));
    ASSERT_TRUE(event.ok());
    if ((*event)->has_disk() && (*event)->revision() > stood) seen.insert((*event)->disk().name());
  }
}

TEST_F(UnwritableStoreTest, NoRowHasARevisionOfTheStandstill) {
  auto full = std::make_unique<FullDisk>();
  Load();
  const uint64_t stood = RevisionOf("new");
  full.reset();
  // Callers come while it becomes writable.
  std::vector<std::thread> callers;
  std::atomic<int> made = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 50; ++i)
        made += state_->disks().Create(NullDisk(fmt::format("d{}-{}", caller, i))).ok() ? 1 : 0;
    });
  }
  EXPECT_TRUE(state_->CheckStore());
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ReasonOfCreate("last"), v1::REASON_UNSPECIFIED) << message_;
  std::set<uint64_t> given;
  const auto rows = store_->Load();
  ASSERT_TRUE(rows.ok());
  for (const DiskRow& row : rows->disks) {
    EXPECT_TRUE(given.insert(row.revision).second) << row.id;
    EXPECT_TRUE(row.id == "old" || row.id == "new" || row.revision > stood) << row.id;
  }
  EXPECT_EQ(given.size(), 3U + made);
}

TEST_F(UnwritableStoreTest, AFileThatMayBecomeNoLargerRefusesAsAFullFileSystem) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  auto store = Store::Open(folder_);
  const bool served = store.ok();
  const Status refused = served ? (*store)->Apply({Disk("more", 1)}) : Status(store.error());
  store = Error(ErrorCode::kCancelled, "closed");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_STORE_FULL) << refused.error().message;
  EXPECT_NE(refused.error().message.find("EFBIG"), std::string::npos) << refused.error().message;
}

TEST_F(UnwritableStoreTest, NothingOfACopyStaysBehindAndOneThatIsTooLargeIsRefused) {
  const auto left = [] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      count += entry.path().filename().string().starts_with("cleat-store-") ? 1 : 0;
    return count;
  };
  const size_t before = left();
  auto copy = OpenPrivateCopy(folder_ + "/cleat.db");
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  EXPECT_NE(sqlite3_exec(*copy, "DELETE FROM disks", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(*copy);
  std::filesystem::resize_file(folder_ + "/cleat.db", kPrivateCopyBytesMax + 1);
  EXPECT_FALSE(OpenPrivateCopy(folder_ + "/cleat.db").ok());
  EXPECT_LE(left(), before) << "but for those of others";
}

// Each has the code that says who can mend it, wherever it comes from.
TEST(FileSystemErrorsTest, AreNeverInternal) {
  const std::tuple<int, const char*, v1::Reason> cases[] = {
      {ENOSPC, "RESOURCE_EXHAUSTED", v1::REASON_STORE_FULL},
      {EDQUOT, "RESOURCE_EXHAUSTED", v1::REASON_STORE_FULL},
      {EFBIG, "RESOURCE_EXHAUSTED", v1::REASON_STORE_FULL},
      {EMLINK, "RESOURCE_EXHAUSTED", v1::REASON_STORE_UNWRITABLE},
      {EMFILE, "RESOURCE_EXHAUSTED", v1::REASON_STORE_UNWRITABLE},
      {ENFILE, "RESOURCE_EXHAUSTED", v1::REASON_STORE_UNWRITABLE},
      {ENOMEM, "RESOURCE_EXHAUSTED", v1::REASON_STORE_UNWRITABLE},
      {EROFS, "FAILED_PRECONDITION", v1::REASON_STORE_UNWRITABLE},
      {EBUSY, "FAILED_PRECONDITION", v1::REASON_STORE_UNWRITABLE},
      {ETXTBSY, "FAILED_PRECONDITION", v1::REASON_STORE_UNWRITABLE},
      {EACCES, "PERMISSION_DENIED", v1::REASON_STORE_UNWRITABLE},
      {EPERM, "PERMISSION_DENIED", v1::REASON_STORE_UNWRITABLE},
      {ENOENT, "NOT_FOUND", v1::REASON_STORE_UNWRITABLE},
      {ENOTDIR, "INVALID_ARGUMENT", v1::REASON_STORE_UNWRITABLE},
      {EISDIR, "INVALID_ARGUMENT", v1::REASON_STORE_UNWRITABLE},
      {ELOOP, "INVALID_ARGUMENT", v1::REASON_STORE_UNWRITABLE},
      {ENAMETOOLONG, "INVALID_ARGUMENT", v1::REASON_STORE_UNWRITABLE},
  };
  for (const auto& [number, code, of_store] : cases) {
    const Error error = ErrnoError(number, "x");
    EXPECT_EQ(InfoOf(ReasonOf(error)).code(), code) << error.message;
    const Error store_error = UnwritableError("/s/cleat.db", "x", number);
    EXPECT_EQ(ReasonOf(store_error), of_store) << store_error.message;
    EXPECT_NE(store_error.message.find(strerrorname_np(number)), std::string::npos);
  }
}

// There is nothing to serve, and nothing may be made of it.
TEST(NewStoreTest, OnAFullFileSystemThereIsNone) {
  const test::TempDir dir;
  const FullDisk full;
  const auto store = Store::Open(dir.path());
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(ReasonOf(store.error()), v1::REASON_STORE_FULL) << store.error().message;
}

}  // namespace
}  // namespace cleat::control::unwritable_store_test
