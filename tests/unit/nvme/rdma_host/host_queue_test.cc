// SPDX-License-Identifier: Apache-2.0
// What a host's queue posts to its queue pair, what a command's data goes through, and when a command is over.
#include "nvme/rdma_host/host_queue.h"

#include <set>
#include <vector>

#include "tests/unit/nvme/rdma_host/host_rig.h"

namespace cleat::nvme::rdma_host::host_queue_test {
namespace {

using namespace host_rig;  // NOLINT(google-build-using-namespace)

class RdmaHostQueueTest : public HostTest {};

TEST_F(RdmaHostQueueTest, AReadShowsAPieceToItsControllerAndIsCopiedOnceItsWindowIsShut) {
  Make();
  const std::vector<uint8_t> before = guest_;
  Submit(7, 0, 5000, 100);
  EXPECT_TRUE(pair_->posted.empty()) << "with the turn's other works";
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 2U);
  EXPECT_EQ(pair_->doorbells, 1U);
  EXPECT_EQ(OpAt(0), SendOp::kBindWindow);
  EXPECT_FALSE(At(0).work.signaled);
  const verbs::WindowBinding& binding = At(0).binding;
  EXPECT_EQ(binding.registration, &registration_);
  EXPECT_EQ(binding.length_bytes, 5000U);
  EXPECT_FALSE(binding.peer_may_read);
  EXPECT_TRUE(binding.peer_may_write);
  EXPECT_EQ(OpAt(1), SendOp::kSend);
  EXPECT_TRUE(At(1).work.signaled);
  EXPECT_TRUE(At(1).work.copies_data);
  ASSERT_EQ(At(1).bytes.size(), 64U);
  EXPECT_EQ(At(1).piece.local_key, kSlotKey);
  EXPECT_EQ(CapsuleAt(1).flags, 0x40);
  const KeyedDescriptor descriptor = DescriptorAt(1);
  EXPECT_EQ(descriptor.type, 0x4f);
  EXPECT_EQ(descriptor.bytes(), 5000U);
  EXPECT_EQ(descriptor.address, binding.address);
  EXPECT_EQ(descriptor.key_value(), binding.key);
  EXPECT_GE(descriptor.address, reinterpret_cast<uint64_t>(data_->region()->base()));
  std::memset(DataAt(1), 0x6b, 5000);
  Completes(1);
  EXPECT_TRUE(owner_.heard.empty());
  Answers(1);
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].cookie, 7U);
  EXPECT_EQ(owner_.heard[0].data_bytes, 5000U);
  std::vector<uint8_t> expected = before;
  std::fill_n(expected.begin() + 100, 5000, 0x6b);
  EXPECT_EQ(guest_, expected) << "all three segments, and nothing else";
  EXPECT_EQ(pair_->posted.size(), 2U) << "the answer has shut the window";
  EXPECT_EQ(data_->slabs_in_use(), 0U);
  EXPECT_EQ(adapter_->places_free(), 16U);
}

TEST_F(RdmaHostQueueTest, AWriteIsCopiedWhenItIsPostedAndMayBeReadAlone) {
  Make();
  const size_t work = Send(1, 70'000, 0, 300);
  EXPECT_TRUE(At(0).binding.peer_may_read);
  EXPECT_FALSE(At(0).binding.peer_may_write);
  EXPECT_EQ(DescriptorAt(work).bytes(), 70'000U);
  EXPECT_TRUE(std::equal(DataAt(work), DataAt(work) + 70'000, guest_.begin() + 300));
  const std::vector<uint8_t> before = guest_;
  Completes(work);
  std::memset(DataAt(work), 0, 70'000);
  Answers(work);
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].data_bytes, 0U);
  EXPECT_EQ(guest_, before);
}

TEST_F(RdmaHostQueueTest, DataGoesInTheCapsuleUpToWhatTheControllerTakes) {
  Make(16, 8, 4096);
  const size_t small = Send(1, 4096, 0, 50);
  EXPECT_EQ(small, 0U) << "without a window";
  ASSERT_EQ(At(0).bytes.size(), 64U + 4096U);
  EXPECT_FALSE(At(0).work.copies_data);
  const SubmissionEntry entry = CapsuleAt(0);
  EXPECT_EQ(entry.data.type, 0x01);
  EXPECT_EQ(entry.data.address, 0U);
  EXPECT_EQ(entry.data.length_bytes, 4096U);
  EXPECT_TRUE(std::equal(At(0).bytes.begin() + 64, At(0).bytes.end(), guest_.begin() + 50));
  const size_t large = Send(2, 4097, 0);
  EXPECT_EQ(OpAt(large - 1), SendOp::kBindWindow);
  const size_t read = Send(3, 0, 512);
  EXPECT_EQ(OpAt(read - 1), SendOp::kBindWindow) << "only what goes to the controller";
  queue_->set_in_capsule_bytes(100);
  const size_t next = Send(4, 101, 0);
  EXPECT_EQ(OpAt(next - 1), SendOp::kBindWindow);
  queue_->set_in_capsule_bytes(1 << 20);
  const size_t beyond = Send(5, 4097, 0);
  EXPECT_EQ(OpAt(beyond - 1), SendOp::kBindWindow) << "as far as capsules have room";
  Completes(0);
  Arrives(entry.cid);
  EXPECT_EQ(cookies(), std::vector<uint64_t>{1});
}

TEST_F(RdmaHostQueueTest, ACommandWithoutDataHasADescriptorOfNothing) {
  Make();
  EXPECT_EQ(Send(1, 0, 0), 0U);
  const KeyedDescriptor descriptor = DescriptorAt(0);
  EXPECT_EQ(descriptor.type, 0x40);
  EXPECT_EQ(descriptor.address, 0U);
  EXPECT_EQ(descriptor.bytes(), 0U);
  EXPECT_EQ(descriptor.key_value(), 0U);
  EXPECT_EQ(data_->slabs_in_use(), 0U);
  Completes(0);
  Answers(0, kInvalidField);
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].status, kInvalidField);
}

TEST_F(RdmaHostQueueTest, IsOverWhenSentAndAnsweredAndShutInWhateverOrder) {
  Make();
  // The answer before the completion of the send, which invalidates.
  const size_t first = Send(1, 512, 0);
  Answers(first);
  EXPECT_TRUE(owner_.heard.empty());
  EXPECT_EQ(queue_->room(), 7U);
  Completes(first);
  EXPECT_EQ(cookies(), std::vector<uint64_t>{1});
  EXPECT_EQ(queue_->room(), 8U);
  // An answer that does not invalidate: this end shuts the window.
  const size_t second = Send(2, 0, 512);
  Completes(second);
  std::memset(DataAt(second), 0x31, 512);
  Arrives(CapsuleAt(second).cid);
  EXPECT_EQ(owner_.heard.size(), 1U);
  const size_t shut = pair_->posted.size() - 1;
  ASSERT_EQ(OpAt(shut), SendOp::kInvalidateWindow);
  EXPECT_EQ(At(shut).work.key, DescriptorAt(second).key_value());
  EXPECT_TRUE(At(shut).work.signaled);
  EXPECT_NE(guest_[0], 0x31) << "not while the controller may write";
  Completes(shut);
  EXPECT_EQ(cookies(), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(guest_[0], 0x31);
  // The same with the send's completion last but one.
  const size_t third = Send(3, 0, 512);
  Arrives(CapsuleAt(third).cid);
  Completes(third);
  EXPECT_EQ(owner_.heard.size(), 2U);
  Completes(pair_->posted.size() - 1);
  EXPECT_EQ(owner_.heard.size(), 3U);
}

TEST_F(RdmaHostQueueTest, TheDataOfAFailedReadIsNotTaken) {
  Make();
  const std::vector<uint8_t> before = guest_;
  const size_t work = Send(1, 0, 4096);
  std::memset(DataAt(work), 0x77, 4096);
  Completes(work);
  Answers(work, kInvalidField);
  ASSERT_EQ(owner_.heard.size(), 1U);
  EXPECT_EQ(owner_.heard[0].data_bytes, 0U);
  EXPECT_EQ(guest_, before);
}

TEST_F(RdmaHostQueueTest, EachBindingHasAnotherKey) {
  Make(1);
  std::set<uint32_t> keys;
  for (uint32_t i = 0; i < 200; ++i) {
    const size_t work = Send(i, 0, 512);
    EXPECT_EQ(At(work - 1).binding.key, DescriptorAt(work).key_value());
    EXPECT_EQ(At(work - 1).binding.window, windows_[0].get());
    EXPECT_TRUE(keys.insert(DescriptorAt(work).key_value()).second);
    Completes(work);
    Answers(work);
  }
  EXPECT_EQ(owner_.heard.size(), 200U);
}

TEST_F(RdmaHostQueueTest, TheOwnerMaySubmitFromWithinAndItIsPostedBeforePollReturns) {
  Make(1, 2, 0, 2);
  uint64_t next = 2;
  owner_.on_completed = [&] {
    ASSERT_EQ(queue_->room(), 1U);
    if (next < 4) Submit(next++, 0, 4096);
  };
  const size_t first = Send(1, 0, 4096);
  Completes(first);
  Answers(first);
  ASSERT_EQ(pair_->posted.size(), 4U);
  Answers(3);
  Completes(3);
  ASSERT_EQ(pair_->posted.size(), 6U);
  Completes(5);
  Answers(5);
  EXPECT_EQ(cookies(), (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(RdmaHostQueueTest, WorksWaitForRoomInTheSendQueueInTheirOrder) {
  limits_ = verbs::SendLimits{.works = 4, .pieces = 1};
  Make();
  for (uint64_t cookie = 1; cookie <= 4; ++cookie) Submit(cookie, 0, 512);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 4U) << "two commands of two works";
  EXPECT_FALSE(At(1).work.copies_data) << "the queue pair copies nothing";
  Arrives(CapsuleAt(1).cid);
  EXPECT_EQ(pair_->posted.size(), 4U) << "its invalidation finds no room";
  Completes(1);
  ASSERT_EQ(pair_->posted.size(), 5U) << "the completion of a send says that its binding is done";
  EXPECT_EQ(OpAt(4), SendOp::kInvalidateWindow) << "before new commands";
  Completes(4);
  EXPECT_EQ(cookies(), std::vector<uint64_t>{1});
  ASSERT_EQ(pair_->posted.size(), 7U);
  EXPECT_EQ(CapsuleAt(6).cdw10, 3U);
  Completes(3);
  ASSERT_EQ(pair_->posted.size(), 9U);
  EXPECT_EQ(CapsuleAt(8).cdw10, 4U);
}

TEST_F(RdmaHostQueueTest, ManyCommandsGoByOneDoorbellForEachChain) {
  Make(96, 64, 0, 65);
  for (uint64_t cookie = 0; cookie < 64; ++cookie) Submit(cookie, 0, 4096);
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), 128U);
  EXPECT_EQ(pair_->doorbells, 2U);
  std::set<uint64_t> addresses;
  for (size_t i = 1; i < 128; i += 2) EXPECT_TRUE(addresses.insert(DescriptorAt(i).address).second);
}

TEST_F(RdmaHostQueueTest, TheMostDataIsTakenAndMoreIsAProgrammersError) {
  Make();
  const size_t work = Send(1, fabrics::kTransferBytesMax, 0);
  EXPECT_EQ(DescriptorAt(work).bytes(), fabrics::kTransferBytesMax);
  EXPECT_DEATH(Submit(2, fabrics::kTransferBytesMax + 1, 0), "kTransferBytesMax");
  Completes(work);
  Answers(work);
}

}  // namespace
}  // namespace cleat::nvme::rdma_host::host_queue_test
