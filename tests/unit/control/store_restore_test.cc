// SPDX-License-Identifier: Apache-2.0
// Going back to a backup while cleatd runs: what it says, what it refuses, what is left of what was before, and that no number is given twice.
#include "control/backup/store_restore.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "control/model/reasons.h"
#include "control/store/migrations.h"
#include "daemon_rig.h"
#include "open_paths.h"
#include "requests.h"
#include "restored.h"
#include "tests/support/paths.h"

namespace cleat::control::store_restore_test {
namespace {

using testing::HasSubstr;
using testing::Not;

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void Execute(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  sqlite3_close(db);
}

class StoreRestoreTest : public DaemonRig {
 protected:
  StoreRestoreTest() {
    options_.paths_file = OpenPaths(dir_ / "open.conf");
    options_.on_restored = [this] { Tell(restored_); };
    Start();
  }
  ~StoreRestoreTest() override { daemon_.reset(); }  // it calls Tell

  void Tell(bool& what) {
    const std::lock_guard lock(mutex_);
    what = true;
    told_.notify_all();
  }
  // cleatctl's exit code; what it said goes to `said_`. Meanwhile the daemon is started anew when it says so, as main does.
  int Ctl(const std::string& arguments) {
    restored_ = over_ = false;
    std::thread main([this] {
      std::unique_lock lock(mutex_);
      told_.wait(lock, [this] { return restored_ || over_; });
      if (!restored_) return;
      lock.unlock();
      Start();
    });
    const std::string command =
        fmt::format("CLEAT_ADDRESS=unix:{} {} {} >{} 2>&1 </dev/null", options_.api_socket,
                    test::Program("cleatctl"), arguments, dir_ / "said");
    const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
    Tell(over_);
    main.join();
    said_ = ReadAll(dir_ / "said");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Without cleatctl, which waits.
  void RestoreFrom(const std::string& file) {
    const auto restored = Restore(state(), ReadAll(file));
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    Start();
  }
  std::string WriteBackup() {
    WriteAll(dir_ / "backup.db", BytesOfBackup(state()));
    return dir_ / "backup.db";
  }
  std::string Kept() const {
    for (const std::string& name : FilesOfState()) {
      if (name.starts_with("cleat.db.before-restore-")) return options_.state_dir + "/" + name;
    }
    return {};
  }
  bool Has(const std::string& disk) { return state().disks().Get(GetDisk(disk)).ok(); }

  std::mutex mutex_;
  std::condition_variable told_;
  bool restored_ = false;
  bool over_ = false;
  std::string said_;
};

TEST_F(StoreRestoreTest, WhatWentComesBackAndWhatCameGoes) {
  ASSERT_TRUE(state().disks().Create(NullDisk("went")).ok());
  ASSERT_TRUE(state().disks().Create(NullDisk("stays")).ok());
  ASSERT_TRUE(state().controllers().Create(NewController("vm")).ok());
  const std::string file = WriteBackup();
  const uint64_t stayed = state().disks().Get(GetDisk("stays"))->revision();
  ASSERT_TRUE(state().disks().Delete(DeleteDisk("went")).ok());
  ASSERT_TRUE(state().disks().Create(NullDisk("came")).ok());
  ASSERT_TRUE(state().attachments().Attach(Attach("stays", "vm")).ok());

  const auto before = FilesOfState();
  ASSERT_EQ(Ctl("store restore --dry-run " + file), 0) << said_;
  EXPECT_THAT(said_, HasSubstr("GOES        disks/came\n"));
  EXPECT_THAT(said_, HasSubstr("COMES BACK  disks/went\n"));
  EXPECT_THAT(said_, HasSubstr("GOES        controllers/vm/attachments/stays"));
  EXPECT_THAT(said_, Not(HasSubstr("controllers/vm\n")));
  EXPECT_EQ(Ctl("store restore " + file), 2) << "nobody is at a terminal";
  EXPECT_THAT(said_, HasSubstr("--yes"));
  EXPECT_EQ(FilesOfState(), before);
  EXPECT_TRUE(Has("came"));

  ASSERT_EQ(Ctl("store restore --yes " + file), 0) << said_;
  EXPECT_TRUE(Has("went"));
  EXPECT_TRUE(Has("stays"));
  EXPECT_FALSE(Has("came"));
  EXPECT_EQ(state().kept_disks().Count(), 0U) << "it is not deleted any more";
  ASSERT_NE(Kept(), "");
  EXPECT_THAT(said_, HasSubstr(Kept()));
  struct stat info {};
  ASSERT_EQ(stat(Kept().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  EXPECT_LT(stayed, state().NewestRevision());
  EXPECT_TRUE(state().disks().Create(NullDisk("more")).ok()) << "it takes changes";

  // The store of before is a backup as any other.
  ASSERT_EQ(Ctl("store restore --yes --output json " + Kept()), 0) << said_;
  EXPECT_THAT(said_, HasSubstr("\"kept_file\""));
  EXPECT_TRUE(Has("came"));
  EXPECT_FALSE(Has("went"));
  EXPECT_FALSE(Has("more"));
}

TEST_F(StoreRestoreTest, NoRevisionAndNoIdentityIsGivenTwice) {
  const std::string file = WriteBackup();
  const uint64_t store = state().disks().IdentityOf({}).store();
  uint64_t newest = state().NewestRevision();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 10; ++i) {
      const auto made = state().disks().Create(NullDisk(fmt::format("d{}", i)));
      ASSERT_TRUE(made.ok());
      EXPECT_GT(made->revision(), newest);
      newest = made->revision();
    }
    state().unclaimed().ReportHeld("engine-0", {.newest_revision = newest += 5'000'000, .serves = {}});
    ASSERT_NO_FATAL_FAILURE(RestoreFrom(file));
    EXPECT_GT(state().NewestRevision(), newest + kRevisionsSkipped)
        << "also of what only an engine was seen to have";
  }
  ASSERT_EQ(state().lost().size(), 1U) << "they are the same backup's";
  EXPECT_LE(state().lost()[0].until, state().NewestRevision());
  EXPECT_EQ(state().disks().IdentityOf({}).store(), store) << "what its disks are known by does not change";
}

TEST_F(StoreRestoreTest, NothingIsWrittenBetweenTheRestoreAndTheNextStart) {
  const std::string backup = BytesOfBackup(state());
  ASSERT_TRUE(state().disks().Create(NullDisk("a")).ok());
  ASSERT_TRUE(Restore(state(), backup).ok());
  const auto refused = state().disks().Create(NullDisk("b"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_STORE_RESTORED);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(state().disks().Delete(DeleteDisk("a")).ok());
  EXPECT_FALSE(Restore(state(), backup).ok());
  EXPECT_TRUE(Has("a")) << "what was loaded is shown on";
  Start();
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(state().disks().Create(NullDisk("b")).ok());
}

TEST_F(StoreRestoreTest, AnEtagOfAPlanHoldsUntilTheHostIsChanged) {
  const std::string backup = BytesOfBackup(state());
  const auto plan = Restore(state(), backup, true);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kept_file(), "");
  EXPECT_EQ(Kept(), "");
  ASSERT_TRUE(state().disks().Create(NullDisk("a")).ok());
  const auto refused = Restore(state(), backup, false, plan->etag());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_ETAG_MISMATCH);
  EXPECT_TRUE(state().disks().Create(NullDisk("b")).ok());
  const auto again = Restore(state(), backup, true);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->goes(), 2U);
  EXPECT_TRUE(Restore(state(), backup, false, again->etag()).ok());
}

// ---- Refusals, of which each leaves all as it was.

class StoreRestoreRefusals : public StoreRestoreTest {
 protected:
  StoreRestoreRefusals() {
    CLEAT_CHECK(state().disks().Create(NullDisk("a")).ok());
    backup_ = BytesOfBackup(state());
    CLEAT_CHECK(state().disks().Create(NullDisk("b")).ok());
  }
  std::string Edited(const std::string& sql) {
    WriteAll(dir_ / "edited.db", backup_);
    Execute(dir_ / "edited.db", sql);
    return ReadAll(dir_ / "edited.db");
  }
  void Refused(const std::string& bytes, v1::Reason reason, const std::string& word) {
    const auto before = FilesOfState();
    const auto result = Restore(state(), bytes);
    ASSERT_FALSE(result.ok()) << word;
    EXPECT_EQ(ReasonOf(result.error()), reason) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr(word));
    EXPECT_THAT(result.error().message, HasSubstr("nothing was changed"));
    EXPECT_EQ(FilesOfState(), before);
    EXPECT_TRUE(Has("b"));
  }
  std::string backup_;
};

TEST_F(StoreRestoreRefusals, WhatIsNoStore) {
  Refused("not a database at all", v1::REASON_BACKUP_UNUSABLE, "not a database");
  Refused(std::string(100'000, 'x'), v1::REASON_BACKUP_UNUSABLE, "not a database");
  Refused(Edited("PRAGMA application_id = 7"), v1::REASON_BACKUP_UNUSABLE, "another program's");
  Refused(Edited("PRAGMA user_version = 0"), v1::REASON_BACKUP_UNUSABLE, "another program's");
  Refused(Edited(fmt::format("PRAGMA user_version = {}", kSchemaVersion + 1)), v1::REASON_BACKUP_UNUSABLE,
          "newer cleatd");
}

// It would change rows after they were checked.
TEST_F(StoreRestoreRefusals, WhatActsByItself) {
  Refused(Edited("CREATE TRIGGER t AFTER UPDATE OF next ON revisions BEGIN DELETE FROM disks; END"),
          v1::REASON_BACKUP_UNUSABLE, "triggers");
  Refused(Edited("ALTER TABLE disks RENAME TO others; CREATE VIEW disks AS SELECT * FROM others"),
          v1::REASON_BACKUP_UNUSABLE, "views");
}

TEST_F(StoreRestoreRefusals, WhatIsDamaged) {
  std::string torn = backup_;
  torn.replace(torn.size() / 2, 4096, std::string(4096, '\x5a'));
  const auto result = Restore(state(), torn);
  EXPECT_FALSE(result.ok());
  EXPECT_TRUE(Has("b"));
  Refused(Edited("UPDATE disks SET revision = revision + 1"), v1::REASON_BACKUP_UNUSABLE,
          "disk 'a' is damaged");
  Refused(Edited("INSERT INTO lost_revisions VALUES (1, 5, 0)"), v1::REASON_BACKUP_UNUSABLE,
          "lost revisions");
  Refused(Edited("DROP TABLE groups"), v1::REASON_BACKUP_UNUSABLE, "schema is damaged");
}

TEST_F(StoreRestoreRefusals, WhatNamesThingsThatAreNotThere) {
  ASSERT_TRUE(state().controllers().Create(NewController("vm")).ok());
  ASSERT_TRUE(state().attachments().Attach(Attach("a", "vm")).ok());
  backup_ = BytesOfBackup(state());
  Refused(Edited("DELETE FROM controllers"), v1::REASON_BACKUP_UNUSABLE, "not its controller");
}

// A backup that somebody has made up is no way round the lists, nor to cleatd's own files.
TEST_F(StoreRestoreRefusals, WhatNamesPathsThatNobodyMayName) {
  const std::string image = dir_ / "disk.img";
  ASSERT_TRUE(state().disks().Create(FileDisk("file", image, true)).ok());
  backup_ = BytesOfBackup(state());
  daemon_.reset();
  WriteAll(dir_ / "closed.conf", "# what is there without a word\n");
  options_.paths_file = dir_ / "closed.conf";
  Start();
  EXPECT_TRUE(Restore(state(), backup_, true).ok()) << "it is stored";
  ASSERT_TRUE(state().disks().Delete(DeleteDisk("file")).ok());
  EXPECT_EQ(state().kept_disks().Count(), 1U);
  EXPECT_TRUE(Restore(state(), backup_, true).ok()) << "it is still";
  v1::PurgeDiskRequest purge;
  purge.set_name("disks/file");
  ASSERT_TRUE(state().kept_disks().Purge(purge).ok());
  Refused(backup_, v1::REASON_PATH_NOT_ALLOWED, "disks/file");
}

TEST_F(StoreRestoreRefusals, WhatIsNotWhole) {
  const auto upload = StoreUpload::Make(options_.state_dir, backup_.size());
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE((*upload)->Write(backup_.substr(1)).ok());
  const Status early = (*upload)->Finish(nullptr, HostState::CheckLoads);
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(ReasonOf(early.error()), v1::REASON_BACKUP_UNUSABLE);
  EXPECT_FALSE((*upload)->Write("xx").ok()) << "more than was announced";
  EXPECT_FALSE(StoreUpload::Make(options_.state_dir, StoreUpload::kBytesMax + 1).ok());
  EXPECT_FALSE(StoreUpload::Make(options_.state_dir, 0).ok());
}

TEST_F(StoreRestoreRefusals, WhoseKeysNobodyCanOpen) {
  auto request = NullDisk("secret");
  std::string key;
  for (char c = 0; c < 64; ++c) key += c;
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  const auto made = state().disks().Create(request);
  ASSERT_TRUE(made.ok());
  const std::string kek = made->spec().encryption().wrapped_key().key_encryption_key();
  backup_ = BytesOfBackup(state());
  WriteAll(options_.state_dir + "/kek", std::string(64, '7') + "\n");
  daemon_.reset();
  for (const char* name : {"/cleat.db", "/cleat.db-wal", "/lock"})
    std::filesystem::remove(options_.state_dir + name);
  Start();
  ASSERT_TRUE(state().disks().Create(NullDisk("b")).ok());
  Refused(backup_, v1::REASON_KEY_UNKNOWN, kek);
  Refused(backup_, v1::REASON_KEY_UNKNOWN, "disks/secret");
}

TEST_F(StoreRestoreRefusals, WhoseSecretsNobodyCanOpen) {
  ASSERT_TRUE(state().subsystems().Create(SecretSubsystem("array")).ok());
  backup_ = BytesOfBackup(state());
  WriteAll(options_.state_dir + "/kek", std::string(64, '7') + "\n");
  daemon_.reset();
  for (const char* name : {"/cleat.db", "/cleat.db-wal", "/lock"})
    std::filesystem::remove(options_.state_dir + name);
  Start();
  ASSERT_TRUE(state().disks().Create(NullDisk("b")).ok());
  Refused(backup_, v1::REASON_KEY_UNKNOWN, "subsystems/array");
}

TEST_F(StoreRestoreTest, AnOlderStoreIsMigratedOnTheWay) {
  ASSERT_TRUE(state().disks().Create(NullDisk("a")).ok());
  const std::string file = WriteBackup();
  Execute(file,
          "ALTER TABLE revisions DROP COLUMN paths_checked_from; DROP TABLE lost_revisions; DROP TABLE "
          "pools; DROP TABLE subsystems; DROP TABLE deleted_disks; PRAGMA user_version = 7");
  ASSERT_TRUE(state().disks().Create(NullDisk("b")).ok());
  ASSERT_NO_FATAL_FAILURE(RestoreFrom(file));
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
}

TEST_F(StoreRestoreTest, AStoreOfBeforeHasLostNothing) {
  ASSERT_TRUE(state().disks().Create(NullDisk("a")).ok());
  const std::string backup = BytesOfBackup(state());
  daemon_.reset();
  Execute(options_.state_dir + "/cleat.db",
          "ALTER TABLE revisions DROP COLUMN paths_checked_from; DROP TABLE lost_revisions; DROP TABLE "
          "pools; DROP TABLE subsystems; PRAGMA user_version = 8");
  Start();
  EXPECT_TRUE(Has("a"));
  EXPECT_EQ(state().lost().size(), 0U);
  ASSERT_TRUE(Restore(state(), backup).ok());
  Start();
  EXPECT_EQ(state().lost().size(), 1U);
}

TEST_F(StoreRestoreTest, AKeyThatTheBackupHasNotIsNamedAndKept) {
  const std::string file = WriteBackup();
  auto request = NullDisk("secret");
  std::string key;
  for (char c = 0; c < 64; ++c) key += c;
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  ASSERT_TRUE(state().disks().Create(request).ok());
  ASSERT_EQ(Ctl("store restore --dry-run " + file), 0) << said_;
  EXPECT_THAT(said_, HasSubstr("GOES    disks/secret  its key is not in the backup"));
  ASSERT_NO_FATAL_FAILURE(RestoreFrom(file));
  EXPECT_FALSE(Has("secret"));
  ASSERT_NO_FATAL_FAILURE(RestoreFrom(Kept()));
  EXPECT_TRUE(state().disks().Create(request).ok()) << "it is there again, with its key";
}

TEST_F(StoreRestoreTest, SecretsThatTheBackupHasNotAreNamedAndKept) {
  ASSERT_TRUE(state().subsystems().Create(SecretSubsystem("array")).ok());
  const std::string file = WriteBackup();
  ASSERT_TRUE(state().subsystems().Create(SecretSubsystem("later")).ok());
  const auto more = [](const char* id) {
    auto request = Update(SecretSubsystem(id));
    request.mutable_subsystem()->mutable_spec()->mutable_tls_psk()->set_plain_key(kTlsPsk);
    return request;
  };
  ASSERT_TRUE(state().subsystems().Update(more("array")).ok());
  ASSERT_EQ(Ctl("store restore --dry-run " + file), 0) << said_;
  EXPECT_THAT(said_, HasSubstr("CHANGES  subsystems/array  its key is not in the backup"));
  EXPECT_THAT(said_, HasSubstr("GOES     subsystems/later  its key is not in the backup"));
  ASSERT_NO_FATAL_FAILURE(RestoreFrom(file));
  EXPECT_TRUE(state().subsystems().Create(SecretSubsystem("array")).ok()) << "as it was, with its secret";
  // The other way only what is new comes: the secret of the backup is there still.
  ASSERT_EQ(Ctl("store restore --dry-run " + Kept()), 0) << said_;
  EXPECT_THAT(said_, Not(HasSubstr("its key is not in the backup")));
}

TEST_F(StoreRestoreTest, WhatIsLeftOfAnUploadGoesAtTheNextStart) {
  const auto before = FilesOfState();
  daemon_.reset();
  std::filesystem::create_directory(options_.state_dir + "/.cleat.db.restore-abcdef");
  WriteAll(options_.state_dir + "/.cleat.db.restore-abcdef/cleat.db", "left");
  Start();
  EXPECT_EQ(FilesOfState(), before);
}

// ---- Crashes

// The log beside the file ends anywhere, as after a crash in the middle of the restore: the store is the one or the other.
TEST_F(StoreRestoreTest, ACrashLeavesTheOldOrTheNewStore) {
  for (int i = 0; i < 40; ++i) {
    auto disk = NullDisk(fmt::format("old{}", i));
    (*disk.mutable_disk()->mutable_labels())["padding"] = std::string(200, 'x');
    ASSERT_TRUE(state().disks().Create(disk).ok());
  }
  const std::string backup = BytesOfBackup(state());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(state().disks().Delete(DeleteDisk(fmt::format("old{}", i))).ok());
    ASSERT_TRUE(state().disks().Create(NullDisk(fmt::format("new{}", i))).ok());
  }
  daemon_.reset();
  auto store = Store::Open(options_.state_dir);
  ASSERT_TRUE(store.ok());
  const auto upload = StoreUpload::Make(options_.state_dir, backup.size());
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE((*upload)->Write(backup).ok());
  ASSERT_TRUE((*upload)->Finish(nullptr, HostState::CheckLoads).ok());
  ASSERT_TRUE((*store)->Replace((*upload)->store()).ok());
  const std::string file = ReadAll(options_.state_dir + "/cleat.db");
  const std::string log = ReadAll(options_.state_dir + "/cleat.db-wal");
  ASSERT_FALSE(log.empty());
  int old_ones = 0;
  int new_ones = 0;
  constexpr size_t kCuts = 60;
  for (size_t cut = 0; cut <= kCuts; ++cut) {
    const test::TempDir crashed;
    WriteAll(crashed / "cleat.db", file);
    WriteAll(crashed / "cleat.db-wal", log.substr(0, log.size() * cut / kCuts));
    const auto opened = Store::Open(crashed.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const auto rows = (*opened)->Load();
    ASSERT_TRUE(rows.ok()) << rows.error().message;
    ASSERT_EQ(rows->disks.size(), 40U) << cut;
    const bool restored = rows->disks.front().id.starts_with("old");
    for (const DiskRow& row : rows->disks) EXPECT_EQ(row.id.starts_with("old"), restored) << cut;
    ++(restored ? new_ones : old_ones);
  }
  EXPECT_GT(old_ones, 0);
  EXPECT_GT(new_ones, 0);
}

// ---- Parts

TEST(LostRevisionsTest, AddUpInOrderAndAreBounded) {
  using Ranges = std::vector<LostRevisions>;
  EXPECT_EQ(LostBy({}, 5, 9), (Ranges{{5, 9}}));
  EXPECT_EQ(LostBy({{5, 9}}, 20, 30), (Ranges{{5, 9}, {20, 30}}));
  EXPECT_EQ(LostBy({{5, 9}, {20, 30}}, 9, 40), (Ranges{{5, 40}}));
  EXPECT_EQ(LostBy({{20, 30}}, 5, 9), (Ranges{{5, 9}, {20, 30}}));
  Ranges ranges;
  for (uint64_t i = 1; i <= 2 * kLostRangesMax; ++i) ranges = LostBy(ranges, 10 * i, 10 * i + 5);
  ASSERT_EQ(ranges.size(), kLostRangesMax);
  EXPECT_EQ(ranges.front().first, 10U) << "none is forgotten";
}

}  // namespace
}  // namespace cleat::control::store_restore_test
