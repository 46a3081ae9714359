// SPDX-License-Identifier: Apache-2.0
#include "virtio/scsi_port.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "virtio/scsi_queue.h"

namespace cleat::virtio {

ScsiPort::~ScsiPort() {
  CLEAT_CHECK(queues_.empty());
}

uint32_t ScsiPort::ListUnits(std::span<scsi::Lun, kScsiTargetsMax> out) const {
  uint32_t count = 0;
  for (uint32_t target = 0; target < kScsiTargetsMax; ++target) {
    if (units_[target] != nullptr) out[count++] = ScsiAddress::OfTarget(target);
  }
  return count;
}

void ScsiPort::Add(uint32_t target, std::shared_ptr<scsi::LogicalUnit> unit, const DiskChannelRef& disk,
                   const block::Geometry& geometry) {
  CLEAT_CHECK(units_[target] == nullptr);
  units_[target] =
      std::make_unique<scsi::UnitChannel>(reactor_, std::move(unit), *disk.channel, geometry, memory_);
  units_[target]->BypassLimits(bypass_ > 0);
  counters_[target] = disk.counters;
  tags_[target] = disk.disk.tag();
  if (disk.reactor_counters == nullptr) return;
  reactor_counters_ = disk.reactor_counters;
  for (ScsiQueue* queue : queues_) queue->accounting().UseCounters(reactor_counters_);
}

Task<void> ScsiPort::Remove(uint32_t target) {
  const std::unique_ptr<scsi::UnitChannel> unit = std::move(units_[target]);
  if (unit == nullptr) co_return;
  co_await unit->Close();
  // What has ended for the disk is counted while the counters are its own.
  for (ScsiQueue* queue : queues_) queue->accounting().Flush(reactor_.now_ns(), 0);
  counters_[target] = nullptr;
}

void ScsiPort::BypassLimits(bool on) {
  bypass_ += on ? 1 : -1;
  TellUnits();
}

// What ends meanwhile may change the count again.
void ScsiPort::TellUnits() {
  for (uint32_t target = 0; target < kScsiTargetsMax; ++target) {
    if (units_[target] != nullptr) units_[target]->BypassLimits(bypass_ > 0);
  }
}

void ScsiPort::Register(ScsiQueue& queue) {
  queues_.push_back(&queue);
  queue.accounting().UseCounters(reactor_counters_);
}

void ScsiPort::Unregister(ScsiQueue& queue) {
  std::erase(queues_, &queue);
}

// A command that the guest offered before it asked for task management may still lie in its ring, and would be
// carried out after the answer. Goes on when the queues here have fetched all that had been offered when it was
// called: no queue holds more than its size. False: one was stopped before it got there.
Task<bool> ScsiPort::FetchOffered() {
  struct Goal {
    ScsiQueue* queue;
    uint64_t fetched;
  };
  std::vector<Goal> goals;
  for (ScsiQueue* queue : queues_) {
    if (queue->left_behind()) co_return false;
    if (queue->offered()) goals.push_back({queue, queue->fetched() + kQueueSizeMax});
  }
  while (!goals.empty()) {
    for (const Goal& goal : goals) reactor_.Activate(*goal.queue);
    co_await reactor_.Yield();
    for (size_t i = goals.size(); i-- > 0;) {
      ScsiQueue* queue = goals[i].queue;
      if (std::ranges::find(queues_, queue) == queues_.end() || queue->left_behind()) co_return false;
      if (!queue->offered() || queue->fetched() >= goals[i].fetched) goals.erase(goals.begin() + i);
    }
  }
  co_return true;
}

// No event tells of the last one: their queues may be gone with it.
Task<void> ScsiPort::AwaitHeld(uint32_t target) {
  constexpr uint64_t kLookNs = 5 * kNsPerMs;
  const auto holds = [target](const ScsiQueue* queue) { return queue->Holds(target); };
  while (std::ranges::any_of(queues_, holds)) co_await reactor_.SleepFor(kLookNs);
}

Task<ScsiPort::Quiesced> ScsiPort::Quiesce(uint32_t target, scsi::Abort why, std::optional<uint64_t> tag) {
  if (units_[target] == nullptr && earlier_ == nullptr) co_return Quiesced::kNoUnit;
  if (!co_await FetchOffered()) co_return Quiesced::kStopped;
  co_await AwaitHeld(target);
  scsi::UnitChannel* unit = units_[target].get();
  if (unit == nullptr) co_return Quiesced::kNoUnit;
  co_await unit->Quiesce(why, tag);
  // What has ended is in the used ring, but the guest may not be shown it before its queue's next turn (see
  // ring_queue.h). The guest takes a command that it does not find there for lost, and its memory back: one full
  // turn goes by first.
  co_await reactor_.Yield();
  co_await reactor_.Yield();
  co_return Quiesced::kYes;
}

bool ScsiPort::Has(uint32_t target, std::optional<uint64_t> tag) {
  return units_[target] != nullptr && units_[target]->Has(tag);
}

}  // namespace cleat::virtio
