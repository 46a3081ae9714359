// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/bounce_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "base/check.h"

namespace cleat::modules {

Result<std::unique_ptr<BouncePool>> BouncePool::Make(Limits limits) {
  const uint64_t bytes =
      uint64_t{limits.small} * kSmallBounceBytes + uint64_t{limits.large} * kLargeBounceBytes;
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoError(errno, "no " + std::to_string(bytes >> 20) +
                                 " MiB of address space for a reactor's encrypted writes (see RLIMIT_AS)");
  }
  return std::unique_ptr<BouncePool>(new BouncePool(memory, bytes, limits));
}

BouncePool::BouncePool(void* memory, uint64_t bytes, Limits limits)
    : memory_(memory), memory_bytes_(bytes), region_(block::MemoryRegion::Borrow(memory, bytes)) {
  bounces_.reserve(uint64_t{limits.small} + limits.large);
  uint64_t offset_bytes = 0;
  Fill(BounceSize::kLarge, limits.large, &offset_bytes);
  Fill(BounceSize::kSmall, limits.small, &offset_bytes);
}

void BouncePool::Fill(BounceSize size, uint32_t count, uint64_t* offset_bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    Bounce& bounce = bounces_.emplace_back();
    bounce.offset_bytes = *offset_bytes;
    bounce.segments[0] = {region_.get(), *offset_bytes, 0};
    *offset_bytes += BounceBytes(size);
    Class& of = classes_[static_cast<size_t>(size)];
    bounce.next = of.free;
    of.free = &bounce;
  }
}

BouncePool::~BouncePool() {
  size_t free = 0;
  for (Class& of : classes_) {
    CLEAT_CHECK(of.lines.empty());
    for (const Bounce* bounce = of.free; bounce != nullptr; bounce = bounce->next) ++free;
  }
  CLEAT_CHECK(free == bounces_.size());
  munmap(memory_, memory_bytes_);
}

Bounce* BouncePool::TakeLarge(uint32_t count, Whose whose) {
  Class& of = classes_[static_cast<size_t>(BounceSize::kLarge)];
  if (!MayTake(of, whose)) return nullptr;
  Bounce* first = of.free;
  Bounce* last = first;
  while (--count > 0 && last->next != nullptr) last = last->next;
  of.free = last->next;
  last->next = nullptr;
  return first;
}

void BouncePool::GiveLarge(Bounce& chain) {
  Class& of = classes_[static_cast<size_t>(BounceSize::kLarge)];
  Bounce* last = &chain;
  while (last->next != nullptr) last = last->next;
  last->next = of.free;
  of.free = &chain;
}

void BouncePool::Wait(BounceSize size, BounceLine& line, block::Request& request) {
  ++waiting_;
  line.requests_.PushBack(request);
  if (!line.hook_.linked()) classes_[static_cast<size_t>(size)].lines.PushBack(line);
}

// Storage that answers at once gives buffers back, and calls Serve, within a turn: the outer call goes on then.
void BouncePool::ServeLines() {
  if (serving_) return;
  serving_ = true;
  for (bool served = true; served;) {
    served = false;
    for (Class& of : classes_) served |= ServeOne(of);
  }
  serving_ = false;
}

bool BouncePool::ServeOne(Class& of) {
  if (of.free == nullptr || of.lines.empty()) return false;
  BounceLine& line = *of.lines.PopFront();
  block::Request& request = *line.requests_.PopFront();
  --waiting_;
  if (!line.requests_.empty()) of.lines.PushBack(line);
  line.Turn(request);
  return true;
}

}  // namespace cleat::modules
