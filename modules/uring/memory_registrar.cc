// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/memory_registrar.h"

#include <linux/capability.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cleat::modules {
namespace {

using block::MemoryRegion;
using block::MemoryRegistration;

// A kernel's version: 6.12.36 is {6, 12, 36}.
using Release = std::array<int, 3>;
constexpr Release kGoodOf6Point12{6, 12, 36};
constexpr Release kGoodOf6Point15{6, 15, 5};
constexpr Release kGoodAgain{6, 16, 0};
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kPopulateStep = 2 * kMiB;
// Between chunks, so that rings are locked for a small part of the time: this long, or so many times as long as the chunk took.
constexpr std::chrono::milliseconds kPause{1};
constexpr int kPauseShare = 20;

std::string Mebibytes(uint64_t bytes) {
  return std::to_string((bytes + kMiB - 1) / kMiB) + " MiB";
}

// Processor time of this thread, in nanoseconds.
uint64_t ThreadNs() {
  timespec now{};
  CLEAT_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

// Whether the limit is none for this process, which has CAP_IPC_LOCK then.
bool MayLockAnything() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> has{};
  return syscall(SYS_capget, &header, has.data()) == 0 && (has[0].effective & (1U << CAP_IPC_LOCK)) != 0;
}

// The soft limit is this process' to raise.
uint64_t LockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return RLIM_INFINITY;
  if (limit.rlim_cur != limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_MEMLOCK, &limit);
  }
  return limit.rlim_cur;
}

// Makes all of the memory's pages, so that looking them up does not. Step by step, since what is mapped meanwhile waits for a step.
Status Populate(const iovec& memory) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = std::bit_cast<uintptr_t>(memory.iov_base) / page * page;
  const uintptr_t end = (std::bit_cast<uintptr_t>(memory.iov_base) + memory.iov_len + page - 1) / page * page;
  for (uintptr_t at = begin; at < end; at += kPopulateStep) {
    const size_t bytes = std::min(end - at, kPopulateStep);
    int failed = 0;
    do {
      failed = madvise(std::bit_cast<void*>(at), bytes, MADV_POPULATE_WRITE) != 0 ? errno : 0;
    } while (failed == EINTR || failed == EAGAIN);
    if (failed != 0) return ErrnoError(failed, "allocating all of it");
  }
  return Ok{};
}

}  // namespace

bool MemoryRegistrar::IsGoodRelease(const std::string& release) {
  Release is{};
  if (std::sscanf(release.c_str(), "%d.%d.%d", &is[0], &is[1], &is[2]) < 2) return false;
  const auto is_of = [&is](const Release& first) {
    return is[0] == first[0] && is[1] == first[1] && is[2] >= first[2];
  };
  return is_of(kGoodOf6Point12) || is_of(kGoodOf6Point15) || is >= kGoodAgain;
}

std::optional<Error> MemoryRegistrar::CheckKernel() {
  utsname kernel{};
  if (uname(&kernel) == 0 && IsGoodRelease(kernel.release)) return std::nullopt;
  return Error(
      ErrorCode::kUnimplemented,
      "Linux 6.12.36, 6.15.5 and 6.16 are the first ones that it is safe and cheaper with, and this is " +
          std::string(kernel.release));
}

void MemoryRegistrar::Inbox::PostEnded(const Places& places) {
  {
    const MutexLock lock(mutex);
    if (closed) return;
    ended.push_back(places);
  }
  changed.NotifyOne();
}

void MemoryRegistrar::Inbox::PostAsked(std::weak_ptr<const MemoryRegion> region) {
  {
    const MutexLock lock(mutex);
    if (closed) return;
    asked.push_back(std::move(region));
  }
  changed.NotifyOne();
}

MemoryRegistrar::MemoryRegistrar(Options options) : options_(std::move(options)) {
  CLEAT_CHECK(pthread_getaffinity_np(pthread_self(), sizeof cpus_, &cpus_) == 0);
}

MemoryRegistrar::~MemoryRegistrar() {
  {
    const MutexLock lock(inbox_->mutex);
    inbox_->closed = true;
  }
  inbox_->changed.NotifyOne();
  const MutexLock lock(start_);
  if (thread_.joinable()) thread_.join();
}

void MemoryRegistrar::AddRing(BufferTable& ring) {
  const MutexLock lock(start_);
  CLEAT_CHECK(!thread_.joinable());
  rings_.push_back(&ring);
}

// ---- On a reactor

void MemoryRegistrar::Ask(const MemoryRegion& region) {
  if (!region.registration()->Ask(MemoryRegistration::kRings)) return;
  if (const Status started = StartThread(); !started) {
    spdlog::warn("{}: {} of its memory not registered, so its I/O costs more: {}",
                 region.registration()->owner(), Mebibytes(region.size_bytes()), started.error().message);
    return;
  }
  inbox_->PostAsked(region.weak_from_this());
}

// Where no thread can be made now, a region that comes later tries again. The library says it with an exception: EAGAIN, a limit of threads
// or tasks.
Status MemoryRegistrar::StartThread() {
  const MutexLock lock(start_);
  if (thread_.joinable()) return Ok{};
  try {
    thread_ = std::thread([this] { ThreadMain(); });
    return Ok{};
  } catch (const std::system_error& error) {
    return ErrnoError(error.code().value(), "making a thread");
  }
}

// ---- On the thread

void MemoryRegistrar::ThreadMain() {
  pthread_setname_np(pthread_self(), "registrar");
  pthread_setaffinity_np(pthread_self(), sizeof cpus_, &cpus_);
  for (;;) {
    std::optional<Places> ended;
    std::weak_ptr<const MemoryRegion> asked;
    {
      const MutexLock lock(inbox_->mutex);
      while (inbox_->ended.empty() && inbox_->asked.empty() && !inbox_->closed)
        inbox_->changed.Wait(inbox_->mutex);
      if (inbox_->closed) return;
      if (!inbox_->ended.empty()) {
        ended = inbox_->ended.front();
        inbox_->ended.pop_front();
      } else {
        asked = std::move(inbox_->asked.front());
        inbox_->asked.pop_front();
      }
    }
    for (const Places& places : std::exchange(to_empty_, {})) Empty(places);
    if (ended) {
      Empty(*ended);
      registered_bytes_ -= ended->bytes;
    } else if (const auto region = asked.lock()) {
      Register(*region);
    }
  }
}

void MemoryRegistrar::Register(const MemoryRegion& region) {
  MemoryRegistration& registration = *region.registration();
  const std::string& owner = registration.owner();
  const auto places = Enter(region);
  if (places) {
    registered_bytes_ += places->bytes;
    registration.Publish(MemoryRegistration::kRings, places->first,
                         [inbox = inbox_, ended = *places] { inbox->PostEnded(ended); });
    spdlog::info("{}: {} of its memory registered with {} io_urings, and locked", owner,
                 Mebibytes(places->bytes), rings_.size());
    refused_.clear();
  } else if (places.error().code != ErrorCode::kAborted && refused_ != owner) {
    spdlog::warn("{}: {} of its memory not registered, so its I/O costs more: {}", owner,
                 Mebibytes(region.size_bytes()), places.error().message);
    refused_ = owner;
  }
}

Result<MemoryRegistrar::Places> MemoryRegistrar::Enter(const MemoryRegion& region) {
  if (auto why_not = options_.check_kernel()) return *std::move(why_not);
  const uint64_t bytes = region.size_bytes();
  const uint64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  CLEAT_TRY(CheckMemlock(bytes));
  CLEAT_TRY(MakePlaces());
  const auto first = chunks <= options_.places ? TakePlaces(static_cast<uint32_t>(chunks)) : std::nullopt;
  if (!first) {
    return Error(ErrorCode::kResourceExhausted, "an engine registers " +
                                                    Mebibytes(options_.places * kChunkBytes) +
                                                    " of all guests at most, and has " +
                                                    Mebibytes(registered_bytes_) + "; use more engines");
  }
  Places places{.first = *first, .count = static_cast<uint32_t>(chunks), .bytes = bytes};
  for (uint32_t chunk = 0; chunk < places.count; ++chunk) {
    const uint64_t offset = chunk * kChunkBytes;
    Status entered = MayGoOn(region);
    if (entered)
      entered = EnterChunk(*first + chunk, {region.base() + offset, std::min(kChunkBytes, bytes - offset)});
    if (!entered) {
      Empty(places);
      return std::move(entered).error();
    }
  }
  return places;
}

// The limit is looked at beforehand: registering lasts, and so does taking it back. Others of the same user may have locked memory as well, which the kernel knows.
Status MemoryRegistrar::CheckMemlock(uint64_t bytes) const {
  const uint64_t limit = LockLimit();
  const uint64_t needed = (registered_bytes() + bytes) * rings_.size();
  if (limit == RLIM_INFINITY || needed <= limit || MayLockAnything()) return Ok{};
  return Error(ErrorCode::kResourceExhausted,
               "RLIMIT_MEMLOCK is " + Mebibytes(limit) + ", and " + Mebibytes(needed) +
                   " are needed, with what is registered already, for " + std::to_string(rings_.size()) +
                   " io_urings: raise LimitMEMLOCK= in the unit");
}

Status MemoryRegistrar::MakePlaces() {
  for (; rings_with_places_ < rings_.size(); ++rings_with_places_)
    CLEAT_TRY(rings_[rings_with_places_]->MakeBufferPlaces(options_.places));
  taken_.resize(options_.places);
  return Ok{};
}

// kAborted: registering the region is not worth it any more.
Status MemoryRegistrar::MayGoOn(const MemoryRegion& region) const {
  if (inbox_->closed) return Error(ErrorCode::kAborted, "the engine ends");
  if (region.weak_from_this().use_count() == 1)
    return Error(ErrorCode::kAborted, "nobody else has it any more");
  return Ok{};
}

// Registers one chunk with all rings, and pauses then, with no ring locked.
Status MemoryRegistrar::EnterChunk(uint32_t place, const iovec& chunk) {
  CLEAT_TRY(Populate(chunk));
  uint64_t longest_ns = 0;
  for (BufferTable* ring : rings_) {
    const uint64_t begun = ThreadNs();
    CLEAT_TRY(ring->SetBuffer(place, chunk));
    longest_ns = std::max(longest_ns, ThreadNs() - begun);
  }
  if (longest_ns > options_.chunk_ns_max) {
    return Error(ErrorCode::kUnavailable, "the kernel took " + std::to_string(longest_ns / kNsPerMs) +
                                              " ms to look up " + Mebibytes(chunk.iov_len) +
                                              " of it, and a reactor waits meanwhile");
  }
  std::this_thread::sleep_for(
      std::max<std::chrono::nanoseconds>(kPause, std::chrono::nanoseconds(kPauseShare * longest_ns)));
  return Ok{};
}

// Pauses after each place, since the kernel lets go of its pages on a reactor: the one whose command was the last to begin before.
void MemoryRegistrar::Empty(const Places& places) {
  bool emptied = true;
  for (uint32_t place = places.first; place < places.first + places.count; ++place) {
    for (BufferTable* ring : rings_) emptied &= ring->SetBuffer(place, {nullptr, 0}).ok();
    if (!inbox_->closed) std::this_thread::sleep_for(kPause);
  }
  if (!emptied) return to_empty_.push_back(places);  // no memory now: at the next job
  std::fill_n(taken_.begin() + places.first, places.count, false);
}

// Takes the first places that lie side by side; nullopt: there are not so many.
std::optional<uint32_t> MemoryRegistrar::TakePlaces(uint32_t count) {
  const auto found = std::search_n(taken_.begin(), taken_.end(), count, false);
  if (found == taken_.end()) return std::nullopt;
  std::fill_n(found, count, true);
  return static_cast<uint32_t>(found - taken_.begin());
}

}  // namespace cleat::modules
