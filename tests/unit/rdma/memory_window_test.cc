// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "rdma/memory.h"

namespace cleat::rdma::memory_window_test {
namespace {

class Window final : public MemoryWindow {
 public:
  explicit Window(uint32_t first_key) : MemoryWindow(first_key) {}
};

TEST(MemoryWindow, NoKeyComesAgainBeforeAllOthersHave) {
  Window window(0x123456fe);
  std::set<uint32_t> keys;
  for (int i = 0; i < 256; ++i) {
    const uint32_t key = window.NextKey();
    EXPECT_EQ(key, window.key());
    EXPECT_EQ(key & ~0xffU, 0x12345600U);  // the adapter's part
    EXPECT_TRUE(keys.insert(key).second);
  }
  EXPECT_EQ(window.NextKey(), 0x123456ffU);
}

}  // namespace
}  // namespace cleat::rdma::memory_window_test
