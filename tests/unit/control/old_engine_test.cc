// SPDX-License-Identifier: Apache-2.0
// An engine of protocol version 1, as it was: what it is sent has to be understood by the messages of then
// (tests/data/engine_v1.proto, which never changes), and it sends nothing else.
#include <gtest/gtest.h>

#include "control/model/reasons.h"
#include "engine_v1_frozen.pb.h"
#include "moves_rig.h"

namespace cleat::control::old_engine_test {
namespace {

// As the messages of then read it and write it again.
engine::v1::Envelope Through(const engine::v1::Envelope& envelope, bool strict) {
  engine::v1_frozen::Envelope old;
  CLEAT_CHECK(old.ParseFromString(envelope.SerializeAsString()));
  const size_t whole = old.ByteSizeLong();
  old.DiscardUnknownFields();
  EXPECT_TRUE(!strict || old.ByteSizeLong() == whole) << "not of version 1: " << envelope.ShortDebugString();
  engine::v1::Envelope seen;
  CLEAT_CHECK(seen.ParseFromString(old.SerializeAsString()));
  return seen;
}

class OldEngineTest : public MovesRig {
 protected:
  void SetUp() override {
    blue_.set_protocol(1);
    blue_.set_filter([](const engine::v1::Envelope& envelope) { return Through(envelope, true); });
    ASSERT_TRUE(blue_.Connect());
    ASSERT_TRUE(green_.Connect());
    AwaitEngines();
  }
};

TEST_F(OldEngineTest, ItServesAttachesDetachesAndGrowsAsBefore) {
  EXPECT_EQ(state_->engines().Get(GetEngine("engine-0"))->status().protocol(), 1u);
  EXPECT_EQ(state_->engines().Get(GetEngine("engine-1"))->status().protocol(), EngineLink::kProtocol);
  ASSERT_TRUE(state_->groups().Create(NewGroup("g", 100)).ok());
  auto request = ControllerIn("a", "g");
  request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(state_->controllers().Create(request).ok());
  Create(NullDisk("d"), "a");
  AwaitServed("a", "engine-0");
  Create(MemoryDisk("m"), "s", v1::CONTROLLER_TYPE_SCSI);
  AwaitServed("s", "engine-0");
  ASSERT_TRUE(state_->disks().Update(LimitDisk("m", 50)).ok());
  Await("it has the limits",
        [&] { return blue_.DiskAt("controllers/s", 0).limits().iops().per_second() == 50; });
  ASSERT_TRUE(state_->attachments().Detach(Detach("s", "m")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("s", "m")).ok(); });
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("s")).ok());
  Await("it is gone", [&] { return !state_->controllers().Get(GetController("s")).ok(); });
  RestartCleatd();
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("a", "engine-0");
}

TEST_F(OldEngineTest, ItCanNotBeUpgradedAndTheErrorSaysWhatToDo) {
  CreateSome({"a"});
  for (const auto& [from, to] : {std::pair("engine-0", "engine-1"), std::pair("engine-1", "engine-0")}) {
    const auto refused = Upgrade(from, to);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_ENGINE_TOO_OLD);
    EXPECT_NE(refused.error().message.find("engines/engine-0 (version 0.0.1, protocol 1)"),
              std::string::npos);
    EXPECT_NE(refused.error().message.find("start the new engine under the same name"), std::string::npos);
  }
  AwaitServed("a", "engine-0");
}

// One of two engines can wait: the status says of each what it does, whatever was asked for.
TEST_F(OldEngineTest, WritesThatItCanNotLetWaitAreSaidToFail) {
  blue_.set_filter([](const engine::v1::Envelope& envelope) { return Through(envelope, false); });
  auto disk = NullDisk("d");
  disk.mutable_disk()->mutable_spec()->set_on_no_space(v1::ON_NO_SPACE_WAIT);
  auto controller = NewController("a");
  controller.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(state_->controllers().Create(controller).ok());
  ASSERT_TRUE(state_->disks().Create(disk).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("d", "a")).ok());
  AwaitServed("a", "engine-0");
  Await("it is attached", [&] {
    return state_->attachments().Get(GetAttachment("a", "d"))->status().state() == v1::ATTACHMENT_STATE_READY;
  });
  EXPECT_EQ(state_->attachments().Get(GetAttachment("a", "d"))->status().on_no_space(),
            v1::ON_NO_SPACE_ERROR);
}

// It would take the disk at once, from the host whose guest has it.
TEST_F(OldEngineTest, ADiskWhoseVmMigratesHereIsNotAskedOfItAndTheErrorNamesIt) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
  auto request = NewController("a");
  request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(state_->controllers().Create(request).ok());
  auto attach = Attach("d", "a");
  attach.mutable_attachment()->mutable_spec()->set_mode(v1::ATTACHMENT_MODE_INCOMING);
  ASSERT_TRUE(state_->attachments().Attach(attach).ok());
  std::string message;
  Await("it has failed", [&] {
    const auto attachment = state_->attachments().Get(GetAttachment("a", "d"));
    message = attachment->status().message();
    return attachment->status().state() == v1::ATTACHMENT_STATE_FAILED;
  });
  EXPECT_NE(
      message.find(
          "engines/engine-0 (version 0.0.1, protocol 1) can't attach the disk of a VM that migrates here"),
      std::string::npos)
      << message;
  EXPECT_FALSE(blue_.Has("controllers/a", 0));
}

}  // namespace
}  // namespace cleat::control::old_engine_test
