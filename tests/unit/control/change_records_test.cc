// SPDX-License-Identifier: Apache-2.0
// What the state says to a call's recorder, and whose request engines are asked for: with engines that are played. Under a second.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log_request.h"
#include "control/model/change_recorder.h"
#include "control/model/reasons.h"
#include "moves_rig.h"

namespace cleat::control::change_records_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Keeps what it is told, as "before -> after object".
class Recorder : public ChangeRecorder {
 public:
  Status Announce(const ObjectChanges& /*changes*/) override {
    const std::lock_guard lock(mutex_);
    if (refuses) return Error(ErrorCode::kUnavailable, "no record, no change");
    return Ok{};
  }
  void Made(ObjectChanges changes) override {
    const std::lock_guard lock(mutex_);
    for (ObjectChange& change : changes) made_.push_back(std::move(change));
  }
  void Refused(const std::string& /*object*/, const Error& /*error*/) override {}

  // Since the last call, each as "+disks/a", "-disks/a" or "~disks/a".
  std::vector<std::string> Take() {
    std::vector<std::string> taken;
    for (const ObjectChange& change : TakeChanges())
      taken.push_back((change.before.empty() ? "+" : change.after.empty() ? "-" : "~") + change.object);
    return taken;
  }
  ObjectChanges TakeChanges() {
    const std::lock_guard lock(mutex_);
    return std::exchange(made_, {});
  }
  bool refuses = false;

 private:
  std::mutex mutex_;
  ObjectChanges made_;
};

class ChangeRecordsTest : public TwoEngines {
 protected:
  // What the engines are asked while the host ends is not noted any more: what it would be noted in goes first.
  ~ChangeRecordsTest() override {
    blue_.Disconnect();
    green_.Disconnect();
  }

  // Calls, as a caller of the API with that request id.
  template <typename Function>
  auto As(const std::string& request, Function call) {
    const log::RequestScope scope(request);
    const RecorderScope recorder(recorder_);
    return call();
  }
  // The requests that either engine is asked to carry out for, by what it is asked.
  void NoteRequests(FakeEngine& engine) {
    engine.set_filter([this](const engine::v1::Envelope& envelope) {
      const std::lock_guard lock(mutex_);
      const auto note = [&](const std::string& what) { asked_[what] = envelope.request(); };
      if (envelope.has_put_controller()) note("PutController");
      if (envelope.has_attach()) note("Attach");
      if (envelope.has_detach()) note("Detach");
      if (envelope.has_delete_controller()) note("DeleteController");
      if (envelope.has_limit_disk()) note("LimitDisk");
      if (envelope.has_resize_disk()) note("ResizeDisk");
      if (envelope.has_put_group()) note("PutGroup");
      if (envelope.has_yield_controller()) note("YieldController");
      if (envelope.has_take_controller()) note("TakeController");
      return envelope;
    });
  }
  std::string AskedFor(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return asked_[what];
  }

  const std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  std::mutex mutex_;
  std::map<std::string, std::string> asked_;
};

TEST_F(ChangeRecordsTest, WhatIsWrittenForNobodyHasNoRecord) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
  EXPECT_THAT(recorder_->Take(), ElementsAre());
  ASSERT_TRUE(As("r", [&] { return state_->disks().Delete(DeleteDisk("d")); }).ok());
  EXPECT_THAT(recorder_->Take(), ElementsAre("-disks/d"));
}

TEST_F(ChangeRecordsTest, NothingIsChangedWhenTheRecorderRefuses) {
  recorder_->refuses = true;
  EXPECT_FALSE(As("r", [&] { return state_->disks().Create(NullDisk("d")); }).ok());
  EXPECT_FALSE(state_->disks().Get(GetDisk("d")).ok());
  EXPECT_THAT(recorder_->Take(), ElementsAre());
  recorder_->refuses = false;
  EXPECT_TRUE(As("r", [&] { return state_->disks().Create(NullDisk("d")); }).ok());
}

// What waited for an engine goes, and the rest is placed anew: each of them is on record, though the call names the engine alone.
TEST_F(ChangeRecordsTest, AForgottenEngineLeavesARecordOfEachThatGoesOrIsPlacedAnew) {
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(state_->disks().Create(NullDisk(std::string("d") + id)).ok());
    auto request = NewController(id);
    request.mutable_controller()->mutable_spec()->set_engine("engines/bleu");
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach(std::string("d") + id, id)).ok());
  }
  ASSERT_TRUE(As("r", [&] { return state_->attachments().Detach(Detach("a", "da")); }).ok());
  ASSERT_TRUE(As("r", [&] { return state_->controllers().Delete(DeleteController("a")); }).ok());
  ObjectChanges changes = recorder_->TakeChanges();
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[1].after, R"({"deleting":true})") << "until its engine has confirmed that it is gone";
  v1::ForgetEngineRequest forget;
  forget.set_name("engines/bleu");
  ASSERT_TRUE(As("r", [&] { return state_->engine_removal().Forget(forget); }).ok());
  EXPECT_THAT(recorder_->Take(), ElementsAre("-controllers/a/attachments/da", "-controllers/a"));
}

TEST_F(ChangeRecordsTest, MovesOfAnUpgradeAreRecordsOfTheCallThatAskedForIt) {
  NoteRequests(blue_);
  NoteRequests(green_);
  Create(NullDisk("d"), "a");
  AwaitServed("a", "engine-0");
  ASSERT_TRUE(As("upgrade-1", [&] { return Upgrade(); }).ok());
  AwaitUpgrade();
  AwaitServed("a", "engine-1");
  const ObjectChanges changes = recorder_->TakeChanges();
  ASSERT_EQ(changes.size(), 3U);
  EXPECT_EQ(changes[0].kind, "upgrade");
  EXPECT_EQ(changes[0].after, R"({"to":"engines/engine-1","state":"UPGRADE_STATE_RUNNING"})");
  EXPECT_EQ(changes[1].object, "controllers/a");
  EXPECT_THAT(changes[1].before, HasSubstr(R"("engine":"engines/engine-0")"));
  EXPECT_THAT(changes[1].after, HasSubstr(R"("engine":"engines/engine-1")"));
  EXPECT_EQ(changes[2].after, R"({"to":"engines/engine-1","state":"UPGRADE_STATE_DONE"})");
  EXPECT_EQ(AskedFor("YieldController"), "upgrade-1");
  EXPECT_EQ(AskedFor("TakeController"), "upgrade-1");
  EXPECT_EQ(AskedFor("Attach"), "upgrade-1") << "on the engine that prepares it";
}

TEST_F(ChangeRecordsTest, EnginesAreToldForWhoseRequest) {
  NoteRequests(blue_);
  ASSERT_TRUE(As("disk-1", [&] { return state_->disks().Create(NullDisk("d")); }).ok());
  ASSERT_TRUE(As("group-1", [&] { return state_->groups().Create(NewGroup("g", 10)); }).ok());
  auto controller = ControllerIn("a", "g");
  controller.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(As("controller-1", [&] { return state_->controllers().Create(controller); }).ok());
  ASSERT_TRUE(As("attach-1", [&] { return state_->attachments().Attach(Attach("d", "a")); }).ok());
  AwaitServed("a", "engine-0");
  EXPECT_EQ(AskedFor("PutGroup"), "group-1");
  EXPECT_EQ(AskedFor("PutController"), "controller-1");
  EXPECT_EQ(AskedFor("Attach"), "attach-1");
  ASSERT_TRUE(As("limit-1", [&] { return state_->disks().Update(LimitDisk("d", 100)); }).ok());
  Await("its limits are told", [&] { return AskedFor("LimitDisk") == "limit-1"; });
  ASSERT_TRUE(As("group-2", [&] { return state_->groups().Update(LimitGroup("g", 20)); }).ok());
  Await("the group's limits are told", [&] { return AskedFor("PutGroup") == "group-2"; });
  ASSERT_TRUE(As("detach-1", [&] { return state_->attachments().Detach(Detach("a", "d")); }).ok());
  ASSERT_TRUE(As("delete-1", [&] { return state_->controllers().Delete(DeleteController("a")); }).ok());
  Await("it is gone", [&] { return !state_->controllers().Get(GetController("a")).ok(); });
  EXPECT_EQ(AskedFor("Detach"), "detach-1");
  EXPECT_EQ(AskedFor("DeleteController"), "delete-1");
}

TEST(LastRequestsTest, TheObjectThatWasChangedLongestAgoIsForgotten) {
  LastRequests last;
  last.Note({"disks/nobody"});
  EXPECT_EQ(last.Of("disks/nobody"), "");
  const log::RequestScope scope("r");
  for (size_t i = 0; i < LastRequests::kObjectsMax; ++i) last.Note({std::to_string(i)});
  last.Note({"0"});
  EXPECT_EQ(last.Of("1"), "r");
  last.Note({"one more"});
  EXPECT_EQ(last.Of("1"), "");
  EXPECT_EQ(last.Of("0"), "r");
  EXPECT_EQ(last.Of("one more"), "r");
}

}  // namespace
}  // namespace cleat::control::change_records_test
