// SPDX-License-Identifier: Apache-2.0
// Nothing of what was in a block can be read after it was freed, or moved by realloc; else these are the C library's.
#include "control/wiping_free.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "tests/unit/keys/freed_bytes.h"

namespace cleat::control::wiping_free_test {
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
void* (*volatile reallocate)(void*, size_t) = std::realloc;
void (*volatile release)(void*) = std::free;

class WipingFree : public testing::Test {
 protected:
  void SetUp() override {
    if (!kReplaced) GTEST_SKIP() << "SKIPPED: a sanitizer has a malloc of its own";
  }
  // Another block behind it, so that it is neither joined with the heap's end nor enlarged where it is.
  static void* Marked(size_t bytes) {
    void* memory = allocate(bytes);
    behind = allocate(bytes);
    test::FillWith(memory, kMark, bytes);
    return memory;
  }
  void TearDown() override { release(behind); }
  static inline void* behind = nullptr;
};

TEST_F(WipingFree, FreedMemoryIsWiped) {
  void* memory = Marked(kBytes);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  EXPECT_EQ(test::CountBytes(address, kBytes, kMark), kBytes);
  release(memory);
  EXPECT_LT(test::CountBytes(address, kBytes, kMark), 8U) << "what the allocator itself writes there";
  release(nullptr);
}

TEST_F(WipingFree, ReallocThatMovesKeepsTheContentAndWipesWhereItWas) {
  for (const size_t bytes : {4 * kBytes, kBytes / 4}) {
    void* memory = Marked(kBytes);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    void* moved = reallocate(memory, bytes);
    ASSERT_NE(moved, nullptr);
    ASSERT_NE(reinterpret_cast<uintptr_t>(moved), address) << bytes;
    const size_t kept = std::min(bytes, kBytes);
    EXPECT_EQ(test::CountBytes(reinterpret_cast<uintptr_t>(moved), kept, kMark), kept) << bytes;
    EXPECT_LT(test::CountBytes(address, kBytes, kMark), 8U) << bytes;
    release(moved);
    release(std::exchange(behind, nullptr));
  }
}

TEST_F(WipingFree, ReallocStaysWhereItFits) {
  void* memory = Marked(kBytes);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  for (const size_t bytes : {kBytes - 100, malloc_usable_size(memory)}) {
    memory = reallocate(memory, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory), address);
  }
  EXPECT_EQ(test::CountBytes(address, kBytes, kMark), kBytes);
  release(memory);
}

TEST_F(WipingFree, ReallocOfNothingAllocatesAndToNothingFrees) {
  void* memory = reallocate(nullptr, kBytes);
  ASSERT_NE(memory, nullptr);
  test::FillWith(memory, kMark, kBytes);
  behind = allocate(kBytes);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  EXPECT_EQ(reallocate(memory, 0), nullptr);
  EXPECT_LT(test::CountBytes(address, kBytes, kMark), 8U);
}

TEST_F(WipingFree, ReallocThatFailsLeavesEverything) {
  void* memory = Marked(kBytes);
  EXPECT_EQ(reallocate(memory, SIZE_MAX / 2), nullptr);
  EXPECT_EQ(test::CountBytes(reinterpret_cast<uintptr_t>(memory), kBytes, kMark), kBytes);
  release(memory);
}

// Last: it can't be switched on again. That the tests above would see it.
TEST_F(WipingFree, WithoutItFreedMemoryIsAsItWas) {
  StopWipingFreedMemory();
  void* memory = Marked(kBytes);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  release(memory);
  EXPECT_GT(test::CountBytes(address, kBytes, kMark), kBytes / 2);
}

}  // namespace
}  // namespace cleat::control::wiping_free_test
