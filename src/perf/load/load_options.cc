// SPDX-License-Identifier: Apache-2.0
#include "perf/load/load_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "perf/wire/virtio_blk.h"
#include "perf/workload/zipf.h"

namespace cleat::perf {
namespace {

Error Bad(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

template <typename T>
bool ParseNumber(std::string_view text, T* value, std::string_view* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return error == std::errc() && !text.empty();
}

}  // namespace

Result<LoadMix> ParseMix(std::string_view text) {
  LoadMix mix{};
  for (std::string_view left = text; !left.empty();) {
    const std::string_view part = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const auto* found = std::find(kLoadOpNames.begin(), kLoadOpNames.end(), name);
    if (found == kLoadOpNames.end() || equals == std::string_view::npos) {
      return Bad(
          fmt::format("'{}' in the mix: name=percent is wanted, with read, write, flush, discard or "
                      "zeroes for a name",
                      part));
    }
    uint8_t percent = 0;
    std::string_view rest;
    if (!ParseNumber(part.substr(equals + 1), &percent, &rest) || !rest.empty() || percent > 100) {
      return Bad(fmt::format("'{}' in the mix: a whole number from 0 to 100 is wanted", part));
    }
    mix[static_cast<size_t>(found - kLoadOpNames.begin())] = percent;
  }
  const int sum = std::accumulate(mix.begin(), mix.end(), 0);
  if (sum != 100) return Bad(fmt::format("the mix '{}' is {} percent in all, not 100", text, sum));
  return mix;
}

Result<uint64_t> ParseSize(std::string_view text) {
  uint64_t value = 0;
  std::string_view suffix;
  const bool number = ParseNumber(text, &value, &suffix);
  constexpr std::string_view kSuffixes = "kMGT";
  uint32_t shift = 0;
  bool known = suffix.empty();
  if (suffix.size() == 1) {
    const size_t at = kSuffixes.find(suffix == "K" ? 'k' : suffix == "m" ? 'M' : suffix[0]);
    known = at != std::string_view::npos;
    if (known) shift = 10 * (static_cast<uint32_t>(at) + 1);
  }
  if (!number || !known || value > (UINT64_MAX >> shift)) {
    return Bad(fmt::format("'{}' is no size: a number with one of k, M, G, T or nothing behind it", text));
  }
  return value << shift;
}

Status CheckLoad(const LoadOptions& options, uint64_t disk_bytes, uint32_t logical_block_bytes,
                 uint64_t lanes) {
  if (options.block_bytes == 0 || options.block_bytes > kLoadBlockBytesMax ||
      options.block_bytes % logical_block_bytes != 0) {
    return Bad(fmt::format("block size {}: must be a multiple of the disk's {} bytes, {} at most",
                           options.block_bytes, logical_block_bytes, kLoadBlockBytesMax));
  }
  if (options.segments == 0 || options.segments > kLoadSegmentsMax ||
      options.segments > options.block_bytes / wire::kSectorBytes) {
    return Bad(fmt::format("{} segments of {} bytes: at least 512 bytes each, {} segments at most",
                           options.segments, options.block_bytes, kLoadSegmentsMax));
  }
  if (options.depth == 0 || options.depth > kLoadDepthMax) {
    return Bad(fmt::format("depth {}: must be from 1 to {}", options.depth, kLoadDepthMax));
  }
  const uint64_t blocks = disk_bytes / options.block_bytes;
  if (blocks < lanes) {
    return Bad(
        fmt::format("{} requests in flight on a disk of {} blocks of {} bytes: a block for each is needed",
                    lanes, blocks, options.block_bytes));
  }
  if (options.time_ns == 0 && options.requests == 0) {
    return Bad("neither a time nor a number of requests: the load would have no end");
  }
  if (std::accumulate(options.mix.begin(), options.mix.end(), 0) != 100)
    return Bad("the mix is not 100 percent");
  if (options.rate < 0 || options.rate > kLoadRateMax) {
    return Bad(fmt::format("rate {}: must be from 0 to {}", options.rate, kLoadRateMax));
  }
  if (options.pattern == LoadPattern::kZipf &&
      (options.zipf_theta < Zipf::kThetaMin || options.zipf_theta > Zipf::kThetaMax)) {
    return Bad(fmt::format("zipf theta {}: must be from {} to {}", options.zipf_theta, Zipf::kThetaMin,
                           Zipf::kThetaMax));
  }
  if (options.verify && options.has(LoadOp::kDiscard)) {
    return Bad("verification with discards: what a discarded block holds is up to the disk, use zeroes");
  }
  return Ok{};
}

}  // namespace cleat::perf
