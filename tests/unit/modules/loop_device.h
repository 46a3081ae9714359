// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>

#include <string>

#include "base/unique_fd.h"

namespace cleat::test {

// A block device of a file, for those who may make one.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file) {
    const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    const int number = control ? ioctl(control.get(), LOOP_CTL_GET_FREE) : -1;
    if (number < 0) return;
    path_ = "/dev/loop" + std::to_string(number);
    device_.Reset(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    const UniqueFd backing(open(file.c_str(), O_RDWR | O_CLOEXEC));
    if (device_ && ioctl(device_.get(), LOOP_SET_FD, backing.get()) != 0) device_.Reset();
  }
  ~LoopDevice() {
    if (device_) ioctl(device_.get(), LOOP_CLR_FD, 0);
  }
  bool made() const { return device_.valid(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd device_;
};

}  // namespace cleat::test
