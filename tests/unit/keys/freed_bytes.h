// SPDX-License-Identifier: Apache-2.0
// Memory as a core dump would show it, also what was freed: past the compiler, which knows that nobody may look.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace cleat::test {

// Fills it, and keeps the compiler from taking that for useless.
inline void FillWith(void* memory, char byte, size_t bytes) {
  auto* at = static_cast<volatile char*>(memory);
  for (size_t i = 0; i < bytes; ++i) at[i] = byte;
  asm volatile("" : : "r"(memory) : "memory");
}

// How many of the bytes at that address, of this process, are `byte`.
inline size_t CountBytes(uintptr_t address, size_t bytes, char byte) {
  const UniqueFd memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  size_t found = 0;
  for (size_t i = 0; i < bytes; ++i) {
    char seen = 0;
    if (pread(memory.get(), &seen, 1, static_cast<off_t>(address + i)) == 1 && seen == byte) ++found;
  }
  return found;
}

}  // namespace cleat::test
