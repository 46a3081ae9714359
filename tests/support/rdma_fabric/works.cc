// SPDX-License-Identifier: Apache-2.0
// What becomes of works: World's rules for send queues, receive queues and completion queues.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/support/rdma_fabric/world.h"

namespace cleat::test::rdma_fabric {

using rdma::LocalPiece;
using rdma::SendOp;
using rdma::WorkStatus;

namespace {

constexpr uint32_t kIndexShift = 8;  // of a key, what stays of it

uint8_t* At(uint64_t address) {
  return std::bit_cast<uint8_t*>(address);
}

bool Covers(uint64_t address, uint64_t bytes, uint64_t from, uint64_t length) {
  return from >= address && length <= bytes && from - address <= bytes - length;
}

bool IsRegistered(const DeviceState& device, const LocalPiece& piece, bool to_write) {
  const auto found = device.regions.find(piece.local_key);
  return found != device.regions.end() && (found->second.access.local_write || !to_write) &&
         Covers(found->second.address, found->second.bytes, piece.address, piece.length_bytes);
}

bool AreRegistered(const PairState& pair, const Work& work) {
  return work.work.copies_data || std::ranges::all_of(work.pieces, [&](const LocalPiece& piece) {
           return IsRegistered(*pair.device, piece, work.work.op == SendOp::kRead);
         });
}

// Whether the peer of `pair` shows that memory by that key.
bool IsShown(const PairState& pair, uint32_t key, uint64_t address, uint64_t bytes, bool to_write) {
  const DeviceState& device = *pair.peer->device;
  for (const auto& [local_key, region] : device.regions) {
    if (region.remote_key != key) continue;
    const bool may = to_write ? region.access.peer_may_write : region.access.peer_may_read;
    return may && Covers(region.address, region.bytes, address, bytes);
  }
  const auto found = device.windows.find(key >> kIndexShift);
  if (found == device.windows.end() || found->second.pair != pair.peer || found->second.key != key)
    return false;
  const rdma::WindowBinding& binding = found->second.binding;
  const bool may = to_write ? binding.peer_may_write : binding.peer_may_read;
  return may && Covers(binding.address, binding.length_bytes, address, bytes);
}

WindowState* BoundWindow(const PairState& pair, uint32_t key) {
  const auto found = pair.device->windows.find(key >> kIndexShift);
  const bool is_bound =
      found != pair.device->windows.end() && found->second.pair == &pair && found->second.key == key;
  return is_bound ? &found->second : nullptr;
}

// The bytes of the pieces, one after the other, to or from `memory`.
void Gather(const Work& work, uint8_t* memory) {
  if (work.work.copies_data) {
    std::ranges::copy(work.copied, memory);
    return;
  }
  for (const LocalPiece& piece : work.pieces) {
    std::memcpy(memory, At(piece.address), piece.length_bytes);
    memory += piece.length_bytes;
  }
}

void Scatter(const Work& work, const uint8_t* memory) {
  for (const LocalPiece& piece : work.pieces) {
    std::memcpy(At(piece.address), memory, piece.length_bytes);
    memory += piece.length_bytes;
  }
}

Work CopyOf(const rdma::SendWork& from) {
  Work work;
  work.work = from;
  work.pieces.assign(from.pieces.begin(), from.pieces.end());
  for (const LocalPiece& piece : work.pieces) work.bytes += piece.length_bytes;
  work.work.pieces = {};
  work.work.binding = nullptr;
  if (from.op == SendOp::kRead) work.work.signaled = true;
  if (from.binding != nullptr) work.binding = *from.binding;
  if (!from.copies_data) return work;
  for (const LocalPiece& piece : work.pieces)
    work.copied.insert(work.copied.end(), At(piece.address), At(piece.address) + piece.length_bytes);
  return work;
}

}  // namespace

// ---- Posting

// What an adapter's own call refuses.
bool World::MayPost(PairState& pair, const rdma::SendWork& work) {
  const uint32_t bytes =
      std::accumulate(work.pieces.begin(), work.pieces.end(), 0U,
                      [](uint32_t sum, const LocalPiece& piece) { return sum + piece.length_bytes; });
  std::string why;
  if (pair.used >= pair.limits.works) {
    why = fmt::format("more than the {} works that its send queue has room for", pair.limits.works);
  } else if (work.pieces.size() > pair.limits.pieces) {
    why = fmt::format("a work of {} pieces, {} at most", work.pieces.size(), pair.limits.pieces);
  } else if (work.copies_data && bytes > pair.limits.inline_bytes) {
    why = fmt::format("{} bytes to be copied, {} at most", bytes, pair.limits.inline_bytes);
  } else if (work.op == SendOp::kRead && (pair.limits.read_credits == 0 || work.copies_data)) {
    why = "a READ without a credit, or of memory that is copied";
  } else if ((work.op == SendOp::kBindWindow) != (work.binding != nullptr)) {
    why = "a binding of no window, or with another work";
  }
  if (why.empty()) return true;
  Wrong(fmt::format("queue pair {}: {}", pair.number, why));
  return false;
}

uint32_t World::PostSends(PairState& pair, std::span<const rdma::SendWork> works) {
  uint32_t posted = 0;
  for (const rdma::SendWork& work : works) {
    if (!MayPost(pair, work)) break;
    ++pair.used;
    ++posted;
    pair.pending.push_back(CopyOf(work));
    // Soon is at once, so that a later work finds what is before it done.
    Pump(pair);
  }
  return posted;
}

uint32_t World::PostReceives(ReceiveState& receives, std::span<const rdma::ReceiveWork> works) {
  if (receives.device->adapter->gone) return 0;
  uint32_t posted = 0;
  for (const rdma::ReceiveWork& work : works) {
    if (receives.posted.size() >= receives.entries_max) {
      Wrong(fmt::format("more than the {} works that a receive queue has room for", receives.entries_max));
      break;
    }
    if (!IsRegistered(*receives.device, work.piece, true)) {
      Wrong("memory to receive to that is not registered for that");
      break;
    }
    receives.posted.push_back(work);
    ++posted;
  }
  if (posted > 0) PumpAll();
  return posted;
}

bool World::IsNamedByWork(const DeviceState& device, uint32_t local_key) const {
  const auto names = [local_key](const LocalPiece& piece) { return piece.local_key == local_key; };
  for (const auto& [number, pair] : pairs_) {
    if (pair->device.get() != &device || device.adapter->gone) continue;
    for (const Work& work : pair->pending) {
      if (!work.work.copies_data && std::ranges::any_of(work.pieces, names)) return true;
    }
  }
  return std::ranges::any_of(device.receive_queues, [&](const ReceiveState* receives) {
    return std::ranges::any_of(receives->posted, [&](const auto& work) { return names(work.piece); });
  });
}

bool World::IsNamedByWork(const rdma::MemoryWindow& window) const {
  return std::ranges::any_of(pairs_, [&window](const auto& known) {
    return std::ranges::any_of(known.second->pending, [&window](const Work& work) {
      return work.binding && work.binding->window == &window;
    });
  });
}

// ---- Doing

bool World::Reaches(const PairState& pair) {
  const PairState* const peer = pair.peer;
  return peer != nullptr && !peer->broken && !peer->device->adapter->gone &&
         pair.silence == RdmaSilence::kNone && peer->silence == RdmaSilence::kNone;
}

void World::PumpAll() {
  // What is done may complete others' works, and makes or destroys no queue pair.
  for (const auto& [number, pair] : pairs_) Pump(*pair);
}

void World::Pump(PairState& pair) {
  while (!pair.pending.empty() && !pair.device->adapter->gone) {
    if (pair.broken) return pair.keeps_works ? void() : Flush(pair);
    if (pair.held && pair.released == 0) return;
    const auto status = Execute(pair, pair.pending.front());
    if (!status) return;
    if (pair.held) --pair.released;
    Complete(pair, *status);
    if (*status == WorkStatus::kDone) continue;
    // A peer that has refused is broken as well.
    PairState* const peer = *status == WorkStatus::kRemoteRefused ? pair.peer : nullptr;
    Break(pair);
    if (peer != nullptr) Break(*peer);
  }
}

// nullopt: it waits.
std::optional<WorkStatus> World::Execute(PairState& pair, const Work& work) {
  if (!AreRegistered(pair, work)) {
    Wrong(fmt::format("queue pair {}: a work with memory that is not registered for it", pair.number));
    return WorkStatus::kLocalError;
  }
  switch (work.work.op) {
    case SendOp::kBindWindow:
      return Bind(pair, *work.binding);
    case SendOp::kInvalidateWindow: {
      WindowState* const window = BoundWindow(pair, work.work.key);
      if (window == nullptr) {
        Wrong(fmt::format("queue pair {}: a window is invalidated that it has not", pair.number));
        return WorkStatus::kLocalError;
      }
      window->pair = nullptr;
      return WorkStatus::kDone;
    }
    case SendOp::kRead:
    case SendOp::kWrite:
      if (!Reaches(pair)) return std::nullopt;
      return Move(pair, work);
    case SendOp::kSend:
    case SendOp::kSendAndInvalidate:
      break;
  }
  return Send(pair, work);
}

WorkStatus World::Move(PairState& pair, const Work& work) {
  const bool reads = work.work.op == SendOp::kRead;
  if (!IsShown(pair, work.work.key, work.work.remote_address, work.bytes, !reads))
    return WorkStatus::kRemoteRefused;
  uint8_t* const remote = At(work.work.remote_address);
  if (reads) {
    Scatter(work, remote);
  } else {
    Gather(work, remote);
  }
  return WorkStatus::kDone;
}

std::optional<WorkStatus> World::Send(PairState& pair, const Work& work) {
  if (!Reaches(pair) || pair.peer->receives->posted.empty()) return std::nullopt;
  PairState& peer = *pair.peer;
  const bool invalidates = work.work.op == SendOp::kSendAndInvalidate && !pair.device->adapter->sends_plainly;
  WindowState* const window = invalidates ? BoundWindow(peer, work.work.key) : nullptr;
  if (invalidates && window == nullptr) return WorkStatus::kRemoteRefused;
  const rdma::ReceiveWork to = peer.receives->posted.front();
  peer.receives->posted.pop_front();
  rdma::Completion came{.id = to.id, .queue_pair = peer.number};
  if (work.bytes > to.piece.length_bytes) {
    came.status = WorkStatus::kLocalError;
    Push(*peer.completions, {came});
    return WorkStatus::kRemoteRefused;
  }
  Gather(work, At(to.piece.address));
  came.received_bytes = work.bytes;
  if (invalidates) {
    window->pair = nullptr;
    came.key_was_invalidated = true;
    came.invalidated_key = work.work.key;
  }
  Push(*peer.completions, {came});
  return WorkStatus::kDone;
}

WorkStatus World::Bind(PairState& pair, const rdma::WindowBinding& binding) {
  const auto found = pair.device->windows.find(binding.key >> kIndexShift);
  const uint32_t local_key = binding.registration->local_key();
  const auto region = pair.device->regions.find(local_key);
  std::string why;
  if (found == pair.device->windows.end() || found->second.binding.window != binding.window) {
    why = "a binding whose window is not of this device, or has another key";
  } else if (found->second.pair != nullptr) {
    why = "a window is bound that is bound already";
  } else if (found->second.key == binding.key) {
    why = "a window is bound by the key of its last binding";
  } else if (region == pair.device->regions.end() || !region->second.access.windows ||
             (binding.peer_may_write && !region->second.access.local_write)) {
    why = "a window to memory that is not registered for that";
  } else if (!Covers(region->second.address, region->second.bytes, binding.address, binding.length_bytes)) {
    why = "a window to more than is registered";
  }
  if (!why.empty()) {
    Wrong(fmt::format("queue pair {}: {}", pair.number, why));
    return WorkStatus::kLocalError;
  }
  found->second = {.pair = &pair, .key = binding.key, .local_key = local_key, .binding = binding};
  return WorkStatus::kDone;
}

// ---- Completing

void World::Push(CompletionState& queue, const CompletionState::Entry& entry) {
  if (queue.entries.size() >= queue.entries_max)
    Wrong(fmt::format("a completion queue of {} entries overruns", queue.entries_max));
  queue.entries.push_back(entry);
  if (std::exchange(queue.armed, false)) queue.event.Set();
}

// The first work of `pair`.
void World::Complete(PairState& pair, WorkStatus status) {
  const rdma::SendWork work = pair.pending.front().work;
  pair.pending.pop_front();
  if (status == WorkStatus::kDone && !work.signaled) {
    ++pair.unsignaled;
    return;
  }
  rdma::Completion done{.id = work.id, .queue_pair = pair.number, .status = status};
  Push(*pair.completions, {done, std::exchange(pair.unsignaled, 0) + 1});
}

void World::Flush(PairState& pair) {
  while (!pair.pending.empty()) Complete(pair, WorkStatus::kFlushed);
}

void World::Break(PairState& pair) {
  if (std::exchange(pair.broken, true)) return;
  const PairState* const peer = pair.peer;
  pair.keeps_works = peer != nullptr && peer->silence == RdmaSilence::kUntilDestroyed;
  Pump(pair);
}

uint32_t World::Poll(CompletionState& queue, std::span<rdma::Completion> completions) {
  uint32_t count = 0;
  while (count < completions.size() && !queue.entries.empty()) {
    const CompletionState::Entry entry = queue.entries.front();
    queue.entries.pop_front();
    if (PairState* const pair = FindPair(entry.completion.queue_pair)) pair->used -= entry.frees;
    completions[count++] = entry.completion;
  }
  return count;
}

void World::GiveUpWorks() {
  for (const auto& [number, pair] : pairs_) {
    if (pair->pending.empty() || pair->broken || pair->held || !pair->was_connected || Reaches(*pair))
      continue;
    if (pair->device->adapter->gone) continue;
    Complete(*pair, WorkStatus::kRetriesExceeded);
    Break(*pair);
  }
}

}  // namespace cleat::test::rdma_fabric
