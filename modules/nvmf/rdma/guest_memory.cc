// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/rdma/guest_memory.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cleat::modules {
namespace {

using block::MemoryRegion;
using block::MemoryRegistration;

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t Mebibytes(uint64_t bytes) {
  return (bytes + kMiB - 1) / kMiB;
}

}  // namespace

GuestMemory::GuestMemory(rdma::Device& device, Reactor& control, BlockingPool& pool, uint32_t number)
    : device_(device), control_(control), pool_(pool), number_(number), changed_(control) {
  CLEAT_CHECK(number < MemoryRegistration::kRegistrarsMax);
  free_places_.reserve(kRegionsMax);
  for (uint32_t place = kRegionsMax; place-- > 0;) free_places_.push_back(place);
}

GuestMemory::~GuestMemory() {
  CLEAT_CHECK(closed_ && !working_);
}

// ---- On a reactor

// A region that asks when this is closed already asks anew of the adapter that has the number next.
void GuestMemory::Ask(const MemoryRegion& region) {
  if (!region.registration()->Ask(number_)) return;
  control_.PostCall([self = shared_from_this(), asked = region.weak_from_this()] { self->Asked(asked); });
}

// ---- Control reactor

void GuestMemory::Asked(const Region& region) {
  if (closed_) return Forget(region);
  std::erase_if(regions_, [](const Region& known) { return known.expired(); });
  regions_.push_back(region);
  asked_.push_back(region);
  Wake();
}

void GuestMemory::Ended(uint32_t place, uint64_t bytes) {
  if (closed_) return;
  registered_bytes_ -= bytes;
  ended_.push_back(place);
  Wake();
}

void GuestMemory::Wake() {
  if (std::exchange(working_, true)) return;
  Spawn(Work(shared_from_this()));
}

Task<void> GuestMemory::Work(std::shared_ptr<GuestMemory> self) {
  while (!self->closed_ && !(self->ended_.empty() && self->asked_.empty())) {
    if (!self->ended_.empty()) {
      const uint32_t place = self->ended_.front();
      self->ended_.pop_front();
      std::vector<std::unique_ptr<rdma::Registration>> ended;
      ended.push_back(std::move(self->registrations_[place]));
      co_await self->Destroy(std::move(ended));
      self->free_places_.push_back(place);
      continue;
    }
    auto region = self->asked_.front().lock();
    self->asked_.pop_front();
    if (region != nullptr) co_await self->Register(std::move(region));
  }
  self->working_ = false;
  self->changed_.Pulse();
}

Task<void> GuestMemory::Destroy(std::vector<std::unique_ptr<rdma::Registration>> registrations) {
  const std::function<bool()> destroy = [&registrations] {
    registrations.clear();
    return true;
  };
  (void)co_await pool_.Run<bool>(destroy);
}

Task<void> GuestMemory::Register(std::shared_ptr<const MemoryRegion> region) {
  const std::string& owner = region->registration()->owner();
  const uint64_t bytes = region->size_bytes();
  // A region that is kept here alone serves no request any more.
  if (region.use_count() == 1) co_return LetGo(std::move(region));
  const Status entered = co_await Enter(*region);
  if (entered.ok()) {
    spdlog::info("{}: {} MiB of its memory registered with the RDMA adapter {}, and locked", owner,
                 Mebibytes(bytes), device_.name());
    refused_.clear();
  } else if (refused_ != owner) {
    spdlog::warn(
        "{}: {} MiB of its memory not registered with the RDMA adapter {}, so its data is copied: {}", owner,
        Mebibytes(bytes), device_.name(), entered.error().message);
    refused_ = owner;
  }
  LetGo(std::move(region));
}

// The last reference unmaps the region, which may take long: a thread of the pool lets go of it.
void GuestMemory::LetGo(std::shared_ptr<const MemoryRegion> region) {
  pool_.Post([last = std::move(region)] {});
}

Task<Status> GuestMemory::Enter(const MemoryRegion& region) {
  if (free_places_.empty()) {
    co_return Error(ErrorCode::kResourceExhausted,
                    "an engine registers " + std::to_string(kRegionsMax) +
                        " regions with an adapter at most, and has: use more engines");
  }
  const std::function<Result<std::unique_ptr<rdma::Registration>>()> enter = [this, &region] {
    return device_.Register({region.base(), region.size_bytes()}, {.local_write = true, .windows = true});
  };
  CLEAT_CO_ASSIGN(auto made, co_await pool_.Run<Result<std::unique_ptr<rdma::Registration>>>(enter));
  const uint32_t place = free_places_.back();
  free_places_.pop_back();
  registrations_[place] = std::move(made);
  const uint64_t bytes = region.size_bytes();
  registered_bytes_ += bytes;
  region.registration()->Publish(number_, place,
                                 [&control = control_, weak = weak_from_this(), place, bytes] {
                                   control.PostCall([weak, place, bytes] {
                                     if (const auto self = weak.lock()) self->Ended(place, bytes);
                                   });
                                 });
  co_return Ok{};
}

void GuestMemory::Forget(const Region& region) {
  auto lives = region.lock();
  if (lives == nullptr) return;
  lives->registration()->Withdraw(number_);
  LetGo(std::move(lives));
}

Task<void> GuestMemory::Close() {
  closed_ = true;
  while (working_) (void)co_await changed_.Wait();
  for (const Region& region : regions_) Forget(region);
  regions_.clear();
  asked_.clear();
  ended_.clear();
  std::vector<std::unique_ptr<rdma::Registration>> left;
  for (auto& registration : registrations_) {
    if (registration != nullptr) left.push_back(std::move(registration));
  }
  registered_bytes_ = 0;
  co_await Destroy(std::move(left));
}

}  // namespace cleat::modules
