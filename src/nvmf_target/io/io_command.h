// SPDX-License-Identifier: Apache-2.0
// An I/O command of a host's in flight: what it is on the wire, and the block request that it becomes. And what its fields say, checked.
//
// Source: NVM Command Set Specification 1.0 ("NVM"), 3.2. Plain values; the functions are pure.
#pragma once

#include <cstdint>

#include "base/intrusive_list.h"
#include "block/device.h"
#include "block/request.h"
#include "nvme/command.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/status.h"
#include "nvme/target/reservations/reservation.h"
#include "nvmf_target/io/older_writes.h"
#include "observe/layout.h"

namespace cleat::nvmf_target {

class IoQueue;
struct NamespacePort;

// Ranges of a Dataset Management command (NVM 3.2.3): the field has eight bits.
inline constexpr uint32_t kRangesMax = 256;

// What the memory of a command's data is part of.
enum class BufferOf : uint8_t {
  kData,        // the pool for reads, and for data that is asked for
  kCapsules,    // the pool for data that commands bring along
  kReceived,    // the buffer that it was received to
  kRegistered,  // the pool that adapters reach, for the same as kData
};

struct IoCommand : nvme::fabrics::TargetCommand, block::Request {
  IoQueue* queue = nullptr;        // whose it is; nullptr: nobody's
  uint32_t epoch = 0;              // of the namespace that it was planned for, or is to be
  bool plans_later = false;        // once its data is there: it comes from another process
  bool for_control = false;        // of reservations: the control reactor executes it
  bool must_end = false;           // in the storage, and its host may not have it executed any more
  NamespacePort* space = nullptr;  // once it is submitted there
  block::Segment buffer;           // length 0: it has none
  BufferOf buffer_of = BufferOf::kData;
  observe::OpColumn column = observe::OpColumn::kOther;
  uint64_t counted_bytes = 0;
  ListHook waiting;  // for a buffer
  ListHook running;  // in the storage

  // Of one that changes data: what WriteOrder knows of it.
  ByteRange range;                   // of the namespace, with everything in between where there are several
  uint64_t began_ns = 0;             // when it went to the storage
  ListHook ordered;                  // in the storage, or held
  NamespacePort* held_at = nullptr;  // while it is held
  bool is_told = false;              // the other reactors know of it: it is in its namespace's OlderWrites
  OlderWrites::Writes::iterator told;

  // Discards and write zeroes are submitted one after the other, each no longer than the storage takes.
  enum class RangeState : uint8_t { kSubmitting, kSubmitted, kCompleted };
  RangeState range_state = RangeState::kSubmitted;
  uint16_t range_count = 0;
  uint16_t range_next = 0;
  uint64_t range_end_bytes = 0;  // of the present one
};

inline bool ChangesData(block::Op op) {
  return op == block::Op::kWrite || op == block::Op::kWriteZeroes || op == block::Op::kDiscard;
}

// Of commands that change reservations: they bring 16 bytes at most, for which some hosts send more.
inline constexpr uint32_t kReservationDataMaxBytes = 4096;

// To which of the two groups that reservations know it belongs (base 8.19, figure 452).
constexpr nvme::target::ReservationAccess AccessOf(block::Op op) {
  return op == block::Op::kRead ? nvme::target::ReservationAccess::kReads
                                : nvme::target::ReservationAccess::kWrites;
}

// What a command wants of a namespace.
struct IoPlan {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kFlush,
    kWriteZeroes,
    kDiscard,
    kReservationChange,
    kReservationReport,
    kNothing
  };
  Kind kind = Kind::kNothing;
  bool to_target = false;  // its data, or ranges, come from the host
  bool fua = false;
  bool may_unmap = false;
  uint16_t ranges = 0;        // of a discard, which are in its data
  uint64_t offset_bytes = 0;  // of the others
  uint64_t length_bytes = 0;
};

// `data_bytes`: what its descriptor says. An error is how it is answered.
nvme::Status PlanOf(const nvme::fabrics::SubmissionEntry& entry, const block::Geometry& geometry,
                    block::AccessMode mode, uint32_t data_bytes, IoPlan& plan);
// The ranges of a discard, from where the first begins to where the last one ends. What is not within the namespace is left out.
ByteRange RangeOf(const IoCommand& command, const block::Geometry& geometry);
// How it is answered when the storage has answered so. `reads`: of a read.
nvme::Status StatusOf(block::IoStatus status, bool reads);

// NVM 3.1 and base 3.3.3.2.1.
inline constexpr nvme::Status kSuccess{0};
inline constexpr nvme::Status kInvalidOpcode{0x4001};  // with Do Not Retry, as the next ones
inline constexpr nvme::Status kInvalidNamespace{0x400b};
inline constexpr nvme::Status kSglTypeInvalid{0x4011};
inline constexpr nvme::Status kLbaOutOfRange{0x4080};
inline constexpr nvme::Status kTransientError{0x22};
inline constexpr nvme::Status kReservationConflict{0x4083};  // a host that tries again has the same answer
inline constexpr nvme::Status kInternalPathError{0x300};

}  // namespace cleat::nvmf_target
