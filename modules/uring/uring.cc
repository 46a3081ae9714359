// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring.h"

#include <functional>

#include "block/pipeline.h"
#include "modules/uring/uring_channel.h"
#include "modules/uring/uring_file.h"

namespace cleat::modules {
namespace {

using block::AccessMode;

// udev locks a block device for a moment whenever it has been opened for writing and closed.
constexpr uint32_t kLockTries = 20;
constexpr uint64_t kLockRetryNs = 50 * kNsPerMs;

class UringDevice final : public block::Device {
 public:
  UringDevice(const UringOptions& options, const block::Geometry& geometry, UringFile file, UringHub& hub,
              BlockingPool& blocking)
      : Device(options.shape.name, geometry),
        path_(options.path),
        access_(options.access),
        file_(std::move(file)),
        hub_(hub),
        blocking_(blocking) {}

  uint32_t frames() const override { return 1; }

  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override {
    UringRing* ring = hub_.Find(reactor);
    if (ring == nullptr) {
      return Error(ErrorCode::kInternal, name() + ": " + reactor.name() + " has no io_uring");
    }
    return std::unique_ptr<block::Channel>(std::make_unique<UringChannel>(file_, *ring));
  }

  Task<Status> Acquire(AccessMode mode) override {
    if (mode == AccessMode::kReadWrite && access_ == AccessMode::kReadOnly) {
      co_return Error(ErrorCode::kInvalidArgument, name() + ": " + path_ + " was opened read-only");
    }
    const std::function<Status()> lock = [this, mode] { return LockUringFile(file_, mode, name(), path_); };
    for (uint32_t tries = 1;; ++tries) {
      Status locked = co_await blocking_.Run(lock);
      const bool again =
          file_.block_device && !locked && locked.error().code == ErrorCode::kFailedPrecondition;
      if (!again || tries == kLockTries) co_return locked;
      co_await Reactor::Current()->SleepFor(kLockRetryNs);
    }
  }

  Task<Status> Release() override {
    const std::function<Status()> unlock = [this] { return UnlockUringFile(file_, name(), path_); };
    co_return co_await blocking_.Run(unlock);
  }

  Task<Status> Resize(uint64_t size_bytes) override {
    const std::function<Result<uint64_t>()> measure = [this] { return UringFileBytes(file_, name(), path_); };
    auto bytes = co_await blocking_.Run(measure);
    if (!bytes) co_return std::move(bytes).error();
    if (*bytes < size_bytes) {
      co_return Error(ErrorCode::kFailedPrecondition, name() + ": " + path_ + " has " +
                                                          std::to_string(*bytes) +
                                                          " bytes, the disk is to have " +
                                                          std::to_string(size_bytes) + ": let it grow first");
    }
    SetSize(size_bytes);
    co_return Ok{};
  }

  Task<Status> Close() override {
    const std::function<Status()> close = [this]() -> Status {
      file_.fd.Reset();
      return Ok{};
    };
    co_return co_await blocking_.Run(close);
  }

 private:
  const std::string path_;
  const AccessMode access_;
  UringFile file_;
  UringHub& hub_;
  BlockingPool& blocking_;
};

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenUring(UringOptions options, UringHub& hub,
                                                       BlockingPool& blocking) {
  const Status rings = hub.status();
  if (!rings) co_return Error(rings.error().code, options.shape.name + ": " + rings.error().message);
  block::Geometry geometry = options.shape.ToGeometry();
  const Status checked = block::CheckGeometry(geometry, options.shape.name);
  if (!checked) co_return checked.error();

  const std::function<Result<UringFile>()> open = [&options] { return OpenUringFile(options); };
  auto opened = co_await blocking.Run(open);
  if (!opened) co_return std::move(opened).error();
  UringFile file = std::move(opened).value();
  geometry.discard = file.discard;
  geometry.discard_granularity_bytes = file.discard_granularity_bytes;
  geometry.discard_max_bytes = kUringZeroBytesMax;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kUringZeroBytesMax;
  geometry.write_cache = true;
  co_return std::make_unique<UringDevice>(options, geometry, std::move(file), hub, blocking);
}

}  // namespace cleat::modules
