// SPDX-License-Identifier: Apache-2.0
// Controllers that break the rules: each ends its queue with a reason that names the rule.
#include <functional>
#include <string>
#include <vector>

#include "tests/unit/nvme/rdma_host/host_rig.h"

namespace cleat::nvme::rdma_host::host_rules_test {
namespace {

using namespace host_rig;  // NOLINT(google-build-using-namespace)

class RdmaHostRulesTest : public HostTest {
 protected:
  void ExpectEnd(const char* rule) {
    ASSERT_EQ(owner_.ends.size(), 1U) << rule;
    EXPECT_NE(owner_.ends[0].find(rule), std::string::npos) << owner_.ends[0];
    EXPECT_NE(owner_.ends[0].find("nqn, queue 1"), std::string::npos);
    EXPECT_EQ(pair_->breaks, 1U);
    EXPECT_TRUE(queue_->ended());
    EXPECT_EQ(queue_->room(), 0U);
  }
};

TEST_F(RdmaHostRulesTest, EndsForEachRuleThatAControllerBreaksAndSaysWhich) {
  struct Case {
    const char* rule;
    std::function<void(size_t)> breaks;  // with the work of a read's capsule, which is sent
  };
  const std::vector<Case> cases = {
      {"a message of 15 bytes; a completion entry has 16",
       [&](size_t work) {
         const CompletionEntry entry{.cid = CapsuleAt(work).cid};
         ArrivesBytes(&entry, 15);
       }},
      {"a message of 0 bytes", [&](size_t) { ArrivesBytes("", 0); }},
      {"a completion entry for CID 0x7, which no command has", [&](size_t) { Arrives(7); }},
      {"a completion entry for CID 0xffff, which no command has", [&](size_t) { Arrives(0xffff); }},
      {"a completion entry for CID 0x100, which no command has",
       [&](size_t work) { Arrives(static_cast<uint16_t>(CapsuleAt(work).cid + 256)); }},
      {"which was answered",
       [&](size_t work) {
         Arrives(CapsuleAt(work).cid);
         Arrives(CapsuleAt(work).cid);
       }},
      {"that invalidates key 0x999, which its command does not have",
       [&](size_t work) { Arrives(CapsuleAt(work).cid, 0x999); }},
      {"which its command does not have",
       [&](size_t) {
         const size_t flush = Send(2, 0, 0);
         Arrives(CapsuleAt(flush).cid, 0);
       }},
      {"which its command does not have",
       [&](size_t work) {
         const size_t other = Send(2, 0, 512);
         Arrives(CapsuleAt(work).cid, DescriptorAt(other).key_value());
       }},
      {"a capsule: ", [&](size_t work) { Completes(work, WorkStatus::kRetriesExceeded); }},
      {"the binding of a memory window: ",
       [&](size_t work) { Completes(work - 1, WorkStatus::kLocalError); }},
      {"the end of a memory window: ",
       [&](size_t work) {
         Arrives(CapsuleAt(work).cid);
         Completes(pair_->posted.size() - 1, WorkStatus::kLocalError);
       }},
      {"a message: ",
       [&](size_t) {
         queues_.pending.push_back(
             {.id = queues_.receives.front().id, .queue_pair = kNumber, .status = WorkStatus::kLocalError});
         queues_.receives.pop_front();
         adapter_->Poll(64);
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.rule);
    Make();
    const size_t work = Send(1, 0, 512);
    one.breaks(work);
    ExpectEnd(one.rule);
    Destroy();
    EXPECT_EQ(adapter_->places_free(), adapter_->places());
    EXPECT_EQ(data_->slabs_in_use(), 0U);
    EXPECT_EQ(adapter_->receives_posted(), HostAdapter::ReceiveEntries(16));
    owner_.ends.clear();
    owner_.heard.clear();
  }
}

TEST_F(RdmaHostRulesTest, NoAnswerToWhatWaitsForAPlaceOrIsNotPosted) {
  Make(1);
  const size_t work = Send(1, 0, 512);
  Submit(2, 0, 512);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 2U);
  Arrives(static_cast<uint16_t>(CapsuleAt(work).cid + 1));
  ExpectEnd("whose command was not sent yet");
  ASSERT_EQ(owner_.heard.size(), 2U);
  EXPECT_EQ(owner_.heard[0].unanswered, Reached::kPerhapsAll);
  EXPECT_EQ(owner_.heard[1].unanswered, Reached::kNothing);
}

TEST_F(RdmaHostRulesTest, ALateAnswerNamesNoCommand) {
  Make();
  const size_t work = Send(1, 0, 512);
  Completes(work);
  Answers(work);
  const uint16_t late = CapsuleAt(work).cid;
  for (uint64_t cookie = 2; cookie < 200; ++cookie) {
    const size_t other = Send(cookie, 0, 512);
    ASSERT_NE(CapsuleAt(other).cid, late);
    Completes(other);
    Answers(other);
  }
  Send(200, 0, 512);
  Arrives(late);
  ExpectEnd("which no command has");
}

TEST_F(RdmaHostRulesTest, MessagesThatComeAfterTheEndAreNotLookedAt) {
  Make();
  const size_t work = Send(1, 0, 512);
  Arrives(0x1234);
  ASSERT_EQ(owner_.ends.size(), 1U);
  Arrives(CapsuleAt(work).cid);
  Arrives(0x1234);
  ArrivesBytes("", 0);
  EXPECT_EQ(owner_.ends.size(), 1U);
  EXPECT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(adapter_->receives_posted(), HostAdapter::ReceiveEntries(16));
}

}  // namespace
}  // namespace cleat::nvme::rdma_host::host_rules_test
