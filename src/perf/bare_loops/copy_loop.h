// SPDX-License-Identifier: Apache-2.0
// What the memory traffic of a memory disk costs by itself: blocks copied in random order from a memfd of the disk's size
// into the buffers of a guest's memory, one thread, nothing else in the loop. Both memories are memfds, mapped shared,
// every page there before it starts: the page kind and the misses of caches and TLB are those of an engine that serves such
// a disk. An engine's time a request on a memory disk, minus that on a null disk, is to be read against this.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace cleat::perf {

struct CopyLoopOptions {
  uint64_t disk_bytes = 512ULL << 20;
  uint32_t block_bytes = 4096;
  uint32_t depth = 32;  // buffers, used in turn: what is in flight
  uint64_t time_ns = 1'000'000'000;
  int core = -1;
  uint64_t seed = 1;
};

struct CopyLoopReport {
  uint64_t copied_blocks = 0;
  uint64_t copying_ns = 0;

  double ns_per_copy() const { return static_cast<double>(copying_ns) / static_cast<double>(copied_blocks); }
};

inline constexpr uint64_t kCopyDiskBytesMax = 64ULL << 30;

// Runs on the calling thread, which it binds to the core. kInvalidArgument; kResourceExhausted and others of the memory.
Result<CopyLoopReport> RunCopyLoop(const CopyLoopOptions& options);

}  // namespace cleat::perf
