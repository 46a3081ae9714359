// SPDX-License-Identifier: Apache-2.0
// A fuzzer's bytes, taken from the front; behind their end everything is zero and empty.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace cleat {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(data, size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  uint16_t Word() {
    const uint8_t low = Byte();
    return static_cast<uint16_t>(low | Byte() << 8);
  }
  // A piece with its length (a word) in front, cut at the input's end.
  std::span<const uint8_t> Piece() {
    const size_t size = Word();
    const auto piece = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(piece.size());
    return piece;
  }
  std::string Text() {
    const auto piece = Piece();
    return {piece.begin(), piece.end()};
  }
  std::span<const uint8_t> Rest() const { return rest_; }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace cleat
