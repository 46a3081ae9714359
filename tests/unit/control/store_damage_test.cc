// SPDX-License-Identifier: Apache-2.0
// What the store does when it is old, when its disk is full, and when its file is damaged.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "control/model/reasons.h"
#include "control/state/host_state.h"
#include "control/store/store.h"
#include "control/validate/spec_rules.h"
#include "full_disk.h"
#include "requests.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::store_damage_test {
namespace {

DiskRow Disk(const std::string& id) {
  DiskRow row;
  row.id = id;
  row.spec.set_size_bytes(4096);
  row.spec.set_serial(std::string(20, 's'));
  row.spec.mutable_null();
  row.revision = row.intent_revision = 7;
  row.labels = {{"vm", id}};
  return row;
}

v1::Reason ReasonOfOpening(const std::string& folder) {
  auto store = Store::Open(folder);
  if (!store.ok()) return ReasonOf(store.error());
  const auto rows = (*store)->Load();
  return rows.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(rows.error());
}

// ---- An old one ----

// Made by the first version: four disks, three controllers of which one is being deleted, three attachments of which one
// is being detached.
TEST(OldStoreTest, SchemaOneIsMigratedAndLoadsWithEverything) {
  const test::TempDir dir;
  std::filesystem::copy_file(test::SourceFile("tests/unit/control/data/schema1.db"), dir / "cleat.db");
  for (int i = 0; i < 2; ++i) {  // migrated, then as it is
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok()) << store.error().message;
    MemfdKeeper memory;
    auto state = HostState::Load(**store, memory);
    ASSERT_TRUE(state.ok()) << state.error().message;

    const auto root = (*state)->disks().Get(GetDisk("root"));
    ASSERT_TRUE(root.ok());
    EXPECT_EQ(root->spec().file().path(), "/tmp/vms/root.img");
    EXPECT_EQ(root->spec().wwn(), DefaultWwn("root"));
    EXPECT_EQ(root->status().attachments(0), "controllers/vm1/attachments/root");
    EXPECT_EQ((*state)->disks().Get(GetDisk("scratch"))->spec().serial(), "SN-1");
    EXPECT_EQ((*state)->disks().Get(GetDisk("dvd"))->spec().access_mode(), v1::ACCESS_MODE_MANY_READERS);
    EXPECT_TRUE(
        (*state)->disks().Get(GetDisk("a-disk-with-a-name-longer-than-a-serial"))->spec().has_memory());
    EXPECT_EQ((*state)->controllers().Get(GetController("vm1"))->spec().queues(), 4u);
    EXPECT_EQ((*state)->controllers().Get(GetController("vm2"))->status().engine(), "engines/engine-0");
    EXPECT_EQ((*state)->controllers().Get(GetController("vm3"))->status().state(),
              v1::CONTROLLER_STATE_DELETING);
    const auto attachment = (*state)->attachments().Get(GetAttachment("vm2", "dvd"));
    ASSERT_TRUE(attachment.ok());
    EXPECT_TRUE(attachment->spec().has_target());
    EXPECT_TRUE(attachment->spec().read_only());
    EXPECT_EQ((*state)->attachments().Get(GetAttachment("vm3", "dvd"))->status().state(),
              v1::ATTACHMENT_STATE_DETACHING);

    // What made them makes nothing new.
    EXPECT_TRUE((*state)->attachments().Attach(Attach("root", "vm1")).ok());
    auto scratch = NullDisk("scratch", 2 * kMiB);
    scratch.mutable_disk()->mutable_spec()->set_serial("SN-1");
    EXPECT_TRUE((*state)->disks().Create(scratch).ok());
  }
}

// Made by the version before groups: two disks, one with labels, a controller, an attachment.
TEST(OldStoreTest, SchemaTwoIsMigratedAndDamageIsNotTakenOver) {
  const test::TempDir dir;
  const std::string path = dir / "cleat.db";
  const auto copy = [&] {
    std::filesystem::copy_file(test::SourceFile("tests/unit/control/data/schema2.db"), path,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy();
  for (int i = 0; i < 2; ++i) {  // migrated, then as it is
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok()) << store.error().message;
    MemfdKeeper memory;
    auto state = HostState::Load(**store, memory);
    ASSERT_TRUE(state.ok()) << state.error().message;
    const auto root = (*state)->disks().Get(GetDisk("root"));
    ASSERT_TRUE(root.ok());
    EXPECT_EQ(root->labels().at("os"), "debian");
    EXPECT_EQ(root->status().attachments(0), "controllers/vm1/attachments/root");
    EXPECT_EQ((*state)->controllers().Get(GetController("vm1"))->spec().queues(), 2u);
    // And what is new works.
    if (i == 0) {
      ASSERT_TRUE((*state)->groups().Create(NewGroup("vms", 100)).ok());
    }
    ASSERT_TRUE((*state)->disks().Update(LimitDisk("scratch", 77)).ok());
    EXPECT_EQ((*state)->groups().Get(GetGroup("vms"))->spec().limits().iops().per_second(), 100u);
  }
  std::filesystem::remove(dir / "lock");
  copy();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "UPDATE disks SET kept_by = 'engine-9'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_EQ(ReasonOfOpening(dir.path()), v1::REASON_STORE_DAMAGED);
}

// Made by the version before clusters: a group, two disks, one limited, one encrypted, a controller, an attachment.
TEST(OldStoreTest, SchemaThreeIsMigratedAndLoadsWithEverything) {
  const test::TempDir dir;
  std::filesystem::copy_file(test::SourceFile("tests/unit/control/data/schema3.db"), dir / "cleat.db");
  for (int i = 0; i < 2; ++i) {  // migrated, then as it is
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok()) << store.error().message;
    MemfdKeeper memory;
    auto state = HostState::Load(**store, memory);
    ASSERT_TRUE(state.ok()) << state.error().message;
    const auto root = (*state)->disks().Get(GetDisk("root"));
    ASSERT_TRUE(root.ok());
    EXPECT_EQ(root->spec().limits().bytes().per_second(), 1U << 20);
    EXPECT_EQ(root->labels().at("os"), "debian");
    EXPECT_TRUE((*state)->disks().Get(GetDisk("secret"))->spec().has_encryption());
    EXPECT_EQ((*state)->groups().Get(GetGroup("vms"))->status().controllers(0), "controllers/vm1");
    // And what is new works.
    v1::CreateClusterRequest request;
    request.set_cluster_id("ceph");
    request.mutable_cluster()->mutable_spec()->set_conf_file("/etc/ceph/ceph.conf");
    request.mutable_cluster()->mutable_spec()->set_user("cleat");
    const auto made = (*state)->clusters().Create(request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ((*state)->clusters().List({})->clusters_size(), 1);
  }
}

// ---- A full disk ----

TEST(FullStoreTest, AFullDiskRefusesAndLosesNothingThatWasAcknowledged) {
  const test::TempDir dir;
  std::set<std::string> acknowledged;
  {
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok());
    bool told = false;
    (*store)->SetOnFailure([&] { told = true; });
    for (int i = 0; i < 20; ++i) {
      const std::string id = fmt::format("d{}", i);
      ASSERT_TRUE((*store)->Apply({Disk(id)}).ok());
      acknowledged.insert(id);
    }
    Status refused;
    {
      const FullDisk full;
      refused = (*store)->Apply({Disk("refused")});
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(ReasonName(ReasonOf(refused.error())), "STORE_FULL") << refused.error().message;
      EXPECT_NE(refused.error().message.find("cleat.db"), std::string::npos);
      EXPECT_FALSE((*store)->writable());
      EXPECT_TRUE(told);
      EXPECT_FALSE((*store)->Probe().ok());
    }
    EXPECT_TRUE((*store)->Probe().ok());
    EXPECT_TRUE((*store)->writable());
    ASSERT_TRUE((*store)->Apply({Disk("again")}).ok()) << "works when there is room";
    acknowledged.insert("again");
  }
  auto store = Store::Open(dir.path());
  ASSERT_TRUE(store.ok()) << store.error().message;
  const auto rows = (*store)->Load();
  ASSERT_TRUE(rows.ok());
  std::set<std::string> found;
  for (const DiskRow& row : rows->disks) found.insert(row.id);
  EXPECT_EQ(found, acknowledged);
}

TEST(FullStoreTest, AFullDiskRefusesAllRowsOfATransactionAndTakesTheNextOne) {
  const test::TempDir dir;
  AttachmentRow a;
  a.controller = "c";
  a.id = "a";
  AttachmentRow b = a;
  b.id = "b";
  const StoreChange both{a, b};
  {
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok());
    {
      const FullDisk full;
      EXPECT_FALSE((*store)->Apply(both).ok());
      EXPECT_FALSE((*store)->writable());
    }
    EXPECT_TRUE((*store)->Load()->attachments.empty());
    EXPECT_TRUE((*store)->Apply(both).ok()) << "no transaction was left open";
    EXPECT_TRUE((*store)->writable());
  }
  auto store = Store::Open(dir.path());
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->Load()->attachments.size(), 2U);
}

// ---- A damaged file ----

class DamagedStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open(dir_.path());
    ASSERT_TRUE(store.ok());
    for (int i = 0; i < 100; ++i) ASSERT_TRUE((*store)->Apply({Disk(fmt::format("d{}", i))}).ok());
    store->reset();
    std::ifstream file(path_, std::ios::binary);
    good_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_GT(good_.size(), 8192u);
  }
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

  test::TempDir dir_;
  const std::string path_ = dir_ / "cleat.db";
  std::string good_;
};

TEST_F(DamagedStoreTest, AMissingOrEmptyFileIsNotAnEmptyStore) {
  std::filesystem::remove(path_);
  auto store = Store::Open(dir_.path());
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(ReasonOf(store.error()), v1::REASON_STORE_DAMAGED);
  EXPECT_NE(store.error().message.find(path_), std::string::npos);
  EXPECT_NE(store.error().message.find("lock"), std::string::npos) << "says how to start anew";
  Write("");
  EXPECT_EQ(ReasonOfOpening(dir_.path()), v1::REASON_STORE_DAMAGED);
  Write(good_);
  EXPECT_EQ(ReasonOfOpening(dir_.path()), v1::REASON_UNSPECIFIED);
}

TEST_F(DamagedStoreTest, ATruncatedFileIsRefused) {
  for (size_t size = 1; size < good_.size(); size += 1531) {
    Write(good_.substr(0, size));
    EXPECT_EQ(ReasonName(ReasonOfOpening(dir_.path())), "STORE_DAMAGED") << size;
  }
}

// Wherever 16 bytes are overwritten: refused, or every row is there as it was.
TEST_F(DamagedStoreTest, OverwrittenBytesAreNoticedOrDoNoHarm) {
  int noticed = 0;
  for (size_t at = 0; at + 16 <= good_.size(); at += 509) {
    std::string bad = good_;
    bad.replace(at, 16, 16, '\x5a');
    Write(bad);
    std::filesystem::remove(path_ + "-wal");
    auto store = Store::Open(dir_.path());
    if (!store.ok()) {
      ++noticed;
      continue;
    }
    const auto rows = (*store)->Load();
    if (!rows.ok()) {
      EXPECT_EQ(ReasonName(ReasonOf(rows.error())), "STORE_DAMAGED");
      ++noticed;
      continue;
    }
    ASSERT_EQ(rows->disks.size(), 100u) << at;
    for (const DiskRow& row : rows->disks) {
      const DiskRow wanted = Disk(row.id);
      EXPECT_TRUE(SameSpec(row.spec, wanted.spec) && row.labels == wanted.labels) << at;
    }
  }
  EXPECT_GT(noticed, 5);
}

}  // namespace
}  // namespace cleat::control::store_damage_test
