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
  block::Segment piece;    // of registered memory, where its data is not in its capsule
  fabrics::SubmissionEntry entry;
  fabrics::CompletionEntry answer;

  bool needs_piece() const { return data_bytes > 0 && !in_capsule; }
  uint32_t works() const { return needs_piece() ? 2 : 1; }  // that its capsule takes
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
