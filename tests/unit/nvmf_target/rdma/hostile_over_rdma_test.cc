// SPDX-License-Identifier: Apache-2.0
// Hosts over RDMA that do what no host should, or vanish in the middle of it: they cost their own queue, and what they had comes back.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "nvme/rdma/connect_data.h"
#include "tests/unit/nvmf_target/rdma/rdma_host.h"
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

namespace cleat::nvmf_target::hostile_over_rdma_test {
namespace {

using nvme::rdma::RejectStatus;
using test::RdmaAssociation;
using test::RdmaData;
using test::RdmaHostQueue;
using test::RdmaQueueOptions;
using test::RdmaRig;

using Bytes = std::vector<uint8_t>;

Bytes PrivateData(const nvme::rdma::ConnectRequest& request) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&request);
  return {at, at + sizeof(request)};
}

nvme::fabrics::SubmissionEntry WriteEntry() {
  return nvme::fabrics::EntryOf(nvme::OnBlocks(nvme::Opcode::kWrite, 1, 0, 8, 0));
}

// No host of the subsystem is connected any more, and nothing of theirs is left.
bool NothingIsLeft(RdmaRig& rig, uint32_t queue_pairs, uint32_t slots) {
  return rig.Until([&] { return rig.queue_pairs() == queue_pairs && rig.receives_posted() == slots; });
}

class HostileOverRdmaTest : public testing::Test {
 protected:
  // The other host goes on, and all slots are posted.
  void ExpectOthersGoOn() {
    EXPECT_TRUE(NothingIsLeft(rig, 2, 2 * RdmaRig::kSlots));
    EXPECT_TRUE(good.queue->Write(64, 8, 9));
    EXPECT_TRUE(good.queue->ReadIs(64, 8, 9));
    EXPECT_FALSE(good.admin.broken());
  }

  RdmaRig rig;
  RdmaAssociation good{rig, *rig.machines[1], {}, 600'000, 1};
};

TEST_F(HostileOverRdmaTest, WrongPrivateDataIsRejectedWithItsStatus) {
  struct Case {
    nvme::rdma::ConnectRequest request;
    RejectStatus status;
  };
  nvme::rdma::ConnectRequest right = nvme::rdma::RequestOf(1, 32, 0);
  std::vector<Case> cases;
  const auto add = [&](RejectStatus status, const std::function<void(nvme::rdma::ConnectRequest&)>& spoil) {
    cases.push_back({right, status});
    spoil(cases.back().request);
  };
  add(RejectStatus::kInvalidRecordFormat, [](auto& request) { request.record_format = 1; });
  add(RejectStatus::kInvalidHostSendSize, [](auto& request) { request.host_send_size = 0; });
  add(RejectStatus::kInvalidHostSendSize, [](auto& request) { request.host_send_size = 256; });
  add(RejectStatus::kInvalidHostReceiveSize, [](auto& request) { request.host_receive_size = 0; });
  add(RejectStatus::kInvalidHostSendSize, [](auto& request) {
    request.queue_id = 0;
    request.host_send_size = 128;
  });
  for (const Case& one : cases) {
    RdmaHostQueue host(rig, *rig.machines[0], {.private_data = PrivateData(one.request)});
    EXPECT_FALSE(host.WaitUntilConnected());
    EXPECT_EQ(host.end(), rdma::EndKind::kRejected);
    EXPECT_EQ(host.reject_status(), static_cast<uint16_t>(one.status));
  }
  // None at all: zeros, which have a queue of one entry.
  RdmaHostQueue none(rig, *rig.machines[0], {.private_data = Bytes()});
  EXPECT_FALSE(none.WaitUntilConnected());
  EXPECT_EQ(none.reject_status(), static_cast<uint16_t>(RejectStatus::kInvalidHostSendSize));
  RdmaHostQueue unread(rig, *rig.machines[0], {.reads_served = 0});
  EXPECT_FALSE(unread.WaitUntilConnected());
  EXPECT_EQ(unread.reject_status(), static_cast<uint16_t>(RejectStatus::kInvalidIrd));
  ExpectOthersGoOn();
}

TEST_F(HostileOverRdmaTest, ACapsuleThatIsTooShortOrTooLongEndsItsQueue) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}}) {
    RdmaAssociation host(rig, *rig.machines[0]);
    host.queue->SendCapsule(Bytes(bytes, 0));
    EXPECT_TRUE(host.queue->WaitUntilBroken()) << bytes;
    EXPECT_FALSE(host.admin.broken());
  }
  // Longer than the memory for it: the adapter itself refuses.
  RdmaAssociation host(rig, *rig.machines[0]);
  host.queue->SendCapsule(Bytes(64 + 4096 + 1, 0));
  EXPECT_TRUE(host.queue->WaitUntilBroken());
  // An admin queue's capsules bring nothing along.
  host.admin.SendCapsule(Bytes(64 + 1, 0));
  EXPECT_TRUE(host.admin.WaitUntilBroken());
}

TEST_F(HostileOverRdmaTest, ACapsuleThatIsTooShortAheadOfConnectEndsItsQueue) {
  for (const uint16_t queue_id : {uint16_t{0}, uint16_t{1}}) {
    RdmaHostQueue host(rig, *rig.machines[0], {.queue_id = queue_id});
    ASSERT_TRUE(host.WaitUntilConnected());
    host.SendCapsule(Bytes(10, 0));
    EXPECT_TRUE(host.WaitUntilBroken());
  }
  ExpectOthersGoOn();
}

TEST_F(HostileOverRdmaTest, ACommandMoreThanItsQueueHasEntriesEndsIt) {
  RdmaAssociation host(rig, *rig.machines[0], {.entries = 4});
  rig.storage->holds = true;
  for (uint64_t i = 0; i < 4; ++i) host.queue->SendWrite(i * 8, 8, 1, RdmaData::kInCapsule);
  ASSERT_TRUE(rig.Until([&] { return rig.storage->held.size() == 4; }));
  rig.Settle();
  EXPECT_FALSE(host.queue->broken());
  const nvme::fabrics::SubmissionEntry entry = WriteEntry();
  const auto* const at = reinterpret_cast<const uint8_t*>(&entry);
  host.queue->SendCapsule({at, sizeof(entry)});
  EXPECT_TRUE(host.queue->WaitUntilBroken());
  rig.storage->LetGo();
  host.queue->Vanish();
  host.admin.Vanish();
  ExpectOthersGoOn();
}

TEST_F(HostileOverRdmaTest, MoreThanOneCommandAheadOfTheAnswerToConnectEndsTheQueue) {
  for (const uint16_t queue_id : {uint16_t{0}, uint16_t{1}}) {
    RdmaHostQueue host(rig, *rig.machines[0], {.queue_id = queue_id, .entries = 4});
    ASSERT_TRUE(host.WaitUntilConnected());
    for (int i = 0; i < 2; ++i) host.SendCapsule(Bytes(64, 0));
    EXPECT_TRUE(host.WaitUntilBroken());
  }
  ExpectOthersGoOn();
}

TEST_F(HostileOverRdmaTest, AnIoCommandAheadOfConnectIsNotExecuted) {
  rig.storage->content[0] = 5;
  for (const uint16_t queue_id : {uint16_t{0}, uint16_t{1}}) {
    for (const RdmaData where : {RdmaData::kToTarget, RdmaData::kInCapsule}) {
      RdmaHostQueue host(rig, *rig.machines[0], {.queue_id = queue_id});
      ASSERT_TRUE(host.WaitUntilConnected());
      const uint16_t cid = host.SendWrite(0, 8, 1, where);
      EXPECT_TRUE(host.WaitUntilBroken());
      EXPECT_TRUE(!host.answered(cid) || !host.Answer(cid)->status().ok());
    }
  }
  EXPECT_EQ(rig.storage->content[0], 5);
  ExpectOthersGoOn();
}

TEST_F(HostileOverRdmaTest, CommandsRightBehindTheAnswerToConnectAreExecutedByTheIoQueue) {
  RdmaHostQueue admin(rig, *rig.machines[0], {});
  const uint16_t controller = admin.BecomeAdmin();
  RdmaHostQueue queue(rig, *rig.machines[0], {.queue_id = 1});
  ASSERT_TRUE(queue.WaitUntilConnected());
  const auto connected = queue.Answer(queue.SendConnect({.queue_id = 1, .entries = 32}, controller));
  ASSERT_TRUE(connected);
  ASSERT_TRUE(connected->status().ok());
  // The queue has not moved to its association yet.
  EXPECT_EQ(rig.status().io_queues, 1U) << "the good host's";
  std::vector<uint16_t> writes;
  for (uint8_t i = 0; i < 10; ++i) writes.push_back(queue.SendWrite(i, 1, static_cast<uint8_t>(i + 1)));
  for (const uint16_t write : writes) {
    const auto answer = queue.Answer(write);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->status().ok());
  }
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(rig.storage->content[i * 512], i + 1);
}

TEST_F(HostileOverRdmaTest, AKeyThatIsNobodysEndsItsQueue) {
  for (const nvme::Opcode opcode : {nvme::Opcode::kWrite, nvme::Opcode::kRead}) {
    RdmaAssociation host(rig, *rig.machines[0], {.uses_windows = true});
    // By the key that the answer to the first write has closed.
    ASSERT_TRUE(host.queue->Write(0, 8, 1));
    const uint16_t cid =
        host.queue->SendStale(nvme::fabrics::EntryOf(nvme::OnBlocks(opcode, 1, 0, 8, 0)), 4096);
    EXPECT_TRUE(host.queue->WaitUntilBroken());
    EXPECT_FALSE(host.queue->answered(cid));
    EXPECT_FALSE(host.admin.broken());
  }
  ExpectOthersGoOn();
  EXPECT_EQ(rig.storage->content[0], 1);
}

TEST_F(HostileOverRdmaTest, AHostThatTakesNoAnswersHoldsUpItselfAlone) {
  {
    RdmaAssociation host(rig, *rig.machines[0], {.entries = 16}, 1000);
    host.queue->BecomeDeaf();
    const auto all_answered = [&] { return host.queue->unanswered() == 0; };
    for (int round = 0; round < 2; ++round) {
      for (uint64_t i = 0; host.queue->unanswered() < 15; ++i) host.queue->SendWrite(i * 8, 8, 1);
      ASSERT_TRUE(round > 0 || rig.Until(all_answered));
    }
    rig.Settle();
    EXPECT_GT(rig.fabric.waiting(host.queue->target_pair()), 0U);
    EXPECT_FALSE(host.queue->broken());
    EXPECT_TRUE(good.queue->Write(64, 8, 9));
    EXPECT_TRUE(rig.Until([&] { return host.queue->ended(); })) << "the keep alive timeout";
  }
  ExpectOthersGoOn();
}

// ---- Strangers

TEST_F(HostileOverRdmaTest, StrangersOfOneAddressAreNoMoreThanTheirLimit) {
  std::vector<std::unique_ptr<RdmaHostQueue>> strangers;
  for (size_t i = 0; i < TargetService::kUnknownRdmaOfOneMax; ++i) {
    strangers.push_back(std::make_unique<RdmaHostQueue>(rig, *rig.machines[0],
                                                        RdmaQueueOptions{.queue_id = 0, .entries = 32}));
    ASSERT_TRUE(strangers.back()->WaitUntilConnected());
  }
  {
    RdmaHostQueue beyond(rig, *rig.machines[0], {});
    EXPECT_FALSE(beyond.WaitUntilConnected());
    EXPECT_EQ(beyond.reject_status(), static_cast<uint16_t>(RejectStatus::kNoResources));
  }
  // Those of another address come in, and the good host's queues go on.
  RdmaAssociation other(rig, *rig.machines[1], {}, 5000, 2);
  EXPECT_TRUE(other.queue->Write(0, 8, 1));
  rig.Pass(AdminQueue::kConnectNs);
  for (const auto& stranger : strangers) EXPECT_TRUE(stranger->WaitUntilBroken());
  RdmaAssociation later(rig, *rig.machines[0]);
  EXPECT_TRUE(later.queue->Write(0, 8, 1));
}

TEST_F(HostileOverRdmaTest, QueuesBeyondTheMemoryForTheirCapsulesAreRejectedAndOthersGoOn) {
  RdmaHostQueue admin(rig, *rig.machines[0], {});
  const uint16_t controller = admin.BecomeAdmin(600'000);
  std::vector<std::unique_ptr<RdmaHostQueue>> queues;
  for (int round = 0; round < 3; ++round) {
    queues.clear();
    // Some entries of each reactor's are the good host's and the admin queue's.
    ASSERT_TRUE(NothingIsLeft(rig, 3, 2 * RdmaRig::kSlots));
    uint32_t entries = 0;
    for (uint16_t id = 1; id <= 7; ++id) {
      queues.push_back(std::make_unique<RdmaHostQueue>(rig, *rig.machines[0],
                                                       RdmaQueueOptions{.queue_id = id, .entries = 256}));
      if (!queues.back()->WaitUntilConnected()) continue;
      const auto connected =
          queues.back()->Answer(queues.back()->SendConnect({.queue_id = id, .entries = 256}, controller));
      ASSERT_TRUE(connected && connected->status().ok());
      entries += 256;
    }
    EXPECT_EQ(entries, 6 * 256U) << "three on each reactor";
    for (const auto& queue : queues) {
      EXPECT_TRUE(queue->ended() || queue->Write(0, 8, 3));
    }
  }
  EXPECT_TRUE(good.queue->Write(64, 8, 9));
}

// ---- Hosts that vanish

// A host's way from its first request to a load, in steps: true, and the next one has its turn.
class Coming {
 public:
  Coming(RdmaRig& rig, bool uses_windows) : rig_(rig), uses_windows_(uses_windows) {}
  // One step further, if it can be.
  void Step() {
    switch (step_) {
      case 0:
        admin_ = std::make_unique<RdmaHostQueue>(rig_, *rig_.machines[0], RdmaQueueOptions{});
        return Next();
      case 1:
        if (!admin_->established()) return;
        cid_ = admin_->SendConnect({.queue_id = 0, .entries = 32, .kato_ms = 60'000},
                                   nvme::fabrics::kAnyController);
        return Next();
      case 2:
        if (!admin_->answered(cid_)) return;
        controller_ = static_cast<uint16_t>(admin_->Answer(cid_)->result);
        cid_ = admin_->Send(nvme::fabrics::EntryOf(
            nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, 4U << 20 | 6U << 16 | 1)));
        return Next();
      case 3:
        if (!admin_->answered(cid_)) return;
        queue_ = std::make_unique<RdmaHostQueue>(
            rig_, *rig_.machines[0], RdmaQueueOptions{.queue_id = 1, .uses_windows = uses_windows_});
        return Next();
      case 4:
        if (!queue_->established()) return;
        cid_ = queue_->SendConnect({.queue_id = 1, .entries = 32}, controller_);
        return Next();
      default:
        if (!queue_->answered(cid_)) return;
        for (int i = 0; queue_->unanswered() < 24; ++i)
          queue_->SendWrite(1000 + static_cast<uint64_t>(i), 8, 1,
                            i % 3 == 0 ? RdmaData::kInCapsule : RdmaData::kToTarget);
    }
  }
  bool is_through() const { return step_ > 4 && queue_->unanswered() == 24; }
  void VanishAdmin() { admin_.reset(); }
  void VanishQueue() { queue_.reset(); }

 private:
  void Next() { ++step_; }
  RdmaRig& rig_;
  const bool uses_windows_;
  std::unique_ptr<RdmaHostQueue> admin_;
  std::unique_ptr<RdmaHostQueue> queue_;
  int step_ = 0;
  uint16_t cid_ = 0;
  uint16_t controller_ = 0;
};

TEST_F(HostileOverRdmaTest, AHostThatVanishesAtAnyStepLeavesNothing) {
  int steps = 0;
  for (bool through = false; !through; ++steps) {
    ASSERT_LT(steps, 500);
    for (const int how : {0, 1, 2}) {
      Coming host(rig, steps % 2 == 0);
      rig.storage->holds = how == 2;
      for (int turn = 0; turn < steps; ++turn) {
        host.Step();
        rig.Turn();
      }
      through = host.is_through();
      if (how == 0) host.VanishQueue();
      host.VanishAdmin();
      host.VanishQueue();
      rig.Turn();
      rig.storage->LetGo();
      ASSERT_TRUE(NothingIsLeft(rig, 2, 2 * RdmaRig::kSlots)) << steps << " steps, " << how;
      ASSERT_EQ(rig.status().controllers, 1U) << steps << " steps, " << how;
    }
  }
  EXPECT_GT(steps, 10);
  ExpectOthersGoOn();
}

}  // namespace
}  // namespace cleat::nvmf_target::hostile_over_rdma_test
