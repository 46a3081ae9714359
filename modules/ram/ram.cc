// SPDX-License-Identifier: Apache-2.0
#include "modules/ram/ram.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "block/memory.h"
#include "block/pipeline.h"
#include "block/segments.h"
#include "reactor/reactor.h"

namespace cleat::modules {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint32_t kPageBytes = 4096;  // what can be given back at least

class RamDevice final : public block::Device {
 public:
  RamDevice(const std::string& name, const block::Geometry& geometry, UniqueFd memfd,
            std::shared_ptr<block::MemoryRegion> memory, BlockingPool& blocking)
      : Device(name, geometry), memfd_(std::move(memfd)), blocking_(blocking) {
    mappings_.push_back(std::move(memory));
  }

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override;
  Task<Status> Resize(uint64_t size_bytes) override;
  Task<Status> Close() override;

  int memfd() const { return memfd_.get(); }
  uint8_t* memory() const { return mappings_.back()->base(); }  // of all that there is at present

 private:
  UniqueFd memfd_;
  // The last one is the present one. Others map a part of the same memory, for channels that have yet to hear
  // that the disk has grown; kept to the end, since they cost address space only.
  std::vector<std::shared_ptr<block::MemoryRegion>> mappings_;
  BlockingPool& blocking_;
};

// A request is over when Submit returns, unless it is a read or write of more than a piece: those are copied one after the other.
class RamChannel final : public block::Channel {
 public:
  RamChannel(const RamDevice& device, Reactor& reactor)
      : device_(device), reactor_(reactor), disk_(device.memory()), memfd_(device.memfd()) {}
  ~RamChannel() override {
    CLEAT_CHECK(copying_.empty());
    if (copier_.added()) reactor_.RemovePoller(copier_);
  }

  void Resized() override { disk_ = device_.memory(); }

  // What a copy waits for is its first line, and the address translation that comes with it; then the processor sees the
  // sequence and is ahead of it.
  bool wants_prefetch() const override { return true; }
  void Prefetch(Op op, uint64_t offset_bytes) override {
    if (op == Op::kRead) {
      __builtin_prefetch(disk_ + offset_bytes);
    } else {
      __builtin_prefetch(disk_ + offset_bytes, /*rw=*/1);
    }
  }

  void Submit(block::Request& request) override {
    if (request.length_bytes > kRamPieceBytes && IsCopy(request)) [[unlikely]]
      return CopyInPieces(request);
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

  // Polled once a turn while there are requests to be copied, and once more: it stays until it finds none, so that one that comes
  // within the turn waits for the next.
  struct Copier final : Poller {
    explicit Copier(RamChannel& c) : channel(c) {}
    bool Poll() override { return channel.CopyNext(); }
    bool Arm() override { return false; }
    using Poller::added;
    RamChannel& channel;
  };

  static bool IsCopy(const block::Request& request) {
    return request.op == Op::kRead || request.op == Op::kWrite;
  }

  void CopyInPieces(block::Request& request) {
    request.stamps.Stamp(RequestStage::kSubmitted, reactor_.now_ns());
    copying_.PushBack(request);
    if (!copier_.added()) reactor_.AddPoller(copier_);
  }

  // A turn's piece of the first request. The channel may be gone afterwards.
  bool CopyNext() {
    block::Request* const request = copying_.front();
    if (request == nullptr) {
      reactor_.RemovePoller(copier_);
      return false;
    }
    const uint64_t bytes = std::min<uint64_t>(request->length_bytes - copied_bytes_, kRamPieceBytes);
    Copy(*request, copied_bytes_, bytes);
    copied_bytes_ += bytes;
    if (copied_bytes_ < request->length_bytes) return true;
    copied_bytes_ = 0;
    copying_.PopFront();
    request->stamps.Stamp(RequestStage::kDone, reactor_.now_ns());
    request->Complete(IoStatus::kOk);
    return true;
  }

  void Copy(const block::Request& request, uint64_t skip_bytes, uint64_t bytes) {
    uint8_t* at = disk_ + request.offset_bytes + skip_bytes;
    const bool write = request.op == Op::kWrite;
    block::ForEachPiece(request.segments, skip_bytes, bytes, [&at, write](uint8_t* guest, size_t length) {
      std::memcpy(write ? at : guest, write ? guest : at, length);
      at += length;
    });
  }

  const RamDevice& device_;
  Reactor& reactor_;
  uint8_t* disk_;
  const int memfd_;
  block::RequestList copying_;  // larger than a piece
  uint64_t copied_bytes_ = 0;   // of the first one
  Copier copier_{*this};
};

Result<std::unique_ptr<block::Channel>> RamDevice::OpenChannel(Reactor& reactor) {
  return std::unique_ptr<block::Channel>(std::make_unique<RamChannel>(*this, reactor));
}

Task<Status> RamDevice::Resize(uint64_t size_bytes) {
  using Mapped = Result<std::shared_ptr<block::MemoryRegion>>;
  const std::function<Mapped()> map = [&] { return block::MemoryRegion::Map(memfd_, 0, size_bytes); };
  auto mapped = co_await blocking_.Run(map);
  if (!mapped) {
    co_return Error(ErrorCode::kFailedPrecondition, name() + ": its memory has not grown to " +
                                                        std::to_string(size_bytes) +
                                                        " bytes: " + mapped.error().message);
  }
  mappings_.push_back(std::move(mapped).value());
  SetSize(size_bytes);
  co_return Ok{};
}

Task<Status> RamDevice::Close() {
  const std::function<Status()> unmap = [this]() -> Status {
    mappings_.clear();
    memfd_.Reset();
    return Ok{};
  };
  co_return co_await blocking_.Run(unmap);
}

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenRam(RamOptions options, BlockingPool& blocking) {
  block::Geometry geometry = options.shape.ToGeometry();
  geometry.discard = true;
  geometry.discard_granularity_bytes = kPageBytes;
  geometry.discard_max_bytes = kRamZeroBytesMax;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kRamZeroBytesMax;
  CLEAT_CO_TRY(block::CheckGeometry(geometry, options.shape.name));
  // A descriptor whose size may still shrink would be a SIGBUS for the whole engine. Where sealing is not
  // allowed, its keeper is trusted.
  fcntl(options.memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  auto memory = block::MemoryRegion::Map(options.memfd, 0, options.shape.size_bytes);
  if (!memory) {
    co_return Error(memory.error().code,
                    options.shape.name + ": its memory can't be mapped: " + memory.error().message);
  }
  co_return std::make_unique<RamDevice>(options.shape.name, geometry, std::move(options.memfd),
                                        std::move(memory).value(), blocking);
}

}  // namespace cleat::modules
