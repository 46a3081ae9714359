// SPDX-License-Identifier: Apache-2.0
// Commands whose owner's memory is registered: nothing is copied, and the owner has its memory back when no controller can reach it any more.
#include <cstring>
#include <vector>

#include "tests/unit/nvme/rdma_host/host_rig.h"

namespace cleat::nvme::rdma_host::host_direct_test {
namespace {

using namespace host_rig;  // NOLINT(google-build-using-namespace)

class RdmaHostDirectTest : public HostTest {
 protected:
  RdmaHostDirectTest() { direct_.registered.try_emplace(guest_region_.get()); }
  const Region& registered() { return direct_.registered.at(guest_region_.get()); }
  void Abort() { queue_->Abort({ErrorCode::kDeadlineExceeded, "keep alive"}); }
};

TEST_F(RdmaHostDirectTest, AReadsDataGoesStraightToItsOwner) {
  Make();
  const size_t read = Send(1, 0, 4096, 5000);
  EXPECT_EQ(DataAt(read), guest_.data() + 5000);
  const verbs::WindowBinding& binding = At(read - 1).binding;
  EXPECT_EQ(binding.registration, &registered());
  EXPECT_EQ(binding.address, reinterpret_cast<uint64_t>(guest_.data() + 5000));
  EXPECT_EQ(binding.length_bytes, 4096U);
  EXPECT_TRUE(binding.peer_may_write && !binding.peer_may_read);
  EXPECT_EQ(data_->slabs_in_use(), 0U);
  Completes(read);
  std::memset(DataAt(read), 0x31, 4096);
  Answers(read);
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].data_bytes, 4096U);
  EXPECT_EQ(guest_[5000 + 4095], 0x31);
  EXPECT_EQ(adapter_->places_free(), adapter_->places());
}

TEST_F(RdmaHostDirectTest, AWritesDataIsTakenFromItsOwner) {
  Make();
  const uint8_t first = guest_[300];
  const size_t write = Send(1, 60'000, 0, 300);
  EXPECT_EQ(DataAt(write), guest_.data() + 300);
  EXPECT_TRUE(At(write - 1).binding.peer_may_read && !At(write - 1).binding.peer_may_write);
  EXPECT_EQ(guest_[300], first);
  EXPECT_EQ(data_->slabs_in_use(), 0U);
  Completes(write);
  Answers(write);
  EXPECT_EQ(cookies(), std::vector<uint64_t>{1});
}

TEST_F(RdmaHostDirectTest, AFailedReadHasNoBytes) {
  Make();
  const size_t read = Send(1, 0, 4096);
  Completes(read);
  Answers(read, kInvalidField);
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].data_bytes, 0U);
}

TEST_F(RdmaHostDirectTest, WhatIsNotOnePieceOfARegisteredRegionIsCopied) {
  Make();
  const auto other = block::MemoryRegion::Borrow(guest_.data(), kGuestBytes);
  const block::MemoryRegion* const known = guest_region_.get();
  const std::vector<std::vector<block::Segment>> lists = {
      {{known, 0, 512}, {known, 1024, 512}},       // a gap
      {{known, 512, 512}, {known, 0, 512}},        // another order
      {{known, 0, 512}, {other.get(), 512, 512}},  // two regions
      {{other.get(), 0, 1024}},                    // one that is not registered
  };
  for (const auto& segments : lists) {
    fabrics::QueuedCommand command;
    command.entry.opcode = kRead;
    command.from_target = segments;
    queue_->Submit(command);
    adapter_->Post();
    const size_t read = pair_->posted.size() - 1;
    EXPECT_EQ(At(read - 1).binding.registration, &registration_);
    Completes(read);
    std::memset(DataAt(read), 0x41, 1024);
    Answers(read);
    EXPECT_EQ(segments.back().data()[511], 0x41);
  }
  EXPECT_EQ(owner_.heard.size(), lists.size());
}

TEST_F(RdmaHostDirectTest, WhatFitsInACapsuleGoesInIt) {
  Make(16, 8, 4096);
  const size_t write = Send(1, 4096, 0);
  EXPECT_EQ(write, 0U) << "no window is bound";
  EXPECT_EQ(At(write).bytes.size(), sizeof(SubmissionEntry) + 4096);
}

TEST_F(RdmaHostDirectTest, TheOwnerHearsOfItsEndWhenTheQueuePairIsGone) {
  Make();
  const size_t open = Send(1, 0, 4096);
  const size_t no_data = Send(2, 0, 0);
  const size_t answered = Send(3, 0, 512, 9000);
  Completes(answered);
  std::memset(DataAt(answered), 0x51, 512);
  Arrives(CapsuleAt(answered).cid);  // but its window is not shut
  const size_t shut = Send(4, 0, 512);
  Answers(shut);  // by the controller, before its send has completed
  Submit(5, 0, 512);
  ASSERT_TRUE(owner_.heard.empty());
  Abort();
  EXPECT_EQ(owner_.broken_when, std::vector<size_t>{0}) << "its maker is told first";
  EXPECT_EQ(cookies(), (std::vector<uint64_t>{2, 4, 5})) << "no controller reaches memory of theirs";
  EXPECT_TRUE(owner_.ends.empty());
  EXPECT_TRUE(queue_->ended() && queue_->owes());
  EXPECT_EQ(queue_->room(), 0U);
  for (const size_t work : {open - 1, open, no_data, shut}) Completes(work, WorkStatus::kFlushed);
  EXPECT_EQ(owner_.heard.size(), 3U) << "what is flushed may be done in part";
  Abort();
  std::vector<verbs::MemoryWindow*> windows;
  for (size_t i = queue_->bound().size(); i > 0; --i) windows.push_back(&MakeWindow());
  EXPECT_EQ(windows.size(), 2U);
  pair_.reset();
  queue_->Destroyed(windows);
  ASSERT_EQ(cookies(), (std::vector<uint64_t>{2, 4, 5, 1, 3}));
  EXPECT_EQ(owner_.heard[3].unanswered, Reached::kPerhapsAll);
  EXPECT_FALSE(owner_.heard[4].unanswered);
  EXPECT_EQ(owner_.heard[4].data_bytes, 512U);
  EXPECT_EQ(guest_[9000 + 511], 0x51);
  EXPECT_EQ(owner_.ends, std::vector<std::string>{"keep alive"});
  EXPECT_FALSE(queue_->owes());
  EXPECT_EQ(adapter_->places_free(), adapter_->places());
  EXPECT_EQ(owner_.broken_when.size(), 1U);
  queue_.reset();
}

// The adapter has taken the binding, and not the capsule behind it.
TEST_F(RdmaHostDirectTest, WhatIsBoundAndWasNotSentComesBackAsWell) {
  Make();
  Submit(1, 0, 512);
  pair_->takes = 1;
  adapter_->Post();
  EXPECT_TRUE(queue_->ended());
  EXPECT_TRUE(owner_.heard.empty());
  Destroy();
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].unanswered, Reached::kNothing);
  EXPECT_EQ(owner_.ends.size(), 1U);
}

TEST_F(RdmaHostDirectTest, AQueueWithoutSuchCommandsEndsAtOnce) {
  Make();
  Send(1, 0, 0);
  Abort();
  EXPECT_EQ(owner_.ends.size(), 1U);
  EXPECT_FALSE(queue_->owes());
  EXPECT_EQ(owner_.broken_when, std::vector<size_t>{0});
}

// Data that needs no memory of the adapter's is not held up where that is used up.
TEST_F(RdmaHostDirectTest, TakesNoneOfTheMemoryThatOthersWaitFor) {
  constexpr uint32_t kLarge = 1 << 20;
  const auto other = block::MemoryRegion::Borrow(guest_.data(), kGuestBytes);
  Make(8, 2);
  const std::vector<block::Segment> copied{{other.get(), 0, kLarge}};
  fabrics::QueuedCommand command;
  command.entry.opcode = kRead;
  command.from_target = copied;
  for (uint32_t i = 0; i < 3; ++i) queue_->Submit(command);
  adapter_->Post();
  const size_t before = pair_->posted.size();
  Submit(9, 0, 512);
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), before + 2);
}

}  // namespace
}  // namespace cleat::nvme::rdma_host::host_direct_test
