// SPDX-License-Identifier: Apache-2.0
// Kills the engine's process between two of its marks on what outlives it: stores to its rings and in-flight logs, and
// requests that it submits to the storage, which are counted with them. What a dead process would have done next is
// done all the same, since nothing can unwind it, but in a world that is put back afterwards: at the instant of death
// `on_death` keeps what has to be put back. Whoever is on the other side of the process - the storage, guests - asks
// dead() and takes nothing from it any more.
//
// Owned by the test; one at a time in a program.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "store_hook.h"
#include "store_order.h"

namespace cleat::sim {

class KillSwitch final : public StoreWatch {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;

  KillSwitch(Defect defect, std::function<void()> on_death);
  ~KillSwitch() override;
  KillSwitch(const KillSwitch&) = delete;
  KillSwitch& operator=(const KillSwitch&) = delete;

  // A process begins: it dies before its store of that number, from 1.
  void Begin(uint64_t dies_before_store);
  void Kill();  // at once
  bool dead() const { return dead_; }
  uint64_t stores() const { return stores_; }  // of this process
  StoreOrder& order() { return order_; }

  // A request is about to be submitted.
  void BeforeSubmit() { Count(); }
  bool BeforeStore(uint8_t* at, uint64_t value, uint32_t bytes) override;

 private:
  void Count();

  StoreOrder order_;
  const std::function<void()> on_death_;
  std::vector<SharedStore> released_;
  uint64_t dies_before_store_ = kNever;
  uint64_t stores_ = 0;
  bool dead_ = false;
};

}  // namespace cleat::sim
