// SPDX-License-Identifier: Apache-2.0
// A FileOwnership takes and gives back the locks that say who may use a disk's file: those of one open file, or of all nodes that lead to
// one device. It does what block::Device::Acquire promises.
// On the control reactor; what blocks runs on `blocking`, which outlives this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "modules/uring/lock_holder.h"
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
        wait_ns_(wait_ns),
        nodes_(std::move(nodes)),
        blocking_(blocking) {}

  // Waits for a lock that others have: see OpenUring.
  Task<Status> Acquire(block::AccessMode mode);
  Task<Status> Release();
  void SetTimeout(uint64_t wait_ns) { wait_ns_ = wait_ns; }
  void SetUser(const std::string& user);

 private:
  struct Refused {
    LockRefusal refusal = LockRefusal::kHeld;
    const Node* node = nullptr;
  };
  Status Lock(block::AccessMode mode, Refused& refused);
  Status Unlock();
  Error HeldBy(const LockHolder& holder, const Node& node) const;

  const std::string who_;
  const block::AccessMode access_;
  uint64_t wait_ns_;
  const std::vector<Node> nodes_;
  BlockingPool& blocking_;
};

}  // namespace cleat::modules
