// SPDX-License-Identifier: Apache-2.0
// The memory that keys live in: ours (Secret) and OpenSSL's own copies of them, which it otherwise keeps in the ordinary
// heap (a cipher's context holds the key as its schedule's first rounds).
//
//   - left out of core dumps (MADV_DONTDUMP) and not inherited by fork (MADV_DONTFORK: a child that touches a key dies at
//     once, rather than to go on with zeros as a key)
//   - locked, so that it is never swapped, as far as RLIMIT_MEMLOCK allows; a warning is logged when it does not
//   - guard pages around it; every block is wiped when it is freed, and checked for having been overrun
//
// One for the process, never torn down: OpenSSL frees its last blocks when the process ends. It grows in steps, up to
// kSecretArenaBytesMax. Any thread; a mutex, so nothing of the I/O path may allocate here.
//
// What OpenSSL asks for in blocks larger than kSecretBlockBytesMax comes from the heap, and is wiped too: those are
// buffers of TLS records. All that holds keys - contexts, schedules, big numbers, sessions - is smaller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace cleat::keys {

// Of address space. A disk's cipher takes about 4 KiB on each reactor.
inline constexpr size_t kSecretArenaBytesMax = size_t{256} << 20;
// OpenSSL gets no more when only so much is left, so that a flood of TLS connections takes no room from keys.
inline constexpr size_t kSecretArenaReserveBytes = size_t{4} << 20;
inline constexpr size_t kSecretArenaStepBytes = size_t{256} << 10;
inline constexpr size_t kSecretBlockBytesMax = size_t{16} << 10;

// kOff puts keys on the ordinary heap: for the test that has to find them there, and for nothing else.
enum class SecretArenaMode : uint8_t { kOn, kOff };

// Has OpenSSL allocate here (CRYPTO_set_mem_functions). First thing in main, before any other use of OpenSSL and any
// Secret. An error says what to do: kFailedPrecondition when OpenSSL has been used already, kResourceExhausted when
// there is no address space.
Status InstallSecretArena(SecretArenaMode mode = SecretArenaMode::kOn);

struct SecretArenaStats {
  size_t used_bytes = 0;       // in blocks that are not freed
  size_t committed_bytes = 0;  // what the arena has grown to
  size_t locked_bytes = 0;     // of these
};
SecretArenaStats GetSecretArenaStats();

// For Secret. Wiped memory of at most kSecretBlockBytesMax; a process that has no room left for keys stops.
void* AllocateSecret(size_t bytes);
void FreeSecret(void* memory);

// While one lives, what its thread allocates in blocks of up to kSecretBlockBytesMax lies here, whoever allocates it: for
// a library that is given a key and keeps copies in memory of its own. Such a block is freed as any other, by any thread, at
// any time. They nest.
//
// Only in a program that has keys/secret_malloc.cc linked in. Without it, with the arena switched off, or once only the
// reserve is left (which is logged), the memory is the ordinary heap's.
class SecretAllocations {
 public:
  SecretAllocations();
  ~SecretAllocations();
  SecretAllocations(const SecretAllocations&) = delete;
  SecretAllocations& operator=(const SecretAllocations&) = delete;
};

// For keys/secret_malloc.cc. nullptr: not here. Never logs, allocates nothing else.
void* AllocateForLibrary(size_t bytes);
bool IsSecretMemory(const void* memory);
size_t SecretMemoryBytes(const void* memory);  // as asked for; IsSecretMemory

namespace internal {
inline constinit thread_local uint32_t secret_allocations = 0;
}  // namespace internal
inline bool ThreadAllocatesSecrets() {
  return internal::secret_allocations != 0;
}

}  // namespace cleat::keys
