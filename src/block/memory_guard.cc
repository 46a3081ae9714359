// SPDX-License-Identifier: Apache-2.0
#include "block/memory_guard.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace cleat::block {
namespace {

// A sequence lock for one mapping: odd while it is being changed; who sees any of the new values sees that it was odd,
// too (release and acquire on each of them; ThreadSanitizer knows no fences). Who changes it never touches guest memory
// in between, so the handler, which waits for an even number, never waits for its own thread.
struct Slot {
  std::atomic<uint32_t> sequence{0};
  std::atomic<bool> broken{false};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // begin == end: free
  std::atomic<uintptr_t> page_bytes{0};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uintptr_t page_bytes = 0;
};

Slot g_slots[MemoryGuard::kMappingsMax];
std::atomic<uint32_t> g_slots_used{0};  // slots from here on were never used
std::atomic<int> g_event{-1};
struct sigaction g_previous {};

// What may block, away from the handler: which slots are free again.
Mutex g_mutex;
std::vector<uint32_t>& FreeSlots() CLEAT_REQUIRES(g_mutex) {
  static auto* const kFree = new std::vector<uint32_t>;  // outlives every mapping
  return *kFree;
}

Range Read(const Slot& slot) {
  for (;;) {
    const uint32_t before = slot.sequence.load(std::memory_order_acquire);
    const Range range{slot.begin.load(std::memory_order_acquire), slot.end.load(std::memory_order_acquire),
                      slot.page_bytes.load(std::memory_order_acquire)};
    if (before % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == before) return range;
  }
}

void Write(Slot& slot, const Range& range) CLEAT_REQUIRES(g_mutex) {
  const uint32_t sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  slot.begin.store(range.begin, std::memory_order_release);
  slot.end.store(range.end, std::memory_order_release);
  slot.page_bytes.store(range.page_bytes, std::memory_order_release);
  slot.broken.store(false, std::memory_order_relaxed);
  slot.sequence.store(sequence + 2, std::memory_order_release);
}

// ---- In the handler: system calls and atomics only.

// To the end of the mapping, not page by page: behind the end of a file everything is gone, and however often
// a peer does this, a mapping falls into two pieces and not into thousands.
bool MapZeros(const Range& range, uintptr_t address) {
  const uintptr_t from = range.begin + (address - range.begin) / range.page_bytes * range.page_bytes;
  const int64_t mapped = syscall(SYS_mmap, from, range.end - from, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return mapped == static_cast<int64_t>(from);
}

bool Mend(uintptr_t address) {
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; ++i) {
    const Range range = Read(g_slots[i]);
    if (address < range.begin || address >= range.end) continue;
    if (!MapZeros(range, address)) return false;
    g_slots[i].broken.store(true, std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(g_event.load(std::memory_order_relaxed), &one, sizeof one);
    return true;
  }
  return false;
}

void OnSigbus(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  // A missing page only: not a hardware error, nor a signal that somebody sent.
  const bool mended = info->si_code == BUS_ADRERR && Mend(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (mended) return;
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) {
    g_previous.sa_sigaction(signal_number, info, context);
  } else if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(signal_number);
  } else {
    // The access is made again when this returns, and ends the process with the core that belongs to it.
    struct sigaction fatal {};
    fatal.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &fatal, nullptr);
    if (info->si_code <= 0) raise(SIGBUS);  // sent, so there is no access to repeat
  }
}

}  // namespace

Status MemoryGuard::Install() {
  const MutexLock lock(g_mutex);
  if (event_fd() >= 0) return Ok{};
  const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) return ErrnoError(errno, "eventfd of the memory guard");
  g_event.store(event, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  if (sigaction(SIGBUS, &action, &g_previous) != 0) return ErrnoError(errno, "installing a SIGBUS handler");
  return Ok{};
}

int MemoryGuard::event_fd() {
  return g_event.load(std::memory_order_relaxed);
}

Result<MemoryGuard> MemoryGuard::Watch(void* base, uint64_t bytes, uint64_t page_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(base);
  CLEAT_CHECK(page_bytes > 0 && bytes > 0 && bytes % page_bytes == 0);
  const MutexLock lock(g_mutex);
  uint32_t slot = g_slots_used.load(std::memory_order_relaxed);
  if (!FreeSlots().empty()) {
    slot = FreeSlots().back();
    FreeSlots().pop_back();
  } else if (slot == kMappingsMax) {
    return Error(
        ErrorCode::kResourceExhausted,
        "memory region: " + std::to_string(kMappingsMax) +
            " regions of guests' memory are mapped, the most that one engine holds: use another one");
  }
  Write(g_slots[slot], {begin, begin + bytes, page_bytes});
  if (slot == g_slots_used.load(std::memory_order_relaxed)) {
    g_slots_used.store(slot + 1, std::memory_order_release);
  }
  return MemoryGuard(static_cast<int32_t>(slot));
}

MemoryGuard::MemoryGuard(MemoryGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

MemoryGuard::~MemoryGuard() {
  if (slot_ < 0) return;
  const MutexLock lock(g_mutex);
  Write(g_slots[slot_], {});
  FreeSlots().push_back(static_cast<uint32_t>(slot_));
}

bool MemoryGuard::broken() const {
  return slot_ >= 0 && g_slots[slot_].broken.load(std::memory_order_acquire);
}

}  // namespace cleat::block
