// SPDX-License-Identifier: Apache-2.0
#include "modules/malloc/malloc.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "block/memory.h"
#include "block/pipeline.h"

namespace cleat::modules {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint32_t kPageBytes = 4096;  // what can be given back at least

// Every request is over when Submit returns, so the channel has no state of its own.
class MallocChannel final : public block::Channel {
 public:
  MallocChannel(uint8_t* disk, int memfd) : disk_(disk), memfd_(memfd) {}

  void Submit(block::Request& request) override {
    uint8_t* at = disk_ + request.offset_bytes;
    switch (request.op) {
      case Op::kRead:
        for (const block::Segment& segment : request.segments) {
          std::memcpy(segment.data(), at, segment.length_bytes);
          at += segment.length_bytes;
        }
        break;
      case Op::kWrite:
        for (const block::Segment& segment : request.segments) {
          std::memcpy(at, segment.data(), segment.length_bytes);
          at += segment.length_bytes;
        }
        break;
      case Op::kFlush:
        break;
      case Op::kDiscard:
        GiveBack(request);
        break;
      case Op::kWriteZeroes:
        if (!request.may_unmap || !GiveBack(request)) std::memset(at, 0, request.length_bytes);
        break;
      case Op::kCompareAndWrite:  // the pipeline's entrance does it
        return request.Complete(IoStatus::kUnsupported);
    }
    request.Complete(IoStatus::kOk);
  }

 private:
  // Whole pages go back to the host, what is left of others is cleared. False, with nothing changed, when the
  // memory can't be given back; to a discard that makes no difference.
  bool GiveBack(const block::Request& request) {
    return fallocate(memfd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(request.offset_bytes), static_cast<off_t>(request.length_bytes)) == 0;
  }

  uint8_t* const disk_;
  const int memfd_;
};

class MallocDevice final : public block::Device {
 public:
  MallocDevice(const std::string& name, const block::Geometry& geometry, UniqueFd memfd,
               std::shared_ptr<block::MemoryRegion> memory, BlockingPool& blocking)
      : Device(name, geometry), memfd_(std::move(memfd)), memory_(std::move(memory)), blocking_(blocking) {}

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<MallocChannel>(memory_->base(), memfd_.get()));
  }

  Task<Status> Close() override {
    const std::function<Status()> unmap = [this]() -> Status {
      memory_.reset();
      memfd_.Reset();
      return Ok{};
    };
    co_return co_await blocking_.Run(unmap);
  }

 private:
  UniqueFd memfd_;
  std::shared_ptr<block::MemoryRegion> memory_;
  BlockingPool& blocking_;
};

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenMalloc(MallocOptions options, BlockingPool& blocking) {
  block::Geometry geometry = options.shape.ToGeometry();
  geometry.discard = true;
  geometry.discard_granularity_bytes = kPageBytes;
  geometry.discard_max_bytes = kMallocZeroBytesMax;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kMallocZeroBytesMax;
  const Status checked = block::CheckGeometry(geometry, options.shape.name);
  if (!checked) co_return checked.error();
  // A descriptor whose size may still shrink would be a SIGBUS for the whole engine. Where sealing is not
  // allowed, its keeper is trusted.
  fcntl(options.memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  auto memory = block::MemoryRegion::Map(options.memfd, 0, options.shape.size_bytes);
  if (!memory) {
    co_return Error(memory.error().code,
                    options.shape.name + ": its memory can't be mapped: " + memory.error().message);
  }
  co_return std::make_unique<MallocDevice>(options.shape.name, geometry, std::move(options.memfd),
                                           std::move(memory).value(), blocking);
}

}  // namespace cleat::modules
