// SPDX-License-Identifier: Apache-2.0
#include "perf/bare_loops/copy_loop.h"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/tick_clock.h"
#include "perf/load/load_options.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::perf {
namespace {

constexpr size_t kBatch = 4096;  // blocks between two looks at the clock, their offsets drawn before

Status Check(const CopyLoopOptions& options) {
  if (options.block_bytes == 0 || options.block_bytes > kLoadBlockBytesMax || options.depth == 0 ||
      options.depth > kLoadDepthMax || options.disk_bytes > kCopyDiskBytesMax ||
      options.disk_bytes < options.block_bytes || options.disk_bytes % GuestMemory::kPageBytes != 0) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} blocks of {} bytes in flight, of a disk of {}: the disk must be whole pages, hold a "
                    "block and not be above {} bytes; depth 1 to {}",
                    options.depth, options.block_bytes, options.disk_bytes, kCopyDiskBytesMax,
                    kLoadDepthMax));
  }
  return Ok{};
}

// Mapped, zeroed (and with that present) memory in a memfd.
Result<std::unique_ptr<GuestMemory>> MakeMemory(uint64_t bytes) {
  const RegionSpec region{.gpa = 0, .size_bytes = bytes};
  auto memory = GuestMemory::Create({&region, 1});
  CLEAT_TRY(memory);
  CLEAT_TRY((*memory)->Allocate(bytes, GuestMemory::kPageBytes));
  return memory;
}

class CopyLoop {
 public:
  CopyLoop(const CopyLoopOptions& options, const uint8_t* disk, uint8_t* buffers, uint64_t stride)
      : options_(options), disk_(disk), buffers_(buffers), stride_(stride), random_(options.seed) {}

  CopyLoopReport Run() {
    const uint64_t end_ns = clock_.NowNs() + options_.time_ns;
    RunBatch();  // warms caches and TLB up; not counted
    report_ = {};
    do {
      RunBatch();
    } while (clock_.NowNs() < end_ns);
    return report_;
  }

 private:
  void RunBatch() {
    for (uint64_t& offset : offsets_) {
      offset = random_.Below(options_.disk_bytes / options_.block_bytes) * options_.block_bytes;
    }
    const uint64_t start_ns = clock_.NowNs();
    for (const uint64_t offset : offsets_) {
      uint8_t* to = buffers_ + next_ * stride_;
      std::memcpy(to, disk_ + offset, options_.block_bytes);
      // The compiler may neither leave the bytes out nor merge what is done to a buffer with the next use of it.
      asm volatile("" : : "r"(to) : "memory");
      if (++next_ == options_.depth) next_ = 0;
    }
    report_.copying_ns += clock_.NowNs() - start_ns;
    report_.copied_blocks += kBatch;
  }

  const CopyLoopOptions& options_;
  const uint8_t* const disk_;
  uint8_t* const buffers_;
  const uint64_t stride_;
  const TickClock clock_{TickRate::Measure()};
  Random random_;
  std::vector<uint64_t> offsets_ = std::vector<uint64_t>(kBatch);
  uint32_t next_ = 0;
  CopyLoopReport report_;
};

}  // namespace

Result<CopyLoopReport> RunCopyLoop(const CopyLoopOptions& options) {
  CLEAT_TRY(Check(options));
  if (options.core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(options.core), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
      return ErrnoError(errno, fmt::format("binding to core {}", options.core));
    }
  }
  const uint64_t stride = (uint64_t{options.block_bytes} + GuestMemory::kPageBytes - 1) /
                          GuestMemory::kPageBytes * GuestMemory::kPageBytes;
  CLEAT_ASSIGN(auto disk, MakeMemory(options.disk_bytes));
  CLEAT_ASSIGN(auto buffers, MakeMemory(stride * options.depth));
  return CopyLoop(options, disk->At(0, options.disk_bytes), buffers->At(0, stride * options.depth), stride)
      .Run();
}

}  // namespace cleat::perf
