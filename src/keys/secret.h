// SPDX-License-Identifier: Apache-2.0
// Bytes that must not be seen: a key. They lie in the arena (secret_arena.h), are wiped when their owner goes, are
// compared in constant time, and can't be printed: there is no way to make text of them.
//
// Move-only, so that every copy is one that somebody asked for (Copy). One thread at a time, as a vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>

namespace cleat::keys {

inline constexpr size_t kSecretBytesMax = 4096;

class Secret {
 public:
  Secret() = default;
  ~Secret();
  Secret(Secret&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Secret& operator=(Secret&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    return *this;
  }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  // At most kSecretBytesMax.
  static Secret Zeroes(size_t size_bytes);
  static Secret Copy(std::span<const uint8_t> bytes);
  // ... and wipes what it came from: a string that a message was parsed into.
  static Secret TakeFrom(std::string& text);
  Secret Copy() const { return Copy(bytes()); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const uint8_t> bytes() const { return {bytes_, size_}; }
  std::span<uint8_t> mutable_bytes() { return {bytes_, size_}; }

  // In a time that depends on the sizes alone.
  bool operator==(const Secret& other) const;

 private:
  uint8_t* bytes_ = nullptr;
  size_t size_ = 0;
};

// Whether they are the same; sizes must be. In a time that depends on the size alone.
bool EqualInConstantTime(std::span<const uint8_t> one, std::span<const uint8_t> other);

// Overwrites what the string has room for, and empties it.
void Wipe(std::string& text);

std::ostream& operator<<(std::ostream& out, const Secret& secret) = delete;

}  // namespace cleat::keys
