// SPDX-License-Identifier: Apache-2.0
// An association of a host as one engine hands it to the next: its connections with their sockets, and what is known of them. The host notices
// nothing but the time that it takes. Destroying one closes its sockets: the host comes back then. Any thread.
//
// Associations over TLS are not handed over, as their sessions are the process' own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/hand_over/saved_controller.h"
#include "nvme/tcp_target/saved_connection.h"

namespace cleat::nvmf_target {

// Of one subsystem's associations together (BytesOf, RoomOf): what is beyond that is not handed over, or not taken, and its hosts come back. The
// room is what an engine's own memory for hosts' data has, on some reactors.
inline constexpr uint64_t kSavedBytesMax = 64 << 20;
inline constexpr uint64_t kSavedRoomMax = 1 << 30;

struct SavedQueue {
  uint16_t id = 0;  // 0: the admin queue
  UniqueFd socket;
  nvme::fabrics::TransportAddress peer;
  nvme::tcp::SavedConnection connection;
  // The number that the kernel gives the socket's next send without a copy (zero_copy_sends.h). nullopt: it is not known, and no such send is made.
  std::optional<uint32_t> zero_copy_next = std::nullopt;
};

// What is handed over has to be taken within that time: long before the engine that gave it away, or another one, serves its hosts again and
// executes newer commands of theirs.
inline constexpr uint64_t kTakeWithinNs = 10 * kNsPerSecond;

struct SavedAssociation {
  nvme::target::SavedController controller;
  uint64_t not_after_ns =
      UINT64_MAX;  // on CLOCK_MONOTONIC: from then on it is not taken, and its host comes back
  std::vector<SavedQueue> queues;  // the admin queue first
};

inline uint64_t BytesOf(const SavedAssociation& saved) {
  uint64_t bytes = 0;
  for (const SavedQueue& queue : saved.queues) bytes += nvme::tcp::BytesOf(queue.connection);
  return bytes;
}
inline uint64_t RoomOf(const SavedAssociation& saved) {
  uint64_t bytes = 0;
  for (const SavedQueue& queue : saved.queues) bytes += nvme::tcp::RoomOf(queue.connection);
  return bytes;
}

}  // namespace cleat::nvmf_target
