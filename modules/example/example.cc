// SPDX-License-Identifier: Apache-2.0
#include "modules/example/example.h"

#include <cstring>
#include <string>

#include "base/result.h"
#include "block/pipeline.h"
#include "block/segments.h"

namespace cleat::modules {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint64_t kZeroBytesMax = uint64_t{1} << 20;  // in one request: 100 us of its reactor

// A disk on one I/O reactor. Every request is over when Submit returns, and the array never moves, so this is all. The
// pipeline has checked range, alignment and access of each request. A guest that writes a block from two queues at once gets
// either content, as from any disk.
class ExampleChannel final : public block::Channel {
 public:
  explicit ExampleChannel(uint8_t* blocks) : blocks_(blocks) {}

  void Submit(block::Request& request) override {
    uint8_t* const at = blocks_ + request.offset_bytes;
    switch (request.op) {
      case Op::kRead:
        block::Scatter(at, request.length_bytes, request.segments, 0);
        return request.Complete(IoStatus::kOk);
      case Op::kWrite:
        block::Gather(request.segments, 0, at, request.length_bytes);
        return request.Complete(IoStatus::kOk);
      case Op::kWriteZeroes:
        std::memset(at, 0, request.length_bytes);
        return request.Complete(IoStatus::kOk);
      case Op::kFlush:  // nothing is cached
        return request.Complete(IoStatus::kOk);
      case Op::kDiscard:          // the geometry does not offer it,
      case Op::kCompareAndWrite:  // and the pipeline's entrance does this one
        return request.Complete(IoStatus::kUnsupported);
    }
  }

 private:
  uint8_t* const blocks_;
};

// A disk, on the control reactor.
class ExampleDevice final : public block::Device {
 public:
  ExampleDevice(const std::string& name, const block::Geometry& geometry, uint8_t fill)
      : Device(name, geometry),
        fill_(fill),
        blocks_(std::make_unique_for_overwrite<uint8_t[]>(kExampleBytesMax)) {
    std::memset(blocks_.get(), fill_, geometry.size_bytes);
  }

  uint32_t frames() const override { return 0; }  // a request passes through without a note of ours on it
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<ExampleChannel>(blocks_.get()));
  }
  // No request reaches beyond the old end before this has ended.
  Task<Status> Resize(uint64_t size_bytes) override {
    const uint64_t before = geometry().size_bytes;
    if (size_bytes > kExampleBytesMax) {
      co_return Error(ErrorCode::kFailedPrecondition, TooLarge(name(), size_bytes));
    }
    std::memset(blocks_.get() + before, fill_, size_bytes - before);
    SetSize(size_bytes);
    co_return Ok{};
  }

  static std::string TooLarge(const std::string& disk, uint64_t size_bytes) {
    return disk + ": it has " + std::to_string(size_bytes) + " bytes, and an example disk has at most " +
           std::to_string(kExampleBytesMax);
  }

 private:
  const uint8_t fill_;
  const std::unique_ptr<uint8_t[]> blocks_;  // kExampleBytesMax of them; the kernel gives what is used
};

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenExample(ExampleOptions options) {
  block::Geometry geometry = options.shape.ToGeometry();
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kZeroBytesMax;
  CLEAT_CO_TRY(block::CheckGeometry(geometry, options.shape.name));
  if (geometry.size_bytes > kExampleBytesMax) {
    co_return Error(ErrorCode::kInvalidArgument,
                    ExampleDevice::TooLarge(options.shape.name, geometry.size_bytes));
  }
  co_return std::make_unique<ExampleDevice>(options.shape.name, geometry, options.fill);
}

}  // namespace cleat::modules
