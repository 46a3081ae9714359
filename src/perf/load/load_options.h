// SPDX-License-Identifier: Apache-2.0
// What a load is: values, and what is wrong with them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace cleat::perf {

enum class LoadOp : uint8_t { kRead, kWrite, kFlush, kDiscard, kWriteZeroes };
inline constexpr size_t kLoadOps = 5;
inline constexpr std::array<const char*, kLoadOps> kLoadOpNames = {"read", "write", "flush", "discard",
                                                                   "zeroes"};

enum class LoadPattern : uint8_t { kSequential, kRandom, kZipf };
enum class LoadWait : uint8_t { kPoll, kCall };  // spin on the used rings, or sleep on the call eventfds

// Parts of a hundred, by LoadOp.
using LoadMix = std::array<uint8_t, kLoadOps>;
inline constexpr LoadMix kReadsOnly = {100, 0, 0, 0, 0};
inline constexpr LoadMix kWritesOnly = {0, 100, 0, 0, 0};
// "read=70,write=30": what is not named is 0, the sum is 100.
Result<LoadMix> ParseMix(std::string_view text);

// A number of bytes with an optional suffix k, M, G or T (powers of 1024): "4096", "4k", "1M".
Result<uint64_t> ParseSize(std::string_view text);

struct LoadOptions {
  LoadPattern pattern = LoadPattern::kRandom;
  double zipf_theta = 1.1;
  LoadMix mix = kReadsOnly;
  uint32_t block_bytes = 4096;
  uint32_t segments = 1;   // descriptors a request's data is cut into
  uint32_t depth = 1;      // requests in flight a disk and queue; with a rate: at most
  bool indirect = true;    // chains in indirect tables, as guests have them, where the device offers that
  uint64_t time_ns = 0;    // 0: no limit; one of the two has to be set
  uint64_t requests = 0;   // in all, over all disks; 0: no limit
  uint64_t warmup_ns = 0;  // before that; not counted
  double rate = 0;  // open loop: requests a second in all, latencies from when each was due; 0: closed loop
  LoadWait wait = LoadWait::kPoll;
  bool verify = false;  // writes are read back now and then, and all of them at the end
  uint64_t seed = 1;
  uint64_t stall_timeout_ns = 60ULL * 1'000'000'000;  // requests in flight and none completes: given up

  bool writes() const {
    return mix[static_cast<size_t>(LoadOp::kWrite)] > 0 || mix[static_cast<size_t>(LoadOp::kWriteZeroes)] > 0;
  }
  bool has(LoadOp op) const { return mix[static_cast<size_t>(op)] > 0; }
};

inline constexpr uint32_t kLoadDepthMax = 4096;
inline constexpr uint32_t kLoadSegmentsMax = 126;
inline constexpr uint32_t kLoadBlockBytesMax = 64U << 20;
inline constexpr double kLoadRateMax = 1e9;

// OK, or what can't be run on a disk of that size and logical block; `lanes` requests are in flight on it.
Status CheckLoad(const LoadOptions& options, uint64_t disk_bytes, uint32_t logical_block_bytes,
                 uint64_t lanes);

}  // namespace cleat::perf
