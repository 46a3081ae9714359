// SPDX-License-Identifier: Apache-2.0
#include "keys/secret_arena.h"

#include <malloc.h>
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"

#if defined(CLEAT_ASAN)
#include <sanitizer/lsan_interface.h>
#endif

namespace cleat::keys {
namespace {

// Before each block. OpenSSL relies on malloc's alignment of 16.
struct alignas(16) Header {
  uint32_t size_bytes;   // as asked for
  uint32_t size_class;   // of the room
  uint64_t check_value;  // of a block in use; anything else was freed already, or overrun from below
};
static_assert(sizeof(Header) == 16);

struct FreeBlock {
  FreeBlock* next;
};

// Rooms of 2^n and 1.5 * 2^n bytes, header included.
constexpr size_t kRoomMin = 32;
constexpr size_t RoomOfClass(uint32_t size_class) {
  return (size_class % 2 == 0 ? kRoomMin : kRoomMin + kRoomMin / 2) << (size_class / 2);
}
constexpr uint32_t ClassOf(size_t room) {
  uint32_t size_class = 0;
  while (RoomOfClass(size_class) < room) ++size_class;
  return size_class;
}
constexpr uint32_t kClasses = ClassOf(kSecretBlockBytesMax + sizeof(Header)) + 1;
static_assert(RoomOfClass(kClasses - 1) <= kSecretArenaStepBytes);

// kSecret may have the reserve. kLibrary is within malloc, where nothing may be logged.
enum class For : uint8_t { kSecret, kOpenSsl, kLibrary };

class Arena {
 public:
  Status Reserve();
  bool Holds(const void* memory) const {
    const auto* at = static_cast<const uint8_t*>(memory);
    const uint8_t* base = base_.load(std::memory_order_acquire);
    return base != nullptr && at >= base && at < base + kSecretArenaBytesMax;
  }
  void* Allocate(size_t bytes, For use);
  void Free(void* memory);
  static size_t SizeOf(const void* memory) { return HeaderOf(memory)->size_bytes; }
  SecretArenaStats stats() const {
    const MutexLock lock(mutex_);
    return stats_;
  }

 private:
  static Header* HeaderOf(const void* memory) {
    return std::bit_cast<Header*>(std::bit_cast<uintptr_t>(memory) - sizeof(Header));
  }
  static uint64_t CheckValue(const Header* header) {
    return std::bit_cast<uintptr_t>(header) ^ 0x5ec7e7a11b10c4edULL;
  }
  Status ReserveLocked() CLEAT_REQUIRES(mutex_);
  Header* TakeRoom(uint32_t size_class, For use) CLEAT_REQUIRES(mutex_);
  bool Grow(For use) CLEAT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::atomic<uint8_t*> base_{nullptr};
  size_t carved_bytes_ CLEAT_GUARDED_BY(mutex_) = 0;  // handed out at some time: from the beginning on
  std::array<FreeBlock*, kClasses> free_ CLEAT_GUARDED_BY(mutex_){};
  SecretArenaStats stats_ CLEAT_GUARDED_BY(mutex_);
  bool lock_failed_ CLEAT_GUARDED_BY(mutex_) = false;
  bool warned_ CLEAT_GUARDED_BY(mutex_) = false;
};

// Neither made nor destroyed at a time that could be too late or too early for somebody.
constinit Arena arena;
constinit std::atomic<bool> switched_off{false};
// Blocks that this thread's SecretAllocations got no room for.
constinit thread_local uint32_t secret_blocks_missed = 0;

Status Arena::Reserve() {
  const MutexLock lock(mutex_);
  return ReserveLocked();
}

Status Arena::ReserveLocked() {
  if (base_.load(std::memory_order_relaxed) != nullptr) return Ok{};
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* mapped = mmap(nullptr, kSecretArenaBytesMax + 2 * page, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return ErrnoError(errno, "no " + std::to_string(kSecretArenaBytesMax >> 20) +
                                 " MiB of address space for keys (see RLIMIT_AS)");
  }
  auto* base = static_cast<uint8_t*>(mapped) + page;
  if (madvise(base, kSecretArenaBytesMax, MADV_DONTDUMP) != 0 ||
      madvise(base, kSecretArenaBytesMax, MADV_DONTFORK) != 0) {
    const int error_number = errno;
    munmap(mapped, kSecretArenaBytesMax + 2 * page);
    return ErrnoError(error_number, "memory for keys can't be kept out of core dumps and of child processes");
  }
#if defined(CLEAT_ASAN)
  __lsan_register_root_region(base,
                              kSecretArenaBytesMax);  // OpenSSL's large blocks are only known from in here
#endif
  base_.store(base, std::memory_order_release);
  return Ok{};
}

bool Arena::Grow(For use) {
  const size_t limit_bytes =
      use == For::kSecret ? kSecretArenaBytesMax : kSecretArenaBytesMax - kSecretArenaReserveBytes;
  if (stats_.committed_bytes + kSecretArenaStepBytes > limit_bytes) return false;
  uint8_t* at = base_.load(std::memory_order_relaxed) + stats_.committed_bytes;
  if (mprotect(at, kSecretArenaStepBytes, PROT_READ | PROT_WRITE) != 0) return false;
  stats_.committed_bytes += kSecretArenaStepBytes;
  if (mlock(at, kSecretArenaStepBytes) == 0) {
    stats_.locked_bytes += kSecretArenaStepBytes;
  } else {
    lock_failed_ = true;
  }
  return true;
}

// A freed room of that class, or a new one. What is left of a step's end is left: a room never spans two, which might be
// locked and not.
Header* Arena::TakeRoom(uint32_t size_class, For use) {
  if (FreeBlock* block = free_[size_class]) {
    free_[size_class] = block->next;
    block->next = nullptr;
    return HeaderOf(block);
  }
  const size_t room = RoomOfClass(size_class);
  const size_t step_left = kSecretArenaStepBytes - carved_bytes_ % kSecretArenaStepBytes;
  if (room > step_left) carved_bytes_ += step_left;
  if (carved_bytes_ + room > stats_.committed_bytes && !Grow(use)) return nullptr;
  auto* header = std::bit_cast<Header*>(base_.load(std::memory_order_relaxed) + carved_bytes_);
  carved_bytes_ += room;
  return header;
}

void* Arena::Allocate(size_t bytes, For use) {
  CLEAT_CHECK(bytes <= kSecretBlockBytesMax);
  bool warn = false;
  Header* header = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!ReserveLocked()) return nullptr;
    const uint32_t size_class = ClassOf(bytes + sizeof(Header));
    header = TakeRoom(size_class, use);
    if (header != nullptr) {
      *header = {static_cast<uint32_t>(bytes), size_class, CheckValue(header)};
      stats_.used_bytes += bytes;
    }
    warn = lock_failed_ && !warned_ && use != For::kLibrary;
    warned_ |= warn;
  }
  if (warn) {
    spdlog::warn(
        "keys: memory not locked: the host may swap it out; raise RLIMIT_MEMLOCK (LimitMEMLOCK= of the "
        "service) to {} MiB",
        kSecretArenaBytesMax >> 20);
  }
  return header == nullptr ? nullptr : header + 1;
}

void Arena::Free(void* memory) {
  Header* header = HeaderOf(memory);
  const MutexLock lock(mutex_);
  // Freed twice, or its end or that of the block before was overrun.
  CLEAT_CHECK(header->check_value == CheckValue(header));
  CLEAT_CHECK(header->size_class < kClasses);
  stats_.used_bytes -= header->size_bytes;
  explicit_bzero(memory, RoomOfClass(header->size_class) - sizeof(Header));
  header->check_value = 0;
  auto* block = static_cast<FreeBlock*>(memory);
  block->next = free_[header->size_class];
  free_[header->size_class] = block;
}

// ---- What OpenSSL calls

void* OpenSslMalloc(size_t bytes, const char* /*file*/, int /*line*/) {
  if (bytes == 0) return nullptr;
  if (bytes > kSecretBlockBytesMax) return std::malloc(bytes);
  return arena.Allocate(bytes, For::kOpenSsl);
}

void OpenSslFree(void* memory, const char* /*file*/, int /*line*/) {
  if (memory == nullptr) return;
  if (arena.Holds(memory)) return arena.Free(memory);
  explicit_bzero(memory, malloc_usable_size(memory));
  std::free(memory);
}

void* OpenSslRealloc(void* memory, size_t bytes, const char* file, int line) {
  if (memory == nullptr) return OpenSslMalloc(bytes, file, line);
  if (bytes == 0) {
    OpenSslFree(memory, file, line);
    return nullptr;
  }
  void* larger = OpenSslMalloc(bytes, file, line);
  if (larger == nullptr) return nullptr;
  const size_t had = arena.Holds(memory) ? Arena::SizeOf(memory) : malloc_usable_size(memory);
  std::memcpy(larger, memory, std::min(had, bytes));
  OpenSslFree(memory, file, line);
  return larger;
}

// What may be locked by default is little; a process that may have more takes it.
void RaiseLockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_MEMLOCK, &limit);  // growing says what is missing
}

}  // namespace

Status InstallSecretArena(SecretArenaMode mode) {
  if (mode == SecretArenaMode::kOff) {
    switched_off.store(true, std::memory_order_relaxed);
    return Ok{};
  }
  RaiseLockLimit();
  CLEAT_TRY(arena.Reserve());
  if (CRYPTO_set_mem_functions(&OpenSslMalloc, &OpenSslRealloc, &OpenSslFree) != 1) {
    return Error(ErrorCode::kFailedPrecondition,
                 "OpenSSL has allocated memory already and can't be given that for keys any more: "
                 "InstallSecretArena has to come first");
  }
  return Ok{};
}

SecretArenaStats GetSecretArenaStats() {
  return arena.stats();
}

void* AllocateSecret(size_t bytes) {
  void* memory =
      switched_off.load(std::memory_order_relaxed) ? std::malloc(bytes) : arena.Allocate(bytes, For::kSecret);
  CLEAT_CHECK(memory != nullptr);  // see kSecretArenaReserveBytes
  std::memset(memory, 0, bytes);
  return memory;
}

void FreeSecret(void* memory) {
  OpenSslFree(memory, nullptr, 0);
}

SecretAllocations::SecretAllocations() {
  ++internal::secret_allocations;
}

SecretAllocations::~SecretAllocations() {
  if (--internal::secret_allocations != 0 || secret_blocks_missed == 0) return;
  spdlog::error(
      "keys: {} blocks in ordinary memory, where a core dump would show them: the {} MiB for keys are used "
      "up; serve fewer encrypted disks with one engine",
      std::exchange(secret_blocks_missed, 0), kSecretArenaBytesMax >> 20);
}

void* AllocateForLibrary(size_t bytes) {
  if (bytes > kSecretBlockBytesMax || switched_off.load(std::memory_order_relaxed)) return nullptr;
  void* memory = arena.Allocate(bytes, For::kLibrary);
  if (memory == nullptr) ++secret_blocks_missed;
  return memory;
}

bool IsSecretMemory(const void* memory) {
  return arena.Holds(memory);
}

size_t SecretMemoryBytes(const void* memory) {
  return Arena::SizeOf(memory);
}

}  // namespace cleat::keys
