// SPDX-License-Identifier: Apache-2.0
// RDMA verbs and the connection manager, as each adapter does them: real ones (rdma_verbs.cc) and a fabric's in memory
// (tests/unit/rdma/fabric_verbs_test.cc).
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/guest/rdma_ends.h"

namespace cleat::rdma::rdma_verbs::rdma_verbs_common_test {
namespace {

class Verbs : public VerbsTest {
 protected:
  Adapter adapter;
  End host{*adapter.device};
  End target{*adapter.device};
};

// ---- Adapters

TEST_F(Verbs, TheAdapterSaysItsLimits) {
  const DeviceLimits& limits = adapter.device->limits();
  EXPECT_FALSE(adapter.device->name().empty());
  for (const uint32_t limit : {limits.queue_pairs, limits.works, limits.pieces, limits.read_pieces,
                               limits.receive_queues, limits.receive_entries, limits.completion_entries,
                               limits.reads_served, limits.reads_sent, limits.windows})
    EXPECT_GT(limit, 0U);
  EXPECT_TRUE(limits.windows_of_type_2b);
  EXPECT_TRUE(adapter.device->TakeEvents().ok());
}

TEST_F(Verbs, AnAddressOfNoAdapterIsSaidToBeNone) {
  for (const char* address : {"127.0.0.1", "203.0.113.1", "0.0.0.0"}) {
    const auto opened = UnderTest().Open(address);
    ASSERT_FALSE(opened.ok()) << address;
    EXPECT_EQ(opened.error().code, ErrorCode::kNotFound) << opened.error().message;
    EXPECT_NE(opened.error().message.find("rdma link"), std::string::npos) << opened.error().message;
  }
  EXPECT_EQ(UnderTest().Open("dummy0").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(Verbs, TooLargeAQueueIsRefusedByItsLimit) {
  const auto made = adapter.device->MakeCompletionQueue(adapter.device->limits().completion_entries + 1);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kResourceExhausted);
}

// ---- Connections

TEST_F(Verbs, BothEndsSeeTheOthersPrivateDataAndCredits) {
  adapter.BeginToConnect(host, adapter.listener->local(), "to the target");
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  ConnectRequest& request = *adapter.door.requests.front();
  EXPECT_EQ(Text(request.private_data()), "to the target");
  EXPECT_EQ(request.local().Text(), adapter.listener->local().Text());
  EXPECT_EQ(request.peer().address, OwnAddress());
  EXPECT_EQ(request.device_name(), adapter.device->name());
  EXPECT_TRUE(request.IsOn(*adapter.device));
  EXPECT_EQ(request.peer_serves_reads(), 8U);
  EXPECT_EQ(request.peer_sends_reads(), kWanted.read_credits);
  target.connection = Must(request.Accept(target.parts(), Bytes("to the host"), target));
  adapter.door.requests.clear();
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.established && target.established; }));
  EXPECT_EQ(host.data, "to the host");
  EXPECT_EQ(target.pair().limits().read_credits, kWanted.read_credits);
  EXPECT_EQ(target.pair().limits().works, kWanted.works);
  EXPECT_EQ(host.connection->local().Text(), target.connection->peer().Text());
  EXPECT_EQ(host.connection->peer().Text(), target.connection->local().Text());
  EXPECT_NE(host.pair().number(), target.pair().number());
}

TEST_F(Verbs, ARejectionBringsItsPrivateData) {
  adapter.BeginToConnect(host, adapter.listener->local());
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  adapter.door.requests.front()->Reject(Bytes("not you"));
  adapter.door.requests.clear();
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kRejected);
  EXPECT_EQ(host.data, "not you");
  EXPECT_FALSE(host.established);
}

TEST_F(Verbs, ARequestThatNobodyAnswersIsRejected) {
  adapter.BeginToConnect(host, adapter.listener->local());
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  adapter.door.requests.clear();
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kRejected);
}

TEST_F(Verbs, WhereNobodyListensTheConnectionIsRejected) {
  const Endpoint there = adapter.listener->local();
  adapter.listener.reset();
  adapter.BeginToConnect(host, there);
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kRejected);
  EXPECT_NE(host.error.find("nobody listens"), std::string::npos) << host.error;
}

TEST_F(Verbs, AnAddressOfNobodyEndsInTime) {
  adapter.BeginToConnect(host, {"192.0.2.77", 4420}, "", 1500);
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kUnreachable);
  EXPECT_NE(host.error.find("192.0.2.77:4420"), std::string::npos) << host.error;
}

TEST_F(Verbs, AListenerOfAllAddressesHearsEachAdapter) {
  if (OtherAddress() == nullptr) GTEST_SKIP() << "CLEAT_RDMA_OTHER_ADDRESS names no other adapter";
  adapter.listener.reset();
  adapter.listener = Must(adapter.manager->Listen({"0.0.0.0", 0}, 16, adapter.door));
  const Endpoint there{OtherAddress(), adapter.listener->local().port};
  const auto other = Must(UnderTest().Open(OtherAddress()));
  EXPECT_NE(other->name(), adapter.device->name());
  End guest(*other);
  adapter.BeginToConnect(guest, there, "", kHangSeconds * 1000, OtherAddress());
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  ConnectRequest& request = *adapter.door.requests.front();
  EXPECT_TRUE(request.IsOn(*other));
  EXPECT_FALSE(request.IsOn(*adapter.device));
  EXPECT_EQ(request.local().address, OtherAddress());
  // What is of another adapter does not serve it.
  const auto refused = request.Accept(target.parts(), {}, target);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(other->name()), std::string::npos) << refused.error().message;
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  request.Reject(Bytes("elsewhere"));
  adapter.door.requests.clear();
  ASSERT_TRUE(adapter.PumpUntil([&] { return guest.ended.has_value(); }));
  EXPECT_EQ(guest.data, "elsewhere");

  adapter.BeginToConnect(host, there, "", kHangSeconds * 1000, OtherAddress());
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kFailed);
  EXPECT_NE(host.error.find(other->name()), std::string::npos) << host.error;
}

TEST_F(Verbs, ConnectionsMayGoAtAnyMoment) {
  // Not even begun to be handled, with its request unanswered, and within its own last call.
  adapter.BeginToConnect(host, adapter.listener->local());
  host.connection.reset();
  adapter.BeginToConnect(host, adapter.listener->local());
  ASSERT_TRUE(adapter.PumpUntil([&] { return !adapter.door.requests.empty(); }));
  host.connection.reset();
  adapter.door.requests.clear();
  host.goes_when_ended = true;
  adapter.Connect(host, target);
  target.connection.reset();
  ASSERT_TRUE(adapter.PumpUntil([&] { return host.ended.has_value(); }));
  EXPECT_EQ(host.ended, EndKind::kDisconnected);
  EXPECT_EQ(host.connection, nullptr);
}

TEST_F(Verbs, ManyComeAndGo) {
  for (int i = 0; i < 30; ++i) {
    End one(*adapter.device);
    End other(*adapter.device);
    adapter.Connect(one, other);
    if (i % 2 == 0) one.connection->Disconnect();
    if (i % 2 == 0) {
      ASSERT_TRUE(adapter.PumpUntil([&] { return one.ended.has_value() && other.ended.has_value(); }));
      EXPECT_EQ(one.ended, EndKind::kDisconnected);
      EXPECT_EQ(other.ended, EndKind::kDisconnected);
    }
  }
}

// ---- Work

TEST_F(Verbs, MessagesComeByTheReceiveQueue) {
  adapter.Connect(host, target);
  host.Put(0, "a message of ");
  host.Put(1000, "two pieces");
  const std::array<LocalPiece, 2> pieces{host.Piece(0, 13), host.Piece(1000, 10)};
  host.Post({.id = 1, .pieces = pieces});
  const Completion came = target.Next();
  EXPECT_EQ(came.queue_pair, target.pair().number());
  EXPECT_FALSE(came.key_was_invalidated);
  EXPECT_EQ(target.Received(came), "a message of two pieces");
  host.Done(1);

  // Copied at once, from memory that no key is for.
  std::string text = "and an answer";
  const LocalPiece piece{reinterpret_cast<uint64_t>(text.data()), static_cast<uint32_t>(text.size()), 0};
  ASSERT_GE(target.pair().limits().inline_bytes, text.size());
  target.Post({.id = 2, .copies_data = true, .pieces = {&piece, 1}});
  text.assign(text.size(), '-');
  EXPECT_EQ(host.Received(host.Next()), "and an answer");
  target.Done(2);
}

TEST_F(Verbs, DataIsReadFromAndWrittenToThePeersMemory) {
  adapter.Connect(host, target);
  host.Put(500, "of the host's memory");
  const std::array<LocalPiece, 3> pieces{target.Piece(0, 7), target.Piece(4000, 6), target.Piece(8000, 7)};
  target.Post({.id = 1,
               .op = SendOp::kRead,
               .pieces = pieces,
               .remote_address = host.AddressAt(500),
               .key = host.registration->remote_key()});
  target.Done(1);
  EXPECT_EQ(target.At(0, 7) + target.At(4000, 6) + target.At(8000, 7), "of the host's memory");
  target.Post({.id = 2,
               .op = SendOp::kWrite,
               .pieces = pieces,
               .remote_address = host.AddressAt(9000),
               .key = host.registration->remote_key()});
  target.Done(2);
  EXPECT_EQ(host.At(9000, 20), "of the host's memory");
}

TEST_F(Verbs, ALongChainIsDoneInItsOrder) {
  adapter.Connect(host, target);
  // More than go by one doorbell; the last one alone says that it is done.
  std::array<SendWork, 40> works;
  std::array<LocalPiece, 40> pieces;
  for (uint32_t i = 0; i < works.size(); ++i) {
    host.Put(i, std::string(1, static_cast<char>('0' + i)));
    pieces[i] = host.Piece(i, 1);
    works[i] = {.id = i + 1,
                .op = SendOp::kWrite,
                .signaled = i + 1 == works.size(),
                .pieces = {&pieces[i], 1},
                .remote_address = target.AddressAt(i),
                .key = target.registration->remote_key()};
  }
  ASSERT_EQ(host.pair().Post(works), works.size());
  host.Done(works.size());
  EXPECT_EQ(target.At(0, works.size()), host.At(0, works.size()));
  Completion none;
  EXPECT_EQ(host.completions->Poll({&none, 1}), 0U);
}

TEST_F(Verbs, AMessageWaitsForAReceiver) {
  End late(*adapter.device, /*receives=*/false);
  adapter.Connect(host, late);
  const LocalPiece piece = host.Piece(0, 4);
  host.Put(0, "late");
  host.Post({.id = 1, .pieces = {&piece, 1}});
  usleep(20'000);  // the adapter has tried by then, most likely
  late.Receive(0);
  EXPECT_EQ(late.Received(late.Next()), "late");
  host.Done(1);
}

TEST_F(Verbs, ASendClosesTheWindowThatItNames) {
  adapter.Connect(host, target);
  const auto window = Must(adapter.device->MakeWindow());
  host.Put(256, "seen by a window");
  WindowBinding binding{.window = window.get(),
                        .key = window->NextKey(),
                        .registration = host.registration.get(),
                        .address = host.AddressAt(256),
                        .length_bytes = 16,
                        .peer_may_read = true};
  host.Post({.id = 1, .op = SendOp::kBindWindow, .binding = &binding});
  host.Done(1);
  const LocalPiece piece = target.Piece(0, 16);
  const SendWork read{.id = 2,
                      .op = SendOp::kRead,
                      .pieces = {&piece, 1},
                      .remote_address = host.AddressAt(256),
                      .key = binding.key};
  target.Post(read);
  target.Done(2);
  EXPECT_EQ(target.At(0, 16), "seen by a window");

  target.Post({.id = 3, .op = SendOp::kSendAndInvalidate, .pieces = {&piece, 1}, .key = binding.key});
  target.Done(3);
  const Completion came = host.Next();
  EXPECT_EQ(came.status, WorkStatus::kDone);
  EXPECT_TRUE(came.key_was_invalidated);
  EXPECT_EQ(came.invalidated_key, binding.key);

  // Another key opens it again, and this end closes it itself.
  const uint32_t old_key = binding.key;
  binding.key = window->NextKey();
  EXPECT_NE(binding.key, old_key);
  host.Post({.id = 4, .op = SendOp::kBindWindow, .binding = &binding});
  host.Done(4);
  target.Post({.id = 5,
               .op = SendOp::kRead,
               .pieces = {&piece, 1},
               .remote_address = host.AddressAt(256),
               .key = binding.key});
  target.Done(5);
  host.Post({.id = 6, .op = SendOp::kInvalidateWindow, .key = binding.key});
  host.Done(6);

  target.Post(read);
  const Completion refused = target.Next();
  EXPECT_EQ(refused.id, 2U);
  EXPECT_EQ(refused.status, WorkStatus::kRemoteRefused) << NameOf(refused.status);
  host.connection->DestroyQueuePair();  // before its window
}

TEST_F(Verbs, TheOldKeyOfAWindowOpensNothing) {
  adapter.Connect(host, target);
  const auto window = Must(adapter.device->MakeWindow());
  const WindowBinding binding{.window = window.get(),
                              .key = window->NextKey(),
                              .registration = host.registration.get(),
                              .address = host.AddressAt(0),
                              .length_bytes = 16,
                              .peer_may_read = true};
  host.Post({.id = 1, .op = SendOp::kBindWindow, .binding = &binding});
  host.Done(1);
  const LocalPiece piece = target.Piece(0, 16);
  target.Post({.id = 2, .op = SendOp::kSendAndInvalidate, .pieces = {&piece, 1}, .key = binding.key});
  target.Done(2);
  target.Post({.id = 3,
               .op = SendOp::kRead,
               .pieces = {&piece, 1},
               .remote_address = host.AddressAt(0),
               .key = binding.key});
  EXPECT_EQ(target.Next().status, WorkStatus::kRemoteRefused);
  host.connection->DestroyQueuePair();
}

TEST_F(Verbs, WhatIsOutstandingIsFlushedByABreak) {
  End deaf(*adapter.device, /*receives=*/false);
  adapter.Connect(host, deaf);
  const LocalPiece piece = host.Piece(0, 8);
  constexpr uint64_t kWorks = 5;
  for (uint64_t id = 1; id <= kWorks; ++id)
    host.Post({.id = id, .signaled = id == kWorks, .pieces = {&piece, 1}});
  Completion none;
  EXPECT_EQ(host.completions->Poll({&none, 1}), 0U);
  host.pair().Break();
  host.pair().Break();
  for (uint64_t id = 1; id <= kWorks; ++id) {
    const Completion flushed = host.Next();
    EXPECT_EQ(flushed.id, id);
    EXPECT_EQ(flushed.queue_pair, host.pair().number());
    EXPECT_EQ(flushed.status, WorkStatus::kFlushed) << NameOf(flushed.status);
  }
}

TEST_F(Verbs, ABreakMayComeFromAnotherThread) {
  adapter.Connect(host, target);
  std::atomic<bool> breaks = false;
  std::thread control([&] {
    while (!breaks) std::this_thread::yield();
    host.pair().Break();
  });
  const LocalPiece piece = host.Piece(0, 8);
  WorkStatus last = WorkStatus::kDone;
  for (uint64_t id = 1; last == WorkStatus::kDone; ++id) {
    host.Post({.id = id,
               .op = SendOp::kWrite,
               .pieces = {&piece, 1},
               .remote_address = target.AddressAt(0),
               .key = target.registration->remote_key()});
    if (id == 20) breaks = true;
    const Completion done = host.Next();
    ASSERT_EQ(done.id, id);
    last = done.status;
  }
  control.join();
  EXPECT_EQ(last, WorkStatus::kFlushed) << NameOf(last);
}

TEST_F(Verbs, AnArmedQueueWakesItsThread) {
  adapter.Connect(host, target);
  ASSERT_TRUE(target.completions->Arm().ok());
  EXPECT_FALSE(ReadableWithin(target.completions->descriptor(), 0));
  const LocalPiece piece = host.Piece(0, 8);
  for (uint64_t id = 1; id <= 2; ++id) {
    host.Post({.id = id, .pieces = {&piece, 1}});
    ASSERT_TRUE(ReadableWithin(target.completions->descriptor(), kHangSeconds * 1000));
    target.completions->TakeEvents();
    EXPECT_FALSE(ReadableWithin(target.completions->descriptor(), 0));
    EXPECT_EQ(target.Received(target.Next()).size(), 8U);
    host.Done(id);
    ASSERT_TRUE(target.completions->Arm().ok());
  }
}

}  // namespace
}  // namespace cleat::rdma::rdma_verbs::rdma_verbs_common_test
