// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rdma_fabric/world.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::test::rdma_fabric {

// ---- EventFd

EventFd::EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  CLEAT_CHECK(fd_.valid());
}

void EventFd::Set() const {
  const uint64_t one = 1;
  CLEAT_CHECK(write(fd_.get(), &one, sizeof(one)) == sizeof(one));
}

// Fails where it is not set, which is as good.
void EventFd::Clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(fd_.get(), &count, sizeof(count));
}

// ---- What was wrong

void World::Wrong(std::string what) {
  wrong_.push_back(std::move(what));
}

std::vector<std::string> World::TakeWrong() {
  return std::exchange(wrong_, {});
}

// ---- Adapters

std::shared_ptr<AdapterState> World::AdapterAt(const std::string& address) {
  for (const auto& adapter : adapters) {
    if (std::ranges::count(adapter->addresses, address) > 0) return adapter;
  }
  return nullptr;
}

std::shared_ptr<AdapterState> World::AdapterOf(const std::string& name) {
  const auto found =
      std::ranges::find_if(adapters, [&name](const auto& adapter) { return adapter->name == name; });
  return found == adapters.end() ? nullptr : *found;
}

std::shared_ptr<DeviceState> World::LastDeviceOf(const std::string& name) const {
  std::shared_ptr<DeviceState> last;
  for (const auto& known : devices) {
    auto device = known.lock();
    if (device != nullptr && device->adapter->name == name) last = std::move(device);
  }
  return last;
}

void World::Lose(const std::shared_ptr<AdapterState>& adapter) {
  adapter->gone = true;
  std::erase(adapters, adapter);
  for (const auto& known : devices) {
    const auto device = known.lock();
    if (device != nullptr && device->adapter == adapter) device->events.Set();
  }
}

// ---- Queue pairs

PairState* World::FindPair(uint32_t number) const {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}

uint32_t World::LastPairOn(const std::string& adapter) const {
  uint32_t last = 0;
  for (const auto& [number, pair] : pairs_) {
    if (pair->device->adapter->name == adapter) last = number;
  }
  return last;
}

Status World::CheckRoom(const DeviceState& device, const rdma::SendLimits& wanted) {
  const AdapterState& adapter = *device.adapter;
  if (adapter.gone) return Error(ErrorCode::kUnavailable, adapter.name + ": the adapter is gone");
  if (wanted.works == 0 || wanted.pieces == 0) Wrong("a queue pair without room for works");
  if (adapter.queue_pairs < adapter.limits.queue_pairs) return Ok{};
  return Error(ErrorCode::kResourceExhausted,
               fmt::format("{}: there are {} queue pairs, as many as there may be", adapter.name,
                           adapter.queue_pairs));
}

std::shared_ptr<PairState> World::MakePair(std::shared_ptr<DeviceState> device,
                                           std::shared_ptr<CompletionState> completions,
                                           std::shared_ptr<ReceiveState> receives,
                                           const rdma::SendLimits& wanted) {
  if (completions->device != device || receives->device != device)
    Wrong("a queue pair with queues of another device");
  const rdma::DeviceLimits& most = device->adapter->limits;
  auto pair = std::make_shared<PairState>();
  pair->number = ++last_pair_;
  pair->limits = {.works = std::min(wanted.works, most.works),
                  .pieces = std::min({wanted.pieces, most.pieces, most.read_pieces}),
                  .inline_bytes = wanted.inline_bytes,
                  .read_credits = std::min(wanted.read_credits, most.reads_sent)};
  ++device->queue_pairs;
  ++device->adapter->queue_pairs;
  ++completions->queue_pairs;
  ++receives->queue_pairs;
  pair->device = std::move(device);
  pair->completions = std::move(completions);
  pair->receives = std::move(receives);
  pairs_[pair->number] = pair.get();
  return pair;
}

// What was not polled is lost, memory of messages too; windows that it has are invalid.
void World::DestroyPair(PairState& pair) {
  pairs_.erase(pair.number);
  pair.broken = true;
  pair.pending.clear();
  std::erase_if(pair.completions->entries,
                [&pair](const auto& entry) { return entry.completion.queue_pair == pair.number; });
  for (auto& [key, window] : pair.device->windows) {
    if (window.pair == &pair) window.pair = nullptr;
  }
  if (pair.peer != nullptr) pair.peer->peer = nullptr;
  pair.peer = nullptr;
  --pair.device->queue_pairs;
  --pair.device->adapter->queue_pairs;
  --pair.completions->queue_pairs;
  --pair.receives->queue_pairs;
}

void World::Link(PairState& one, PairState& other) {
  one.was_connected = other.was_connected = true;
  one.peer = &other;
  other.peer = &one;
  PumpAll();
}

}  // namespace cleat::test::rdma_fabric
