// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/log.h"
#include "block/pipeline.h"
#include "modules/uring/lock_holder.h"
#include "modules/uring/uring_channel.h"
#include "modules/uring/uring_file.h"

namespace cleat::modules {
namespace {

using block::AccessMode;

// Besides dying predecessors, udev locks a block device for a moment whenever it has been opened for writing and closed.
constexpr uint64_t kLockRetryMinNs = kNsPerMs;
constexpr uint64_t kLockRetryMaxNs = 20 * kNsPerMs;
// After so long it is looked who has the lock, and then ever more rarely: each look walks all processes.
constexpr uint64_t kHolderLookNs = 250 * kNsPerMs;
// Others' claims on a block device (see UringFile::claim) do not outlive their process.
constexpr uint64_t kClaimWaitNs = kNsPerSecond;

class UringDevice final : public block::Device {
 public:
  UringDevice(const UringOptions& options, const block::Geometry& geometry, UringFile file, UringHub& hub,
              BlockingPool& blocking)
      : Device(options.shape.name, geometry),
        path_(options.path),
        access_(options.access),
        lock_wait_ns_(options.lock_wait_ns),
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
    LockRefusal refusal = LockRefusal::kHeld;
    const std::function<Status()> lock = [this, mode, &refusal] {
      return LockUringFile(file_, mode, name(), path_, &refusal);
    };
    const std::function<std::optional<LockHolder>()> find = [this] { return FindLockHolder(file_.fd.get()); };
    Reactor& reactor = *Reactor::Current();
    const uint64_t since_ns = reactor.now_ns();
    uint64_t look_ns = since_ns + std::min(kHolderLookNs, lock_wait_ns_);
    bool said = false;  // that it is waited for: once, at the first look, however late that is
    for (uint64_t wait_ns = kLockRetryMinNs;; wait_ns = std::min(2 * wait_ns, kLockRetryMaxNs)) {
      Status locked = co_await blocking_.Run(lock);
      if (locked) {
        if (said) spdlog::info("{}: lock free again: {}", name(), path_);
        co_return locked;
      }
      const ErrorCode code = locked.error().code;
      const uint64_t waited_ns = reactor.now_ns() - since_ns;
      if (code == ErrorCode::kFailedPrecondition && waited_ns >= kClaimWaitNs) co_return locked;
      if (code != ErrorCode::kFailedPrecondition && code != ErrorCode::kUnavailable) co_return locked;
      if (code == ErrorCode::kUnavailable && reactor.now_ns() >= look_ns) {
        std::optional<LockHolder> holder;
        if (refusal == LockRefusal::kHeld) holder = co_await blocking_.Run(find);
        if (holder) locked = HeldBy(*holder);
        // Also one that is there may be on its way out, or pass by: udev, a backup, an engine that drains.
        if (waited_ns >= lock_wait_ns_) co_return locked;
        if (!std::exchange(said, true)) spdlog::info("{}; waiting for the lock", locked.error().message);
        look_ns = std::min(reactor.now_ns() + std::max(kHolderLookNs, waited_ns), since_ns + lock_wait_ns_);
      }
      co_await reactor.SleepFor(wait_ns);
    }
  }

  void SetAcquireTimeout(uint64_t wait_ns) override { lock_wait_ns_ = wait_ns; }

  void SetUser(const std::string& user) override { file_.user_byte = UserByte(user); }

  Task<Status> Release() override {
    const std::function<Status()> unlock = [this] { return UnlockUringFile(file_, name(), path_); };
    co_return co_await blocking_.Run(unlock);
  }

  Task<Status> Resize(uint64_t size_bytes) override {
    const std::function<Result<uint64_t>()> measure = [this] { return UringFileBytes(file_, name(), path_); };
    CLEAT_CO_ASSIGN(auto bytes, co_await blocking_.Run(measure));
    if (bytes < size_bytes) {
      co_return Error(ErrorCode::kFailedPrecondition, name() + ": " + path_ + " has " +
                                                          std::to_string(bytes) +
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
  // Another engine may have been told to go and be draining still: as with a dead one, nothing is known for good.
  Error HeldBy(const LockHolder& holder) const {
    const bool us = holder.pid == getpid();
    return {holder.same_program && !us ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition,
            name() + ": " + path_ + " is locked by " +
                (us ? "another disk of this engine"
                    : "process " + std::to_string(holder.pid) + " (" + holder.command + ")") +
                ": end that use, then try again"};
  }

  const std::string path_;
  const AccessMode access_;
  uint64_t lock_wait_ns_;
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
  CLEAT_CO_TRY(block::CheckGeometry(geometry, options.shape.name));

  const std::function<Result<UringFile>()> open = [&options] { return OpenUringFile(options); };
  CLEAT_CO_ASSIGN(UringFile file, co_await blocking.Run(open));
  geometry.discard = file.discard;
  geometry.discard_granularity_bytes = file.discard_granularity_bytes;
  geometry.discard_max_bytes = kUringZeroBytesMax;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kUringZeroBytesMax;
  geometry.write_cache = true;
  co_return std::make_unique<UringDevice>(options, geometry, std::move(file), hub, blocking);
}

}  // namespace cleat::modules
