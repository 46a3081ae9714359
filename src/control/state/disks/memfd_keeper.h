// SPDX-License-Identifier: Apache-2.0
// Memory that is kept under disks' names: the content of `memory` disks, and the logs of doubt of namespaces (docs/nvmeof.md, rule 7). One
// memfd a disk, sealed against shrinking, so that an engine that maps it can't be hurt by its size changing. Content may grow, which takes
// nothing away. cleatd and the engine both hold it (KeepMemory), so that it outlives either. cleatd maps logs alone (state/doubt). Any thread.
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

  // Makes a log of doubt for a disk whose log may be gone: its mark tells the engine to take the whole disk for being in doubt.
  Status MakeLostLog(const std::string& disk_id);

  // Takes over memory that an engine kept. kDataLoss when it is not a memfd of at least that size, sealed: it
  // is then not what was handed out.
  Status Adopt(const std::string& disk_id, uint64_t size_bytes, UniqueFd memory);

  // Makes it larger: cleatd's and the engines' descriptors are of the same memory. FAILED_PRECONDITION when it isn't
  // here, or was made by a version that sealed it against growing.
  Status Grow(const std::string& disk_id, uint64_t size_bytes);

  bool Has(const std::string& disk_id) const;
  // Whether what is here was made by MakeLostLog, and no engine has it: an engine's is better.
  bool IsLostLog(const std::string& disk_id) const;
  // An engine has what is here, and writes it.
  void SetUsed(const std::string& disk_id);
  // SetUsed or Adopt: no other engine's is better any more.
  bool IsUsed(const std::string& disk_id) const;
  // A descriptor to hand to an engine; invalid when there is none.
  UniqueFd Share(const std::string& disk_id) const;
  void Drop(const std::string& disk_id);

 private:
  enum class Origin : uint8_t { kNew, kLostLog, kUsed };
  void Put(const std::string& disk_id, UniqueFd memory, Origin origin);
  bool Is(const std::string& disk_id, Origin origin) const;

  mutable Mutex mutex_;
  struct Memory {
    UniqueFd file;
    Origin origin = Origin::kNew;
  };
  std::map<std::string, Memory> memories_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
