// SPDX-License-Identifier: Apache-2.0
// A FileOwnership takes and gives back the locks that say who may use a disk's file: those of one open file, or of all nodes that lead to
// one device. It does what block::Device::Acquire promises, and for a disk of a pool Device::Extend.
// On the control reactor; what blocks runs on `blocking`, which outlives this.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "modules/uring/lock_holder.h"
#include "modules/uring/placement.h"
#include "modules/uring/uring_file.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::modules {

class FileOwnership {
 public:
  struct Node {
    UringFile& file;   // outlives this
    std::string path;  // for people
  };

  // `who` names the disk. `access`: what the nodes were opened for. `nodes`: at least one; they are locked in this order.
  FileOwnership(std::string who, block::AccessMode access, uint64_t wait_ns, std::vector<Node> nodes,
                BlockingPool& blocking)
      : who_(std::move(who)),
        access_(access),
        default_wait_ns_(wait_ns),
        wait_ns_(wait_ns),
        nodes_(std::move(nodes)),
        blocking_(blocking) {}

  // Waits for a lock that others have: see OpenUring.
  Task<Status> Acquire(block::AccessMode mode);
  Task<Status> Release();
  // Gives the nodes' files these extents, and takes their locks where it has the others'. For a moment it waits for a lock that others have,
  // and for the drive's map. `runs` live until the task is over.
  Task<Status> Extend(const pool::ExtentRuns& runs);
  // nullopt: the one that it was made with.
  void SetTimeout(std::optional<uint64_t> wait_ns) { wait_ns_ = wait_ns.value_or(default_wait_ns_); }
  void SetUser(const std::string& user);

 private:
  struct Refused {
    LockRefusal refusal = LockRefusal::kHeld;
    const Node* node = nullptr;
  };
  using FindHolder = std::function<std::optional<LockHolder>()>;
  Status Lock(block::AccessMode mode, Refused& refused);
  Status LockGrowth(const Growth& growth, Refused& refused);
  void UnlockGrowth(const Growth& growth, size_t nodes);
  Status Unlock();
  // Calls `lock`, which sets `refused`, until it is granted or `wait_ns` are over. All live until the task is over.
  Task<Status> Insist(const std::function<Status()>& lock, const FindHolder& find, Refused& refused,
                      uint64_t wait_ns);
  Error HeldBy(const LockHolder& holder, const Node& node) const;

  const std::string who_;
  const block::AccessMode access_;
  const uint64_t default_wait_ns_;
  uint64_t wait_ns_;
  std::optional<block::AccessMode> held_;  // what it is locked for
  const std::vector<Node> nodes_;
  BlockingPool& blocking_;
};

}  // namespace cleat::modules
