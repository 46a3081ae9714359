// SPDX-License-Identifier: Apache-2.0
// AES-XTS as IEEE Std 1619-2018, section 5.3, writes it down: one block after the other, the tweak doubled by hand. Slow,
// and plain enough to be believed. A library of its own, since those are optimised.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cleat::test {

class XtsReference {
 public:
  // `key`: both halves.
  XtsReference(std::span<const uint8_t> key, uint32_t unit_bytes);

  // Whole data units, which begin at byte `offset` of the disk.
  std::vector<uint8_t> Encrypt(std::span<const uint8_t> bytes, uint64_t offset) const {
    return Run(bytes, offset / 512, true);
  }
  std::vector<uint8_t> Decrypt(std::span<const uint8_t> bytes, uint64_t offset) const {
    return Run(bytes, offset / 512, false);
  }
  std::vector<uint8_t> Run(std::span<const uint8_t> bytes, uint64_t first_sector, bool encrypt) const;

 private:
  std::vector<uint8_t> data_;
  std::vector<uint8_t> tweak_;
  uint32_t unit_bytes_;
};

}  // namespace cleat::test
