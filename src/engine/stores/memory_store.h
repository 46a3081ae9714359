// SPDX-License-Identifier: Apache-2.0
// The memfds that are kept under disks' names: memory disks' content, and the logs of doubt of disks over NVMe-oF. cleatd makes them and the
// engine holds them too, attached or not, so that they outlive a restart of either process. Control reactor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/protocol/spec.h"

namespace cleat::engine {

class MemoryStore {
 public:
  // The same disk again is OK and keeps the memory that is here already, unless the size differs.
  Status Keep(const MemoryReport& memory, UniqueFd fd);
  // The disk's memory was made larger where it was created. OK when it is not here, or does not grow with the disk.
  Status Grow(const std::string& disk, uint64_t size_bytes);
  void Drop(const std::string& disk);  // OK when it is not here
  // A descriptor of its own for the caller.
  Result<UniqueFd> Duplicate(const std::string& disk) const;
  std::vector<MemoryReport> Report() const;

 private:
  struct Kept {
    uint64_t size_bytes;
    bool fixed;  // MemoryReport
    UniqueFd fd;
  };
  std::map<std::string, Kept> kept_;
};

}  // namespace cleat::engine
