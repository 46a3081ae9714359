// SPDX-License-Identifier: Apache-2.0
// What engines that were killed still have under way in the kernel: its reads go on landing in guests' memory. A request of
// theirs to a disk that is attached is safe from that, since the disk was acquired (block::Device::Acquire). One to a disk that is
// gone must not be answered before this has ended: its guest takes the memory back with the answer.
#pragma once

#include "reactor/task.h"

namespace cleat::virtio {

class EarlierIo {
 public:
  virtual ~EarlierIo() = default;
  // On an I/O reactor, where it goes on: when nothing lands any more of any engine that was dead when it was called. That
  // takes as long as the storage takes.
  virtual Task<void> Ended() = 0;
};

}  // namespace cleat::virtio
