// SPDX-License-Identifier: Apache-2.0
// Guest memory changes while requests are in flight. An epoch is the time during which one memory map was
// current; it counts the requests that were fetched in it and holds the map until the last of them has ended.
// A plain count for each request, one shared_ptr for each map: a late completion finds its memory mapped.
//
// Belongs to one queue, on its reactor. There are never more old epochs than requests in flight.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "base/check.h"
#include "block/memory.h"

namespace cleat::virtio {

struct MemoryEpoch {
  explicit MemoryEpoch(std::shared_ptr<const block::MemoryMap> m) : map(std::move(m)) {}
  const std::shared_ptr<const block::MemoryMap> map;
  uint32_t requests = 0;
};

class MemoryEpochs {
 public:
  // Requests that are fetched from now on belong to `map`.
  void Begin(std::shared_ptr<const block::MemoryMap> map) {
    MemoryEpoch* before = current();
    epochs_.emplace_back(std::move(map));
    if (before != nullptr && before->requests == 0) Erase(before);
  }
  // Nothing is in flight: lets all memory go.
  void Clear() {
    CLEAT_CHECK(epochs_.empty() || (epochs_.size() == 1 && epochs_.front().requests == 0));
    epochs_.clear();
  }

  MemoryEpoch* current() { return epochs_.empty() ? nullptr : &epochs_.back(); }
  MemoryEpoch* Enter() {
    MemoryEpoch* epoch = current();
    ++epoch->requests;
    return epoch;
  }
  void Leave(MemoryEpoch* epoch) {
    CLEAT_CHECK(epoch->requests > 0);
    if (--epoch->requests == 0 && epoch != current()) [[unlikely]]
      Erase(epoch);
  }

 private:
  void Erase(MemoryEpoch* epoch) {
    epochs_.remove_if([epoch](const MemoryEpoch& candidate) { return &candidate == epoch; });
  }
  std::list<MemoryEpoch> epochs_;  // oldest first; the last is the current one
};

}  // namespace cleat::virtio
