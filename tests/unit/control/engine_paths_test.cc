// SPDX-License-Identifier: Apache-2.0
// Engines whose lists of paths are not cleatd's: that is shown, and nothing is moved to one that excludes what is served.
#include "control/paths/engine_paths.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <fstream>

#include "control/model/reasons.h"
#include "control/paths/path_policy.h"
#include "moves_rig.h"

namespace cleat::control::engine_paths_test {
namespace {

PathLists Lists(const std::string& text) {
  return std::move(PathLists::Parse(text, "test", PathLists())).value();
}

TEST(PathDifferenceTest, NamesTheLinesThatOneOfTheTwoLacks) {
  const PathLists ours = Lists("files /srv\nfiles /data\n");
  EXPECT_EQ(PathDifference(ours, Lists("files /data\nfiles /srv\n")), "");
  const std::string difference = PathDifference(ours, Lists("files /data\nsockets /run/vms\n"));
  EXPECT_NE(difference.find("it lacks 'files /srv', 'sockets none', and has 'sockets /run/vms'"),
            std::string::npos)
      << difference;
}

TEST(PathDifferenceTest, ShowsAFewOfMany) {
  std::string many;
  for (int i = 0; i < 40; ++i) many += "files /srv/" + std::to_string(i) + "\n";
  const std::string difference = PathDifference(Lists(many), Lists("files none\n"));
  EXPECT_NE(difference.find(" and 35 more"), std::string::npos) << difference;
  EXPECT_LT(difference.size(), 400u);
}

TEST(ExcludesPathTest, WhatCleatdListsAndTheEngineDoesNot) {
  const PathLists ours = Lists("files /srv\ndevices /dev/vg/*\nsockets /run/vms\n");
  const PathLists engines = Lists("files /srv/one\nsockets /run/vms\n");
  EXPECT_FALSE(ExcludesPath(ours, engines, PathKind::kFile, "/srv/one/a"));
  EXPECT_TRUE(ExcludesPath(ours, engines, PathKind::kFile, "/srv/two/a"));
  EXPECT_TRUE(ExcludesPath(ours, engines, PathKind::kFile, "/dev/vg/a")) << "a device is a disk as well";
  EXPECT_TRUE(ExcludesPath(ours, Lists("devices /\n"), PathKind::kFile, "/srv/a")) << "a file is no device";
  EXPECT_FALSE(ExcludesPath(ours, engines, PathKind::kSocket, "/run/vms/a"));
  EXPECT_FALSE(ExcludesPath(ours, engines, PathKind::kFile, "/home/a"))
      << "cleatd does not list it either: it is served since before, by any engine";
}

// Blue has cleatd's lists. Sockets are below /srv.
class EnginePathsTest : public MovesRig {
 protected:
  void SetUp() override {
    std::ofstream(File()) << "files /srv\nsockets /srv\n";
    Stop();
    paths_ = std::move(PathPolicy::Read(File(), dir_.path(), dir_.path())).value();
    Start();
    blue_.set_path_lists(paths_->lists()->Text());
    ASSERT_TRUE(blue_.Connect());
  }
  void TearDown() override { EXPECT_EQ(host_.Violations(), std::vector<std::string>{}); }
  std::string File() const { return dir_ / "paths.conf"; }
  void RestartWithEveryPathListed() {
    Stop();
    blue_.Disconnect();
    paths_ = nullptr;
    Start();
    ASSERT_TRUE(blue_.Connect());
  }
  // As cleatd finds a store of before paths were checked: what is in it was made without a look.
  void MakeAllUnchecked() {
    Stop();
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
    const char* const older = "UPDATE revisions SET paths_checked_from = next";
    EXPECT_EQ(sqlite3_exec(db, older, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    blue_.Disconnect();
    Start();
  }
  void CreateInFile(const std::string& id) {
    Create(FileDisk("d" + id, dir_ / id, true), id);
    AwaitServed(id, "engine-0");
  }
  bool IsChecked(const std::string& id) { return blue_.DiskAt(ControllerName(id), 0).file().path_checked(); }
  void ConnectGreen(const std::string& lists) {
    green_.set_path_lists(lists);
    ASSERT_TRUE(green_.Connect());
    AwaitEngines();
  }
  void CreateAt(const std::string& id, const std::string& socket) {
    ASSERT_TRUE(state_->disks().Create(NullDisk("d" + id)).ok());
    auto request = NewController(id);
    request.mutable_controller()->mutable_spec()->set_socket_path(socket);
    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
    const auto made = state_->controllers().Create(request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE(state_->attachments().Attach(Attach("d" + id, id)).ok());
    AwaitServed(id, "engine-0");
  }
  v1::EngineStatus StatusOf(const std::string& engine) {
    return state_->engines().Get(GetEngine(engine))->status();
  }
  // As SIGHUP.
  void Reload(const std::string& lists) {
    std::ofstream(File()) << lists;
    ASSERT_TRUE(paths_->Reload().ok());
    state_->engines().PathsChanged();
  }
};

TEST_F(EnginePathsTest, ADifferenceIsShown) {
  ConnectGreen(Lists("files /srv\nsockets /run\n").Text());
  Await("it is said of the one", [&] { return !StatusOf("engine-1").path_difference().empty(); });
  EXPECT_NE(StatusOf("engine-1").message().find("'sockets /run'"), std::string::npos);
  EXPECT_EQ(StatusOf("engine-0").path_difference(), "") << "and not of the one that has the same";
}

TEST_F(EnginePathsTest, OneThatReadItBeforeItWasChangedReadsItAgain) {
  green_.set_path_lists(Lists("files none\n").Text());
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  green_.WaitForRequest("ReadPathLists");
  green_.TakeRequests();
  for (FakeEngine* engine : {&blue_, &green_}) engine->set_path_lists(Lists("files /data\n").Text());
  Reload("files /data\nsockets none\ndevices none\nkeys none\n");
  for (FakeEngine* engine : {&blue_, &green_}) engine->WaitForRequest("ReadPathLists");
  Await("both have the same", [&] {
    return StatusOf("engine-0").path_difference().empty() && StatusOf("engine-1").path_difference().empty();
  });
}

TEST_F(EnginePathsTest, AnUpgradeToOneThatExcludesWhatIsServedIsRefusedBeforeAnythingMoves) {
  CreateAt("a", "/srv/a.sock");
  ConnectGreen(Lists("files /srv\nsockets /run\n").Text());
  green_.TakeRequests();
  blue_.TakeRequests();
  const auto refused = Upgrade();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_PATH_NOT_ALLOWED);
  EXPECT_NE(refused.error().message.find("socket '/srv/a.sock' of controllers/a"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(blue_.TakeRequests(), Requests{});
  EXPECT_EQ(green_.StateOf("controllers/a"), kAbsent);

  // The same lists do.
  green_.set_path_lists(paths_->lists()->Text());
  state_->engines().PathsChanged();
  Await("it has read them", [&] { return StatusOf("engine-1").path_difference().empty(); });
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().state(), v1::UPGRADE_STATE_DONE);
  AwaitServed("a", "engine-1");
}

TEST_F(EnginePathsTest, WhatNoListHasAnyMoreIsMovedAllTheSame) {
  CreateAt("a", "/srv/a.sock");
  const std::string narrow = Lists("files none\nsockets /run\ndevices none\nkeys none\n").Text();
  blue_.set_path_lists(narrow);
  ConnectGreen(narrow);
  Reload(narrow);
  Await("all have the same", [&] {
    return StatusOf("engine-0").path_difference().empty() && StatusOf("engine-1").path_difference().empty();
  });
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().state(), v1::UPGRADE_STATE_DONE);
  AwaitServed("a", "engine-1");
}

TEST_F(EnginePathsTest, AnEngineOfBeforeIsTrustedWithEverything) {
  CreateAt("a", "/srv/a.sock");
  green_.set_protocol(3);
  ConnectGreen("");
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().state(), v1::UPGRADE_STATE_DONE);
}

TEST_F(EnginePathsTest, EnginesAreToldOfDisksThatWereMadeBeforePathsWereChecked) {
  RestartWithEveryPathListed();
  CreateInFile("old");
  EXPECT_TRUE(IsChecked("old"));
  MakeAllUnchecked();
  blue_.Die();
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("old", "engine-0");
  EXPECT_FALSE(IsChecked("old"));
  CreateInFile("new");
  EXPECT_TRUE(IsChecked("new"));
}

TEST_F(EnginePathsTest, AStandbyHasReadyWhatItsListsAllow) {
  CreateAt("in", "/srv/both/in.sock");
  CreateAt("out", "/srv/out.sock");
  green_.set_stands_by_for("engine-0");
  ConnectGreen(Lists("files /srv\nsockets /srv/both\n").Text());
  AwaitStandby(green_, "in");
  EXPECT_EQ(green_.StateOf("controllers/out"), kAbsent);
  Await("it says so", [&] {
    return StatusOf("engine-1").message().find("does not stand by for what uses socket '/srv/out.sock'") !=
           std::string::npos;
  });

  // When the other dies, it takes what it has ready; the rest waits for the other to come back.
  blue_.Die();
  AwaitServed("in", "engine-1");
  EXPECT_EQ(EngineOf("out"), "engines/engine-0");
  EXPECT_EQ(green_.StateOf("controllers/out"), kAbsent);
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("out", "engine-0");
}

TEST_F(EnginePathsTest, AStandbyThatReadsOtherListsGivesUpWhatTheyExclude) {
  CreateAt("a", "/srv/a.sock");
  green_.set_stands_by_for("engine-0");
  ConnectGreen(paths_->lists()->Text());
  AwaitStandby(green_, "a");
  green_.set_path_lists(Lists("files /srv\n").Text());
  state_->engines().PathsChanged();
  Await("it is gone from there", [&] { return green_.StateOf("controllers/a") == kAbsent; });
  green_.set_path_lists(paths_->lists()->Text());
  state_->engines().PathsChanged();
  AwaitStandby(green_, "a");
}

}  // namespace
}  // namespace cleat::control::engine_paths_test
