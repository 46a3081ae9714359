// SPDX-License-Identifier: Apache-2.0
// Which disk a blk controller served last, in cleatd's books: its guest may still have that one under way, so another one is served only
// when the engine has seen that it was forgotten, and cleatd has stored so.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <functional>

#include "control/store/sqlite_row.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::last_disk_test {
namespace {

class LastDiskTest : public ReconcilerRig {
 protected:
  void Attach(const std::string& disk) {
    ASSERT_TRUE(state_->attachments().Attach(control::Attach(disk, "c")).ok());
    Await(disk + " is attached", [&] {
      const auto attachment = state_->attachments().Get(GetAttachment("c", disk));
      return attachment.ok() && attachment->status().state() == v1::ATTACHMENT_STATE_READY;
    });
  }
  void Detach(const std::string& disk) {
    ASSERT_TRUE(state_->attachments().Detach(control::Detach("c", disk)).ok());
    Await(disk + " is detached", [&] { return !state_->attachments().Get(GetAttachment("c", disk)).ok(); });
  }
  // A blk controller that has served the disk a, and has none now; the engine is there.
  void ServeA() {
    ASSERT_TRUE(engine_.Connect());
    ASSERT_TRUE(state_->controllers().Create(NewController("c")).ok());
    for (const char* disk : {"a", "b"}) ASSERT_TRUE(state_->disks().Create(NullDisk(disk)).ok());
    Attach("a");
    EXPECT_EQ(LastDisk(), "");
    Detach("a");
  }
  std::string LastDisk() { return state_->controllers().Get(GetController("c"))->status().last_disk(); }
  std::string LastDiskToldToEngine() { return engine_.ControllerAt("controllers/c").last_disk_name(); }
  DiskIdentity AttachedIdentity() { return DiskIdentity(engine_.DiskAt("controllers/c", 0).identity()); }
};

TEST_F(LastDiskTest, ADiskThatIsDetachedStaysTheLastOneAlsoOverARestart) {
  ServeA();
  EXPECT_EQ(LastDisk(), "disks/a");
  Await("the engine knows", [&] { return LastDiskToldToEngine() == "disks/a"; });
  RestartCleatd();
  EXPECT_EQ(LastDisk(), "disks/a");
  ASSERT_TRUE(engine_.Connect());
  Attach("b");
  EXPECT_EQ(LastDisk(), "disks/a") << "nothing says yet that it was forgotten";
  EXPECT_EQ(LastDiskToldToEngine(), "disks/a");
  EXPECT_TRUE(AttachedIdentity().known());
  EXPECT_NE(AttachedIdentity().value(), engine_.ControllerAt("controllers/c").last_disk());
}

TEST_F(LastDiskTest, AnEngineThatComesLaterIsTold) {
  ServeA();
  engine_.Restart();
  Await("the new engine knows", [&] { return LastDiskToldToEngine() == "disks/a"; });
}

TEST_F(LastDiskTest, WhatTheGuestHasForgottenIsStoredBeforeTheEngineIsTold) {
  ServeA();
  Attach("b");
  engine_.ForgetLastDisk("controllers/c");
  Await("the engine may serve it", [&] { return LastDiskToldToEngine() == "disks/b"; });
  EXPECT_EQ(LastDisk(), "disks/b");
  RestartCleatd();
  EXPECT_EQ(LastDisk(), "disks/b");
  // And back: disks/b is what the guest has under way now.
  ASSERT_TRUE(engine_.Connect());
  Detach("b");
  Attach("a");
  EXPECT_EQ(LastDisk(), "disks/b");
}

TEST_F(LastDiskTest, AReportAboutADiskThatIsGoneMeanwhileChangesNothing) {
  ServeA();
  Attach("b");
  EXPECT_TRUE(state_->controllers()
                  .ReportNextDisk("engine-0", "c", DiskIdentity::Of(store_->number(), 1'000'000))
                  .ok());
  EXPECT_TRUE(state_->controllers().ReportNextDisk("another", "c", AttachedIdentity()).ok());
  EXPECT_TRUE(state_->controllers().ReportNextDisk("engine-0", "none", AttachedIdentity()).ok());
  EXPECT_EQ(LastDisk(), "disks/a");
}

// Its targets come and go under the guest, which is told of each.
TEST_F(LastDiskTest, AScsiControllerHasNone) {
  ASSERT_TRUE(engine_.Connect());
  auto request = NewController("c");
  request.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
  ASSERT_TRUE(state_->controllers().Create(request).ok());
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  Attach("a");
  Detach("a");
  EXPECT_EQ(LastDisk(), "");
}

// One that was made before there were last disks does not report them, and is not asked again and again.
TEST_F(LastDiskTest, AnEngineThatKnowsOfNoneIsLeftAlone) {
  engine_.set_protocol(kProtocolIdentities - 1);
  ServeA();
  Attach("b");
  engine_.Disconnect();
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->controllers().Create(NewController("probe")).ok());
  engine_.WaitForRequest("PutController controllers/probe");
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/probe"}));
}

// It gives its guest whichever disk is attached, and the next engine must not take that for the wrong one.
TEST_F(LastDiskTest, WhatAnEngineOfBeforeHasServedIsTheLastOne) {
  engine_.set_protocol(kProtocolIdentities - 1);
  ServeA();
  EXPECT_EQ(LastDisk(), "disks/a");
  Attach("b");
  EXPECT_EQ(LastDisk(), "disks/a") << "its guest may not have seen it yet";
  engine_.SetControllerState("controllers/c", engine::v1::CONTROLLER_STATE_READY);
  Await("the guest has it", [&] { return LastDisk() == "disks/b"; });
}

// ---- Stores of before

void Execute(sqlite3* db, const std::string& sql) {
  ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
}

// What version 6 would have written: a row as it is now, without its last columns.
void PutInVersion6(sqlite3* db, const ControllerRow& row) {
  const std::vector<SqlValue> values = {row.id,     row.spec,      row.revision,       uint64_t{row.deleting},
                                        row.engine, std::string(), row.intent_revision};
  sqlite3_stmt* put = nullptr;
  ASSERT_EQ(
      sqlite3_prepare_v2(db, "INSERT INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", -1, &put, nullptr),
      SQLITE_OK);
  {
    SqlRun run(put);
    int position = 0;
    for (const SqlValue& value : values) ASSERT_EQ(run.Bind(++position, value), SQLITE_OK);
    ASSERT_EQ(run.Bind(++position, SqlValue(RowSum(values))), SQLITE_OK);
    ASSERT_EQ(run.Step(), SQLITE_DONE);
  }
  sqlite3_finalize(put);
}

TEST(LastDiskMigration, OfAControllerWithoutADiskItIsNotKnownAndOfOneWithADiskItIsThat) {
  const test::TempDir dir;
  std::vector<ControllerRow> before;
  {
    MemfdKeeper memory;
    const auto store = std::move(Store::Open(dir.path()).value());
    const auto state = std::move(HostState::Load(*store, memory).value());
    ASSERT_TRUE(state->disks().Create(NullDisk("a")).ok());
    for (const char* id : {"idle", "serving", "scsi"}) {
      auto request = NewController(id);
      request.mutable_controller()->mutable_spec()->set_engine("engines/e");
      if (id == std::string("scsi"))
        request.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
      ASSERT_TRUE(state->controllers().Create(request).ok());
    }
    ASSERT_TRUE(state->attachments().Attach(control::Attach("a", "serving")).ok());
    before = store->Load()->controllers;
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir / "cleat.db").c_str(), &db), SQLITE_OK);
  Execute(db, "DROP TABLE controllers");
  Execute(db,
          "CREATE TABLE controllers (id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, "
          "deleting "
          "INTEGER NOT NULL, engine TEXT NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL, "
          "sum INTEGER "
          "NOT NULL) WITHOUT ROWID");
  for (const ControllerRow& row : before) PutInVersion6(db, row);
  Execute(db, "DROP TABLE host");
  Execute(db, "DROP TABLE deleted_disks");
  Execute(
      db,
      "ALTER TABLE revisions DROP COLUMN paths_checked_from; DROP TABLE lost_revisions; DROP TABLE pools; "
      "DROP TABLE subsystems");
  Execute(db, "PRAGMA user_version = 6");
  sqlite3_close(db);

  const auto store = Store::Open(dir.path());
  ASSERT_TRUE(store.ok()) << store.error().message;
  EXPECT_GE((*store)->number(), 1U);
  EXPECT_LE((*store)->number(), DiskIdentity::kStoreMax);
  const auto rows = (*store)->Load();
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->controllers.size(), 3U);
  for (const ControllerRow& row : rows->controllers) {
    const auto expected = row.id == "idle" ? DiskIdentity::SomeOf((*store)->number()) : DiskIdentity();
    EXPECT_EQ(row.last_disk, expected) << row.id;
    EXPECT_EQ(row.last_disk_name, "");
  }
}

}  // namespace
}  // namespace cleat::control::last_disk_test
