// SPDX-License-Identifier: Apache-2.0
// The files in which engines keep the reservations of exports' namespaces: each stays as long as any engine may have its namespace, and goes with the
// attachment, so that a disk that is attached anew begins without a reservation.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "moves_rig.h"
#include "requests.h"
#include "restored.h"

namespace cleat::control::reservation_folder_test {
namespace {

class ReservationFolderTest : public MovesRig {
 protected:
  std::string Folder() const { return dir_ / "reservations"; }
  void Write(const std::string& name) {
    std::filesystem::create_directories(Folder());
    std::ofstream(Folder() + "/" + name) << "a reservation";
  }
  std::set<std::string> Files() const {
    std::set<std::string> names;
    if (!std::filesystem::exists(Folder())) return names;
    for (const auto& entry : std::filesystem::directory_iterator(Folder()))
      names.insert(entry.path().filename().string());
    return names;
  }
  bool Has(const std::string& name) const { return Files().contains(name); }

  // Served by blue, with a reservation of its hosts. Its UUID.
  std::string AttachToDb(const std::string& disk) {
    if (!state_->controllers().Get(GetController("db")).ok()) {
      auto request = NewExport("db", "nqn.2014-08.org.example:db");
      request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
      EXPECT_TRUE(state_->controllers().Create(request).ok());
    }
    if (!state_->disks().Get(GetDisk(disk)).ok()) {
      EXPECT_TRUE(state_->disks().Create(NullDisk(disk)).ok());
    }
    EXPECT_TRUE(state_->attachments().Attach(Attach(disk, "db")).ok());
    Await(disk + " is attached",
          [&] { return AttachmentOf(disk)->status().state() == v1::ATTACHMENT_STATE_READY; });
    const std::string uuid = AttachmentOf(disk)->status().namespace_uuid();
    Write(uuid);
    return uuid;
  }
  Result<v1::Attachment> AttachmentOf(const std::string& disk) {
    return state_->attachments().Get(GetAttachment("db", disk));
  }
  void DetachFromDb(const std::string& disk) {
    ASSERT_TRUE(state_->attachments().Detach(Detach("db", disk)).ok());
  }
  void AwaitGone(const std::string& disk) {
    Await(disk + " is detached", [&] { return !AttachmentOf(disk).ok(); });
  }
};

TEST_F(ReservationFolderTest, GoesWithItsAttachmentOnceTheEngineHasLetGo) {
  ASSERT_TRUE(blue_.Connect());
  const std::string a = AttachToDb("a");
  const std::string b = AttachToDb("b");
  ASSERT_NE(a, b);
  Write(a + ".new");  // the engine was killed while it wrote
  blue_.Hold("Detach");
  DetachFromDb("a");
  blue_.WaitForRequest("Detach controllers/db 0");
  EXPECT_EQ(Files(), (std::set<std::string>{a, a + ".new", b})) << "the engine serves it still";
  blue_.Release();
  AwaitGone("a");
  EXPECT_EQ(Files(), std::set<std::string>{b});
  // As another disk of that name.
  EXPECT_EQ(AttachToDb("a"), a) << "the same disk is the same namespace";
  DetachFromDb("a");
  AwaitGone("a");
  EXPECT_EQ(Files(), std::set<std::string>{b});
}

TEST_F(ReservationFolderTest, GoesWithAnExportThatIsDeleted) {
  ASSERT_TRUE(blue_.Connect());
  AttachToDb("a");
  AttachToDb("b");
  DetachFromDb("a");
  DetachFromDb("b");
  v1::DeleteControllerRequest request;
  request.set_name("controllers/db");
  ASSERT_TRUE(state_->controllers().Delete(request).ok());
  Await("it is gone", [&] { return !state_->controllers().Get(GetController("db")).ok(); });
  EXPECT_EQ(Files(), std::set<std::string>{});
}

TEST_F(ReservationFolderTest, StaysOverRestartsOfBoth) {
  ASSERT_TRUE(blue_.Connect());
  const std::string a = AttachToDb("a");
  blue_.Die();
  RestartCleatd();
  ASSERT_TRUE(blue_.Connect());
  Await("it is attached", [&] { return blue_.Has("controllers/db", 0); });
  EXPECT_EQ(Files(), std::set<std::string>{a});
}

TEST_F(ReservationFolderTest, StaysOverAnUpgradeAndThenUntilBothEnginesHaveLetGo) {
  green_.set_stands_by_for("engine-0");
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  const std::string a = AttachToDb("a");
  const std::string b = AttachToDb("b");
  AwaitStandby(green_, "db", 2);
  green_.Hold("Detach");
  DetachFromDb("b");
  green_.WaitForRequest("Detach controllers/db 1");
  Await("blue has let go", [&] { return !blue_.Has("controllers/db", 1); });
  EXPECT_EQ(Files(), (std::set<std::string>{a, b})) << "green has it still";
  green_.Release();
  AwaitGone("b");
  EXPECT_EQ(Files(), std::set<std::string>{a});

  blue_.Hold("Yield");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/db");
  EXPECT_TRUE(Has(a));
  blue_.Release();
  EXPECT_EQ(AwaitUpgrade().state(), v1::UPGRADE_STATE_DONE);
  EXPECT_EQ(EngineOf("db"), "engines/engine-1");
  EXPECT_EQ(Files(), std::set<std::string>{a});
}

TEST_F(ReservationFolderTest, GoesWhenItsEngineHasEndedWhileItWasBeingDetached) {
  ASSERT_TRUE(blue_.Connect());
  const std::string a = AttachToDb("a");
  blue_.Hold("Detach");
  DetachFromDb("a");
  blue_.WaitForRequest("Detach controllers/db 0");
  blue_.Disconnect();
  Await("it is lost", [&] { return !IsConnected("engine-0"); });
  EXPECT_TRUE(Has(a)) << "its process may serve on";
  blue_.Die();
  AwaitGone("a");
  EXPECT_EQ(Files(), std::set<std::string>{});
}

TEST_F(ReservationFolderTest, OneThatCanNotBeRemovedHoldsNothingUp) {
  ASSERT_TRUE(blue_.Connect());
  const std::string a = AttachToDb("a");
  std::filesystem::remove(Folder() + "/" + a);
  std::filesystem::create_directory(Folder() + "/" + a);
  DetachFromDb("a");
  AwaitGone("a");
  EXPECT_EQ(Files(), std::set<std::string>{a});
}

TEST_F(ReservationFolderTest, WhatARestoredStoreDoesNotKnowStays) {
  ASSERT_TRUE(blue_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  const std::string a = AttachToDb("a");
  ASSERT_TRUE(Restore(*state_, backup).ok());
  RestartCleatd();
  ASSERT_TRUE(blue_.Connect());
  Await("it is known", [&] { return IsConnected("engine-0"); });
  EXPECT_TRUE(Has(a)) << "the engine serves it, and is left alone";
}

}  // namespace
}  // namespace cleat::control::reservation_folder_test
