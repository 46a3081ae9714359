// SPDX-License-Identifier: Apache-2.0
// The guest's part: power, requests, answers. QEMU's part is in sim_guest_frontend.cc.
#include "sim_guest.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "perf/ring/packed_driver_ring.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kMemoryBytes = 8ULL << 20;
constexpr uint64_t kRawToken = UINT64_MAX;

}  // namespace

SimGuest::SimGuest(World& world, SimNetwork& network, const GuestOptions& options, FindDiskFn find_disk)
    : world_(world),
      network_(network),
      options_(options),
      find_disk_(std::move(find_disk)),
      random_(options.seed) {
  network_.AddPeer(options_.socket_path, *this);
  world_.AddActor(*this);
}

SimGuest::~SimGuest() {
  CLEAT_CHECK(connection_ == nullptr);
  DropQueues(DiskModel::Fate::kUnknown);
  Disconnected();
  world_.RemoveActor(*this);
}

void SimGuest::MakeMemory() {
  auto memory = perf::GuestMemory::CreateWithHole(kMemoryBytes);
  CLEAT_CHECK(memory.ok());
  memory_ = std::move(memory).value();
  plugged_ = false;
}

void SimGuest::DropQueues(DiskModel::Fate fate) {
  for (const auto& queue : queues_) {
    for (const OpenIo& io : queue->TakeOpen()) io.Abandon(fate);
  }
  queues_.clear();
  identified_ = false;
  misbehaved_ = false;
  disk_ = {};
}

void SimGuest::PowerOn() {
  if (powered_) return;
  powered_ = true;
  network_.PeerChanged(options_.socket_path);
}

void SimGuest::Kill() {
  if (!powered_) return;
  powered_ = up_ = false;
  hang_up_ = true;
  actions_.clear();
  budget_ = 0;
  for (const auto& queue : queues_) {
    for (const OpenIo& io : queue->TakeOpen()) orphans_.push_back(io);
  }
  DropQueues(DiskModel::Fate::kUnknown);
  memory_.reset();
  inflight_known_ = false;
  inflight_.file.Reset();
  if (connection_ != nullptr) connection_->wake.Pulse();
}

void SimGuest::Hangup() {
  if (connection_ == nullptr) return;
  hang_up_ = true;
  up_ = false;
  connection_->wake.Pulse();
}

void SimGuest::HangupInHandshake(uint32_t messages) {
  messages_left_ = messages;
}

void SimGuest::Do(Action action) {
  if (!up_ || hang_up_) return;
  actions_.push_back(action);
  if (connection_ != nullptr) connection_->wake.Pulse();
}

uint64_t SimGuest::open() const {
  uint64_t open = 0;
  for (const auto& queue : queues_) open += queue->open();
  return open;
}

void SimGuest::Disconnected() {
  up_ = false;
  // What had been taken from the rings has ended, and its used entries are there to be seen.
  for (const auto& queue : queues_) queue->Collect(/*must_look=*/true);
  for (const OpenIo& io : std::exchange(orphans_, {})) io.Abandon(DiskModel::Fate::kUnknown);
}

void SimGuest::Identify(const std::string& serial) {
  disk_ = find_disk_(serial);
  identified_ = disk_.model != nullptr;
  if (!identified_) world_.Violation(options_.name + " sees a disk that is nobody's: '" + serial + "'");
}

bool SimGuest::Step() {
  bool any = false;
  for (const auto& queue : queues_) {
    const uint64_t before = queue->completed();
    any |= queue->Collect(/*must_look=*/false);
    completed_ += queue->completed() - before;
    if (const auto serial = queue->TakeIdentity()) Identify(*serial);
  }
  if (budget_ == 0 || !identified_ || world_.now_ns() < next_burst_ns_) return any;
  Burst();
  next_burst_ns_ = world_.now_ns() + 1 + random_.Below(options_.think_ns_max);
  return true;
}

// Also while nobody serves the rings: a guest does not know that its QEMU lost a connection.
void SimGuest::Burst() {
  for (uint64_t left = random_.Between(1, options_.burst_max); left > 0 && budget_ > 0; --left) {
    const uint64_t index = random_.Below(queues_.size());
    GuestQueue& queue = *queues_[index];
    if (!misbehaved_ && queue.Issue(disk_, random_)) --budget_;
  }
  if (misbehaved_) budget_ = 0;
  for (const auto& queue : queues_) queue->Submit();
}

uint64_t SimGuest::NextNs() const {
  return budget_ > 0 && identified_ ? next_burst_ns_ : kNoDeadline;
}

// What no driver may do: the ring is broken by it, and nothing else.
void SimGuest::Misbehave() {
  perf::DriverRing& ring = queues_[random_.Below(queues_.size())]->ring();
  const auto kind = random_.Below(3);
  if (ring.packed()) return MisbehavePacked(*ring.AsPacked(), kind);
  misbehaved_ = true;
  if (kind == 0) {  // more entries than the ring has
    ring.PublishRawIndex(static_cast<uint16_t>(ring.avail_idx() + ring.size() + 1));
    return ring.Kick();
  }
  const auto taken = ring.TakeRaw(2);
  if (!taken)
    return ring.PublishRawIndex(static_cast<uint16_t>(ring.avail_idx() + ring.size() + 1)), ring.Kick();
  const uint16_t first = (*taken)[0];
  const uint16_t second = (*taken)[1];
  const uint16_t next = kind == 1 ? first : static_cast<uint16_t>(ring.size() + random_.Below(1000));
  const uint64_t somewhere = ring.desc_gpa();
  ring.RawDescriptor(first) = {somewhere, 16, perf::wire::kDescNext, second};
  ring.RawDescriptor(second) = {somewhere, 16, perf::wire::kDescNext, next};
  ring.PushRaw(first, 2, kRawToken);
  ring.Publish();
  ring.Kick();
}

void SimGuest::MisbehavePacked(perf::PackedDriverRing& ring, uint64_t kind) {
  if (ring.free_descriptors() < 2) return;  // it would spoil chains that the device has yet to see
  misbehaved_ = true;
  const auto id = static_cast<uint16_t>(kind == 0 ? ring.size() + random_.Below(1000) : ring.size() - 1);
  const perf::wire::PackedDescriptor descriptor{ring.desc_gpa(), 16, id, perf::wire::kDescNext};
  std::vector<perf::wire::PackedDescriptor> chain(2, descriptor);
  if (kind == 0) chain.back().flags = 0;                       // with an id of no buffer
  if (kind == 1) chain.back().flags = perf::wire::kDescAvail;  // which goes on with one that is not available
  if (kind == 2) chain.assign(ring.free_descriptors(), descriptor);  // without an end
  ring.AddRaw(chain, id, kRawToken);
  ring.Publish();
  ring.Kick();
}

std::string SimGuest::Describe() const {
  std::string text = options_.name + ": " + (powered_ ? "on" : "off") +
                     (connection_ != nullptr ? ", connected" : "") + (up_ ? ", up" : "") +
                     (hang_up_ ? ", hanging up" : "") + (misbehaved_ ? ", misbehaved" : "") +
                     (identified_ ? "" : ", without a disk") + ", budget " + std::to_string(budget_) +
                     ", actions " + std::to_string(actions_.size());
  for (const auto& queue : queues_) {
    if (queue->open() > 0) text += "\n      " + queue->Describe();
  }
  return text;
}

}  // namespace cleat::sim
