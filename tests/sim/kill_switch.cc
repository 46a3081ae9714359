// SPDX-License-Identifier: Apache-2.0
#include "kill_switch.h"

#include <utility>

namespace cleat::sim {

KillSwitch::KillSwitch(Defect defect, std::function<void()> on_death)
    : order_(defect), on_death_(std::move(on_death)) {
  SetStoreWatch(this);
}

KillSwitch::~KillSwitch() {
  SetStoreWatch(nullptr);
}

void KillSwitch::Begin(uint64_t dies_before_store) {
  order_.Forget();
  dies_before_store_ = dies_before_store;
  stores_ = 0;
  dead_ = false;
}

void KillSwitch::Kill() {
  if (std::exchange(dead_, true)) return;
  on_death_();
}

void KillSwitch::Count() {
  if (!dead_ && ++stores_ == dies_before_store_) Kill();
}

bool KillSwitch::BeforeStore(uint8_t* at, uint64_t value, uint32_t bytes) {
  if (dead_) return true;
  const SharedStore store{at, value, bytes};
  if (order_.Hold(store, released_)) return false;
  Count();
  if (released_.empty()) return true;
  store.Do();
  for (const SharedStore& late : released_) {
    Count();
    late.Do();
  }
  return false;
}

}  // namespace cleat::sim
