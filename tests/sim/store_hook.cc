// SPDX-License-Identifier: Apache-2.0
#include "store_hook.h"

#include "virtio/guest_access.h"

#ifndef CLEAT_STORE_HOOK
#error "to be built with the hooked copy of cleat_virtio"
#endif

namespace cleat::sim {
namespace {

StoreWatch* asked = nullptr;

}  // namespace

void SetStoreWatch(StoreWatch* watch) {
  asked = watch;
}

}  // namespace cleat::sim

namespace cleat::virtio {

bool BeforeStore(uint8_t* at, uint64_t value, uint32_t bytes) {
  return sim::asked == nullptr || sim::asked->BeforeStore(at, value, bytes);
}

}  // namespace cleat::virtio
