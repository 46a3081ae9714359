// SPDX-License-Identifier: Apache-2.0
// Guests' memory that one RDMA adapter reaches directly: memory of which somebody vouches that its pages stay the same (block/memory_registration.h), registered
// when a command first needs it, and until its region is no more. A target never sees it as a whole, but what a window shows of it (nvme/rdma_host).
//
// The adapter has the pages, not their addresses: those of memory that is given back and taken anew would be others'. So nothing is registered that nobody
// vouches for. Registering pins all of a region, which lasts; it is done on a thread of a pool, one region of the adapter at a time. What can't be
// registered is copied; a line of the log says why.
//
// Ownership: kept by shared_ptr, as mail may come late. Threads: Find on any reactor that has queues on the adapter; all else on the control reactor.
// Limits: kRegionsMax regions at a time. Source: ibv_reg_mr(3).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/memory.h"
#include "nvme/rdma_host/direct_memory.h"
#include "rdma/device.h"
#include "rdma/memory.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::modules {

class GuestMemory final : public nvme::rdma_host::DirectMemory,
                          public std::enable_shared_from_this<GuestMemory> {
 public:
  // At a time: each controller of a VM maps its memory for itself, in one region as a rule.
  static constexpr uint32_t kRegionsMax = 8192;

  // All outlive it. `number`: the adapter's among the registrars of this process, its own until Close has returned.
  GuestMemory(rdma::Device& device, Reactor& control, BlockingPool& pool, uint32_t number);
  ~GuestMemory();  // closed
  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;

  const rdma::Registration* Find(const block::MemoryRegion& region) override {
    block::MemoryRegistration* const registration = region.registration();
    if (registration == nullptr) return nullptr;
    const uint32_t state = registration->state(number_);
    if (state >= block::MemoryRegistration::kFirst) [[likely]]
      return registrations_[state - block::MemoryRegistration::kFirst].get();
    if (state == block::MemoryRegistration::kUnasked) Ask(region);
    return nullptr;
  }

  // No queue is left on the adapter: what is registered is given back. Regions that live on may be registered with another adapter by the same number.
  Task<void> Close();
  uint32_t number() const { return number_; }
  uint64_t registered_bytes() const { return registered_bytes_; }

 private:
  using Region = std::weak_ptr<const block::MemoryRegion>;

  void Ask(const block::MemoryRegion& region);
  void Asked(const Region& region);
  void Ended(uint32_t place, uint64_t bytes);
  void Wake();
  static Task<void> Work(std::shared_ptr<GuestMemory> self);
  Task<void> Register(std::shared_ptr<const block::MemoryRegion> region);
  Task<Status> Enter(const block::MemoryRegion& region);
  Task<void> Destroy(std::vector<std::unique_ptr<rdma::Registration>> registrations);
  void Forget(const Region& region);
  void LetGo(std::shared_ptr<const block::MemoryRegion> region);

  rdma::Device& device_;
  Reactor& control_;
  BlockingPool& pool_;
  const uint32_t number_;
  // By place. An element is written before its region's state says so, and destroyed after the region's end.
  std::array<std::unique_ptr<rdma::Registration>, kRegionsMax> registrations_;

  // ---- Control reactor
  std::vector<uint32_t> free_places_;
  std::deque<Region> asked_;     // to be registered
  std::deque<uint32_t> ended_;   // places whose region is no more
  std::vector<Region> regions_;  // all that have asked, and perhaps live
  uint64_t registered_bytes_ = 0;
  std::string refused_;  // whose memory was refused last: one line for all of its regions
  bool working_ = false;
  bool closed_ = false;
  Event changed_;
};

}  // namespace cleat::modules
