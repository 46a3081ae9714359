// SPDX-License-Identifier: Apache-2.0
// The fabric in memory keeps to what real adapters do: tests/guest/rdma_verbs_common_test.cc over its adapters. And what it has beyond that: orders, faults and
// rules that are broken, which a real adapter shows once in a while or never.
#include <array>

#include "tests/guest/rdma_ends.h"
#include "tests/support/rdma_fabric/rdma_fabric.h"

namespace cleat::rdma::rdma_verbs {
namespace fabric_verbs_test {
namespace {

using Strings = std::vector<std::string>;

class FabricAdapters final : public AdaptersUnderTest {
 public:
  FabricAdapters() {
    fabric.AddAdapter("mem0", {"192.0.2.1"});
    fabric.AddAdapter("mem1", {"198.51.100.1", "2001:db8::1"});
  }
  std::string own_address() const override { return "192.0.2.1"; }
  const char* other_address() const override { return "198.51.100.1"; }
  Result<std::unique_ptr<Device>> Open(const std::string& local_address) override {
    return fabric.OpenDevice(local_address);
  }
  Result<std::unique_ptr<ConnectionManager>> OpenManager() override { return fabric.OpenConnectionManager(); }
  void Check() override {
    EXPECT_EQ(fabric.WhatWasWrong(), Strings());
    EXPECT_EQ(fabric.devices("mem0"), 0U);
  }

  test::RdmaFabric fabric;
};

FabricAdapters& Adapters() {
  static FabricAdapters adapters;
  return adapters;
}

class FabricVerbs : public VerbsTest {
 protected:
  // What was recorded as wrong contains this, once.
  void ExpectWrong(const std::string& what) {
    const Strings wrong = fabric.WhatWasWrong();
    ASSERT_EQ(wrong.size(), 1U) << what;
    EXPECT_NE(wrong[0].find(what), std::string::npos) << wrong[0];
  }
  LocalPiece eight() const { return host.Piece(0, 8); }

  test::RdmaFabric& fabric = Adapters().fabric;
  Adapter adapter;
  End host{*adapter.device};
  End target{*adapter.device};
};

// ---- Orders

TEST_F(FabricVerbs, WhatIsHeldIsDoneWhenItIsReleased) {
  adapter.Connect(host, target);
  fabric.Hold(host.pair().number());
  const LocalPiece piece = eight();
  for (uint64_t id = 1; id <= 3; ++id) host.Post({.id = id, .pieces = {&piece, 1}});
  Completion none;
  EXPECT_EQ(target.completions->Poll({&none, 1}), 0U);
  EXPECT_EQ(fabric.waiting(host.pair().number()), 3U);
  host.Put(0, "changed.");
  fabric.Release(host.pair().number(), 1);
  EXPECT_EQ(target.Received(target.Next()), "changed.");
  EXPECT_EQ(fabric.waiting(host.pair().number()), 2U);
  host.Done(1);
  // What is held is flushed as any other work is.
  host.pair().Break();
  EXPECT_EQ(host.Next().status, WorkStatus::kFlushed);
  EXPECT_EQ(host.Next().status, WorkStatus::kFlushed);
  EXPECT_EQ(target.completions->Poll({&none, 1}), 0U);
}

TEST_F(FabricVerbs, ASilentPeerHasWorksUntilTheBreakOrUntilTheQueuePairIsDestroyed) {
  for (const auto silence : {test::RdmaSilence::kUntilBreak, test::RdmaSilence::kUntilDestroyed}) {
    End one(*adapter.device);
    End other(*adapter.device);
    adapter.Connect(one, other);
    const LocalPiece piece = one.Piece(0, 8);
    fabric.SetSilence(other.pair().number(), silence);
    one.Post({.id = 1, .pieces = {&piece, 1}});
    Completion none;
    EXPECT_EQ(one.completions->Poll({&none, 1}), 0U);
    one.pair().Break();
    EXPECT_EQ(one.completions->Poll({&none, 1}), silence == test::RdmaSilence::kUntilBreak ? 1U : 0U);
    one.connection.reset();
    // The other end hears nothing of that either.
    EXPECT_FALSE(ReadableWithin(adapter.manager->descriptor(), 0));
    EXPECT_FALSE(other.ended.has_value());
  }
}

TEST_F(FabricVerbs, TimeEndsWhatNobodyAnswers) {
  adapter.Connect(host, target);
  const LocalPiece piece = eight();
  target.pair().Break();
  host.Post({.id = 1, .pieces = {&piece, 1}});
  host.Post({.id = 2, .pieces = {&piece, 1}});
  End asker(*adapter.device);
  adapter.BeginToConnect(asker, adapter.listener->local());
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  fabric.GiveUp();
  EXPECT_EQ(host.Next().status, WorkStatus::kRetriesExceeded);
  EXPECT_EQ(host.Next().status, WorkStatus::kFlushed);
  ASSERT_TRUE(adapter.PumpUntil([&] { return asker.ended.has_value(); }));
  EXPECT_EQ(asker.ended, EndKind::kUnreachable);
  const auto late = adapter.door.requests.front()->Accept(target.parts(), {}, target);
  EXPECT_FALSE(late.ok());
  adapter.door.requests.clear();
}

TEST_F(FabricVerbs, NoMoreEventsThanItsLimitAreHandledAtATime) {
  for (uint32_t i = 0; i < kEventsMax + 1; ++i) {
    // Each end's own: that it begins to ask.
    adapter.BeginToConnect(host, adapter.listener->local());
    host.connection.reset();
  }
  adapter.manager->HandleEvents();
  EXPECT_TRUE(ReadableWithin(adapter.manager->descriptor(), 0));
  adapter.manager->HandleEvents();
  EXPECT_FALSE(ReadableWithin(adapter.manager->descriptor(), 0));
}

TEST_F(FabricVerbs, RequestsBeyondTheBacklogAreRefused) {
  adapter.listener.reset();
  adapter.listener = Must(adapter.manager->Listen({OwnAddress(), 0}, 1, adapter.door));
  End first(*adapter.device);
  adapter.BeginToConnect(first, adapter.listener->local());
  adapter.BeginToConnect(host, adapter.listener->local());
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kRejected);
  // Those that nobody has handled are refused with their listener.
  EXPECT_EQ(adapter.door.requests.size(), 1U);
  adapter.door.requests.clear();
  ASSERT_TRUE(adapter.PumpUntil([&] { return first.ended.has_value(); }));
}

TEST_F(FabricVerbs, AnAdapterThatGoesEndsWhatIsOnItAndComesBackAsAnother) {
  fabric.AddAdapter("mem2", {"203.0.113.7"});
  auto device = Must(fabric.OpenDevice("203.0.113.7"));
  Door door;
  auto listener = Must(adapter.manager->Listen({"203.0.113.7", 4420}, 4, door));
  {
    End there(*device);
    adapter.BeginToConnect(host, listener->local());
    ASSERT_TRUE(adapter.PumpUntil([&] { return !door.requests.empty(); }));
    there.connection = Must(door.requests.front()->Accept(there.parts(), {}, there));
    door.requests.clear();
    ASSERT_TRUE(adapter.PumpUntil([&] { return host.established && there.established; }));
    EXPECT_EQ(fabric.queue_pairs("mem2"), 1U);
    fabric.RemoveAdapter("mem2");
    ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended && there.ended && !door.ended.empty(); }));
    EXPECT_EQ(there.ended, EndKind::kDeviceRemoved);
    EXPECT_EQ(host.ended, EndKind::kDisconnected);
    EXPECT_TRUE(ReadableWithin(device->descriptor(), 0));
    EXPECT_FALSE(device->TakeEvents().ok());
    EXPECT_FALSE(there.completions->Arm().ok());
    const LocalPiece piece = there.Piece(0, 8);
    there.Post({.id = 1, .pieces = {&piece, 1}});
    Completion none;
    EXPECT_EQ(there.completions->Poll({&none, 1}), 0U);
    ReceiveWork work{1, piece};
    EXPECT_EQ(there.receive_queue->Post({&work, 1}), 0U);
    EXPECT_FALSE(fabric.OpenDevice("203.0.113.7").ok());
    fabric.AddAdapter("mem2", {"203.0.113.7"});
    const auto again = Must(fabric.OpenDevice("203.0.113.7"));
    EXPECT_TRUE(again->TakeEvents().ok());
    EXPECT_FALSE(device->TakeEvents().ok());
  }
  listener.reset();
  device.reset();
  fabric.RemoveAdapter("mem2");
}

TEST_F(FabricVerbs, AnAdapterThatFailsTellsItsDeviceAlone) {
  fabric.AddAdapter("mem2", {"203.0.113.7"});
  auto device = Must(fabric.OpenDevice("203.0.113.7"));
  Door door;
  auto listener = Must(adapter.manager->Listen({"203.0.113.7", 4420}, 4, door));
  fabric.FailAdapter("mem2");
  EXPECT_FALSE(ReadableWithin(adapter.manager->descriptor(), 0));
  EXPECT_FALSE(device->TakeEvents().ok());
  listener.reset();
  device.reset();
}

// ---- Peers that do wrong, which is nobody's mistake here

TEST_F(FabricVerbs, AKeyThatIsNotForThatBreaksBothEnds) {
  host.registration.reset();
  host.registration =
      Must(adapter.device->Register(host.memory, {.local_write = true, .peer_may_read = true}));
  adapter.Connect(host, target);
  const LocalPiece piece = target.Piece(0, 8);
  target.Post({.id = 1,
               .op = SendOp::kWrite,
               .signaled = false,
               .pieces = {&piece, 1},
               .remote_address = host.AddressAt(0),
               .key = host.registration->remote_key()});
  EXPECT_EQ(target.Next().status, WorkStatus::kRemoteRefused);
  for (End* const end : {&host, &target}) {
    const LocalPiece own = end->Piece(0, 8);
    end->Post({.id = 2, .pieces = {&own, 1}});
    EXPECT_EQ(end->Next().status, WorkStatus::kFlushed);
  }
}

TEST_F(FabricVerbs, WhatIsBeyondARegistrationIsRefused) {
  adapter.Connect(host, target);
  const LocalPiece piece = target.Piece(0, 8);
  target.Post({.id = 1,
               .op = SendOp::kRead,
               .pieces = {&piece, 1},
               .remote_address = host.AddressAt(kMemoryBytes - 7),
               .key = host.registration->remote_key()});
  EXPECT_EQ(target.Next().status, WorkStatus::kRemoteRefused);
}

TEST_F(FabricVerbs, AWindowIsOfItsQueuePairAlone) {
  adapter.Connect(host, target);
  End other_host(*adapter.device);
  End other(*adapter.device);
  adapter.Connect(other_host, other);
  const auto window = Must(adapter.device->MakeWindow());
  const WindowBinding binding{.window = window.get(),
                              .key = window->NextKey(),
                              .registration = host.registration.get(),
                              .address = host.AddressAt(0),
                              .length_bytes = 16,
                              .peer_may_read = true};
  host.Post({.id = 1, .op = SendOp::kBindWindow, .binding = &binding});
  host.Done(1);
  const LocalPiece piece = other.Piece(0, 16);
  const SendWork read{.id = 2,
                      .op = SendOp::kRead,
                      .pieces = {&piece, 1},
                      .remote_address = host.AddressAt(0),
                      .key = binding.key};
  other.Post(read);
  EXPECT_EQ(other.Next().status, WorkStatus::kRemoteRefused);
  // Nor does a peer close what is not shown to it.
  const LocalPiece own = target.Piece(0, 16);
  target.Post({.id = 3, .op = SendOp::kSendAndInvalidate, .pieces = {&own, 1}, .key = binding.key + 1});
  EXPECT_EQ(target.Next().status, WorkStatus::kRemoteRefused);
  host.connection->DestroyQueuePair();
}

TEST_F(FabricVerbs, AMessageThatIsTooLongBreaksBothEnds) {
  adapter.Connect(host, target);
  const LocalPiece piece = host.Piece(0, kBufferBytes + 1);
  host.Post({.id = 1, .pieces = {&piece, 1}});
  EXPECT_EQ(host.Next().status, WorkStatus::kRemoteRefused);
  EXPECT_EQ(target.Next().status, WorkStatus::kLocalError);
}

TEST_F(FabricVerbs, WhatAQueuePairHasReceivedAndNobodyHasPolledIsLostWithIt) {
  adapter.Connect(host, target);
  const uint32_t before = fabric.receives_posted("mem0");
  const LocalPiece piece = eight();
  host.Post({.id = 1, .pieces = {&piece, 1}});
  target.connection->DestroyQueuePair();
  Completion none;
  EXPECT_EQ(target.completions->Poll({&none, 1}), 0U);
  EXPECT_EQ(fabric.receives_posted("mem0"), before - 1);
}

// ---- Rules that are broken at this end, which are recorded

TEST_F(FabricVerbs, MoreWorksThanItsSendQueueHasRoomForAreRecorded) {
  adapter.Connect(host, target);
  const LocalPiece piece = eight();
  const SendWork work{.id = 1,
                      .op = SendOp::kWrite,
                      .signaled = false,
                      .pieces = {&piece, 1},
                      .remote_address = target.AddressAt(0),
                      .key = target.registration->remote_key()};
  // What is not signaled counts until a later work has completed, and that was polled.
  SendWork last = work;
  last.signaled = true;
  for (uint32_t i = 1; i <= kWanted.works; ++i) host.Post(i % (kWanted.works / 2) == 0 ? last : work);
  EXPECT_EQ(host.pair().Post({&work, 1}), 0U);
  ExpectWrong("more than the 64 works");
  host.Done(1);
  for (uint32_t i = 0; i < kWanted.works / 2; ++i) host.Post(work);
  EXPECT_EQ(host.pair().Post({&work, 1}), 0U);
  ExpectWrong("more than the 64 works");
}

TEST_F(FabricVerbs, AQueueThatIsNotArmedWakesNobodyAndAnArmedOneOnce) {
  adapter.Connect(host, target);
  const LocalPiece piece = eight();
  host.Post({.id = 1, .pieces = {&piece, 1}});
  EXPECT_FALSE(ReadableWithin(target.completions->descriptor(), 0));
  ASSERT_TRUE(target.completions->Arm().ok());
  EXPECT_FALSE(ReadableWithin(target.completions->descriptor(), 0)) << "by what came before";
  host.Post({.id = 2, .pieces = {&piece, 1}});
  EXPECT_TRUE(ReadableWithin(target.completions->descriptor(), 0));
  target.completions->TakeEvents();
  host.Post({.id = 3, .pieces = {&piece, 1}});
  EXPECT_FALSE(ReadableWithin(target.completions->descriptor(), 0));
}

TEST_F(FabricVerbs, MemoryThatIsNotRegisteredIsRecordedAndEndsTheQueuePair) {
  adapter.Connect(host, target);
  LocalPiece piece = eight();
  piece.local_key = target.received_in->local_key();
  host.Post({.id = 1, .pieces = {&piece, 1}});
  EXPECT_EQ(host.Next().status, WorkStatus::kLocalError);
  ExpectWrong("not registered");
  ReceiveWork work{1, piece};
  EXPECT_EQ(host.receive_queue->Post({&work, 1}), 0U);
  ExpectWrong("not registered");
}

TEST_F(FabricVerbs, AWorkThatIsLargerThanItsLimitsIsRecorded) {
  adapter.Connect(host, target);
  std::array<LocalPiece, kWanted.pieces + 1> pieces;
  pieces.fill(eight());
  SendWork work{.id = 1, .pieces = pieces};
  EXPECT_EQ(host.pair().Post({&work, 1}), 0U);
  ExpectWrong("5 pieces");
  const LocalPiece piece = host.Piece(0, kWanted.inline_bytes + 1);
  work = {.id = 1, .copies_data = true, .pieces = {&piece, 1}};
  EXPECT_EQ(host.pair().Post({&work, 1}), 0U);
  ExpectWrong("to be copied");
}

TEST_F(FabricVerbs, AWindowThatIsBoundTwiceIsRecorded) {
  adapter.Connect(host, target);
  const auto window = Must(adapter.device->MakeWindow());
  WindowBinding binding{.window = window.get(),
                        .key = window->NextKey(),
                        .registration = host.registration.get(),
                        .address = host.AddressAt(0),
                        .length_bytes = 16};
  host.Post({.id = 1, .op = SendOp::kBindWindow, .binding = &binding});
  host.Done(1);
  const uint32_t key = binding.key;
  binding.key = window->NextKey();
  host.Post({.id = 2, .op = SendOp::kBindWindow, .binding = &binding});
  EXPECT_EQ(host.Next().status, WorkStatus::kLocalError);
  ExpectWrong("bound already");
  host.Post({.id = 3, .op = SendOp::kInvalidateWindow, .key = key});
  EXPECT_EQ(host.Next().status, WorkStatus::kFlushed);
  host.registration.reset();
  ExpectWrong("to which a window is bound");
  host.connection->DestroyQueuePair();
}

TEST_F(FabricVerbs, TheLastKeyOfAWindowMayNotComeAgain) {
  adapter.Connect(host, target);
  const auto window = Must(adapter.device->MakeWindow());
  const WindowBinding binding{.window = window.get(),
                              .key = window->NextKey(),
                              .registration = host.registration.get(),
                              .address = host.AddressAt(0),
                              .length_bytes = 16};
  host.Post({.id = 1, .op = SendOp::kBindWindow, .binding = &binding});
  host.Done(1);
  host.Post({.id = 2, .op = SendOp::kInvalidateWindow, .key = binding.key});
  host.Done(2);
  host.Post({.id = 3, .op = SendOp::kBindWindow, .binding = &binding});
  EXPECT_EQ(host.Next().status, WorkStatus::kLocalError);
  ExpectWrong("by the key of its last binding");
}

TEST_F(FabricVerbs, ACompletionQueueThatOverrunsIsRecorded) {
  End deaf(*adapter.device, /*receives=*/false);
  End small(*adapter.device);
  auto few = Must(adapter.device->MakeCompletionQueue(1));
  small.completions.swap(few);
  adapter.Connect(small, deaf);
  const LocalPiece piece = small.Piece(0, 8);
  for (uint64_t id = 1; id <= 2; ++id) small.Post({.id = id, .pieces = {&piece, 1}});
  small.pair().Break();
  ExpectWrong("overruns");
  small.connection.reset();
}

TEST_F(FabricVerbs, WhatIsDestroyedTooSoonIsRecorded) {
  adapter.Connect(host, target);
  fabric.Hold(host.pair().number());
  const LocalPiece piece = eight();
  host.Post({.id = 1, .pieces = {&piece, 1}});
  host.registration.reset();
  ExpectWrong("that work names");
  host.received_in.reset();
  ExpectWrong("that work names");
  host.completions.reset();
  ExpectWrong("before its queue pairs");
  host.receive_queue.reset();
  ExpectWrong("before its queue pairs");
  host.connection.reset();

  auto device = Must(fabric.OpenDevice(OtherAddress()));
  const auto window = Must(device->MakeWindow());
  device.reset();
  ExpectWrong("1 windows");
  auto manager = Must(fabric.OpenConnectionManager());
  Door door;
  const auto listener = Must(manager->Listen({OtherAddress(), 0}, 1, door));
  manager.reset();
  ExpectWrong("1 listeners");
}

TEST_F(FabricVerbs, AnAdapterThatIsOpenedTwiceIsRecorded) {
  const auto first = Must(fabric.OpenDevice("2001:db8::1"));
  const auto second = Must(fabric.OpenDevice(OtherAddress()));
  ExpectWrong("opened twice");
}

}  // namespace
}  // namespace fabric_verbs_test

AdaptersUnderTest& UnderTest() {
  return fabric_verbs_test::Adapters();
}

}  // namespace cleat::rdma::rdma_verbs
