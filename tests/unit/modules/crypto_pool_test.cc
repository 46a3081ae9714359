// SPDX-License-Identifier: Apache-2.0
// The buffers of a reactor's encrypted writes: bounded, shared fairly, never a reason to stand still.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/unit/modules/crypto_rig.h"

namespace cleat::modules::crypto_pool_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::Io;

constexpr test::CryptoShape kShape = {keys::Cipher::kAes256Xts, 512, 512};

// Several encrypted disks that share a reactor's pool and one storage behind all of them.
struct Crowd {
  Crowd(size_t count, BouncePool::Limits limits) : storage(8 << 20) {
    CLEAT_CHECK(hub.AddReactor(reactors[0], limits).ok());
    for (size_t i = 0; i < count; ++i) {
      auto made = test::CryptoRig::MakeCrypto(storage, kShape, hub);
      disks.push_back(std::make_unique<test::TestDisk>(std::move(made).value(), reactors[0], [] {}));
    }
    storage.holding = true;
  }
  // A write on that disk; what is done is noted in the order of the ends.
  void Write(size_t disk, uint64_t offset, uint32_t bytes) {
    ios.push_back(std::make_unique<Io>());
    Io& io = *ios.back();
    io.segments = {{&arena.region(), 0, bytes}};
    io.on_done = [this, disk, &io] {
      EXPECT_EQ(io.status(), IoStatus::kOk);
      ended.push_back(disk);
    };
    disks[disk]->Start(io, Op::kWrite, offset, bytes);
  }

  test::Storage storage;
  test::VirtualReactors reactors;
  CryptoHub hub;
  Arena arena{4 << 20};
  std::vector<std::unique_ptr<Io>> ios;
  std::vector<std::unique_ptr<test::TestDisk>> disks;
  std::vector<size_t> ended;
};

TEST(CryptoPool, NoMoreIsUnderWayThanThereAreBuffers) {
  Crowd crowd(1, {4, 2});
  for (int i = 0; i < 20; ++i) crowd.Write(0, 4096, 4096);
  EXPECT_EQ(crowd.storage.held.size(), 4U);
  crowd.Write(0, 0, 64 * 1024);
  EXPECT_EQ(crowd.storage.held.size(), 5U) << "large ones have buffers of their own";
  for (int i = 0; i < 3; ++i) crowd.Write(0, 0, 300 * 1024);
  EXPECT_EQ(crowd.storage.held.size(), 6U);
  while (!crowd.storage.held.empty()) {
    EXPECT_LE(crowd.storage.held.size(), 6U);
    crowd.storage.LetGo(crowd.storage.held.size() / 2);
  }
  EXPECT_EQ(crowd.ended.size(), crowd.ios.size());
}

TEST(CryptoPool, ReadsNeedNoBuffer) {
  Crowd crowd(1, {1, 1});
  crowd.Write(0, 0, 4096);
  crowd.Write(0, 0, 4096);
  Io read;
  read.segments = {{&crowd.arena.region(), 0, 4096}};
  crowd.disks[0]->Start(read, Op::kRead, 0, 4096);
  EXPECT_EQ(crowd.storage.held.size(), 2U);
  crowd.storage.LetGo(1);
  EXPECT_TRUE(read.done);
  while (!crowd.storage.held.empty()) crowd.storage.LetGo();
}

TEST(CryptoPool, DisksTakeTurns) {
  for (const uint32_t bytes : {4096U, 100'352U}) {
    Crowd crowd(3, {2, 2});
    for (int i = 0; i < 50; ++i) crowd.Write(0, 0, bytes);  // a deep queue, which was first
    crowd.Write(1, 0, bytes);
    crowd.Write(2, 0, bytes);
    crowd.Write(2, 0, bytes);
    while (!crowd.storage.held.empty()) crowd.storage.LetGo();
    ASSERT_EQ(crowd.ended.size(), 53U);
    // The two that had buffers, then one of each disk in turn.
    const std::vector<size_t> first(crowd.ended.begin(), crowd.ended.begin() + 7);
    EXPECT_EQ(first, (std::vector<size_t>{0, 0, 0, 1, 2, 0, 2}));
  }
}

TEST(CryptoPool, ALargeRequestLeavesTheOthersTheirTurns) {
  Crowd crowd(2, {2, 2});
  crowd.Write(0, 0, 4 << 20);
  crowd.Write(1, 0, 128 * 1024);
  crowd.Write(1, 0, 128 * 1024);
  crowd.storage.LetGo();  // the first part, of two buffers
  // The other disk's, and what is left for the large one.
  ASSERT_EQ(crowd.storage.held.size(), 2U);
  EXPECT_EQ(crowd.storage.held[0]->length_bytes, 128U * 1024);
  while (!crowd.storage.held.empty()) crowd.storage.LetGo();
  EXPECT_EQ(crowd.ended, (std::vector<size_t>{1, 1, 0}));
}

TEST(CryptoPool, WhatAnEndStartsDoesNotPassThoseWhoWait) {
  Crowd crowd(2, {1, 1});
  crowd.Write(0, 0, 4096);
  int again = 3;
  const auto on_done = crowd.ios[0]->on_done;
  crowd.ios[0]->on_done = [&, on_done] {
    on_done();
    if (--again > 0) crowd.Write(0, 0, 4096);
  };
  crowd.Write(1, 0, 4096);
  crowd.storage.LetGo();
  ASSERT_EQ(crowd.storage.held.size(), 1U);
  crowd.storage.LetGo();
  EXPECT_EQ(crowd.ended, (std::vector<size_t>{0, 1}));
  while (!crowd.storage.held.empty()) crowd.storage.LetGo();
}

TEST(CryptoPool, StorageThatAnswersAtOnceNeedsNoDeepStack) {
  Crowd crowd(1, {1, 1});
  constexpr int kRequests = 2000;
  uintptr_t lowest = UINTPTR_MAX;
  uintptr_t highest = 0;
  size_t done = 0;
  for (int i = 0; i < kRequests; ++i) {
    crowd.Write(0, 0, i % 2 == 0 ? 4096 : 600 * 1024);
    crowd.ios.back()->on_done = [&] {
      const auto here = std::bit_cast<uintptr_t>(__builtin_frame_address(0));
      lowest = std::min(lowest, here);
      highest = std::max(highest, here);
      ++done;
    };
  }
  crowd.storage.holding = false;
  while (!crowd.storage.held.empty()) crowd.storage.LetGo();
  EXPECT_EQ(done, size_t{kRequests});
  EXPECT_LT(highest - lowest, 16'384U) << "bytes of stack between the ends of requests";
}

TEST(CryptoPool, WritesThatNothingBelowHasSeenCanBeRecalled) {
  Crowd crowd(2, {1, 1});
  std::vector<IoStatus> ends(9, IoStatus::kOk);
  size_t done = 0;
  const auto write = [&](size_t disk, uint32_t bytes) {
    crowd.Write(disk, 0, bytes);
    Io& io = *crowd.ios.back();
    io.on_done = [&, number = crowd.ios.size() - 1] {
      ends[number] = io.status();
      ++done;
    };
  };
  write(0, 4096);        // has the small buffer
  write(0, 400 * 1024);  // has the large one, for its first part
  for (int i = 0; i < 2; ++i) write(0, 4096);
  for (int i = 0; i < 2; ++i) write(0, 200 * 1024);
  for (int i = 0; i < 2; ++i) write(1, 4096);
  write(1, 200 * 1024);
  crowd.disks[0]->channel().AbortQueued(&crowd.ios[2]->request);
  EXPECT_EQ(done, 1U);
  EXPECT_EQ(ends[2], IoStatus::kAborted);
  crowd.disks[0]->channel().AbortQueued(nullptr);
  EXPECT_EQ(done, 4U) << "what waits, of that disk, alone";
  crowd.storage.LetGo(1);  // a part of the large one, which now waits for its next
  crowd.disks[0]->channel().AbortQueued(nullptr);
  EXPECT_EQ(done, 4U) << "what the storage has seen a part of has to go on";
  while (!crowd.storage.held.empty()) crowd.storage.LetGo();
  EXPECT_EQ(done, 9U);
  for (const size_t aborted : {2, 3, 4, 5}) EXPECT_EQ(ends[aborted], IoStatus::kAborted) << aborted;
  for (const size_t written : {0, 1, 6, 7, 8}) EXPECT_EQ(ends[written], IoStatus::kOk) << written;
}

TEST(CryptoPool, BuffersThatARecallBelowGivesBackAreNotForWhatIsRecalledHere) {
  Crowd crowd(1, {1, 1});
  crowd.storage.recalls = true;
  for (int i = 0; i < 3; ++i) crowd.Write(0, 0, 4096);
  for (int i = 0; i < 3; ++i) crowd.Write(0, 0, 100 * 1024);
  for (const auto& io : crowd.ios) io->on_done = nullptr;
  ASSERT_EQ(crowd.storage.seen.size(), 2U);
  crowd.disks[0]->channel().AbortQueued(nullptr);
  EXPECT_EQ(crowd.storage.seen.size(), 2U);
  for (const auto& io : crowd.ios) {
    EXPECT_TRUE(io->done);
    EXPECT_EQ(io->status(), IoStatus::kAborted);
  }
}

TEST(CryptoPool, AReactorThatTheHubDoesNotKnowIsRefused) {
  test::VirtualReactors reactors;
  const CryptoHub hub;
  test::Storage storage(1 << 20);
  auto made = test::CryptoRig::MakeCrypto(storage, kShape, hub);
  ASSERT_TRUE(made.ok());
  const auto channel = (*made)->OpenChannel(reactors[0]);
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.error().code, ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cleat::modules::crypto_pool_test
