// SPDX-License-Identifier: Apache-2.0
#include "control/wiping_free.h"

#include <malloc.h>
#include <string.h>

#include <cstdlib>

namespace {
bool wipes = true;
}  // namespace

namespace cleat::control {
void StopWipingFreedMemory() {
  wipes = false;
}
}  // namespace cleat::control

#if !defined(CLEAT_ASAN) && !defined(CLEAT_TSAN)

extern "C" {

void __libc_free(void* memory);          // NOLINT(bugprone-reserved-identifier)
void* __libc_malloc(size_t size_bytes);  // NOLINT(bugprone-reserved-identifier)

void free(void* memory) {
  if (memory == nullptr) return;
  if (wipes) explicit_bzero(memory, malloc_usable_size(memory));
  __libc_free(memory);
}

// The library's own would leave a copy behind when it moves.
void* realloc(void* memory, size_t size_bytes) {
  if (memory == nullptr) return __libc_malloc(size_bytes);
  if (size_bytes == 0) {
    free(memory);
    return nullptr;
  }
  const size_t had_bytes = malloc_usable_size(memory);
  // In place when it fits and is not less than half of what is there.
  if (size_bytes <= had_bytes && size_bytes > had_bytes / 2) return memory;
  void* moved = __libc_malloc(size_bytes);
  if (moved == nullptr) return nullptr;
  memcpy(moved, memory, had_bytes < size_bytes ? had_bytes : size_bytes);
  free(memory);
  return moved;
}

}  // extern "C"

#endif
