// SPDX-License-Identifier: Apache-2.0
// Hosts of two paths that lose one of them, over real sockets: by the other one they have the lost controller reset, and hear of its end when the
// storage has let go of the last write, and not before.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nvme/target/cross_reset/reset_log.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::cross_reset_test {
namespace {

using nvme::Opcode;
using nvme::fabrics::CompletionEntry;
using nvme::fabrics::EntryOf;
using nvme::fabrics::SubmissionEntry;
using nvme::target::ControllerInstance;
using nvme::target::kResetIsOver;
using test::Association;
using test::BlocksEntry;
using test::RawHost;
using test::TargetRig;

using Associations = std::vector<SavedAssociation>;
using Bytes = std::vector<uint8_t>;
using State = nvme::target::SavedReset::State;

constexpr uint32_t kBlocks = 8;
constexpr size_t kBytes = kBlocks * 512;
constexpr uint64_t kResetEvent = 0x001e'f402;

bool Succeeds(const std::optional<CompletionEntry>& answer) {
  return answer && answer->status().ok();
}
void SendWrite(RawHost& queue, uint64_t block, uint8_t value) {
  queue.Send(BlocksEntry(Opcode::kWrite, block, kBlocks, true), Bytes(kBytes, value));
}

ControllerInstance InstanceOf(RawHost& admin) {
  SubmissionEntry entry = EntryOf(nvme::Identify(nvme::IdentifyCns::kController, 0));
  entry.data.length_bytes = nvme::kIdentifyBytes;
  CLEAT_CHECK(Succeeds(admin.Do(entry)));
  ControllerInstance instance;
  std::memcpy(&instance.id, admin.data().data() + 78, sizeof(instance.id));
  instance.uniquifier = admin.data()[135];
  std::memcpy(&instance.random, admin.data().data() + 136, sizeof(instance.random));
  return instance;
}
SubmissionEntry Reset(const ControllerInstance& impacted) {
  SubmissionEntry entry = EntryOf({.opcode = 0x38,
                                   .cdw10 = impacted.id | uint32_t{impacted.uniquifier} << 16,
                                   .cdw12 = static_cast<uint32_t>(impacted.random)});
  entry.cdw13 = static_cast<uint32_t>(impacted.random >> 32);
  return entry;
}
// What it says of those that were asked for; all that is over is removed.
std::vector<State> Log(RawHost& admin) {
  constexpr uint32_t kBytesOfLog = 8 + nvme::target::kResetsMax * 8;
  nvme::Command command = nvme::GetLogPage(nvme::LogPage::kControllerResets, 0, kBytesOfLog);
  command.cdw10 |= uint32_t{nvme::target::kRemoveResetsThatAreOver} << 8;
  SubmissionEntry entry = EntryOf(command);
  entry.data.length_bytes = kBytesOfLog;
  CLEAT_CHECK(Succeeds(admin.Do(entry)));
  std::vector<State> states(admin.data()[0]);
  for (size_t i = 0; i < states.size(); ++i) states[i] = static_cast<State>(admin.data()[8 + i * 8 + 6]);
  return states;
}

// Two paths of one host. The first one's write is in the storage, which holds it, and its host takes nothing and says nothing any more.
struct TwoPaths {
  TwoPaths() : first(rig), second(rig) {
    instance = InstanceOf(first.admin);
    rig.storage->holds = true;
    SendWrite(first.queue, 0, 'A');
    rig.Until([this] { return rig.storage->held.size() == 1; });
    rig.storage->holds = false;
  }
  ~TwoPaths() { rig.storage->LetGo(); }
  TwoPaths(const TwoPaths&) = delete;
  TwoPaths& operator=(const TwoPaths&) = delete;
  uint8_t at(uint64_t block) const { return rig.storage->content[block * 512]; }

  TargetRig rig;
  Association first;
  Association second;
  ControllerInstance instance;
};

TEST(CrossResetTest, AHostHearsOfTheEndWhenTheStorageHasLetGoAndNotBefore) {
  TwoPaths paths;
  RawHost& admin = paths.second.admin;
  admin.Send(EntryOf(nvme::AsyncEventRequest()));
  EXPECT_TRUE(admin.IsQuiet());
  const auto asked = admin.Do(Reset(paths.instance));
  ASSERT_TRUE(Succeeds(asked));
  EXPECT_EQ(asked->result, 0U) << "a write of it is in the storage";
  EXPECT_EQ(paths.first.queue.Answer(), std::nullopt) << "its connections end at once, its host does nothing";
  EXPECT_EQ(paths.first.admin.Answer(), std::nullopt);
  EXPECT_TRUE(admin.IsQuiet());
  EXPECT_EQ(Log(admin), std::vector{State::kInProgress});
  const auto again = admin.Do(Reset(paths.instance));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->status().field(), nvme::status_field::kResetInProgress);
  // Others are served meanwhile.
  SendWrite(paths.second.queue, 100, 'X');
  EXPECT_TRUE(Succeeds(paths.second.queue.Answer()));
  EXPECT_TRUE(admin.IsQuiet());
  EXPECT_EQ(paths.at(0), 0);
  paths.rig.storage->LetGo();
  const auto told = admin.Answer();
  ASSERT_TRUE(Succeeds(told));
  EXPECT_EQ(told->result, kResetEvent);
  EXPECT_EQ(paths.at(0), 'A') << "over, whatever its host knows of it";
  EXPECT_EQ(Log(admin), std::vector{State::kSuccess});
  SendWrite(paths.second.queue, 0, 'B');
  EXPECT_TRUE(Succeeds(paths.second.queue.Answer()));
  EXPECT_TRUE(admin.IsQuiet());
  EXPECT_EQ(paths.at(0), 'B');
}

TEST(CrossResetTest, WhatItsHostHasSentAndNobodyHasReadIsNotExecuted) {
  TwoPaths paths;
  // Neither is read before the other one is there.
  paths.second.admin.Send(Reset(paths.instance));
  for (uint64_t block = 64; block < 256; block += kBlocks) SendWrite(paths.first.queue, block, 'C');
  EXPECT_TRUE(Succeeds(paths.second.admin.Answer()));
  paths.rig.storage->LetGo();
  paths.rig.Until([&] { return paths.rig.service->StatusOf(TargetRig::kNqn).controllers == 1; });
  ASSERT_EQ(Log(paths.second.admin), std::vector{State::kSuccess});
  const Bytes then = paths.rig.storage->content;
  EXPECT_TRUE(paths.second.admin.IsQuiet());
  EXPECT_EQ(paths.rig.storage->content, then) << "a success, and something was written behind it";
}

TEST(CrossResetTest, AControllerWithoutAQueueIsOverAtOnce) {
  TargetRig rig;
  Association asked(rig);
  RawHost lost(rig);
  lost.BecomeAdmin();
  const auto answer = asked.admin.Do(Reset(InstanceOf(lost)));
  ASSERT_TRUE(Succeeds(answer));
  EXPECT_EQ(answer->result, kResetIsOver);
  EXPECT_EQ(lost.Answer(), std::nullopt);
  EXPECT_TRUE(Log(asked.admin).empty());
}

// A queue of it, whose Connect is still on its way, is no way in either.
TEST(CrossResetTest, NoQueueJoinsItAfterwards) {
  TargetRig rig;
  Association asked(rig);
  RawHost lost(rig), queue(rig);
  const uint16_t controller = lost.BecomeAdmin();
  const ControllerInstance instance = InstanceOf(lost);
  queue.SendConnect(1, controller);
  asked.admin.Send(Reset(instance));
  EXPECT_TRUE(Succeeds(asked.admin.Answer()));
  SendWrite(queue, 0, 'C');
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 1; });
  EXPECT_TRUE(asked.admin.IsQuiet());
  EXPECT_EQ(rig.storage->content[0], 0);
}

TEST(CrossResetTest, AnotherHostsControllerGoesOn) {
  TargetRig rig;
  const auto stranger = nvme::fabrics::HostIdentityOfUuid({9, 9, 9});
  ASSERT_TRUE(rig.SetHosts({nvme::target::HostAccess::Named(TargetRig::HostNqn()),
                            nvme::target::HostAccess::Named(stranger.nqn)})
                  .ok());
  Association host(rig);
  RawHost other(rig);
  ASSERT_TRUE(Succeeds(other.Connect(stranger)));
  other.Enable();
  for (const ControllerInstance& instance : {InstanceOf(host.admin), InstanceOf(other)}) {
    const auto answer = other.Do(Reset(instance));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status().field(), nvme::status_field::kInvalidField | nvme::status_field::kDoNotRetry);
  }
  SendWrite(host.queue, 0, 'A');
  EXPECT_TRUE(Succeeds(host.queue.Answer()));
  EXPECT_TRUE(other.IsQuiet());
}

TEST(CrossResetTest, AHostThatDoesNothingElseIsBounded) {
  TargetRig rig;
  Association asked(rig);
  uint32_t over = 0;
  for (size_t i = 0; i < nvme::target::kResetsMax; ++i) {
    Association lost(rig);
    EXPECT_TRUE(Succeeds(asked.admin.Do(Reset(InstanceOf(lost.admin)))));
    EXPECT_EQ(lost.admin.Answer(), std::nullopt);
    ++over;
    rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 1; });
  }
  Association last(rig);
  const ControllerInstance instance = InstanceOf(last.admin);
  for (int i = 0; i < 1000; ++i) {
    const auto answer = asked.admin.Do(Reset(instance));
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->status().field(), nvme::status_field::kResetLogFull);
  }
  SendWrite(last.queue, 0, 'A');
  EXPECT_TRUE(Succeeds(last.queue.Answer())) << "it was not ended for nothing";
  EXPECT_EQ(Log(asked.admin), std::vector(over, State::kSuccess));
  EXPECT_TRUE(Succeeds(asked.admin.Do(Reset(instance))));
}

// ---- While the export goes to the next engine

struct NextEngine {
  explicit NextEngine(TargetRig& of_rig)
      : rig(of_rig), service(std::make_unique<TargetService>(*of_rig.adapters, nullptr)) {
    SubsystemParts parts;
    parts.name = "controllers/e";
    parts.config.nqn = TargetRig::kNqn;
    parts.config.serial = "S1";
    parts.config.hosts = {nvme::target::HostAccess::Named(TargetRig::HostNqn())};
    parts.config.addresses = rig.addresses;
    for (const auto& reactor : rig.io) parts.reactors.push_back(reactor.get());
    CLEAT_CHECK(service->AddSubsystem(std::move(parts)).ok());
    const Status added = rig.Await<Status>([this](TargetRig& r) -> Task<Status> {
      NamespaceParts space;
      space.shape = r.ShapeOf(1);
      space.channel_on = [&r](Reactor& reactor) {
        return NamespaceChannel{r.channels[&reactor == r.io[0].get() ? 0 : 1].get()};
      };
      co_return co_await service->AddNamespace(TargetRig::kNqn, 1, std::move(space));
    });
    CLEAT_CHECK(added.ok());
  }
  ~NextEngine() {
    rig.Await<bool>([this](TargetRig&) -> Task<bool> {
      (void)co_await service->Withdraw(TargetRig::kNqn);
      co_await service->RemoveNamespace(TargetRig::kNqn, 1);
      service->RemoveSubsystem(TargetRig::kNqn);
      co_await service->Close();
      co_return true;
    });
  }
  NextEngine(const NextEngine&) = delete;
  NextEngine& operator=(const NextEngine&) = delete;

  TargetRig& rig;
  std::unique_ptr<TargetService> service;
};

TEST(CrossResetTest, AnEndThatTheEngineBeforeHasSeenIsToldByTheNextOne) {
  TwoPaths paths;
  TargetRig& rig = paths.rig;
  NextEngine next(rig);
  RawHost& admin = paths.second.admin;
  const ControllerInstance before = InstanceOf(admin);
  EXPECT_EQ(admin.Do(Reset(paths.instance))->result, 0U);
  bool handed = false;
  Associations associations;
  rig.Begin(
      [&](TargetRig& r) -> Task<void> {
        associations = (co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline)).value();
      },
      handed);
  for (int turn = 0; turn < 500; ++turn) rig.Turn();
  EXPECT_FALSE(handed) << "what the lost path has in the storage is waited for";
  EXPECT_EQ(Log(admin), std::vector{State::kInProgress});
  rig.storage->LetGo();
  rig.Until([&] { return handed; });
  ASSERT_EQ(associations.size(), 1U) << "the lost one stays behind";
  const Status served = rig.Await<Status>([&](TargetRig&) -> Task<Status> {
    co_return next.service->Serve(TargetRig::kNqn, TargetService::Addresses::kOwn, std::move(associations));
  });
  ASSERT_TRUE(served.ok()) << served.error().message;
  const auto told = admin.Do(EntryOf(nvme::AsyncEventRequest()));
  ASSERT_TRUE(Succeeds(told));
  EXPECT_EQ(told->result, kResetEvent);
  EXPECT_EQ(Log(admin), std::vector{State::kSuccess});
  EXPECT_EQ(InstanceOf(admin), before) << "the same controller goes on";
  EXPECT_EQ(paths.at(0), 'A');
  // By another path, of which the engine before knew nothing, the one that went along is found.
  RawHost third(rig);
  third.BecomeAdmin();
  EXPECT_TRUE(Succeeds(third.Do(Reset(before))));
  EXPECT_EQ(admin.Answer(), std::nullopt);
}

// Around the moment in which the connections go over: whichever engine executes it, the host hears of an end, and its other path goes on.
TEST(CrossResetTest, WheneverAHandOverMeetsItTheHostIsAnswered) {
  uint32_t left_alone = 0, went_along = 0;
  for (int turns = -4; turns < 16; ++turns) {
    SCOPED_TRACE(turns);
    TargetRig rig;
    NextEngine next(rig);
    Association lost(rig), asked(rig);
    const ControllerInstance instance = InstanceOf(lost.admin);
    asked.admin.Send(EntryOf(nvme::AsyncEventRequest()));
    // An answer acknowledges the request: with one that is not the next command would wait in the host's socket (Nagle).
    EXPECT_TRUE(Succeeds(asked.admin.Do(EntryOf(nvme::KeepAlive()))));
    rig.storage->holds = true;
    SendWrite(asked.queue, 0, 'A');
    rig.Until([&] { return rig.storage->held.size() == 1; });
    bool served = false;
    size_t handed = 0;
    rig.Begin(
        [&](TargetRig& r) -> Task<void> {
          Associations associations = (co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline)).value();
          handed = associations.size();
          const Status serves =
              next.service->Serve(TargetRig::kNqn, TargetService::Addresses::kOwn, std::move(associations));
          CLEAT_CHECK(serves.ok());
        },
        served);
    const auto go_on = [&](int times) {
      for (int turn = 0; turn < times; ++turn) rig.Turn();
    };
    go_on(50);
    EXPECT_FALSE(served);
    if (turns < 0) {
      asked.admin.Send(Reset(instance));
      go_on(-turns);
      rig.storage->LetGo();
    } else {
      rig.storage->LetGo();
      go_on(turns);
      asked.admin.Send(Reset(instance));
    }
    rig.Until([&] { return served; });
    const auto answer = asked.admin.Answer();
    ASSERT_TRUE(Succeeds(answer));
    ASSERT_EQ(answer->result, 0U) << "it has a queue, wherever it is";
    const auto told = asked.admin.Answer();
    ASSERT_TRUE(Succeeds(told));
    EXPECT_EQ(told->result, kResetEvent);
    const std::vector<State> log = Log(asked.admin);
    ASSERT_EQ(log.size(), 1U);
    EXPECT_EQ(lost.admin.Answer(), std::nullopt);
    EXPECT_TRUE(Succeeds(asked.queue.Answer()));
    SendWrite(asked.queue, 0, 'B');
    EXPECT_TRUE(Succeeds(asked.queue.Answer()));
    left_alone += handed == 1 ? 1 : 0;
    went_along += handed == 2 ? 1 : 0;
    // Where it had no time to end before the other one left, neither engine has seen it.
    EXPECT_TRUE(log[0] == State::kSuccess || (handed == 1 && log[0] == State::kFailed));
    if (turns == -4) {
      EXPECT_EQ(log[0], State::kSuccess);
    }
  }
  EXPECT_GT(left_alone, 0U);
  EXPECT_GT(went_along, 0U);
}

}  // namespace
}  // namespace cleat::nvmf_target::cross_reset_test
