// SPDX-License-Identifier: Apache-2.0
// Deleted disks that are kept: what comes back and when it doesn't, what is purged and when it isn't; without gRPC and an engine.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/clock.h"
#include "control/model/reasons.h"
#include "control/state/disks/purge_timer.h"
#include "control/state/host_state.h"
#include "keys/keyring.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::deleted_disks_test {
namespace {

constexpr uint64_t kDay = 86'400;
constexpr uint64_t kNow = 1'700'000'000;

v1::UndeleteDiskRequest Undelete(const std::string& id, const std::string& uid = {}) {
  v1::UndeleteDiskRequest request;
  request.set_name(DiskName(id));
  request.set_uid(uid);
  return request;
}

v1::PurgeDiskRequest Purge(const std::string& id, const std::string& uid = {}) {
  v1::PurgeDiskRequest request;
  request.set_name(DiskName(id));
  request.set_uid(uid);
  return request;
}

v1::DeleteDiskRequest DeleteAndPurge(const std::string& id) {
  v1::DeleteDiskRequest request = DeleteDisk(id);
  request.set_purge(true);
  return request;
}

v1::CreateDiskRequest Encrypted(v1::CreateDiskRequest request, char first = 'a') {
  std::string key;
  for (int i = 0; i < 64; ++i) key += static_cast<char>(first + i);
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  return request;
}

template <typename T>
v1::Reason ReasonOfResult(const Result<T>& result) {
  return result.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(result.error());
}

template <typename T>
std::string Why(const Result<T>& result) {
  return result.ok() ? "it is OK" : result.error().message;
}

class DeletedDisksTest : public ::testing::Test {
 protected:
  DeletedDisksTest() {
    WriteKek("kek", '1');
    Open();
  }

  void WriteKek(const std::string& name, char digit) {
    std::ofstream(dir_ / name) << std::string(64, digit) << "\n";
    std::filesystem::permissions(dir_ / name, std::filesystem::perms::owner_read);
  }

  // A cleatd that has been started.
  void Open(uint64_t keep_s = 7 * kDay, std::vector<std::string> keks = {"kek"}) {
    Close();
    for (std::string& path : keks) path = dir_ / path;
    keyring_ = std::make_unique<keys::Keyring>();
    CLEAT_CHECK(keyring_->SetFiles(keks).ok());
    memory_ = std::make_unique<MemfdKeeper>();
    store_ = std::move(Store::Open(dir_.path()).value());
    const KeepDeleted keep{.time_s = keep_s, .now_s = [this] { return now_s_; }};
    state_ = std::move(HostState::Load(*store_, *memory_, WatchHub::kQueueMax, keyring_.get(), keep).value());
    CLEAT_CHECK(state_->RewrapKeys().ok());
  }
  void Close() {
    state_.reset();
    store_.reset();
  }

  v1::Disk Create(const v1::CreateDiskRequest& request) {
    const auto disk = state_->disks().Create(request);
    EXPECT_TRUE(disk.ok()) << disk.error().message;
    return disk.ok() ? *disk : v1::Disk();
  }
  // Gives its uid.
  std::string CreateAndDelete(const v1::CreateDiskRequest& request) {
    const std::string uid = Create(request).uid();
    const auto deleted = state_->disks().Delete(DeleteDisk(request.disk_id()));
    EXPECT_TRUE(deleted.ok()) << deleted.error().message;
    return uid;
  }
  // "a", or "a(uid)" of a deleted one, in the list's order.
  std::string List(bool show_deleted, int page_size = 0) {
    v1::ListDisksRequest request;
    request.set_show_deleted(show_deleted);
    request.set_page_size(page_size);
    std::string text;
    do {
      const auto page = state_->disks().List(request);
      if (!page.ok()) return page.error().message;
      for (const v1::Disk& disk : page->disks()) {
        text += (text.empty() ? "" : " ") + *ParseDiskName(disk.name());
        if (disk.has_delete_time()) text += "(" + disk.uid() + ")";
      }
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return text;
  }
  // Everything that is in the folder's files.
  std::string RawFiles() {
    std::string all;
    for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
  }
  void Execute(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }

  test::TempDir dir_;
  uint64_t now_s_ = kNow;
  std::unique_ptr<keys::Keyring> keyring_;
  std::unique_ptr<MemfdKeeper> memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
};

// ---- Coming back

TEST_F(DeletedDisksTest, ADeletedDiskComesBackAsItWasWithItsKeyAlsoAfterARestart) {
  auto request = Encrypted(FileDisk("a", dir_ / "a.img", true));
  (*request.mutable_disk()->mutable_labels())["vm"] = "one";
  *request.mutable_disk()->mutable_spec()->mutable_limits()->mutable_iops() = Rate(6000);
  const v1::Disk before = Create(request);
  const auto deleted = state_->disks().Delete(DeleteDisk("a"));
  ASSERT_TRUE(deleted.ok());
  EXPECT_EQ(deleted->disk().uid(), before.uid());
  EXPECT_TRUE(deleted->disk().spec().encryption().wrapped_key().data().empty()) << "never shown";
  EXPECT_EQ(ReasonOfResult(state_->disks().Get(GetDisk("a"))), v1::REASON_RESOURCE_NOT_FOUND);
  EXPECT_EQ(List(false), "");
  Open();
  EXPECT_EQ(List(true), "a(" + before.uid() + ")");
  EXPECT_EQ(state_->kept_disks().Count(), 1U);
  now_s_ += 6 * kDay;
  const auto back = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_TRUE(back.ok()) << Why(back);
  EXPECT_EQ(back->uid(), before.uid());
  EXPECT_EQ(back->spec().SerializeAsString(), before.spec().SerializeAsString());
  EXPECT_EQ(back->labels().at("vm"), "one");
  EXPECT_GT(back->revision(), before.revision());
  EXPECT_NE(back->etag(), before.etag());
  EXPECT_FALSE(back->has_delete_time());
  Open();
  EXPECT_EQ(List(true), "a");
  EXPECT_TRUE(state_->disks().Create(request).ok()) << "it is the same key";
  EXPECT_EQ(ReasonOfResult(state_->disks().Create(Encrypted(request, 'b'))), v1::REASON_CONTENT_DIFFERS);
}

TEST_F(DeletedDisksTest, TimesAreOfTheDeletionAndOfTheOptionThen) {
  CreateAndDelete(NullDisk("a"));
  Open(kDay);
  v1::ListDisksRequest request;
  request.set_show_deleted(true);
  const auto disks = state_->disks().List(request);
  ASSERT_EQ(disks->disks_size(), 1);
  EXPECT_EQ(disks->disks(0).status().state(), v1::DISK_STATE_DELETED);
  EXPECT_EQ(disks->disks(0).delete_time().seconds(), static_cast<int64_t>(kNow));
  EXPECT_EQ(disks->disks(0).purge_time().seconds(), static_cast<int64_t>(kNow + 7 * kDay));
}

TEST_F(DeletedDisksTest, WatchersSeeItGoAndComeBackAndNoMore) {
  const auto watcher = state_->Watch();
  ASSERT_TRUE(watcher.ok());
  const auto next = [&] { return *(*watcher)->Next(std::chrono::milliseconds(0)); };
  while (!next()->has_synced()) {
  }
  CreateAndDelete(NullDisk("a"));
  EXPECT_EQ(next()->disk().name(), "disks/a");
  EXPECT_EQ(next()->gone(), "disks/a");
  ASSERT_TRUE(state_->kept_disks().Undelete(Undelete("a")).ok());
  EXPECT_EQ(next()->disk().name(), "disks/a");
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_EQ(next()->gone(), "disks/a");
  ASSERT_TRUE(state_->kept_disks().Purge(Purge("a")).ok());
  EXPECT_EQ(next(), nullptr);
}

TEST_F(DeletedDisksTest, IdAndStorageAreFreeAtOnceAndUndeleteSaysWhoHasThem) {
  const std::string file = dir_ / "a.img";
  const std::string uid = CreateAndDelete(FileDisk("a", file, true));
  Create(FileDisk("a", file, false, kMiB / 2));
  const auto taken = state_->kept_disks().Undelete(Undelete("a", uid));
  ASSERT_EQ(ReasonOfResult(taken), v1::REASON_ID_TAKEN);
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  ASSERT_TRUE(state_->disks().Delete(DeleteAndPurge("a")).ok());
  Create(FileDisk("b", file, false));
  const auto file_taken = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_EQ(ReasonOfResult(file_taken), v1::REASON_FILE_TAKEN);
  EXPECT_NE(Why(file_taken).find("disks/b"), std::string::npos) << Why(file_taken);
  EXPECT_EQ(List(true), fmt::format("a({}) b", uid)) << "it is still kept";
  ASSERT_TRUE(state_->disks().Delete(DeleteAndPurge("b")).ok());
  EXPECT_TRUE(state_->kept_disks().Undelete(Undelete("a")).ok());
}

TEST_F(DeletedDisksTest, DisksOfTheSameNameAreToldApartByTheirUid) {
  const std::string first = CreateAndDelete(NullDisk("a", kMiB));
  const std::string second = CreateAndDelete(NullDisk("a", 2 * kMiB));
  ASSERT_NE(first, second);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Purge(Purge("a"))), v1::REASON_UID_NEEDED);
  const auto last = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->uid(), second);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("a"))), v1::REASON_ID_TAKEN);
  EXPECT_EQ(state_->kept_disks().Undelete(Undelete("a", second))->revision(), last->revision())
      << "the same call again";
  // The first one is deleted last.
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  ASSERT_EQ(state_->kept_disks().Undelete(Undelete("a", first))->spec().size_bytes(), kMiB);
  now_s_ -= kDay;  // a clock that is set back does not change that
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_EQ(state_->kept_disks().Undelete(Undelete("a"))->uid(), first);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("a", "12"))), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("a", std::string(16, '0')))),
            v1::REASON_RESOURCE_NOT_FOUND);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("none"))), v1::REASON_RESOURCE_NOT_FOUND);
}

TEST_F(DeletedDisksTest, AListShowsThemOnlyWhenAskedAndInPages) {
  const std::string one = CreateAndDelete(NullDisk("b"));
  const std::string two = CreateAndDelete(NullDisk("b"));
  const std::string three = CreateAndDelete(NullDisk("a-b"));
  for (const char* id : {"a", "b", "c"}) Create(NullDisk(id));
  EXPECT_EQ(List(false), "a b c");
  EXPECT_EQ(List(false, 1), "a b c");
  const std::string all = fmt::format("a a-b({}) b b({}) b({}) c", three, one, two);
  for (const int page_size : {0, 1, 2, 3, 4}) EXPECT_EQ(List(true, page_size), all) << page_size;
}

TEST_F(DeletedDisksTest, AFileThatIsGoneIsNotMadeAnew) {
  const std::string file = dir_ / "a.img";
  CreateAndDelete(FileDisk("a", file, true));
  std::filesystem::rename(file, dir_ / "away");
  const auto gone = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_EQ(ReasonOfResult(gone), v1::REASON_FILE_UNUSABLE) << Why(gone);
  EXPECT_NE(Why(gone).find(file), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(file)) << "an empty file would pass for the disk's content";
  std::filesystem::rename(dir_ / "away", file);
  EXPECT_TRUE(state_->kept_disks().Undelete(Undelete("a")).ok());
}

TEST_F(DeletedDisksTest, AMemoryDiskComesBackEmptyAndAsAnotherOne) {
  const std::string uid = Create(MemoryDisk("m")).uid();
  const UniqueFd content = memory_->Share("m");
  ASSERT_EQ(pwrite(content.get(), "guest", 5, 0), 5);
  // An engine has it: until that lets go, its id is taken.
  ASSERT_TRUE(state_->disks().RecordKept("m", "engine-0", true).ok());
  const auto deleted = state_->disks().Delete(DeleteDisk("m"));
  ASSERT_TRUE(deleted.ok());
  EXPECT_NE(deleted->disk().status().message().find("its content was freed"), std::string::npos);
  EXPECT_EQ(state_->disks().Get(GetDisk("m"))->status().state(), v1::DISK_STATE_DELETING);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("m"))), v1::REASON_RESOURCE_BUSY);
  Open();
  ASSERT_TRUE(state_->disks().RecordKept("m", "engine-0", false).ok());
  ASSERT_TRUE(state_->disks().Forget("m").ok());
  EXPECT_EQ(List(true), "m(" + uid + ")");
  const auto back = state_->kept_disks().Undelete(Undelete("m"));
  ASSERT_TRUE(back.ok()) << Why(back);
  EXPECT_NE(back->status().message().find("empty"), std::string::npos);
  EXPECT_NE(back->uid(), uid) << "what its guest has under way was for another content";
  char byte = 'x';
  EXPECT_EQ(pread(memory_->Share("m").get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, '\0');
  Open();
  EXPECT_EQ(state_->disks().Get(GetDisk("m"))->status().state(), v1::DISK_STATE_READY);
}

TEST_F(DeletedDisksTest, WithoutItsClusterAnImageDoesNotComeBack) {
  v1::CreateClusterRequest cluster;
  cluster.set_cluster_id("ceph");
  cluster.mutable_cluster()->mutable_spec()->set_conf_file("/etc/ceph/ceph.conf");
  cluster.mutable_cluster()->mutable_spec()->set_user("cleat");
  ASSERT_TRUE(state_->clusters().Create(cluster).ok());
  auto request = NullDisk("a");
  v1::RbdBackend& rbd = *request.mutable_disk()->mutable_spec()->mutable_rbd();
  rbd.set_cluster("clusters/ceph");
  rbd.set_pool("vms");
  rbd.set_image("a");
  CreateAndDelete(request);
  v1::DeleteClusterRequest remove;
  remove.set_name("clusters/ceph");
  ASSERT_TRUE(state_->clusters().Delete(remove).ok()) << "what is kept does not hold it";
  Open();
  const auto refused = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_EQ(ReasonOfResult(refused), v1::REASON_RESOURCE_NOT_FOUND);
  EXPECT_NE(Why(refused).find("clusters/ceph"), std::string::npos) << Why(refused);
  ASSERT_TRUE(state_->clusters().Create(cluster).ok());
  request.set_disk_id("b");
  Create(request);
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("a"))), v1::REASON_IMAGE_TAKEN);
}

// ---- Limits

TEST_F(DeletedDisksTest, NoMoreThanTheMostAreKeptAndThenOnlyPurgingDeletes) {
  std::vector<DeletedDiskRow> rows;
  for (size_t i = 0; i + 1 < kDeletedDisksMax; ++i) {
    DeletedDiskRow& row = rows.emplace_back();
    row.disk.id = "old";
    row.disk.revision = row.disk.intent_revision = i + 1;
    row.purge_time_s = kNow + kDay;
  }
  ASSERT_TRUE(store_->Apply({rows.begin(), rows.end()}).ok());
  Open();
  CreateAndDelete(NullDisk("last"));
  Create(NullDisk("a"));
  const auto refused = state_->disks().Delete(DeleteDisk("a"));
  ASSERT_EQ(ReasonOfResult(refused), v1::REASON_TOO_MANY_DELETED);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(Why(refused).find("--purge"), std::string::npos) << Why(refused);
  EXPECT_TRUE(state_->disks().Get(GetDisk("a")).ok());
  EXPECT_TRUE(state_->disks().Delete(DeleteAndPurge("a")).ok());
  ASSERT_TRUE(state_->kept_disks().Purge(Purge("last")).ok());
  CreateAndDelete(NullDisk("b"));
}

TEST_F(DeletedDisksTest, AHostThatIsFullTakesNoneBack) {
  CreateAndDelete(NullDisk("a"));
  std::vector<DiskRow> rows;
  for (size_t i = 0; i < kDisksMax; ++i) {
    DiskRow& row = rows.emplace_back();
    row.id = fmt::format("d{}", i);
    row.spec.set_wwn(row.id);
    row.revision = i + 1;
  }
  ASSERT_TRUE(store_->Apply({rows.begin(), rows.end()}).ok());
  Open();
  const auto refused = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_EQ(ReasonOfResult(refused), v1::REASON_TOO_MANY_RESOURCES);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

// ---- Going for good

TEST_F(DeletedDisksTest, WhatIsPurgedIsGoneWithItsKey) {
  CreateAndDelete(Encrypted(NullDisk("a")));
  Create(Encrypted(NullDisk("b"), 'b'));
  std::vector<std::string> keys;
  const auto rows = store_->Load();
  ASSERT_TRUE(rows.ok());
  for (const DiskRow& row : {rows->disks.at(0), rows->deleted_disks.at(0).disk})
    keys.push_back(row.spec.encryption().wrapped_key().data());
  const auto in_files = [&](const std::string& key) { return RawFiles().find(key) != std::string::npos; };
  for (const std::string& key : keys) EXPECT_TRUE(in_files(key));
  const auto purged = state_->kept_disks().Purge(Purge("a"));
  ASSERT_TRUE(purged.ok());
  EXPECT_TRUE(purged->has_disk());
  EXPECT_FALSE(in_files(keys[1]));
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Undelete(Undelete("a"))), v1::REASON_RESOURCE_NOT_FOUND);
  EXPECT_FALSE(state_->kept_disks().Purge(Purge("a"))->has_disk()) << "the same call again is OK";
  const auto deleted = state_->disks().Delete(DeleteAndPurge("b"));
  ASSERT_TRUE(deleted.ok());
  EXPECT_FALSE(deleted->has_disk());
  EXPECT_FALSE(in_files(keys[0]));
  Open();
  EXPECT_EQ(List(true), "");
}

TEST_F(DeletedDisksTest, KeepingNoneIsWhatItWas) {
  Open(0);
  EXPECT_FALSE(state_->disks().keeps_deleted());
  Create(Encrypted(NullDisk("a")));
  const auto deleted = state_->disks().Delete(DeleteDisk("a"));
  ASSERT_TRUE(deleted.ok());
  EXPECT_FALSE(deleted->has_disk());
  EXPECT_EQ(List(true), "");
  EXPECT_TRUE(store_->Load()->deleted_disks.empty());
}

TEST_F(DeletedDisksTest, AKeyIsSparedWhereTheRequestSaysSo) {
  const auto sparing = [](v1::DeleteDiskRequest request) {
    request.set_spare_key(true);
    return request;
  };
  v1::PurgeDiskRequest purge = Purge("a");
  purge.set_spare_key(true);
  Create(Encrypted(NullDisk("a")));
  Create(NullDisk("plain"));
  EXPECT_EQ(ReasonOfResult(state_->disks().Delete(sparing(DeleteAndPurge("a")))), v1::REASON_KEY_NOT_KEPT);
  EXPECT_TRUE(state_->disks().Delete(sparing(DeleteAndPurge("plain"))).ok()) << "it has no key";
  EXPECT_TRUE(state_->disks().Delete(sparing(DeleteDisk("a"))).ok()) << "it is kept";
  EXPECT_EQ(ReasonOfResult(state_->kept_disks().Purge(purge)), v1::REASON_KEY_NOT_KEPT);
  ASSERT_TRUE(state_->kept_disks().Undelete(Undelete("a")).ok());
  Open(0);
  EXPECT_EQ(ReasonOfResult(state_->disks().Delete(sparing(DeleteDisk("a")))), v1::REASON_KEY_NOT_KEPT);
  EXPECT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
}

TEST_F(DeletedDisksTest, TimeThatIsOverPurgesButNotInTheFirstHour) {
  ManualClock clock;
  PurgeTimer timer(state_->kept_disks(), clock);
  CreateAndDelete(NullDisk("a"));
  now_s_ += kDay;
  const std::string later = CreateAndDelete(NullDisk("b"));
  now_s_ = kNow + 7 * kDay;
  clock.AdvanceBy(PurgeTimer::kGraceNs - 1);
  timer.Turn();
  EXPECT_EQ(state_->kept_disks().Count(), 2U) << "the first hour is not over";
  now_s_ -= 1;
  clock.AdvanceBy(1);
  timer.Turn();
  EXPECT_EQ(state_->kept_disks().Count(), 2U) << "a second is left";
  now_s_ += 1;
  timer.Turn();
  EXPECT_EQ(List(true), "b(" + later + ")");
  // And again an hour after the next start.
  Open();
  PurgeTimer next(state_->kept_disks(), clock);
  now_s_ += 100 * kDay;
  next.Turn();
  EXPECT_TRUE(state_->kept_disks().Undelete(Undelete("b")).ok());
}

// ---- Key-encryption keys

TEST_F(DeletedDisksTest, ANewKeyEncryptionKeyWrapsTheirKeysToo) {
  const auto request = Encrypted(NullDisk("a"));
  CreateAndDelete(request);
  WriteKek("new", '2');
  Open(7 * kDay, {"new", "kek"});
  Open(7 * kDay, {"new"});
  const auto back = state_->kept_disks().Undelete(Undelete("a"));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->spec().encryption().wrapped_key().key_encryption_key(), keyring_->current_id());
  const auto same = state_->disks().Create(request);
  EXPECT_TRUE(same.ok()) << Why(same);
}

// ---- Stores

TEST_F(DeletedDisksTest, AStoreOfBeforeHasNoneAndTakesThem) {
  Create(NullDisk("a"));
  Close();
  Execute(
      "ALTER TABLE revisions DROP COLUMN paths_checked_from; DROP TABLE lost_revisions; DROP TABLE pools; "
      "DROP TABLE subsystems; DROP TABLE deleted_disks; PRAGMA user_version = 7");
  Open();
  EXPECT_EQ(List(true), "a");
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_TRUE(state_->kept_disks().Undelete(Undelete("a")).ok());
}

TEST_F(DeletedDisksTest, ADamagedOneIsNotTakenForAnother) {
  CreateAndDelete(NullDisk("a"));
  Close();
  Execute("UPDATE deleted_disks SET purge_time = purge_time + 1");
  const auto store = Store::Open(dir_.path());
  ASSERT_TRUE(store.ok());
  const auto rows = (*store)->Load();
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(Why(rows).find("deleted disk 'a' is damaged"), std::string::npos) << Why(rows);
}

}  // namespace
}  // namespace cleat::control::deleted_disks_test
