// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/file_ownership.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

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
// Growth waits for a lock no longer than this: other work on the disk waits meanwhile, and cleatd asks again for a growth that failed.
constexpr uint64_t kExtendWaitNs = kNsPerSecond;

}  // namespace

// Locks all nodes, or none.
Status FileOwnership::Lock(AccessMode mode, Refused& refused) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Status locked = LockUringFile(nodes_[i].file, mode, who_, nodes_[i].path, &refused.refusal);
    if (locked) continue;
    refused.node = &nodes_[i];
    while (i-- > 0) (void)UnlockUringFile(nodes_[i].file, who_, nodes_[i].path);
    return locked;
  }
  return Ok{};
}

Status FileOwnership::Unlock() {
  Status all = Ok{};
  for (const Node& node : nodes_) {
    Status unlocked = UnlockUringFile(node.file, who_, node.path);
    if (!unlocked) all = std::move(unlocked);
  }
  return all;
}

Task<Status> FileOwnership::Acquire(AccessMode mode) {
  if (mode == AccessMode::kReadWrite && access_ == AccessMode::kReadOnly) {
    co_return Error(ErrorCode::kInvalidArgument, who_ + ": " + nodes_.front().path + " was opened read-only");
  }
  Refused refused;
  const std::function<Status()> lock = [this, mode, &refused] { return Lock(mode, refused); };
  const FindHolder find = [&refused, mode] {
    const UringFile& file = refused.node->file;
    if (file.extents.is_whole_drive()) return FindLockHolder(file.fd.get());
    return FindLockHolder(file.fd.get(), WantedRanges{file.extents.Ranges(), mode == AccessMode::kReadWrite});
  };
  Status locked = co_await Insist(lock, find, refused, wait_ns_);
  if (locked) held_ = mode;
  co_return locked;
}

Task<Status> FileOwnership::Insist(const std::function<Status()>& lock, const FindHolder& find,
                                   Refused& refused, uint64_t wait_ns) {
  Reactor& reactor = *Reactor::Current();
  const uint64_t since_ns = reactor.now_ns();
  uint64_t look_ns = since_ns + std::min(kHolderLookNs, wait_ns);
  bool said = false;  // that it is waited for: once, at the first look, however late that is
  for (uint64_t pause_ns = kLockRetryMinNs;; pause_ns = std::min(2 * pause_ns, kLockRetryMaxNs)) {
    Status locked = co_await blocking_.Run(lock);
    if (locked) {
      if (said) spdlog::info("{}: lock free again: {}", who_, nodes_.front().path);
      co_return locked;
    }
    const ErrorCode code = locked.error().code;
    const uint64_t waited_ns = reactor.now_ns() - since_ns;
    if (code == ErrorCode::kFailedPrecondition && waited_ns >= kClaimWaitNs) co_return locked;
    if (code != ErrorCode::kFailedPrecondition && code != ErrorCode::kUnavailable) co_return locked;
    if (code == ErrorCode::kUnavailable && reactor.now_ns() >= look_ns) {
      std::optional<LockHolder> holder;
      if (refused.refusal == LockRefusal::kHeld) holder = co_await blocking_.Run(find);
      if (holder) locked = HeldBy(*holder, *refused.node);
      // A holder that was found may be on its way out, or pass by, as well: udev, a backup, an engine that drains.
      if (waited_ns >= wait_ns) co_return locked;
      if (!std::exchange(said, true)) spdlog::info("{}; waiting for the lock", locked.error().message);
      look_ns = std::min(reactor.now_ns() + std::max(kHolderLookNs, waited_ns), since_ns + wait_ns);
    }
    co_await reactor.SleepFor(pause_ns);
  }
}

// ---- A disk of a pool that grows

// The locks of what it is to have beside, on all nodes or on none; then the drive says whether it has them as the disk's.
Status FileOwnership::LockGrowth(const Growth& growth, Refused& refused) {
  for (size_t i = 0; held_ && i < nodes_.size(); ++i) {
    Status locked = LockMore(nodes_[i].file, *held_, growth.more, who_, nodes_[i].path);
    if (locked) continue;
    refused = {LockRefusal::kHeld, &nodes_[i]};
    UnlockGrowth(growth, i);
    return locked;
  }
  Status placed = CheckGrowth(growth, nodes_.front().file, who_ + ": " + nodes_.front().path);
  if (placed) return Ok{};
  refused.refusal = LockRefusal::kNotThere;
  UnlockGrowth(growth, nodes_.size());
  return placed;
}

// Gives up the growth's locks on the first `nodes` nodes.
void FileOwnership::UnlockGrowth(const Growth& growth, size_t nodes) {
  for (size_t i = 0; held_ && i < nodes; ++i) UnlockMore(nodes_[i].file, growth.more);
}

Task<Status> FileOwnership::Extend(const pool::ExtentRuns& runs) {
  UringFile& file = nodes_.front().file;
  const std::string what = who_ + ": " + nodes_.front().path;
  if (!file.placement) {
    co_return Error(ErrorCode::kInvalidArgument, what + ": it is no disk of a pool, and has no extents");
  }
  CLEAT_CO_ASSIGN(const Growth growth, GrowthOf(*file.placement, runs, what));
  if (growth.more.empty()) co_return Ok{};
  Refused refused;
  const std::function<Status()> lock = [&] { return LockGrowth(growth, refused); };
  const FindHolder find = [&] {
    return FindLockHolder(refused.node->file.fd.get(),
                          WantedRanges{growth.more, held_ == AccessMode::kReadWrite});
  };
  CLEAT_CO_TRY(co_await Insist(lock, find, refused, std::min(wait_ns_, kExtendWaitNs)));
  file.placement = growth.placement;
  for (const Node& node : nodes_) node.file.extents = growth.extents;
  co_return Ok{};
}

Task<Status> FileOwnership::Release() {
  const std::function<Status()> unlock = [this] { return Unlock(); };
  Status unlocked = co_await blocking_.Run(unlock);
  held_.reset();
  co_return unlocked;
}

void FileOwnership::SetUser(const std::string& user) {
  for (const Node& node : nodes_) node.file.user_byte = UserByte(user, node.file);
}

// Another engine may have been told to go and be draining still: as with a dead one, nothing is known for good.
Error FileOwnership::HeldBy(const LockHolder& holder, const Node& node) const {
  const bool us = holder.pid == getpid();
  return {holder.same_program && !us ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition,
          who_ + ": " + node.path + " is locked by " +
              (us ? "another disk of this engine"
                  : "process " + std::to_string(holder.pid) + " (" + holder.command + ")") +
              ": end that use, then try again"};
}

}  // namespace cleat::modules
