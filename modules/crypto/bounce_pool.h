// SPDX-License-Identifier: Apache-2.0
// Where one reactor's encrypted writes lie until the storage has them: the guest's own memory is never written by a write.
// A bounded number of bytes, shared by all disks on the reactor.
//
// Buffers of two sizes, so that small writes take little room and large ones few buffers. What is given back is what is
// taken next: it is still in the cache. When a size is used up, requests wait in their disk's line and disks take turns, a
// part of one request each; who waits holds nothing of the pool, so there is no deadlock.
//
// On its reactor's thread; owned by the CryptoHub, outlives the channels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "block/memory.h"
#include "block/request.h"

namespace cleat::modules {

enum class BounceSize : uint8_t { kSmall, kLarge };
inline constexpr size_t kBounceSizes = 2;
inline constexpr uint32_t kSmallBounceBytes = 8 * 1024;
inline constexpr uint32_t kSmallBounces = 1024;  // 8 MiB a reactor, taken from the host as they are used
inline constexpr uint32_t kLargeBounceBytes = 128 * 1024;
inline constexpr uint32_t kLargeBounces = 64;   // 8 MiB more
inline constexpr uint32_t kBouncesOfAPart = 8;  // of a request at a time: 1 MiB

constexpr uint32_t BounceBytes(BounceSize size) {
  return size == BounceSize::kSmall ? kSmallBounceBytes : kLargeBounceBytes;
}

// One buffer. Several large ones that a request has are chained.
struct alignas(64) Bounce {
  Bounce* next = nullptr;
  uint64_t offset_bytes = 0;  // in the pool's region
  // What the storage is given. Of a small buffer the first one, which lacks only its length; of large ones that of all in
  // the chain, in the first of them.
  std::array<block::Segment, kBouncesOfAPart> segments;
};

// A disk's line for buffers of one size.
class BounceLine {
 public:
  virtual ~BounceLine() = default;
  // `request`, the first one in line, has its turn, and a buffer is free: takes some with Whose::kTurn.
  virtual void Turn(block::Request& request) = 0;

 private:
  friend class BouncePool;
  ListHook hook_;  // among the lines that wait
  block::RequestList requests_;
};

class BouncePool {
 public:
  struct Limits {
    uint32_t small = kSmallBounces;
    uint32_t large = kLargeBounces;
  };
  static Result<std::unique_ptr<BouncePool>> Make(Limits limits);
  ~BouncePool();  // all buffers are back
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  const block::MemoryRegion& region() const { return *region_; }
  uint8_t* data(const Bounce& bounce) const { return region_->base() + bounce.offset_bytes; }

  enum class Whose : uint8_t { kNewcomer, kTurn };
  // nullptr: there is none, or others were first; Wait then.
  Bounce* TakeSmall(Whose whose) {
    Class& of = classes_[static_cast<size_t>(BounceSize::kSmall)];
    if (!MayTake(of, whose)) [[unlikely]]
      return nullptr;
    Bounce* bounce = of.free;
    of.free = bounce->next;
    return bounce;
  }
  void GiveSmall(Bounce& bounce) {
    Class& of = classes_[static_cast<size_t>(BounceSize::kSmall)];
    bounce.next = of.free;
    of.free = &bounce;
  }
  // As many as there are, up to `count`, chained; nullptr as above.
  Bounce* TakeLarge(uint32_t count, Whose whose);
  void GiveLarge(Bounce& chain);

  // The request's `link` is the pool's until its turn.
  void Wait(BounceSize size, BounceLine& line, block::Request& request);
  // Takes those of the line's requests out of it for which it is so, and appends them to `out`.
  template <typename Predicate>
  void Withdraw(BounceLine& line, Predicate wanted, block::RequestList& out) {
    for (block::Request* request = line.requests_.front(); request != nullptr;) {
      block::Request* next = line.requests_.Next(*request);
      if (wanted(*request)) {
        request->link.Unlink();
        out.PushBack(*request);
        --waiting_;
      }
      request = next;
    }
    if (line.requests_.empty()) line.hook_.Unlink();
  }
  // Gives turns to those who wait, while there are buffers. After Give, when the request that they were for has ended.
  void Serve() {
    if (waiting_ > 0) [[unlikely]]
      ServeLines();
  }

 private:
  using Lines = IntrusiveList<BounceLine, &BounceLine::hook_>;
  struct Class {
    Bounce* free = nullptr;  // last in, first out
    Lines lines;
  };
  BouncePool(void* memory, uint64_t bytes, Limits limits);
  void Fill(BounceSize size, uint32_t count, uint64_t* offset_bytes);
  static bool MayTake(Class& of, Whose whose) {
    return of.free != nullptr && (whose == Whose::kTurn || of.lines.empty());
  }
  void ServeLines();
  bool ServeOne(Class& of);

  void* const memory_;
  const uint64_t memory_bytes_;
  std::shared_ptr<block::MemoryRegion> region_;
  std::vector<Bounce> bounces_;
  std::array<Class, kBounceSizes> classes_;
  uint64_t waiting_ = 0;  // requests
  bool serving_ = false;
};

}  // namespace cleat::modules
