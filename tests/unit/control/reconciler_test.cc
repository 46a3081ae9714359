// SPDX-License-Identifier: Apache-2.0
// cleatd without gRPC, against an engine that is played: what it is asked for, and what the states say.
#include "control/reconcile/reconciler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "full_disk.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::reconciler_test {
namespace {

class ReconcilerTest : public ReconcilerRig {
 protected:
  v1::AttachmentState StateOf(const std::string& controller, const std::string& id) {
    const auto attachment = state_->attachments().Get(GetAttachment(controller, id));
    return attachment.ok() ? attachment->status().state() : v1::ATTACHMENT_STATE_UNSPECIFIED;
  }
  v1::ControllerState StateOf(const std::string& controller) {
    const auto found = state_->controllers().Get(GetController(controller));
    return found.ok() ? found->status().state() : v1::CONTROLLER_STATE_UNSPECIFIED;
  }
  std::string MessageOf(const std::string& controller, const std::string& id) {
    return state_->attachments().Get(GetAttachment(controller, id))->status().message();
  }
  void AwaitReady(const std::string& controller, const std::string& id) {
    Await(controller + "/" + id + " is READY",
          [&] { return StateOf(controller, id) == v1::ATTACHMENT_STATE_READY; });
  }
  void AwaitGone(const std::string& controller) {
    Await(controller + " is gone",
          [&] { return !state_->controllers().Get(GetController(controller)).ok(); });
  }
  // Whatever was asked before this is in the engine's list of requests afterwards.
  void AwaitProbe(const std::string& id) {
    ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
    Await(id + " is there", [&] { return StateOf(id) == v1::CONTROLLER_STATE_IDLE; });
  }

  void Create(const v1::CreateDiskRequest& disk, const std::string& controller) {
    ASSERT_TRUE(state_->disks().Create(disk).ok());
    if (!state_->controllers().Get(GetController(controller)).ok()) {
      ASSERT_TRUE(state_->controllers().Create(NewController(controller)).ok());
    }
    ASSERT_TRUE(state_->attachments().Attach(Attach(disk.disk_id(), controller)).ok());
  }
};

TEST_F(ReconcilerTest, TheEngineIsToldWhoVouchesForItsMemoryAlsoOfOneMadeAnew) {
  ASSERT_TRUE(engine_.Connect());
  auto request = NewController("a");
  request.mutable_controller()->mutable_spec()->set_memory_pinned(true);
  ASSERT_TRUE(state_->controllers().Create(request).ok());
  Await("a is there", [&] { return StateOf("a") == v1::CONTROLLER_STATE_IDLE; });
  EXPECT_TRUE(engine_.ControllerAt("controllers/a").memory_pinned());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  AwaitGone("a");
  AwaitProbe("a");
  EXPECT_FALSE(engine_.ControllerAt("controllers/a").memory_pinned()) << "that was another one's";
}

TEST_F(ReconcilerTest, WhatWasAskedBeforeAnyEngineCameIsDoneWhenOneComes) {
  Create(NullDisk("d"), "a");
  EXPECT_EQ(StateOf("a"), v1::CONTROLLER_STATE_PENDING);
  EXPECT_EQ(StateOf("a", "d"), v1::ATTACHMENT_STATE_PENDING);
  ASSERT_TRUE(engine_.Connect());
  AwaitReady("a", "d");
  EXPECT_EQ(engine_.TakeRequests(),
            (Requests{"PutController controllers/a", "Attach controllers/a 0 disks/d"}));
  EXPECT_EQ(StateOf("a"), v1::CONTROLLER_STATE_IDLE);
  const auto engine = state_->engines().Get(GetEngine("engine-0"));
  ASSERT_TRUE(engine.ok());
  EXPECT_TRUE(engine->status().connected());
  EXPECT_EQ(engine->status().controllers(), 1u);
  EXPECT_EQ(engine->status().reactors(), 2u);
}

TEST_F(ReconcilerTest, DetachComesBeforeDelete) {
  ASSERT_TRUE(engine_.Connect());
  Create(NullDisk("d"), "a");
  AwaitReady("a", "d");
  engine_.TakeRequests();
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d")).ok());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  AwaitGone("a");
  Requests requests = engine_.TakeRequests();
  // The engine may be told the controller's last disk in between.
  std::erase(requests, "PutController controllers/a");
  EXPECT_EQ(requests, (Requests{"Detach controllers/a 0", "DeleteController controllers/a"}));
  EXPECT_TRUE(state_->disks().Delete(DeleteDisk("d")).ok());
}

TEST_F(ReconcilerTest, ARestartOfCleatdAsksNothingOfAnEngineThatHasEverything) {
  ASSERT_TRUE(engine_.Connect());
  Create(NullDisk("d"), "a");
  AwaitReady("a", "d");
  RestartCleatd();
  EXPECT_EQ(StateOf("a", "d"), v1::ATTACHMENT_STATE_PENDING);
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  AwaitReady("a", "d");
  AwaitProbe("probe");
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/probe"}));
}

TEST_F(ReconcilerTest, AtHelloOnlyTheDifferenceIsAsked) {
  ASSERT_TRUE(engine_.Connect());
  Create(NullDisk("kept"), "a");
  Create(NullDisk("dropped"), "b");
  ASSERT_TRUE(state_->controllers().Create(NewController("c")).ok());
  AwaitReady("a", "kept");
  AwaitReady("b", "dropped");
  Await("c is there", [&] { return StateOf("c") == v1::CONTROLLER_STATE_IDLE; });
  engine_.Disconnect();
  engine_.TakeRequests();
  Await("the loss is noticed", [&] { return StateOf("a") == v1::CONTROLLER_STATE_PENDING; });
  ASSERT_TRUE(state_->attachments().Detach(Detach("b", "dropped")).ok());
  EXPECT_EQ(StateOf("b", "dropped"), v1::ATTACHMENT_STATE_DETACHING) << "the engine still serves it";
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("b")).ok());
  Create(NullDisk("new"), "c");
  ASSERT_TRUE(engine_.Connect());
  AwaitReady("c", "new");
  AwaitGone("b");
  EXPECT_EQ(StateOf("a", "kept"), v1::ATTACHMENT_STATE_READY);
  Requests requests = engine_.TakeRequests();
  std::sort(requests.begin(), requests.end());
  EXPECT_EQ(requests, (Requests{"Attach controllers/c 0 disks/new", "DeleteController controllers/b",
                                "Detach controllers/b 0"}));
}

TEST_F(ReconcilerTest, AnEngineThatRestartedGetsEverythingAnew) {
  ASSERT_TRUE(engine_.Connect());
  Create(NullDisk("d"), "a");
  AwaitReady("a", "d");
  engine_.Disconnect();
  Await("the loss is noticed", [&] { return StateOf("a", "d") == v1::ATTACHMENT_STATE_PENDING; });
  EXPECT_NE(MessageOf("a", "d").find("engines/engine-0 is not connected"), std::string::npos);
  EXPECT_FALSE(state_->engines().Get(GetEngine("engine-0"))->status().connected());
  engine_.TakeRequests();
  engine_.Restart();
  AwaitReady("a", "d");
  EXPECT_EQ(engine_.TakeRequests(),
            (Requests{"PutController controllers/a", "Attach controllers/a 0 disks/d"}));
}

TEST_F(ReconcilerTest, ASuccessorWhosePredecessorsEndIsNotNoticedYetIsTaken) {
  ASSERT_TRUE(engine_.Connect());
  Create(NullDisk("d"), "a");
  AwaitReady("a", "d");
  for (int i = 0; i < 20; ++i) {
    engine_.Restart();
    AwaitReady("a", "d");
  }
}

TEST_F(ReconcilerTest, AFailedAttachSaysWhyAndIsTriedAgain) {
  ASSERT_TRUE(engine_.Connect());
  engine_.FailAttaches(1000000, "not_found", "disks/d: file '/x' does not exist");
  Create(NullDisk("d"), "a");
  Await("it failed", [&] { return StateOf("a", "d") == v1::ATTACHMENT_STATE_FAILED; });
  EXPECT_NE(MessageOf("a", "d").find("file '/x' does not exist (tried again in"), std::string::npos);
  engine_.FailAttaches(0, "", "");
  AwaitReady("a", "d");
  EXPECT_EQ(MessageOf("a", "d"), "");
}

// A guest that goes on after an engine's death would be told that a disk is gone whose requests are to be run again.
TEST_F(ReconcilerTest, AScsiControllerWaitsForDisksWhoseLastOwnerMayStillWrite) {
  auto scsi = NewController("s");
  scsi.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
  ASSERT_TRUE(state_->controllers().Create(scsi).ok());
  Create(NullDisk("d"), "s");
  Create(NullDisk("e"), "s");
  engine_.FailAttaches(1000000, "unavailable", "disks/d: locked by no process that can be seen");
  ASSERT_TRUE(engine_.Connect());
  Await("it failed", [&] { return StateOf("s", "d") == v1::ATTACHMENT_STATE_FAILED; });
  for (int attempt = 0; attempt < 3; ++attempt) {
    engine_.WaitForRequest("Attach controllers/s 0 disks/d");
    EXPECT_FALSE(std::ranges::count(engine_.TakeRequests(), "ServeController controllers/s"));
  }
  // What is known to be impossible holds nobody up, and what is not wanted any more neither.
  engine_.FailAttaches(1000000, "not_found", "no such file");
  ASSERT_TRUE(state_->attachments().Detach(Detach("s", "e")).ok());
  engine_.WaitForRequest("ServeController controllers/s");
  EXPECT_EQ(StateOf("s", "d"), v1::ATTACHMENT_STATE_FAILED);
}

TEST_F(ReconcilerTest, AFailedAttachCanBeDetached) {
  ASSERT_TRUE(engine_.Connect());
  engine_.FailAttaches(1000000, "io", "broken");
  Create(NullDisk("d"), "a");
  Await("it failed", [&] { return StateOf("a", "d") == v1::ATTACHMENT_STATE_FAILED; });
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d")).ok());
  Await("it is gone", [&] { return !state_->attachments().Get(GetAttachment("a", "d")).ok(); });
}

TEST_F(ReconcilerTest, AnAttachmentThatBreaksIsOpenedAnew) {
  ASSERT_TRUE(engine_.Connect());
  Create(NullDisk("d"), "a");
  AwaitReady("a", "d");
  engine_.TakeRequests();
  engine_.BreakAttachment("controllers/a", 0, "the disk went away");
  engine_.WaitForRequest("Attach controllers/a 0 disks/d");
  AwaitReady("a", "d");
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"Detach controllers/a 0", "Attach controllers/a 0 disks/d"}));
}

TEST_F(ReconcilerTest, ADetachDuringAnAttachWaitsForIt) {
  ASSERT_TRUE(engine_.Connect());
  AwaitProbe("a");
  engine_.TakeRequests();
  engine_.Hold();
  Create(NullDisk("d"), "a");
  engine_.WaitForRequest("Attach controllers/a 0 disks/d");
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d")).ok());
  EXPECT_EQ(StateOf("a", "d"), v1::ATTACHMENT_STATE_DETACHING);
  engine_.Release();
  Await("it is gone", [&] { return !state_->attachments().Get(GetAttachment("a", "d")).ok(); });
  EXPECT_FALSE(engine_.Has("controllers/a", 0));
  // In between it is told which disk the guest has under way.
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"Attach controllers/a 0 disks/d", "PutController controllers/a",
                                              "Detach controllers/a 0"}));
}

TEST_F(ReconcilerTest, ASlowControllerHoldsUpNoOther) {
  ASSERT_TRUE(engine_.Connect());
  engine_.Hold();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
  for (const char* id : {"a", "b", "c"})
    engine_.WaitForRequest(std::string("PutController controllers/") + id);
  engine_.Release();
}

// ---- Memory disks ----

class MemoryTest : public ReconcilerTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(engine_.Connect());
    Create(MemoryDisk("m"), "a");
    AwaitReady("a", "m");
    const UniqueFd memory = engine_.MemoryOf("disks/m");
    ASSERT_EQ(pwrite(memory.get(), "guest", 5, 4096), 5);
  }

  static std::string Content(const UniqueFd& memory) {
    std::string text(5, '\0');
    return memory.valid() && pread(memory.get(), text.data(), 5, 4096) == 5 ? text : "";
  }
  v1::DiskState DiskState() { return state_->disks().Get(GetDisk("m"))->status().state(); }
};

TEST_F(MemoryTest, ItIsHandedOverBeforeTheAttach) {
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/a", "KeepMemory disks/m",
                                              "Attach controllers/a 0 disks/m"}));
}

TEST_F(MemoryTest, ItOutlivesCleatd) {
  RestartCleatd();
  EXPECT_EQ(DiskState(), v1::DISK_STATE_PENDING);
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  Await("it is fetched back", [&] { return DiskState() == v1::DISK_STATE_READY; });
  EXPECT_EQ(Content(memory_->Share("m")), "guest");
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"FetchMemory disks/m"}));
}

TEST_F(MemoryTest, ItOutlivesTheEngine) {
  engine_.Restart();
  engine_.WaitForRequest("Attach controllers/a 0 disks/m");
  AwaitReady("a", "m");
  EXPECT_EQ(Content(engine_.MemoryOf("disks/m")), "guest");
}

TEST_F(MemoryTest, ItOutlivesBothOneAfterTheOther) {
  RestartCleatd();
  ASSERT_TRUE(engine_.Connect());
  Await("it is fetched back", [&] { return DiskState() == v1::DISK_STATE_READY; });
  engine_.TakeRequests();
  engine_.Restart();
  engine_.WaitForRequest("Attach controllers/a 0 disks/m");
  EXPECT_EQ(Content(engine_.MemoryOf("disks/m")), "guest");
}

// cleatd ends between the engine's having it and its own noting so: the engine's memory is the disk's, and cleatd has no other.
TEST_F(MemoryTest, WhatTheEngineWasGivenUnnotedIsFetchedBack) {
  engine_.Hold("KeepMemory disks/n");
  Create(MemoryDisk("n"), "b");
  engine_.WaitForRequest("KeepMemory disks/n");
  Stop();
  engine_.DisconnectBeforeAnswers();
  Start();
  ASSERT_TRUE(engine_.Connect());
  AwaitReady("b", "n");
  const UniqueFd memory = engine_.MemoryOf("disks/n");
  ASSERT_EQ(pwrite(memory.get(), "guest", 5, 4096), 5);
  Await("it is fetched back", [&] { return memory_->Has("n"); });
  engine_.Restart();
  Await("it is attached anew", [&] { return engine_.Has("controllers/b", 0); });
  EXPECT_EQ(Content(engine_.MemoryOf("disks/n")), "guest");
}

TEST_F(MemoryTest, WithoutBothItIsLostAndSaysSo) {
  RestartCleatd();
  engine_.TakeRequests();
  engine_.Restart();
  Await("it is lost", [&] { return DiskState() == v1::DISK_STATE_LOST; });
  Await("the attachment failed", [&] { return StateOf("a", "m") == v1::ATTACHMENT_STATE_FAILED; });
  EXPECT_NE(MessageOf("a", "m").find("do not outlive both"), std::string::npos);
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "m")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "m")).ok(); });
  const auto again = state_->attachments().Attach(Attach("m", "a"));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(again.error().message.find("create it anew"), std::string::npos);
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("m")).ok());
  Create(MemoryDisk("m"), "a");
  AwaitReady("a", "m");
  EXPECT_EQ(Content(engine_.MemoryOf("disks/m")), std::string(5, '\0'));
}

// Guests that have other disks on it must not wait for what never comes.
TEST_F(MemoryTest, ALostOneHoldsUpNoController) {
  auto scsi = NewController("s");
  scsi.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
  ASSERT_TRUE(state_->controllers().Create(scsi).ok());
  Create(NullDisk("d"), "s");
  Create(MemoryDisk("n"), "s");
  AwaitReady("s", "d");
  AwaitReady("s", "n");
  RestartCleatd();
  engine_.TakeRequests();
  engine_.Restart();
  engine_.WaitForRequest("ServeController controllers/s");
  EXPECT_EQ(StateOf("s", "n"), v1::ATTACHMENT_STATE_FAILED);
}

TEST_F(MemoryTest, DeletingItFreesItInTheEngineToo) {
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "m")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "m")).ok(); });
  EXPECT_EQ(Content(engine_.MemoryOf("disks/m")), "guest") << "a detached disk keeps its content";
  engine_.TakeRequests();
  engine_.Hold();
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("m")).ok());
  EXPECT_EQ(DiskState(), v1::DISK_STATE_DELETING);
  const auto early = state_->disks().Create(MemoryDisk("m"));
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code, ErrorCode::kAborted);
  engine_.WaitForRequest("DropMemory disks/m");
  engine_.Release();
  Await("it is gone", [&] { return !state_->disks().Get(GetDisk("m")).ok(); });
  EXPECT_FALSE(engine_.MemoryOf("disks/m").valid());
}

TEST_F(MemoryTest, ADetachedOneOutlivesCleatdToo) {
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "m")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "m")).ok(); });
  RestartCleatd();
  ASSERT_TRUE(engine_.Connect());
  Await("it is fetched back", [&] { return DiskState() == v1::DISK_STATE_READY; });
  EXPECT_EQ(Content(memory_->Share("m")), "guest");
}

// Deleting the disk would wait for that engine for ever.
TEST_F(MemoryTest, ADeadEnginesCopyIsForgottenAsSoonAsTheStoreTakesIt) {
  {
    const FullDisk full;
    engine_.Die();
    Await("it can't be written down", [&] { return !store_->writable(); });
    EXPECT_FALSE(state_->disks().MemoryRow("m")->held_by.empty());
  }
  Await("it is forgotten", [&] { return state_->disks().MemoryRow("m")->held_by.empty(); });
  EXPECT_EQ(DiskState(), v1::DISK_STATE_READY);
}

// ---- Meeting ----

TEST_F(ReconcilerTest, AnEngineOfAnotherProtocolIsRefusedWithBothVersions) {
  engine_.set_protocol(16);
  EXPECT_FALSE(engine_.Connect());
  EXPECT_NE(engine_.refusal().find("versions 1 to 15, the engine 16"), std::string::npos)
      << engine_.refusal();
}

TEST_F(ReconcilerTest, ASecondLiveEngineOfTheSameNameIsRefused) {
  ASSERT_TRUE(engine_.Connect());
  AwaitProbe("a");
  FakeEngine impostor(socket_, "engine-0");
  impostor.set_incarnation(99);
  EXPECT_FALSE(impostor.Connect());
  EXPECT_NE(impostor.refusal().find("engine-0 is connected already"), std::string::npos)
      << impostor.refusal();
  AwaitProbe("b");
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/a", "PutController controllers/b"}));
}

TEST_F(ReconcilerTest, ThingsOfAnotherStoreAreLeftAlone) {
  engine::v1::Controller theirs;
  theirs.set_name("controllers/theirs");
  theirs.set_revision(123'456'789);
  engine_.Plant(theirs);
  ASSERT_TRUE(engine_.Connect());
  Await("the engine is known", [&] { return state_->engines().Get(GetEngine("engine-0")).ok(); });
  const auto engine = state_->engines().Get(GetEngine("engine-0"));
  EXPECT_FALSE(engine->status().connected());
  EXPECT_NE(engine->status().message().find("--state-dir"), std::string::npos);
  ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
  EXPECT_EQ(StateOf("a"), v1::CONTROLLER_STATE_PENDING);
  EXPECT_EQ(engine_.TakeRequests(), Requests{});
}

TEST_F(ReconcilerTest, ControllersGoToTheLeastLoadedOfSeveralEngines) {
  FakeEngine other(socket_, "engine-1");
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(other.Connect());
  Await("both are there", [&] {
    const auto second = state_->engines().Get(GetEngine("engine-1"));
    return second.ok() && state_->engines().Get(GetEngine("engine-0")).ok();
  });
  AwaitProbe("a");
  AwaitProbe("b");
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/a"}));
  EXPECT_EQ(other.TakeRequests(), (Requests{"PutController controllers/b"}));
}

TEST_F(ReconcilerTest, WhoWaitsForAnEngineGetsOneAsSoonAsTheStoreTakesIt) {
  ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
  {
    const FullDisk full;
    ASSERT_TRUE(engine_.Connect());
    Await("its place can't be written down", [&] { return !store_->writable(); });
    EXPECT_EQ(state_->controllers().Get(GetController("a"))->status().engine(), "");
  }
  EXPECT_TRUE(state_->CheckStore());  // which cleatd does again and again
  Await("it is there", [&] { return StateOf("a") == v1::CONTROLLER_STATE_IDLE; });
}

TEST_F(ReconcilerTest, GarbageEndsThatConnectionOnly) {
  ASSERT_TRUE(engine_.Connect());
  const auto rude = ConnectSeqpacket(socket_);
  ASSERT_TRUE(rude.ok());
  ASSERT_EQ(write(rude->get(), "\xff\xff\xff", 3), 3);
  const auto silent = ConnectSeqpacket(socket_);
  ASSERT_TRUE(silent.ok());
  Create(NullDisk("d"), "a");
  AwaitReady("a", "d");
}

// By which systemd's watchdog judges cleatd.
TEST_F(ReconcilerTest, TheLinkGoesOnAfterEachWakeUnlessItsThreadHangs) {
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = link_->rounds();
    link_->Wake();
    while (link_->rounds() == before) std::this_thread::yield();
  }
  StallLink([this] {
    const uint64_t before = link_->rounds();
    for (int i = 0; i < 3; ++i) {
      link_->Wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(link_->rounds(), before);
  });
  const uint64_t before = link_->rounds();
  link_->Wake();
  while (link_->rounds() == before) std::this_thread::yield();
}

}  // namespace
}  // namespace cleat::control::reconciler_test
