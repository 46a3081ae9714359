// SPDX-License-Identifier: Apache-2.0
// What a thread allocates under SecretAllocations lies in the memory for keys and is wiped when it is freed, wherever that
// happens; nothing else does.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "keys/secret_arena.h"
#include "tests/unit/keys/freed_bytes.h"

namespace cleat::keys::secret_malloc_test {
namespace {

constexpr char kMark = 0x5a;
constexpr size_t kBytes = 1000;

#if defined(CLEAT_ASAN) || defined(CLEAT_TSAN)
constexpr bool kReplaced = false;
#else
constexpr bool kReplaced = true;
#endif

// Calls of these that the compiler can't reason about.
void* (*volatile allocate)(size_t) = std::malloc;
void* (*volatile allocate_zeroes)(size_t, size_t) = std::calloc;
void* (*volatile reallocate)(void*, size_t) = std::realloc;
void (*volatile release)(void*) = std::free;

// A freed block begins with the arena's link to the next one: an address, which may have a byte of any value.
constexpr size_t kLinkBytes = sizeof(void*);

void ExpectWiped(uintptr_t freed) {
  EXPECT_LT(test::CountBytes(freed, kLinkBytes, kMark), kLinkBytes);
  EXPECT_EQ(test::CountBytes(freed + kLinkBytes, kBytes - kLinkBytes, kMark), 0U);
}

class SecretMalloc : public testing::Test {
 protected:
  void SetUp() override {
    if (!kReplaced) GTEST_SKIP() << "SKIPPED: a sanitizer has a malloc of its own";
  }
};

TEST_F(SecretMalloc, EveryWayToAllocateLeadsToTheArenaWhileOneLives) {
  void* aligned = nullptr;
  std::vector<void*> blocks;
  std::unique_ptr<std::string> text;
  {
    const SecretAllocations secretly;
    { const SecretAllocations nested; }
    blocks = {allocate(kBytes), allocate(0), allocate(kSecretBlockBytesMax), allocate_zeroes(10, 100),
              reallocate(nullptr, kBytes)};
    ASSERT_EQ(posix_memalign(&aligned, 16, kBytes), 0);
    blocks.push_back(aligned);
    text = std::make_unique<std::string>(kBytes, kMark);
  }
  for (const void* block : blocks) EXPECT_TRUE(IsSecretMemory(block));
  EXPECT_TRUE(IsSecretMemory(text.get()) && IsSecretMemory(text->data()));
  EXPECT_TRUE(IsSecretMemory(blocks.data()));
  for (void* block : blocks) release(block);
}

TEST_F(SecretMalloc, NothingElseIsThere) {
  void* before = allocate(kBytes);
  std::atomic<void*> elsewhere{nullptr};
  std::atomic<bool> asked{false};
  std::thread other([&] {
    while (!asked) std::this_thread::yield();
    elsewhere = allocate(kBytes);
  });
  void* large = nullptr;
  void* page = nullptr;
  {
    const SecretAllocations secretly;
    asked = true;
    while (elsewhere == nullptr) std::this_thread::yield();
    large = allocate(kSecretBlockBytesMax + 1);
    ASSERT_EQ(posix_memalign(&page, 4096, kBytes), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page) % 4096, 0U);
    before = reallocate(before, 2 * kBytes);
    void* unused = nullptr;
    EXPECT_EQ(posix_memalign(&unused, 24, kBytes), EINVAL);
    EXPECT_EQ(allocate_zeroes(SIZE_MAX, 2), nullptr);
  }
  other.join();
  void* after = allocate(kBytes);
  for (void* block : {before, elsewhere.load(), large, page, after}) {
    EXPECT_FALSE(IsSecretMemory(block));
    release(block);
  }
}

TEST_F(SecretMalloc, WhatIsFreedByAnyThreadIsWiped) {
  void* block = nullptr;
  {
    const SecretAllocations secretly;
    block = allocate(kBytes);
  }
  test::FillWith(block, kMark, kBytes);
  const auto address = reinterpret_cast<uintptr_t>(block);
  EXPECT_EQ(test::CountBytes(address, kBytes, kMark), kBytes);
  const size_t used_bytes = GetSecretArenaStats().used_bytes;
  std::thread([block] { release(block); }).join();
  ExpectWiped(address);
  EXPECT_EQ(GetSecretArenaStats().used_bytes, used_bytes - kBytes);
}

TEST_F(SecretMalloc, ReallocKeepsSecretsWhereTheyBelong) {
  void* block = nullptr;
  {
    const SecretAllocations secretly;
    block = allocate(kBytes);
  }
  test::FillWith(block, kMark, kBytes);
  const auto address = reinterpret_cast<uintptr_t>(block);
  void* larger = reallocate(block, 4 * kBytes);
  EXPECT_TRUE(IsSecretMemory(larger));
  EXPECT_EQ(test::CountBytes(reinterpret_cast<uintptr_t>(larger), kBytes, kMark), kBytes);
  ExpectWiped(address);
  void* too_large = reallocate(larger, kSecretBlockBytesMax + 1);
  EXPECT_FALSE(IsSecretMemory(too_large));
  EXPECT_EQ(test::CountBytes(reinterpret_cast<uintptr_t>(too_large), kBytes, kMark), kBytes);
  release(too_large);
}

TEST_F(SecretMalloc, ZeroesAreZeroesInARoomThatWasUsed) {
  const SecretAllocations secretly;
  for (int i = 0; i < 3; ++i) {
    void* block = allocate_zeroes(1, kBytes);
    EXPECT_EQ(test::CountBytes(reinterpret_cast<uintptr_t>(block), kBytes, 0), kBytes);
    test::FillWith(block, kMark, kBytes);
    release(block);
  }
}

// What does not fit is had all the same, elsewhere, and keys find room after it.
TEST_F(SecretMalloc, AFullArenaLeavesItsReserveToKeys) {
  std::vector<void*> blocks(kSecretArenaBytesMax / kSecretBlockBytesMax + 1);
  size_t elsewhere = 0;
  {
    const SecretAllocations secretly;
    for (void*& block : blocks) {
      block = allocate(kSecretBlockBytesMax);
      elsewhere += IsSecretMemory(block) ? 0 : 1;
    }
  }
  EXPECT_GT(elsewhere, 0U);
  void* key = AllocateSecret(64);
  EXPECT_TRUE(IsSecretMemory(key));
  FreeSecret(key);
  for (void* block : blocks) release(block);
}

}  // namespace
}  // namespace cleat::keys::secret_malloc_test
