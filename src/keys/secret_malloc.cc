// SPDX-License-Identifier: Apache-2.0
// The C library's allocation functions as a program has them that uses SecretAllocations (secret_arena.h): a thread that
// has one gets its small blocks from the memory for keys; all else is the C library's as ever, reached by the names that it
// exports for this (its manual, "Replacing malloc"). Linked into a program, never into a library.
//
// Blocks that are aligned to more than 16 bytes, and memory from functions that are not here, stay ordinary.
// malloc_usable_size must not be asked about a block of SecretAllocations; neither Ceph's libraries nor libstdc++ ask.
//
// Not under sanitizers, which replace the same functions.
#include "keys/secret_arena.h"

#if !defined(CLEAT_ASAN) && !defined(CLEAT_TSAN)

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <bit>
#include <cstddef>

namespace {

constexpr size_t kAlignment = 16;  // of what the arena gives

void* Secretly(size_t bytes) {
  return cleat::keys::ThreadAllocatesSecrets() ? cleat::keys::AllocateForLibrary(bytes) : nullptr;
}

}  // namespace

extern "C" {

void __libc_free(void* memory);                         // NOLINT(bugprone-reserved-identifier)
void* __libc_malloc(size_t bytes);                      // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t count, size_t bytes);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, size_t bytes);       // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t alignment, size_t bytes);  // NOLINT(bugprone-reserved-identifier)

void* malloc(size_t bytes) {
  void* memory = Secretly(bytes);
  return memory != nullptr ? memory : __libc_malloc(bytes);
}

void free(void* memory) {
  if (cleat::keys::IsSecretMemory(memory)) return cleat::keys::FreeSecret(memory);
  __libc_free(memory);
}

void* calloc(size_t count, size_t bytes) {
  size_t total = 0;
  void* memory = __builtin_mul_overflow(count, bytes, &total) ? nullptr : Secretly(total);
  return memory != nullptr ? memset(memory, 0, total) : __libc_calloc(count, bytes);
}

// What is secret stays so, whoever makes it larger, as long as it is no larger than a block may be.
void* realloc(void* memory, size_t bytes) {
  if (memory == nullptr) return malloc(bytes);
  if (!cleat::keys::IsSecretMemory(memory)) return __libc_realloc(memory, bytes);
  if (bytes == 0) {
    free(memory);
    return nullptr;
  }
  void* moved = cleat::keys::AllocateForLibrary(bytes);
  if (moved == nullptr) moved = __libc_malloc(bytes);
  if (moved == nullptr) return nullptr;
  memcpy(moved, memory, std::min(bytes, cleat::keys::SecretMemoryBytes(memory)));
  free(memory);
  return moved;
}

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (!std::has_single_bit(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  void* made = alignment <= kAlignment ? Secretly(bytes) : nullptr;
  if (made == nullptr) made = __libc_memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

}  // extern "C"

#endif
