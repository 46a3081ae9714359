// SPDX-License-Identifier: Apache-2.0
// An owned file descriptor, closed when it goes.
#pragma once

#include <utility>

namespace cleat {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

  // A second descriptor of the same open file (close-on-exec); invalid, with errno set, when there is none to
  // be had.
  UniqueFd Duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace cleat
