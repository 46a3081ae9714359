// SPDX-License-Identifier: Apache-2.0
// A command of a host's queue over RDMA from Submit to its end, and how a completion says whose it is. One thread: the queue's.
#pragma once

#include <cstdint>
#include <span>

#include "base/intrusive_list.h"
#include "block/memory.h"
#include "nvme/fabrics/capsule.h"
#include "rdma/memory.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_host {

namespace verbs = ::cleat::rdma;

class HostQueue;

// What a command under way has of the adapter's: memory for its capsule, and a window where its data is not in that.
struct Place {
  ListHook hook;  // among those that are free
  uint32_t index = 0;
  verbs::MemoryWindow* window = nullptr;
};

enum class WindowState : uint8_t {
  kShut,      // or was never bound for the command
  kOpen,      // the work that binds it is posted
  kShutting,  // it is to be invalidated by work of this end
};

// All but what names the command begins anew with each use.
struct HostCommand {
  ListHook of_queue;  // in its queue, in the order of Submit
  ListHook waits;     // in a line of the adapter's, or in its queue for the next works
  HostQueue* queue = nullptr;
  uint16_t number = 0;  // in its queue's table

  std::span<const block::Segment> to_target;
  std::span<const block::Segment> from_target;
  uint64_t cookie = 0;
  uint32_t data_bytes = 0;  // either way
  uint16_t cid = 0;
  bool in_use = false;
  bool in_capsule = false;
  bool is_large = false;
  bool posted = false;    // its capsule
  bool sent = false;      // ... which the adapter has completed
  bool answered = false;  // its completion entry has come
  WindowState window = WindowState::kShut;
  uint32_t key = 0;        // of the window
  Place* place = nullptr;  // nullptr: it waits for one
  // What the window shows, where its data is not in its capsule: memory of the adapter's, or its owner's own, of which this is the registration.
  block::Segment piece;
  const verbs::Registration* direct = nullptr;
  fabrics::SubmissionEntry entry;
  fabrics::CompletionEntry answer;

  bool needs_window() const { return data_bytes > 0 && !in_capsule; }
  bool needs_piece() const { return needs_window() && direct == nullptr; }  // of the adapter's memory
  uint32_t works() const { return needs_window() ? 2 : 1; }                 // that its capsule takes
  // Whether the controller may still reach its owner's memory.
  bool shows_owners_memory() const { return direct != nullptr && window != WindowState::kShut; }
};

// ---- The id of a work.
//
// A queue's work has its command, and the generation of the queue, by which a completion of an earlier queue pair of the same number is known. A receive has its
// number.
enum class WorkKind : uint8_t {
  kReceive = 1,
  kBind = 2,  // not signaled: its completion is an error
  kSend = 3,
  kInvalidate = 4,
};

struct WorkId {
  WorkKind kind = WorkKind::kReceive;
  uint16_t generation = 0;
  uint32_t number = 0;

  uint64_t Pack() const {
    return uint64_t{generation} << kGenerationShift | uint64_t{number} << kNumberShift |
           static_cast<uint64_t>(kind);
  }
  static WorkId Of(uint64_t id) {
    return {static_cast<WorkKind>(id & 0xff), static_cast<uint16_t>(id >> kGenerationShift),
            static_cast<uint32_t>(id >> kNumberShift)};
  }

 private:
  static constexpr uint32_t kNumberShift = 8;
  static constexpr uint32_t kGenerationShift = 48;
};

}  // namespace cleat::nvme::rdma_host
