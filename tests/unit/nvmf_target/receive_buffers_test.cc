// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/memory/receive_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace cleat::nvmf_target::receive_buffers_test {
namespace {

constexpr uint32_t kPiece = 4096;

TEST(ReceiveBuffersTest, WhatIsKeptIsNeverReceivedTo) {
  ReceiveBuffers buffers;
  std::mt19937 random(1);
  struct Kept {
    block::Segment piece;
    uint8_t content = 0;
  };
  std::vector<Kept> kept;
  uint32_t refused = 0;
  for (uint32_t i = 0; i < 5000; ++i) {
    const std::span<uint8_t> buffer = buffers.Current();
    ASSERT_EQ(buffer.size(), ReceiveBuffers::kBytes);
    std::fill(buffer.begin(), buffer.end(), static_cast<uint8_t>(i));
    for (uint32_t at = 0; at < 3 * kPiece; at += kPiece) {
      Kept one{.piece = {}, .content = static_cast<uint8_t>(i)};
      if (random() % 4 != 0) continue;
      if (buffers.Keep(buffer.subspan(at, kPiece), one.piece)) {
        EXPECT_EQ(one.piece.data(), buffer.data() + at);
        kept.push_back(one);
      } else {
        ++refused;
      }
    }
    while (!kept.empty() && random() % 3 != 0) {
      std::swap(kept[random() % kept.size()], kept.back());
      const Kept& one = kept.back();
      EXPECT_TRUE(std::all_of(one.piece.data(), one.piece.data() + kPiece,
                              [&one](uint8_t byte) { return byte == one.content; }));
      buffers.LetGo(one.piece);
      kept.pop_back();
    }
    if (random() % 100 == 0) buffers.Trim();
    ASSERT_EQ(buffers.kept(), kept.size());
  }
  EXPECT_GT(refused, 0U);
  for (const Kept& one : kept) buffers.LetGo(one.piece);
}

TEST(ReceiveBuffersTest, OneIsAlwaysLeftToReceiveTo) {
  ReceiveBuffers buffers;
  std::vector<block::Segment> kept;
  for (uint32_t i = 0; i + 1 < ReceiveBuffers::kMost; ++i) {
    const std::span<uint8_t> buffer = buffers.Current();
    kept.emplace_back();
    ASSERT_TRUE(buffers.Keep(buffer.first(kPiece), kept.back()));
    // What is kept already has room for more.
    kept.emplace_back();
    ASSERT_TRUE(buffers.Keep(buffer.subspan(kPiece, kPiece), kept.back()));
  }
  const std::span<uint8_t> last = buffers.Current();
  block::Segment none;
  EXPECT_FALSE(buffers.Keep(last.first(kPiece), none));
  EXPECT_EQ(buffers.Current().data(), last.data());
  buffers.LetGo(kept.back());
  EXPECT_FALSE(buffers.Keep(last.first(kPiece), none));
  kept.pop_back();
  buffers.LetGo(kept.back());
  kept.pop_back();
  EXPECT_TRUE(buffers.Keep(last.first(kPiece), none));
  buffers.LetGo(none);
  for (const block::Segment& piece : kept) buffers.LetGo(piece);
}

}  // namespace
}  // namespace cleat::nvmf_target::receive_buffers_test
