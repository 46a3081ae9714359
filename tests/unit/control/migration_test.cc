// SPDX-License-Identifier: Apache-2.0
// Whose disk it is while its VM migrates, in cleatd's books: what is allowed, and how the mode follows what the engines say,
// in whatever order their news comes, and over restarts.
#include <gtest/gtest.h>

#include "control/link/translate.h"
#include "control/model/reasons.h"
#include "control/state/host_state.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::migration_test {
namespace {

constexpr auto kActive = v1::ATTACHMENT_MODE_ACTIVE;
constexpr auto kIncoming = v1::ATTACHMENT_MODE_INCOMING;
constexpr auto kOutgoing = v1::ATTACHMENT_MODE_OUTGOING;

// Controllers a, b and c on engines ea, eb and ec; the disk d is attached at a.
class MigrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Open();
    ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
    for (const char* id : {"a", "b", "c"}) {
      auto request = NewController(id);
      request.mutable_controller()->mutable_spec()->set_engine(std::string("engines/e") + id);
      ASSERT_TRUE(state_->controllers().Create(request).ok());
    }
    ASSERT_TRUE(AttachAs("a", v1::ATTACHMENT_MODE_UNSPECIFIED).ok());
    Say("a", v1::ATTACHMENT_STATE_READY);
  }
  void Open() {
    state_.reset();
    store_.reset();
    store_ = std::move(Store::Open(dir_.path()).value());
    state_ = std::move(HostState::Load(*store_, memory_).value());
  }
  Result<v1::Attachment> AttachAs(const std::string& controller, v1::AttachmentMode mode) {
    auto request = Attach("d", controller);
    request.mutable_attachment()->mutable_spec()->set_mode(mode);
    return state_->attachments().Attach(request);
  }
  void Say(const std::string& controller, v1::AttachmentState state) {
    state_->attachments().Report("e" + controller, {controller, 0, 0}, {.state = state, .size_bytes = kMiB});
  }
  v1::AttachmentMode ModeOf(const std::string& controller) {
    return state_->attachments().Get(GetAttachment(controller, "d"))->spec().mode();
  }
  // What its engine would be told when it is started anew.
  bool ComesUnowned(const std::string& controller) {
    return ToEngine(state_->controllers().IntentOf(controller).attachments.at(0), kProtocolIdentities)
        .incoming();
  }
  bool IsReady(const std::string& controller, v1::WaitCondition condition = v1::WAIT_CONDITION_READY) {
    v1::WaitRequest request;
    request.set_name(AttachmentName(controller, "d"));
    request.set_condition(condition);
    request.mutable_timeout()->set_nanos(1);
    return state_->waits().Wait(request, [] { return false; }).ok();
  }
  // Both sides' news of a migration from a to b that went well.
  void Migrate() {
    ASSERT_TRUE(AttachAs("b", kIncoming).ok());
    Say("b", v1::ATTACHMENT_STATE_INCOMING);
    Say("a", v1::ATTACHMENT_STATE_RELEASED);
    Say("b", v1::ATTACHMENT_STATE_READY);
  }

  test::TempDir dir_;
  MemfdKeeper memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
};

TEST_F(MigrationTest, OneThatOwnsAndOneThatComes) {
  EXPECT_EQ(ModeOf("a"), kActive);
  ASSERT_TRUE(AttachAs("b", kIncoming).ok());
  for (const auto mode : {kActive, kIncoming}) {
    const auto third = AttachAs("c", mode);
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(ReasonOf(third.error()), v1::REASON_DISK_HAS_WRITER);
  }
  EXPECT_TRUE(AttachAs("b", kIncoming).ok()) << "again";
  EXPECT_FALSE(AttachAs("b", kActive).ok()) << "something else";
  EXPECT_FALSE(ComesUnowned("a"));
  EXPECT_TRUE(ComesUnowned("b"));
}

TEST_F(MigrationTest, TheModeFollowsTheRings) {
  Migrate();
  EXPECT_EQ(ModeOf("a"), kOutgoing);
  EXPECT_EQ(ModeOf("b"), kActive);
  EXPECT_TRUE(ComesUnowned("a"));
  EXPECT_FALSE(ComesUnowned("b"));
  EXPECT_TRUE(AttachAs("a", kActive).ok()) << "as it was asked for";
  EXPECT_TRUE(AttachAs("b", kIncoming).ok()) << "this one, too";
  EXPECT_FALSE(AttachAs("c", kIncoming).ok()) << "the old one is to be detached first";
  Open();
  EXPECT_EQ(ModeOf("a"), kOutgoing);
  EXPECT_EQ(ModeOf("b"), kActive);
}

TEST_F(MigrationTest, WaitingForReadyIsForTheDestinationToBeOpen) {
  ASSERT_TRUE(AttachAs("b", kIncoming).ok());
  EXPECT_FALSE(IsReady("b"));
  Say("b", v1::ATTACHMENT_STATE_INCOMING);
  EXPECT_TRUE(IsReady("b"));
  v1::ControllerStatus ready;
  ready.set_state(v1::CONTROLLER_STATE_READY);
  state_->controllers().Report("eb", "b", ready);
  EXPECT_FALSE(IsReady("b", v1::WAIT_CONDITION_IN_USE));
  Say("a", v1::ATTACHMENT_STATE_RELEASED);
  EXPECT_FALSE(IsReady("a"));
  Say("b", v1::ATTACHMENT_STATE_READY);
  EXPECT_TRUE(IsReady("b", v1::WAIT_CONDITION_IN_USE));
}

TEST_F(MigrationTest, AnAbortedOneIsTakenBack) {
  ASSERT_TRUE(AttachAs("b", kIncoming).ok());
  Say("b", v1::ATTACHMENT_STATE_INCOMING);
  Say("a", v1::ATTACHMENT_STATE_RELEASED);
  Say("a", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(ModeOf("a"), kActive);
  EXPECT_EQ(ModeOf("b"), kIncoming);
}

// The two engines' connections know nothing of one another.
TEST_F(MigrationTest, NewsInTheWrongOrder) {
  ASSERT_TRUE(AttachAs("b", kIncoming).ok());
  Say("b", v1::ATTACHMENT_STATE_INCOMING);
  Say("b", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(ModeOf("a"), kOutgoing) << "or it would be acquired again when its engine is started anew";
  Say("a", v1::ATTACHMENT_STATE_READY);  // sent before, of its size
  EXPECT_EQ(ModeOf("a"), kOutgoing);
  EXPECT_EQ(ModeOf("b"), kActive);
  Say("a", v1::ATTACHMENT_STATE_RELEASED);
  Say("b", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(ModeOf("a"), kOutgoing);
  EXPECT_EQ(ModeOf("b"), kActive);
}

TEST_F(MigrationTest, WhoWasAwayLearnsItFromTheInventory) {
  ASSERT_TRUE(AttachAs("b", kIncoming).ok());
  Say("b", v1::ATTACHMENT_STATE_INCOMING);
  Open();
  Say("b", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(ModeOf("b"), kActive);
  EXPECT_EQ(ModeOf("a"), kOutgoing);
  // And back, in the same way.
  Open();
  Say("a", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(ModeOf("a"), kActive);
  EXPECT_EQ(ModeOf("b"), kOutgoing);
}

}  // namespace
}  // namespace cleat::control::migration_test
