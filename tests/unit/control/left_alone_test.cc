// SPDX-License-Identifier: Apache-2.0
// What engines have that a restored store knows nothing of: left alone, a controller at a time, until somebody speaks of it by name. With an
// engine that is played.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <functional>

#include "moves_rig.h"
#include "requests.h"
#include "restored.h"

namespace cleat::control::left_alone_test {
namespace {

constexpr const char* kWord = "after the backup";

class LeftAloneTest : public ReconcilerRig {
 protected:
  void Attach(const v1::CreateDiskRequest& disk, const std::string& controller) {
    ASSERT_TRUE(state_->disks().Create(disk).ok());
    AttachThere(disk.disk_id(), controller);
  }
  void AttachThere(const std::string& disk, const std::string& controller) {
    if (!state_->controllers().Get(GetController(controller)).ok()) {
      ASSERT_TRUE(state_->controllers().Create(Scsi(controller)).ok());
    }
    ASSERT_TRUE(state_->attachments().Attach(control::Attach(disk, controller)).ok());
    AwaitReady(controller, disk);
  }
  static v1::CreateControllerRequest Scsi(const std::string& id) {
    v1::CreateControllerRequest request = NewController(id);
    request.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
    return request;
  }
  void AwaitReady(const std::string& controller, const std::string& disk) {
    Await(disk + " is attached", [&] {
      const auto attachment = state_->attachments().Get(GetAttachment(controller, disk));
      return attachment.ok() && attachment->status().state() == v1::ATTACHMENT_STATE_READY;
    });
  }
  // Restores, as cleatd does it, and has the engine connect. `edit` may spoil the store in between.
  void RestoreAndConnect(const std::string& backup, const std::string& edit = {}) {
    const auto restored = Restore(*state_, backup);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    Stop();
    engine_.Disconnect();
    if (!edit.empty()) {
      sqlite3* db = nullptr;
      ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
      ASSERT_EQ(sqlite3_exec(db, edit.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
      sqlite3_close(db);
    }
    Start();
    engine_.TakeRequests();
    ASSERT_TRUE(engine_.Connect());
  }
  // Whatever was asked before this is in the engine's list of requests afterwards.
  void AwaitProbe() {
    const std::string id = "probe" + std::to_string(++probes_);
    ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
    Await(id + " is there", [&] {
      return state_->controllers().Get(GetController(id))->status().state() == v1::CONTROLLER_STATE_IDLE;
    });
  }
  // All that the engine was asked for, without probes.
  Requests Asked() {
    AwaitProbe();
    Requests requests = engine_.TakeRequests();
    std::erase_if(requests, [](const std::string& r) { return r.find("/probe") != std::string::npos; });
    return requests;
  }
  v1::EngineStatus EngineStatus() { return state_->engines().Get(GetEngine("engine-0"))->status(); }
  void AwaitAlone(uint32_t count) {
    Await("so many are left alone", [&] {
      const auto engine = state_->engines().Get(GetEngine("engine-0"));
      return engine.ok() && engine->status().left_alone_total() == count;
    });
  }
  std::string MessageOf(const std::string& controller) {
    return state_->controllers().Get(GetController(controller))->status().message();
  }
  int probes_ = 0;
};

TEST_F(LeftAloneTest, AControllerThatTheStoreDoesNotKnowIsServedOn) {
  ASSERT_TRUE(engine_.Connect());
  Attach(NullDisk("da"), "a");
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("db"), "b");
  RestoreAndConnect(backup);
  AwaitReady("a", "da");
  AwaitAlone(1);
  EXPECT_EQ(Asked(), Requests()) << "nothing is asked of the engine";
  EXPECT_TRUE(engine_.Has("controllers/b", 0));
  EXPECT_EQ(EngineStatus().left_alone(0), "controllers/b");
  EXPECT_NE(EngineStatus().message().find("controllers/b"), std::string::npos) << EngineStatus().message();
  EXPECT_TRUE(EngineStatus().connected());
  EXPECT_EQ(MessageOf("a").find(kWord), std::string::npos) << MessageOf("a");
  // It stays so.
  RestartCleatd();
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  AwaitAlone(1);
  EXPECT_EQ(Asked(), Requests());
}

// What LeftAloneTest is about: the same store, without the revisions that were lost.
TEST_F(LeftAloneTest, NegativeControlWithoutTheLostRevisionsItIsTornDown) {
  ASSERT_TRUE(engine_.Connect());
  Attach(NullDisk("da"), "a");
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("db"), "b");
  RestoreAndConnect(backup, "DELETE FROM lost_revisions");
  AwaitReady("a", "da");
  engine_.WaitForRequest("DeleteController controllers/b");
  EXPECT_FALSE(engine_.Has("controllers/b", 0));
}

TEST_F(LeftAloneTest, ItGoesWhenItIsDeletedByName) {
  ASSERT_TRUE(engine_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("db"), "b");
  Attach(NullDisk("dc"), "c");
  RestoreAndConnect(backup);
  AwaitAlone(2);
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("b")).ok());
  AwaitAlone(1);
  Await("b is gone", [&] { return !state_->controllers().Get(GetController("b")).ok(); });
  EXPECT_EQ(Asked(), (Requests{"Detach controllers/b 0", "DeleteController controllers/b"}));
  EXPECT_TRUE(engine_.Has("controllers/c", 0));
  EXPECT_TRUE(state_->controllers().Delete(DeleteController("nobody")).ok());
}

TEST_F(LeftAloneTest, ItIsServedByWhatIsMadeAgain) {
  ASSERT_TRUE(engine_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("db"), "b");
  RestoreAndConnect(backup);
  AwaitAlone(1);
  ASSERT_TRUE(state_->disks().Create(NullDisk("db")).ok());
  EXPECT_EQ(Asked(), Requests()) << "nobody has spoken of the controller";
  AttachThere("db", "b");
  AwaitAlone(0);
  const Requests asked = Asked();
  EXPECT_EQ(asked.front(), "Detach controllers/b 0");
  // Whether it is served before or after that is open.
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "Attach controllers/b 0 disks/db"), 1);
}

TEST_F(LeftAloneTest, OneThatTheStoreKnowsIsLeftAloneUntilItIsChanged) {
  ASSERT_TRUE(engine_.Connect());
  Attach(NullDisk("d0"), "a");
  Attach(NullDisk("d1"), "a");
  Attach(NullDisk("d2"), "a");
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("later"), "a");
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d1")).ok());
  Await("d1 is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "d1")).ok(); });
  RestoreAndConnect(backup);
  AwaitAlone(1);
  EXPECT_EQ(Asked(), Requests()) << "neither is d1 attached nor the later one detached";
  EXPECT_NE(MessageOf("a").find(kWord), std::string::npos) << MessageOf("a");
  EXPECT_EQ(EngineStatus().message(), "") << "the store knows it";
  const auto waits = state_->attachments().Get(GetAttachment("a", "d1"));
  EXPECT_EQ(waits->status().state(), v1::ATTACHMENT_STATE_PENDING);
  EXPECT_NE(waits->status().message().find("left alone"), std::string::npos) << waits->status().message();
  // Also when the attachment by which it is spoken of goes at once, while another one is slow to.
  engine_.Hold("Detach controllers/a 3");
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d2")).ok());
  Await("d2 is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "d2")).ok(); });
  engine_.Release();
  AwaitReady("a", "d1");
  Await("the later one is detached", [&] { return !engine_.Has("controllers/a", 3); });
  AwaitAlone(0);
  EXPECT_EQ(MessageOf("a").find(kWord), std::string::npos) << MessageOf("a");
}

TEST_F(LeftAloneTest, ADiskThatItHasIsNotGivenToAnotherOne) {
  ASSERT_TRUE(engine_.Connect());
  Attach(NullDisk("d"), "a");
  Attach(NullDisk("other"), "a");
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d")).ok());
  Await("d is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "d")).ok(); });
  AttachThere("d", "b");
  RestoreAndConnect(backup);
  AwaitReady("a", "other");
  AwaitAlone(1);
  EXPECT_EQ(Asked(), Requests());
  const auto waits = state_->attachments().Get(GetAttachment("a", "d"));
  EXPECT_NE(waits->status().message().find("controllers/b"), std::string::npos) << waits->status().message();
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("b")).ok());
  AwaitReady("a", "d");
}

TEST_F(LeftAloneTest, ItsGroupClusterAndMemoryStay) {
  ASSERT_TRUE(engine_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(state_->groups().Create(NewGroup("g", 1000)).ok());
  v1::CreateClusterRequest cluster;
  cluster.set_cluster_id("ceph");
  cluster.mutable_cluster()->mutable_spec()->set_monitors("127.0.0.1");
  cluster.mutable_cluster()->mutable_spec()->set_user("cleat");
  cluster.mutable_cluster()->mutable_spec()->set_conf_file("/etc/ceph/ceph.conf");
  ASSERT_TRUE(state_->clusters().Create(cluster).ok());
  v1::CreateControllerRequest in_group = Scsi("b");
  in_group.mutable_controller()->mutable_spec()->set_group("groups/g");
  ASSERT_TRUE(state_->controllers().Create(in_group).ok());
  Attach(MemoryDisk("mem"), "b");
  v1::CreateDiskRequest image = NullDisk("image");
  image.mutable_disk()->mutable_spec()->mutable_rbd()->set_cluster("clusters/ceph");
  image.mutable_disk()->mutable_spec()->mutable_rbd()->set_pool("rbd");
  image.mutable_disk()->mutable_spec()->mutable_rbd()->set_image("image");
  Attach(image, "b");
  RestoreAndConnect(backup);
  AwaitAlone(1);
  Requests asked = Asked();
  std::erase_if(asked, [](const std::string& r) { return r.starts_with("ShareGroups"); });
  EXPECT_EQ(asked, Requests());
  EXPECT_TRUE(engine_.MemoryOf("disks/mem").valid());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("b")).ok());
  engine_.WaitForRequest("DropMemory disks/mem");
  engine_.WaitForRequest("DropGroup groups/g");
  engine_.WaitForRequest("DropCluster clusters/ceph");
}

// Else the zeroes of a new disk would take the place of what the guest has written, when the engine dies.
TEST_F(LeftAloneTest, MemoryThatIsMadeKnownAgainIsTheEngines) {
  ASSERT_TRUE(engine_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  Attach(MemoryDisk("mem"), "b");
  const char word[] = "written by the guest";
  const UniqueFd written = engine_.MemoryOf("disks/mem");
  ASSERT_EQ(pwrite(written.get(), word, sizeof(word), 4096), static_cast<ssize_t>(sizeof(word)));
  RestoreAndConnect(backup);
  AwaitAlone(1);
  Attach(MemoryDisk("mem"), "b");
  AwaitAlone(0);
  Await("cleatd has it as well", [&] {
    const UniqueFd kept = memory_->Share("mem");
    char found[sizeof(word)] = {};
    return pread(kept.get(), found, sizeof(found), 4096) == static_cast<ssize_t>(sizeof(found)) &&
           std::string(found) == word;
  });
}

TEST_F(LeftAloneTest, AGuestsLastDiskIsTheOneThatItsEngineSays) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->controllers().Create(NewController("c")).ok());
  Attach(NullDisk("x"), "c");
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(state_->attachments().Detach(Detach("c", "x")).ok());
  Await("x is detached", [&] { return !state_->attachments().Get(GetAttachment("c", "x")).ok(); });
  Attach(NullDisk("y"), "c");
  engine_.ForgetLastDisk("controllers/c");
  Await("y is its last disk", [&] {
    return state_->controllers().Get(GetController("c"))->status().last_disk() == "disks/y" &&
           engine_.ControllerAt("controllers/c").last_disk_name() == "disks/y";
  });
  RestoreAndConnect(backup);
  AwaitAlone(1);
  EXPECT_EQ(Asked(), Requests());
  EXPECT_EQ(state_->controllers().Get(GetController("c"))->status().last_disk(), "disks/y");
  ASSERT_TRUE(state_->attachments().Detach(Detach("c", "x")).ok());
  Await("y is detached, and x forgotten", [&] {
    return !engine_.Has("controllers/c", 0) && !state_->attachments().Get(GetAttachment("c", "x")).ok();
  });
  AttachThere("x", "c");
  EXPECT_EQ(engine_.ControllerAt("controllers/c").last_disk_name(), "disks/y")
      << "the guest has y under way, whatever the backup says";
}

// The store was lost, and a new one is there that knows nothing: its engine is another store's until the backup is restored.
TEST_F(LeftAloneTest, AfterANewStoreTheBackupsEngineIsItsOwnAgain) {
  ASSERT_TRUE(engine_.Connect());
  Attach(NullDisk("da"), "a");
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("db"), "b");
  const uint64_t handed_out = state_->NewestRevision();
  Stop();
  engine_.Disconnect();
  for (const char* name : {"cleat.db", "cleat.db-wal", "lock"}) unlink((dir_ / name).c_str());
  Start();
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  Await("it is another store's", [&] {
    const auto engine = state_->engines().Get(GetEngine("engine-0"));
    return engine.ok() && engine->status().message().find("another cleatd's") != std::string::npos;
  });
  RestoreAndConnect(backup);
  AwaitReady("a", "da");
  AwaitAlone(1);
  EXPECT_EQ(Asked(), Requests());
  EXPECT_GT(state_->NewestRevision(), handed_out);
  EXPECT_TRUE(engine_.Has("controllers/b", 0));
}

// Revisions of the store of between say nothing of the restored one's.
TEST_F(LeftAloneTest, WhatAStoreOfBetweenMadeIsLeftAloneAsWell) {
  ASSERT_TRUE(engine_.Connect());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(state_->disks().Create(NullDisk("d" + std::to_string(i))).ok());
  Attach(NullDisk("da"), "a");
  const std::string backup = BytesOfBackup(*state_);
  Stop();
  engine_.Die();
  for (const char* name : {"cleat.db", "cleat.db-wal", "lock"}) unlink((dir_ / name).c_str());
  Start();
  ASSERT_TRUE(engine_.Connect());
  Attach(NullDisk("dn"), "n");
  RestoreAndConnect(backup);
  AwaitReady("a", "da");
  AwaitAlone(1);
  EXPECT_TRUE(engine_.Has("controllers/n", 0));
}

TEST_F(LeftAloneTest, AnEngineOfAnotherStoreIsStillLeftAloneAsAWhole) {
  ASSERT_TRUE(engine_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  Attach(NullDisk("db"), "b");
  RestoreAndConnect(backup);
  AwaitAlone(1);
  engine::v1::Controller planted;
  planted.set_name("controllers/x");
  planted.set_revision(uint64_t{1} << 35);
  engine_.Disconnect();
  engine_.Plant(planted);
  ASSERT_TRUE(engine_.Connect());
  Await("it is another store's",
        [&] { return EngineStatus().message().find("another cleatd's") != std::string::npos; });
  EXPECT_FALSE(EngineStatus().connected());
}

// What stands by has no guest: it is prepared anew, as the store says.
class LeftAloneStandbyTest : public MovesRig {};

TEST_F(LeftAloneStandbyTest, AStandbyIsPreparedAnewAndTakesWhenTheOtherDies) {
  green_.set_stands_by_for("engine-0");
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  Create(NullDisk("d"), "s", v1::CONTROLLER_TYPE_SCSI);
  AwaitStandby(green_, "s");
  const std::string backup = BytesOfBackup(*state_);
  Create(NullDisk("e"), "s");
  AwaitStandby(green_, "s", 2);
  ASSERT_TRUE(Restore(*state_, backup).ok());
  RestartCleatd();
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  Await("what the store does not know is gone from the standby",
        [&] { return !green_.Has("controllers/s", 1) && green_.Has("controllers/s", 0); });
  EXPECT_TRUE(blue_.Has("controllers/s", 1)) << "and stays where a guest uses it";
  AwaitStandby(green_, "s");
  blue_.Die();
  AwaitServed("s", "engine-1");
}

}  // namespace
}  // namespace cleat::control::left_alone_test
