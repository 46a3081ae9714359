// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring.h"

#include <functional>
#include <optional>
#include <utility>

#include "block/pipeline.h"
#include "modules/uring/file_ownership.h"
#include "modules/uring/uring_channel.h"
#include "modules/uring/uring_file.h"

namespace cleat::modules {
namespace {

using block::AccessMode;

class UringDevice final : public block::Device {
 public:
  UringDevice(const UringOptions& options, const block::Geometry& geometry, UringFile file, UringHub& hub,
              BlockingPool& blocking, std::string why_io_uring)
      : Device(options.shape.name, geometry),
        path_(options.path),
        why_io_uring_(std::move(why_io_uring)),
        file_(std::move(file)),
        hub_(hub),
        blocking_(blocking),
        ownership_(name(), options.access, options.lock_wait_ns, {{file_, path_}}, blocking) {}

  uint32_t frames() const override { return 1; }
  std::string io_path() const override {
    const std::string how = file_.direct ? "io_uring" : "io_uring, page cache";
    return why_io_uring_.empty() ? how : how + " (" + why_io_uring_ + ")";
  }

  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override {
    UringRing* ring = hub_.Find(reactor);
    if (ring == nullptr) {
      return Error(ErrorCode::kInternal, name() + ": " + reactor.name() + " has no io_uring");
    }
    return std::unique_ptr<block::Channel>(std::make_unique<UringChannel>(file_, *ring));
  }

  Task<Status> Acquire(AccessMode mode) override { return ownership_.Acquire(mode); }
  Task<Status> Release() override { return ownership_.Release(); }
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) override { ownership_.SetTimeout(wait_ns); }
  void SetUser(const std::string& user) override { ownership_.SetUser(user); }

  Task<Status> Extend(const pool::ExtentRuns& extents) override { return ownership_.Extend(extents); }
  Task<Status> Resize(uint64_t size_bytes) override {
    const std::function<Status()> measure = [this, size_bytes] {
      return CheckRoomFor(size_bytes, file_, name(), path_);
    };
    CLEAT_CO_TRY(co_await blocking_.Run(measure));
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
  const std::string why_io_uring_;
  UringFile file_;
  UringHub& hub_;
  BlockingPool& blocking_;
  FileOwnership ownership_;
};

}  // namespace

std::unique_ptr<block::Device> MakeUring(const UringOptions& options, UringFile file,
                                         std::string why_io_uring, UringHub& hub, BlockingPool& blocking) {
  block::Geometry geometry = options.shape.ToGeometry();
  geometry.discard = file.discard;
  geometry.discard_granularity_bytes = file.discard_granularity_bytes;
  geometry.discard_max_bytes = kUringZeroBytesMax;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kUringZeroBytesMax;
  geometry.write_cache = true;
  return std::make_unique<UringDevice>(options, geometry, std::move(file), hub, blocking,
                                       std::move(why_io_uring));
}

Task<Result<std::unique_ptr<block::Device>>> OpenUring(UringOptions options, UringHub& hub,
                                                       BlockingPool& blocking) {
  const Status rings = hub.status();
  if (!rings) co_return Error(rings.error().code, options.shape.name + ": " + rings.error().message);
  CLEAT_CO_TRY(block::CheckGeometry(options.shape.ToGeometry(), options.shape.name));
  const std::function<Result<UringFile>()> open = [&options, &hub] {
    return OpenUringFile(options, hub.maps());
  };
  CLEAT_CO_ASSIGN(UringFile file, co_await blocking.Run(open));
  co_return MakeUring(options, std::move(file), {}, hub, blocking);
}

}  // namespace cleat::modules
