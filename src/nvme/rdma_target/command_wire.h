// SPDX-License-Identifier: Apache-2.0
// What the transport over RDMA alone knows of a command (TargetCommand::MakeWire), and how a completion says whose it is. One thread: the queue's.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/rdma/keyed_sgl.h"
#include "nvme/rdma_target/read_scheduler.h"
#include "nvme/rdma_target/transfer.h"

namespace cleat::nvme::rdma_target {

class TargetQueue;

// Its READs are in its base.
struct CommandWire final : ReadRequest {
  fabrics::TargetCommand* command = nullptr;
  TargetQueue* queue = nullptr;
  TransferCursor cursor;
  uint32_t round_from_bytes =
      0;  // what is moved at a time: all of the data, or what its queue's staging memory has room for
  uint32_t round_end_bytes = 0;
  uint32_t move_bytes = 0;  // all of the data that is asked for, or that the answer has
  // Signaled works of its answer that are posted and have not completed. What was posted of it ends with one of them: where there is none, the adapter
  // has nothing of the answer.
  uint32_t outstanding = 0;
  bool staged = false;
  bool sent = false;  // its completion entry is posted
  fabrics::CompletionEntry entry;
  rdma::CommandData data;
};

// ---- The id of a work.
//
// Of a send: the command, and the generation of its queue, by which a completion of an earlier queue pair of the same number is known. Of a receive: its slot.
enum class WorkKind : uint8_t {
  kReceive = 1,
  kRead = 2,
  kAnswer = 3,  // signaled, of an answer: a SEND, or a WRITE
  kWrite = 4,   // not signaled: its completion is an error, and says nothing of a command's memory
};

inline constexpr uint32_t kKindBits = 3;
inline constexpr uint32_t kGenerationShift = 48;  // above a pointer's bits

struct WorkId {
  WorkKind kind = WorkKind::kReceive;
  uint16_t generation = 0;
  CommandWire* wire = nullptr;

  uint64_t Pack() const {
    const auto address = std::bit_cast<uint64_t>(wire);
    CLEAT_CHECK(address >> kGenerationShift == 0 && address % (1 << kKindBits) == 0);
    return uint64_t{generation} << kGenerationShift | address | static_cast<uint64_t>(kind);
  }
  static WorkKind KindOf(uint64_t id) { return static_cast<WorkKind>(id % (1 << kKindBits)); }
  static uint16_t GenerationOf(uint64_t id) { return static_cast<uint16_t>(id >> kGenerationShift); }
  // Of a generation that is the queue's, and of a kind that has one.
  static CommandWire* WireOf(uint64_t id) {
    constexpr uint64_t kAddress = (uint64_t{1} << kGenerationShift) - (1 << kKindBits);
    return std::bit_cast<CommandWire*>(id & kAddress);
  }
  static uint64_t OfReceive(uint32_t slot) {
    return uint64_t{slot} << kKindBits | static_cast<uint64_t>(WorkKind::kReceive);
  }
  static uint64_t SlotOf(uint64_t id) { return id >> kKindBits; }
};

}  // namespace cleat::nvme::rdma_target
