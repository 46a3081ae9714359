// SPDX-License-Identifier: Apache-2.0
// Backups of the store while cleatd runs: what is in them, and that cleatd starts from one.
#include "control/backup/store_backup.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "control/model/reasons.h"
#include "daemon_rig.h"
#include "requests.h"
#include "tests/support/paths.h"

namespace cleat::control::store_backup_test {
namespace {

class StoreBackupTest : public DaemonRig {
 protected:
  StoreBackupTest() { Start(); }

  // cleatctl's exit code; what it said goes to `said_`.
  int Ctl(const std::string& arguments) {
    const std::string command = fmt::format("CLEAT_ADDRESS=unix:{} {} {} >{} 2>&1", options_.api_socket,
                                            test::Program("cleatctl"), arguments, dir_ / "said");
    const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
    said_ = ReadAll(dir_ / "said");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // As docs/operations.md says.
  void PutInPlace(const std::string& backup) {
    daemon_.reset();
    std::filesystem::remove(options_.state_dir + "/cleat.db-wal");
    std::filesystem::copy_file(backup, options_.state_dir + "/cleat.db",
                               std::filesystem::copy_options::overwrite_existing);
    Start();
  }

  std::string said_;
};

TEST_F(StoreBackupTest, ABackupHasAllThatWasAcknowledgedAndCleatdStartsFromIt) {
  auto request = NullDisk("secret");
  std::string key;
  for (char c = 0; c < 64; ++c) key += c;
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  const auto made = state().disks().Create(request);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(state().disks().Create(NullDisk("deleted")).ok());
  ASSERT_TRUE(state().disks().Delete(DeleteDisk("deleted")).ok());
  const auto before = FilesOfState();
  const std::string file = dir_ / "backup.db";
  ASSERT_EQ(Ctl("store backup " + file), 0) << said_;
  const std::string kek = made->spec().encryption().wrapped_key().key_encryption_key();
  EXPECT_NE(said_.find(kek), std::string::npos) << said_;
  EXPECT_EQ(FilesOfState(), before) << "nothing stays behind";
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  const std::string bytes = ReadAll(file);
  std::string kek_text = ReadAll(options_.state_dir + "/kek");
  kek_text.resize(64);
  EXPECT_EQ(bytes.find(kek_text), std::string::npos);
  EXPECT_EQ(bytes.find(key), std::string::npos);

  ASSERT_TRUE(state().disks().Create(NullDisk("later")).ok());
  ASSERT_TRUE(state().disks().Delete(DeleteDisk("secret")).ok());
  PutInPlace(file);
  EXPECT_TRUE(state().disks().Create(request).ok()) << "it is there, with its key";
  EXPECT_FALSE(state().disks().Get(GetDisk("later")).ok());
  EXPECT_EQ(state().kept_disks().Count(), 1U);
}

TEST_F(StoreBackupTest, ASubsystemsSecretsAreInItWrapped) {
  const auto made = state().subsystems().Create(SecretSubsystem("array"));
  ASSERT_TRUE(made.ok()) << made.error().message;
  const std::string file = dir_ / "backup.db";
  ASSERT_EQ(Ctl("store backup " + file), 0) << said_;
  const std::string kek = made->spec().dhchap_secret().wrapped_key().key_encryption_key();
  EXPECT_NE(said_.find(kek), std::string::npos) << said_;
  EXPECT_EQ(ReadAll(file).find(std::string(kChapSecret).substr(10, 16)), std::string::npos);
  v1::DeleteSubsystemRequest gone;
  gone.set_name("subsystems/array");
  ASSERT_TRUE(state().subsystems().Delete(gone).ok());
  PutInPlace(file);
  EXPECT_EQ(state().subsystems().Create(SecretSubsystem("array"))->etag(), made->etag()) << "with its secret";
}

TEST_F(StoreBackupTest, WhatWasMadeSinceIsNewerToACleatdThatStartsFromABackup) {
  ASSERT_TRUE(state().disks().Create(NullDisk("a")).ok());
  const std::string file = dir_ / "backup.db";
  ASSERT_EQ(Ctl("store backup " + file), 0) << said_;
  const uint64_t then = state().NewestRevision();
  uint64_t later = 0;
  for (int i = 0; i < 50; ++i) later = state().disks().Create(NullDisk(fmt::format("d{}", i)))->revision();
  PutInPlace(file);
  EXPECT_LT(state().NewestRevision(), later) << "else it would have engines give away what it does not know";
  EXPECT_GT(state().NewestRevision(), then);
}

TEST_F(StoreBackupTest, AFileThatIsThereIsReplacedOnlyWhenAsked) {
  const std::string file = dir_ / "backup.db";
  std::ofstream(file) << "precious";
  EXPECT_EQ(Ctl("store backup " + file), 2);
  EXPECT_NE(said_.find("--force"), std::string::npos) << said_;
  EXPECT_EQ(ReadAll(file), "precious");
  EXPECT_EQ(Ctl("store backup --force " + file), 0) << said_;
  EXPECT_EQ(ReadAll(file).substr(0, 13), "SQLite format");
  // A folder that is not there, and what is left of attempts.
  EXPECT_EQ(Ctl("store backup " + (dir_ / "none/backup.db")), 2);
  for (const auto& left : std::filesystem::directory_iterator(dir_.path()))
    EXPECT_EQ(left.path().string().find("unfinished"), std::string::npos) << left.path();
}

TEST_F(StoreBackupTest, ABackupUnderWritesIsOneMomentsStore) {
  daemon_.reset();
  auto store = Store::Open(options_.state_dir);
  ASSERT_TRUE(store.ok());
  // Rows that change together, in one transaction: a copy has all of them or none; large, so that it takes several turns.
  constexpr size_t kRows = 200;
  std::vector<DiskRow> rows(kRows);
  const auto put = [&](uint64_t round) {
    for (size_t i = 0; i < kRows; ++i) {
      rows[i].id = fmt::format("d{}", i);
      rows[i].intent_revision = round;
      rows[i].labels["padding"] = std::string(8192, 'x');
    }
    return (*store)->Apply({rows.begin(), rows.end()}).ok();
  };
  ASSERT_TRUE(put(1));
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> rounds = 1;
  std::thread writer([&] {
    while (!stop && put(rounds + 1)) ++rounds;
  });
  for (int i = 0; i < 5; ++i) {
    const uint64_t acknowledged = rounds;
    const auto backup = BackUp(**store, 0);
    EXPECT_TRUE(backup.ok());
    if (!backup.ok()) break;
    EXPECT_EQ(backup->info.disks(), kRows);
    const test::TempDir other;
    std::string bytes(backup->info.size_bytes(), '\0');
    EXPECT_EQ(pread(backup->file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    std::ofstream(other / "cleat.db", std::ios::binary) << bytes;
    const auto copy = Store::Open(other.path());
    ASSERT_TRUE(copy.ok()) << copy.error().message;
    const auto loaded = (*copy)->Load();
    ASSERT_TRUE(loaded.ok());
    std::set<uint64_t> seen;
    for (const DiskRow& row : loaded->disks) seen.insert(row.intent_revision);
    EXPECT_EQ(seen.size(), 1U);
    EXPECT_GE(*seen.begin(), acknowledged);
  }
  stop = true;
  writer.join();
}

TEST_F(StoreBackupTest, WhatAnotherProgramWroteIsNoStore) {
  daemon_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.state_dir + "/cleat.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA application_id = 1", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto store = Store::Open(options_.state_dir);
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.error().message.find("another program's database"), std::string::npos)
      << store.error().message;
}

TEST_F(StoreBackupTest, WhatIsLeftOfABackupGoesAtTheNextStart) {
  std::ofstream(options_.state_dir + "/backup-of-monday") << "somebody's own";
  const auto before = FilesOfState();
  daemon_.reset();
  for (const char* name : {"/.cleat.db.backup-abcdef", "/.cleat.db.backup-abcdef-wal"})
    std::ofstream(options_.state_dir + name) << "left";
  Start();
  EXPECT_EQ(FilesOfState(), before);
}

}  // namespace
}  // namespace cleat::control::store_backup_test
