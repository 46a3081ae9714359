// SPDX-License-Identifier: Apache-2.0
#include "modules/null/null.h"

#include <algorithm>
#include <cstring>

#include "block/pipeline.h"

namespace cleat::modules {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint64_t kZeroBytesMax = uint64_t{1} << 30;

class NullChannel final : public block::Channel {
 public:
  explicit NullChannel(bool zero_fill) : zero_fill_(zero_fill) {}

  void Submit(block::Request& request) override {
    if (request.op == Op::kRead && zero_fill_) {
      for (const block::Segment& segment : request.segments)
        std::memset(segment.data(), 0, segment.length_bytes);
    }
    request.Complete(IoStatus::kOk);
  }

 private:
  const bool zero_fill_;
};

class NullDevice final : public block::Device {
 public:
  NullDevice(const std::string& name, const block::Geometry& geometry, bool zero_fill)
      : Device(name, geometry), zero_fill_(zero_fill) {}

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<NullChannel>(zero_fill_));
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    SetSize(size_bytes);
    co_return Ok{};
  }

 private:
  const bool zero_fill_;
};

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenNull(NullOptions options) {
  block::Geometry geometry = options.shape.ToGeometry();
  geometry.discard = true;
  geometry.discard_granularity_bytes = geometry.logical_block_bytes;
  geometry.discard_max_bytes = kZeroBytesMax;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kZeroBytesMax;
  CLEAT_CO_TRY(block::CheckGeometry(geometry, options.shape.name));
  co_return std::make_unique<NullDevice>(options.shape.name, geometry, options.zero_fill);
}

}  // namespace cleat::modules
