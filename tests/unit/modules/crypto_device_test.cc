// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/crypto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "keys/secret_arena.h"
#include "modules/fault/fault.h"
#include "modules/null/null.h"
#include "tests/unit/modules/crypto_rig.h"

namespace cleat::modules::crypto_device_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::CryptoRig;
using test::CryptoShape;
using test::Io;
using test::kCryptoShapes;

constexpr CryptoShape kUsual = {keys::Cipher::kAes256Xts, 512, 512};

// Before OpenSSL is used by any test of this program.
const bool arena_installed = keys::InstallSecretArena().ok();

std::string Refusal(const CryptoShape& shape, std::vector<uint8_t> key) {
  test::Storage storage(1 << 20, shape.block_bytes);
  const CryptoHub hub;
  CryptoOptions options(shape.cipher, shape.unit_bytes, keys::Secret::Copy(key));
  std::unique_ptr<block::Device> below = std::make_unique<test::StorageDevice>(storage);
  const auto made = CryptoDevice::Make(std::move(below), std::move(options), hub);
  if (made) return "";
  EXPECT_NE(below, nullptr) << "left to whoever opened it";  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(made.error().message.find("disks/c: "), 0U) << made.error().message;
  return made.error().message;
}

TEST(Crypto, RefusesKeysAndDataUnitsThatDoNotFit) {
  const std::vector<uint8_t> key = test::TestKey(keys::Cipher::kAes256Xts);
  for (const CryptoShape& shape : kCryptoShapes) EXPECT_EQ(Refusal(shape, test::TestKey(shape.cipher)), "");
  const auto refuses = [&](const CryptoShape& shape, const std::vector<uint8_t>& bytes,
                           const std::string& says) {
    EXPECT_NE(Refusal(shape, bytes).find(says), std::string::npos) << says << ": " << Refusal(shape, bytes);
  };
  refuses(kUsual, {}, "has 0 bytes");
  refuses(kUsual, std::vector<uint8_t>(key.begin(), key.begin() + 32), "has 32 bytes, AES-256-XTS takes 64");
  refuses({keys::Cipher::kAes128Xts, 512, 512}, key, "has 64 bytes, AES-128-XTS takes 32");
  refuses(kUsual, std::vector<uint8_t>(64, 9), "two halves");
  refuses({keys::Cipher::kAes256Xts, 4096, 512}, key, "needs logical blocks of that size, the disk has 512");
  for (const uint32_t unit : {0U, 1U, 256U, 1024U, 8192U})
    refuses({keys::Cipher::kAes256Xts, unit, 4096}, key, "use 512 or 4096");
}

TEST(Crypto, ShowsTheDiskBelowWithZeroesThatCanBeWritten) {
  CryptoRig rig(kUsual);
  const block::Geometry& geometry = rig.disk->pipeline().geometry();
  EXPECT_EQ(geometry.size_bytes, rig.storage.content.size());
  EXPECT_TRUE(geometry.discard);
  EXPECT_TRUE(geometry.write_zeroes) << "though the storage has none";
  EXPECT_EQ(geometry.write_zeroes_max_bytes, kCryptoZeroBytesMax);
  EXPECT_EQ(rig.disk->pipeline().name(), "disks/c");
  EXPECT_EQ(rig.disk->pipeline().device().frames(), 1U);
}

TEST(Crypto, ZeroesAreWrittenEncrypted) {
  for (const CryptoShape& shape : kCryptoShapes) {
    CryptoRig rig(shape);
    Io io;
    io.request.fua = true;
    io.request.may_unmap = true;
    rig.disk->Start(io, Op::kWriteZeroes, 64 * 1024, kCryptoZeroBytesMax);
    ASSERT_EQ(rig.disk->Wait(io), IoStatus::kOk);
    EXPECT_EQ(rig.Plain(64 * 1024, kCryptoZeroBytesMax), std::vector<uint8_t>(kCryptoZeroBytesMax, 0));
    for (const test::Storage::Seen& seen : rig.storage.seen) {
      EXPECT_EQ(seen.op, Op::kWrite);
      EXPECT_TRUE(seen.fua);
    }
    EXPECT_EQ(io.request.op, Op::kWriteZeroes);
    EXPECT_EQ(rig.storage.content[64 * 1024 - 1], 0x5a);
    EXPECT_EQ(rig.storage.content[64 * 1024 + kCryptoZeroBytesMax], 0x5a);

    Arena arena(4096);
    ASSERT_EQ(rig.disk->Do(Op::kRead, 64 * 1024, 4096, &arena), IoStatus::kOk);
    EXPECT_EQ(std::count(arena.data(), arena.data() + 4096, 0), 4096);
    // And no zeroes are seen by the storage.
    EXPECT_LT(std::count(rig.storage.content.begin() + 64 * 1024, rig.storage.content.begin() + 68 * 1024, 0),
              100);
  }
}

TEST(Crypto, FlushAndDiscardPassThrough) {
  CryptoRig rig(kUsual);
  EXPECT_EQ(rig.disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
  EXPECT_EQ(rig.disk->Do(Op::kDiscard, 4096, 8192), IoStatus::kOk);
  ASSERT_EQ(rig.storage.seen.size(), 2U);
  EXPECT_EQ(rig.storage.seen[0].op, Op::kFlush);
  EXPECT_EQ(rig.storage.seen[1].op, Op::kDiscard);
  EXPECT_EQ(rig.storage.seen[1].offset_bytes, 4096U);
  // What is discarded is zero below, and therefore anything but zero here: nobody may rely on it.
  Arena arena(8192);
  ASSERT_EQ(rig.disk->Do(Op::kRead, 4096, 8192, &arena), IoStatus::kOk);
  EXPECT_LT(std::count(arena.data(), arena.data() + 8192, 0), 200);
}

TEST(Crypto, ForcedUnitAccessReachesTheStorageInEveryPart) {
  CryptoRig rig(kUsual, 4 << 20, {1, 1});
  Arena arena(1 << 20);
  Io io;
  io.request.fua = true;
  io.segments = {{&arena.region(), 0, 1 << 20}};
  rig.disk->Start(io, Op::kWrite, 0, 1 << 20);
  ASSERT_EQ(rig.disk->Wait(io), IoStatus::kOk);
  EXPECT_EQ(rig.storage.seen.size(), (1U << 20) / kLargeBounceBytes);
  for (const test::Storage::Seen& seen : rig.storage.seen) EXPECT_TRUE(seen.fua);
}

TEST(Crypto, EndsWithTheFirstErrorAndGoesNoFurther) {
  for (const uint64_t fail_from : {uint64_t{0}, uint64_t{3} * kLargeBounceBytes}) {
    CryptoRig rig(kUsual, 4 << 20, {1, 1});
    rig.storage.fail_from = fail_from;
    Arena arena(1 << 20);
    Io io;
    io.segments = {{&arena.region(), 0, 1 << 20}};
    rig.disk->Start(io, Op::kWrite, 0, 1 << 20);
    ASSERT_EQ(rig.disk->Wait(io), IoStatus::kNoSpace);
    EXPECT_EQ(rig.storage.seen.size(), fail_from / kLargeBounceBytes + 1);
    EXPECT_EQ(io.request.length_bytes, 1U << 20);
    EXPECT_EQ(io.request.segments.data(), io.segments.data());
    // The buffers are back.
    rig.storage.fail_from = UINT64_MAX;
    EXPECT_EQ(rig.disk->Do(Op::kWrite, 0, 1 << 20, &arena), IoStatus::kOk);
  }
}

TEST(Crypto, AFailedReadIsNotDecrypted) {
  CryptoRig rig(kUsual);
  rig.storage.fail_from = 0;
  Arena arena(4096);
  EXPECT_EQ(rig.disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kNoSpace);
  EXPECT_EQ(std::count(arena.data(), arena.data() + 4096, 0xa5), 4096);
}

TEST(Crypto, WhatAGuestChangesDuringAWriteHurtsOnlyItself) {
  CryptoRig rig(kUsual);
  rig.storage.holding = true;
  Arena arena(4096);
  Io io;
  io.segments = {{&arena.region(), 0, 4096}};
  rig.disk->Start(io, Op::kWrite, 0, 4096);
  std::memset(arena.data(), 0x11, 4096);  // after it was encrypted, before the storage took it
  rig.storage.LetGo();
  ASSERT_EQ(rig.disk->Wait(io), IoStatus::kOk);
  EXPECT_EQ(rig.Plain(0, 4096), std::vector<uint8_t>(4096, 0xa5));
}

TEST(Crypto, ComparesAndWritesThePlainText) {
  CryptoRig rig(kUsual);
  Arena arena(2048);
  std::memset(arena.data(), 0x01, 1024);
  std::memset(arena.data() + 1024, 0x02, 1024);
  ASSERT_EQ(rig.disk->Do(Op::kWrite, 4096, 1024, &arena), IoStatus::kOk);
  const auto compare_and_write = [&](IoStatus expected) {
    Io io;
    io.segments = {{&arena.region(), 0, 2048}};
    rig.reactors[0].PostCall([&] { rig.disk->Start(io, Op::kCompareAndWrite, 4096, 1024); });
    EXPECT_EQ(rig.disk->Wait(io), expected);
  };
  compare_and_write(IoStatus::kOk);
  EXPECT_EQ(rig.Plain(4096, 1024), std::vector<uint8_t>(1024, 0x02));
  compare_and_write(IoStatus::kMiscompare);
  EXPECT_EQ(rig.Plain(4096, 1024), std::vector<uint8_t>(1024, 0x02));
}

TEST(Crypto, GrowsWithTheDiskBelow) {
  CryptoRig rig(kUsual, 1 << 20);
  auto grow = rig.disk->pipeline().Resize(2 << 20);
  ASSERT_TRUE(rig.reactors.Await(std::move(grow)).ok());
  EXPECT_EQ(rig.storage.resized, 1U);
  EXPECT_EQ(rig.disk->pipeline().geometry().size_bytes, 2U << 20);
  Arena arena(4096);
  EXPECT_EQ(rig.disk->Do(Op::kWrite, (2 << 20) - 4096, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(rig.Plain((2 << 20) - 4096, 4096), std::vector<uint8_t>(4096, 0xa5));
}

TEST(Crypto, StampsWhenItHasEncryptedAndDecrypted) {
  CryptoRig rig(kUsual);
  Arena arena(4096);
  for (const Op op : {Op::kWrite, Op::kRead}) {
    Io io;
    io.segments = {{&arena.region(), 0, 4096}};
    rig.disk->Start(io, op, 0, 4096);
    ASSERT_EQ(rig.disk->Wait(io), IoStatus::kOk);
    EXPECT_EQ(io.request.stamps.at_ns(RequestStage::kCryptoOut) != 0, block::kCountersOn && op == Op::kWrite);
    EXPECT_EQ(io.request.stamps.at_ns(RequestStage::kCryptoIn) != 0, block::kCountersOn && op == Op::kRead);
  }
}

TEST(Crypto, ADiskTakesLittleOfTheMemoryForKeysAndGivesItBack) {
  ASSERT_TRUE(arena_installed);
  test::VirtualReactors reactors(2);
  CryptoHub hub;
  ASSERT_TRUE(hub.AddReactor(reactors[0]).ok() && hub.AddReactor(reactors[1]).ok());
  test::Storage storage(1 << 20);
  const size_t before = keys::GetSecretArenaStats().used_bytes;
  {
    auto made = test::CryptoRig::MakeCrypto(storage, kUsual, hub);
    ASSERT_TRUE(made.ok());
    const auto first = (*made)->OpenChannel(reactors[0]);
    const size_t with_one = keys::GetSecretArenaStats().used_bytes;
    const auto second = (*made)->OpenChannel(reactors[1]);
    EXPECT_LE(keys::GetSecretArenaStats().used_bytes - with_one, 4096U);
    EXPECT_GT(keys::GetSecretArenaStats().used_bytes, with_one);
  }
  EXPECT_EQ(keys::GetSecretArenaStats().used_bytes, before);
}

TEST(Crypto, AnotherKeyReadsSomethingElse) {
  CryptoRig rig(kUsual);
  Arena arena(4096);
  ASSERT_EQ(rig.disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  std::vector<uint8_t> other = test::TestKey(keys::Cipher::kAes256Xts);
  other[40] ^= 1;
  EXPECT_NE(test::XtsReference(other, 512).Decrypt(std::span(rig.storage.content).first(512), 0),
            std::vector<uint8_t>(512, 0xa5));
  // The same data elsewhere looks different.
  ASSERT_EQ(rig.disk->Do(Op::kWrite, 4096, 4096, &arena), IoStatus::kOk);
  EXPECT_FALSE(std::equal(rig.storage.content.begin(), rig.storage.content.begin() + 512,
                          rig.storage.content.begin() + 4096));
  EXPECT_FALSE(std::equal(rig.storage.content.begin(), rig.storage.content.begin() + 512,
                          rig.storage.content.begin() + 512));
}

TEST(Crypto, WorksOverStorageThatDelaysReordersAndFails) {
  for (const uint64_t seed : {1, 2, 3}) {
    test::VirtualReactors reactors;
    CryptoHub hub;
    ASSERT_TRUE(hub.AddReactor(reactors[0], {3, 3}).ok());
    test::Storage storage(4 << 20);
    auto fault =
        FaultDevice::Make(std::make_unique<test::StorageDevice>(storage), FaultPlan(seed, kNsPerMs, 100'000));
    CryptoOptions options(kUsual.cipher, 512, keys::Secret::Copy(test::TestKey(kUsual.cipher)));
    auto made = CryptoDevice::Make(std::move(fault).value(), std::move(options), hub);
    EXPECT_EQ((*made)->frames(), 2U);
    test::TestDisk disk(std::move(made).value(), reactors[0], [] {});
    Random random(seed);
    Arena arena(1 << 20);
    std::vector<std::unique_ptr<Io>> ios;
    size_t done = 0;
    size_t failed = 0;
    for (int i = 0; i < 400; ++i) {
      ios.push_back(std::make_unique<Io>());
      Io& io = *ios.back();
      const uint64_t bytes = 512 * random.Between(1, random.Between(1, 1500));
      io.segments = {{&arena.region(), 0, static_cast<uint32_t>(bytes)}};
      io.on_done = [&] {
        ++done;
        failed += io.status() == IoStatus::kIoError;
      };
      disk.Start(io, random.Chance(1, 3) ? Op::kRead : Op::kWrite, 512 * random.Below(2000), bytes);
    }
    EXPECT_TRUE(reactors.RunUntil([&] { return done == ios.size(); }));
    EXPECT_GT(failed, 20U);
    EXPECT_EQ(disk.channel().in_flight(), 0U);
  }
}

}  // namespace
}  // namespace cleat::modules::crypto_device_test
