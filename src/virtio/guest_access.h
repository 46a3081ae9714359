// SPDX-License-Identifier: Apache-2.0
// How memory that somebody else may be writing at this very moment is read and written: each field once, with
// its order. The other side is a guest's CPU (or, for the in-flight and dirty logs, another process), so
// every value that is checked has to be the value that is used: the compiler may not read it again in
// between.
//
// Everything on a ring is little-endian (virtio 1.2, 2.7), and so are the machines that we run on.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "block/segments.h"

namespace cleat::virtio {

static_assert(std::endian::native == std::endian::little);

// Fields whose natural alignment is known: ring indices and elements, the logs.
template <typename T>
T LoadShared(const uint8_t* at, std::memory_order order) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(const_cast<uint8_t*>(at))).load(order);
}
#ifdef CLEAT_STORE_HOOK
// Of a second build of this library, with which a simulation kills between any two stores: asked before each of them;
// false: it does not happen. The library that the product is built from has nothing of it.
bool BeforeStore(uint8_t* at, uint64_t value, uint32_t bytes);
#else
constexpr bool BeforeStore(const uint8_t* /*at*/, uint64_t /*value*/, uint32_t /*bytes*/) {
  return true;
}
#endif
template <typename T>
void StoreShared(uint8_t* at, T value, std::memory_order order) {
  if (!BeforeStore(at, value, sizeof(T))) return;
  std::atomic_ref<T>(*reinterpret_cast<T*>(at)).store(value, order);
}

// Between writing what the other side will look at and looking at what it wrote (store, then load): the one
// order that acquire and release don't give.
inline void FullFence() {
#ifdef CLEAT_TSAN
  // ThreadSanitizer does not know fences. An exchange is one on the hardware, and this one hides no race from
  // it.
  std::atomic<uint32_t> own{0};
  own.exchange(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

using block::CopyShared;

}  // namespace cleat::virtio
