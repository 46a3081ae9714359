// SPDX-License-Identifier: Apache-2.0
// Reads of 4 KiB from an NVMe namespace by its own commands, as few instructions as the kernel's interface takes: an io_uring, and nothing of
// the engine. With memory that the kernel looks up for each command, or that it was told of before (IORING_REGISTER_BUFFERS), which is the
// trial that docs/local-nvme.md tells of. Of one thread. Ends the program where something does not work.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <string>

#include "base/random.h"
#include "base/unique_fd.h"

namespace cleat {

class BareCommands {
 public:
  struct Options {
    std::string device;  // the block device's node: "/dev/nvme0n1"
    uint64_t bytes = 0;  // of it, from the beginning, that are read
    uint32_t depth = 0;  // in flight
    bool registered = false;
  };
  explicit BareCommands(const Options& options);
  ~BareCommands();
  BareCommands(const BareCommands&) = delete;
  BareCommands& operator=(const BareCommands&) = delete;

  void Run(uint64_t requests);

 private:
  void Begin(uint64_t slot);

  const Options options_;
  UniqueFd node_;
  uint32_t nsid_ = 0;
  uint32_t block_bytes_ = 0;  // of the namespace
  io_uring ring_{};
  uint8_t* memory_ = nullptr;
  Random random_{1};
};

}  // namespace cleat
