// SPDX-License-Identifier: Apache-2.0
// Planted defects in the order in which a process writes its rings and in-flight logs: stores to one field wait for a
// store to another one of the same queue. Knows the layout of what is written (vhost-user specification, "Inflight I/O
// tracking"; virtio 1.2, 2.7 and 2.8), not the code that writes. Owned by a KillSwitch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "defect.h"

namespace cleat::sim {

// Where the rings of the one guest lie.
struct RingPlaces {
  bool packed = false;
  uint16_t size = 0;
  std::vector<uint64_t> descriptors_gpa;  // of each queue
  std::vector<uint64_t> used_gpa;
};

struct SharedStore {
  uint8_t* at;
  uint64_t value;
  uint32_t bytes;
  void Do() const;
};

class StoreOrder {
 public:
  using PlacesFn = std::function<RingPlaces()>;

  explicit StoreOrder(Defect defect) : defect_(defect) {}
  // Only then are stores looked at. `places` is asked when they are made.
  void SetPlaces(PlacesFn places) { places_ = std::move(places); }

  // True: the store is kept back. Otherwise it happens, and after it what `released` holds.
  bool Hold(const SharedStore& store, std::vector<SharedStore>& released);
  // The process is dead, and with it what was kept back; another one has other mappings.
  void Forget();

 private:
  enum class Field : uint8_t {
    kOther,
    kInflightSet,
    kInflightClear,
    kBatch,  // a split log's list of the last batch
    kLogUsedIndex,
    kUsing,  // a packed log's used index, before and after the descriptor
    kUsed,
    kOldFreeHead,
    kRingUsed  // what shows the guest: the used index, or a used descriptor
  };
  struct Place {
    Field field = Field::kOther;
    uint64_t queue = 0;
  };
  struct Mapping {
    uint64_t begin, end, offset;
    bool log;
  };
  struct Rule {
    Field held, until;
  };

  Rule RuleOf() const;
  Place Find(const SharedStore& store);
  Place FindInLog(const SharedStore& store, uint64_t offset) const;
  Place FindInRing(uint64_t gpa) const;
  const Mapping* FindMapping(const uint8_t* at);
  void ReadMappings();

  const Defect defect_;
  PlacesFn places_;
  RingPlaces known_;
  std::vector<Mapping> mappings_;
  std::map<uint64_t, std::vector<SharedStore>> held_;  // by queue
};

}  // namespace cleat::sim
