// SPDX-License-Identifier: Apache-2.0
// Calls that attach at the same time share commits of the store, and each finds what it would have found alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "control/model/reasons.h"
#include "control/state/host_state.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::attach_together_test {
namespace {

constexpr int kCallers = 8;
constexpr int kRounds = 20;

class AttachTogetherTest : public ::testing::Test {
 protected:
  AttachTogetherTest() { Open(); }

  void Open() {
    state_.reset();
    store_.reset();
    auto store = Store::Open(dir_.path());
    CLEAT_CHECK(store.ok());
    store_ = std::move(*store);
    auto state = HostState::Load(*store_, memory_);
    CLEAT_CHECK(state.ok());
    state_ = std::move(*state);
  }
  void Create(const std::string& disk) { ASSERT_TRUE(state_->disks().Create(NullDisk(disk)).ok()); }
  void CreateScsi(const std::string& controller) {
    auto request = NewController(controller);
    request.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
    ASSERT_TRUE(state_->controllers().Create(request).ok());
  }
  // All at once; what each of them was answered.
  template <typename Call>
  auto Together(Call call) {
    std::barrier start(kCallers);
    std::vector<decltype(call(0))> answers(kCallers, Error(ErrorCode::kInternal, "not called"));
    std::vector<std::thread> threads;
    for (int i = 0; i < kCallers; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        answers[static_cast<size_t>(i)] = call(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  }
  std::set<std::string> Attached() {
    v1::ListAttachmentsRequest request;
    request.set_parent("controllers/-");
    std::set<std::string> names;
    const auto list = state_->attachments().List(request);
    CLEAT_CHECK(list.ok());
    for (const auto& attachment : list->attachments()) {
      names.insert(fmt::format("{} at {}", attachment.name(), attachment.spec().target()));
    }
    return names;
  }

  test::TempDir dir_;
  MemfdKeeper memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
};

TEST_F(AttachTogetherTest, EachGetsATargetOfItsOwnAndAllAreDurable) {
  for (int round = 0; round < kRounds; ++round) {
    const std::string controller = fmt::format("c{}", round);
    CreateScsi(controller);
    for (int i = 0; i < kCallers; ++i) Create(fmt::format("r{}d{}", round, i));
    const auto answers = Together([&](int i) {
      auto request = Attach(fmt::format("r{}d{}", round, i), controller);
      // Half of them say where to.
      if (i % 2 == 0) request.mutable_attachment()->mutable_spec()->set_target(static_cast<uint32_t>(i));
      return state_->attachments().Attach(request);
    });
    std::set<uint32_t> targets;
    for (const auto& answer : answers) {
      if (answer.ok()) {
        targets.insert(answer->spec().target());
      } else {
        // Somebody who did not say was faster.
        EXPECT_EQ(ReasonName(ReasonOf(answer.error())), "TARGET_TAKEN") << answer.error().message;
      }
    }
    const auto attached = static_cast<size_t>(
        std::count_if(answers.begin(), answers.end(), [](const auto& answer) { return answer.ok(); }));
    EXPECT_EQ(targets.size(), attached);
    EXPECT_GE(attached, kCallers / 2U);
  }
  const std::set<std::string> before = Attached();
  Open();
  EXPECT_EQ(Attached(), before);
}

TEST_F(AttachTogetherTest, OnlyOneBecomesADisksWriter) {
  for (int i = 0; i < kCallers; ++i) CreateScsi(fmt::format("c{}", i));
  for (int round = 0; round < kRounds; ++round) {
    const std::string disk = fmt::format("d{}", round);
    Create(disk);
    const auto answers = Together(
        [&](int i) { return state_->attachments().Attach(Attach(disk, fmt::format("c{}", i % 2))); });
    // The winner's own repetitions are answered as it was.
    std::set<std::string> winners;
    for (const auto& answer : answers) {
      if (answer.ok()) {
        winners.insert(answer->name());
      } else {
        EXPECT_EQ(ReasonName(ReasonOf(answer.error())), "DISK_HAS_WRITER") << answer.error().message;
      }
    }
    EXPECT_EQ(winners.size(), 1U);
    ASSERT_TRUE(state_->attachments().Detach(Detach("c0", disk)).ok());
    ASSERT_TRUE(state_->attachments().Detach(Detach("c1", disk)).ok());
    ASSERT_TRUE(state_->disks().Delete(DeleteDisk(disk)).ok());
  }
}

TEST_F(AttachTogetherTest, WhatIsBeingAttachedIsNotDeleted) {
  for (int round = 0; round < kRounds; ++round) {
    const std::string controller = fmt::format("c{}", round);
    CreateScsi(controller);
    for (int i = 0; i < kCallers; ++i) Create(fmt::format("r{}d{}", round, i));
    const auto answers = Together([&](int i) -> Status {
      if (i == 0) {
        v1::DeleteControllerRequest request;
        request.set_name(ControllerName(controller));
        const auto answer = state_->controllers().Delete(request);
        return answer.ok() ? Status(Ok{}) : Status(answer.error());
      }
      const std::string disk = fmt::format("r{}d{}", round, i);
      if (i == 1) {
        const auto answer = state_->disks().Delete(DeleteDisk("r" + std::to_string(round) + "d2"));
        return answer.ok() ? Status(Ok{}) : Status(answer.error());
      }
      const auto answer = state_->attachments().Attach(Attach(disk, controller));
      return answer.ok() ? Status(Ok{}) : Status(answer.error());
    });
    // Either it went first, and the others find it gone, or one of them did.
    const bool controller_gone = answers[0].ok();
    for (size_t i = 3; i < answers.size(); ++i) EXPECT_EQ(answers[i].ok(), !controller_gone);
    EXPECT_FALSE(answers[2].ok() && (answers[0].ok() || answers[1].ok()));
  }
  const std::set<std::string> before = Attached();
  Open();  // refuses an attachment without its controller or disk
  EXPECT_EQ(Attached(), before);
}

}  // namespace
}  // namespace cleat::control::attach_together_test
