// SPDX-License-Identifier: Apache-2.0
// Registers guests' memory with the rings for commands, so that the kernel need not look up its pages for each command: memory of which
// somebody vouches that its pages stay the same (block/memory_registration.h), when a command first needs it.
//
// A region is registered in chunks, on a thread of the registrar's own. Each ring has it at the same places; only when all have it commands
// name them. While a chunk's pages are looked up the ring is locked, and its reactor's next system call waits: that is what makes a chunk
// small. The pages are there by then: they were all touched before, without that lock.
//
// When a region ends its places are emptied in each ring, and given to others only then. Between its end and that, its addresses may be
// another mapping's already: nobody names its places any more, since only requests that keep a region do, and the kernel has the pages, not
// the addresses. The kernel lets go of the pages when the commands that were begun before have ended.
//
// What can't be registered is used as it is; a line of the log says why. Owned by the UringHub.
#pragma once

#include <sched.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "block/memory.h"

namespace cleat::modules {

// What the registrar needs of a ring. On its thread; may wait for the reactor's present system call.
class BufferTable {
 public:
  // Makes `places` places, all empty. Once.
  virtual Status MakeBufferPlaces(uint32_t places) = 0;
  // Looks up the memory's pages, and keeps them; {nullptr, 0}: lets go of what was there. kResourceExhausted: the kernel locks no more
  // memory for this user.
  virtual Status SetBuffer(uint32_t place, const iovec& memory) = 0;

 protected:
  ~BufferTable() = default;
};

class MemoryRegistrar {
 public:
  // 4,096 pages of 4 KiB, which the kernel looks up in a fraction of a millisecond.
  static constexpr uint64_t kChunkBytes = uint64_t{16} << 20;
  // A region one of whose chunks takes the kernel longer is not registered: huge pages among others, of which it compares each with all that
  // it has already, or pages that have to be moved first. In nanoseconds of the thread's processor time.
  static constexpr uint64_t kChunkNsMax = 100 * kNsPerMs;
  // As many as a ring may have (IORING_MAX_REG_BUFFERS): 256 GiB of all guests together.
  static constexpr uint32_t kPlaces = 16384;

  struct Options {
    uint32_t places = kPlaces;
    // Why none is registered on this kernel; nullopt: it is.
    std::function<std::optional<Error>()> check_kernel = CheckKernel;
    uint64_t chunk_ns_max = kChunkNsMax;
  };
  static std::optional<Error> CheckKernel();
  // Whether a kernel of that release, as uname says it, takes registered memory as it is to be, and is faster with it. Counted from Linux 6.12
  // on; on 6.1 registered memory was seen to make block I/O slower. From 6.12 to 6.15 a piece of a huge page that is mapped at an address
  // which the page's size does not divide was taken for another piece of it, until "io_uring/rsrc: don't rely on user vaddr alignment", which
  // 6.12.36, 6.15.5 and 6.16 have.
  static bool IsGoodRelease(const std::string& release);

  MemoryRegistrar() : MemoryRegistrar(Options()) {}
  explicit MemoryRegistrar(Options options);
  // Ends the thread, which uses the rings until then.
  ~MemoryRegistrar();
  MemoryRegistrar(const MemoryRegistrar&) = delete;
  MemoryRegistrar& operator=(const MemoryRegistrar&) = delete;

  // All rings, before the first command: one that came later would lack what the others have.
  void AddRing(BufferTable& ring);

  // The place of [offset, offset + bytes) of the region in each ring; nullopt: it has none, or no single one. Any reactor, for a request
  // that keeps the region. Asks for the region if nobody has.
  std::optional<uint16_t> Find(const block::MemoryRegion& region, uint64_t offset_bytes, uint64_t bytes) {
    block::MemoryRegistration* const registration = region.registration();
    if (registration == nullptr) [[likely]]
      return std::nullopt;
    const uint32_t state = registration->state(block::MemoryRegistration::kRings);
    if (state < block::MemoryRegistration::kFirst) [[unlikely]] {
      if (state == block::MemoryRegistration::kUnasked) Ask(region);
      return std::nullopt;
    }
    const uint64_t chunk = offset_bytes / kChunkBytes;
    if (bytes == 0 || (offset_bytes + bytes - 1) / kChunkBytes != chunk) return std::nullopt;
    return static_cast<uint16_t>(state - block::MemoryRegistration::kFirst + chunk);
  }

  // The bytes of all regions that are registered now. Any thread.
  uint64_t registered_bytes() const { return registered_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Places {
    uint32_t first = 0;
    uint32_t count = 0;
    uint64_t bytes = 0;  // of the region
  };
  // Outlives the registrar where regions do.
  struct Inbox {
    void PostEnded(const Places& places) CLEAT_EXCLUDES(mutex);
    void PostAsked(std::weak_ptr<const block::MemoryRegion> region) CLEAT_EXCLUDES(mutex);
    Mutex mutex;
    CondVar changed;
    std::deque<Places> ended CLEAT_GUARDED_BY(mutex);  // places of regions that are no more: these first
    std::deque<std::weak_ptr<const block::MemoryRegion>> asked CLEAT_GUARDED_BY(mutex);  // to be registered
    std::atomic<bool> closed{false};  // written under the mutex
  };

  void Ask(const block::MemoryRegion& region);
  Status StartThread() CLEAT_EXCLUDES(start_);
  void ThreadMain();
  void Register(const block::MemoryRegion& region);
  Result<Places> Enter(const block::MemoryRegion& region);
  Status CheckMemlock(uint64_t bytes) const;
  Status MakePlaces();
  Status MayGoOn(const block::MemoryRegion& region) const;
  Status EnterChunk(uint32_t place, const iovec& chunk);
  void Empty(const Places& places);
  std::optional<uint32_t> TakePlaces(uint32_t count);

  const Options options_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  cpu_set_t cpus_{};  // where its maker may run: the first to ask is a reactor, with a core of its own
  std::atomic<uint64_t> registered_bytes_{0};

  Mutex start_;
  std::thread thread_ CLEAT_GUARDED_BY(start_);

  // ---- The thread's own, once it runs
  std::vector<BufferTable*> rings_;
  size_t rings_with_places_ = 0;
  std::vector<bool> taken_;       // by place; none while the rings have no places
  std::vector<Places> to_empty_;  // that a ring could not empty yet
  std::string refused_;           // whose memory was refused last: one line for all of its regions
};

}  // namespace cleat::modules
