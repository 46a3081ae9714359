// SPDX-License-Identifier: Apache-2.0
// The memory behind `memory` disks: one memfd a disk, sealed against shrinking, so that an engine that maps it can't be
// hurt by its size changing. It may grow, which takes nothing away. cleatd and the engine both hold it (KeepMemory), so that
// it outlives either. cleatd never maps it. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::control {

class MemfdKeeper {
 public:
  // Makes zeroed memory for a disk; nothing is taken from the host until it is written.
  Status Make(const std::string& disk_id, uint64_t size_bytes);

  // Takes over memory that an engine kept. kDataLoss when it is not a memfd of at least that size, sealed: it
  // is then not what was handed out.
  Status Adopt(const std::string& disk_id, uint64_t size_bytes, UniqueFd memory);

  // Makes it larger: cleatd's and the engines' descriptors are of the same memory. FAILED_PRECONDITION when it isn't
  // here, or was made by a version that sealed it against growing.
  Status Grow(const std::string& disk_id, uint64_t size_bytes);

  bool Has(const std::string& disk_id) const;
  // A descriptor to hand to an engine; invalid when there is none.
  UniqueFd Share(const std::string& disk_id) const;
  void Drop(const std::string& disk_id);

 private:
  mutable Mutex mutex_;
  std::map<std::string, UniqueFd> memories_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
