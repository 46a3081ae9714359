// SPDX-License-Identifier: Apache-2.0
#include "base/group_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace cleat {

Result<UniqueFd> MakeGroupMemory() {
  UniqueFd memory(memfd_create("cleat:groups", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return ErrnoError(errno, "memory for groups can't be had");
  if (ftruncate(memory.get(), kGroupMemoryBytes) != 0)
    return ErrnoError(errno, "memory for groups can't be had");
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoError(errno, "memory for groups can't be sealed");
  }
  return memory;
}

}  // namespace cleat
