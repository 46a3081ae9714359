// SPDX-License-Identifier: Apache-2.0
// What a pretend guest's requests look like in its memory: virtio-blk's (virtio 1.2, 5.2.6) and virtio-scsi's (5.6.6.1),
// with the commands of SBC-4 that do the same. Values; no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "disk_model.h"
#include "perf/ring/driver_ring.h"
#include "perf/ring/request_layout.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::sim {

// A request that was issued and not answered.
struct OpenIo {
  enum class Op : uint8_t {
    kRead,
    kWrite,
    kFlush,
    kDiscard,
    kWriteZeroes,
    kGetId,
    kCompareAndWrite,
    kResetUnit
  };
  Op op = Op::kFlush;
  DiskModel* model = nullptr;  // reads and writes
  uint64_t block = 0;
  uint64_t count = 0;
  uint64_t stamp = 0;     // writes; 0: one that can't succeed
  uint64_t compared = 0;  // compare and write: the stamp of what has to be there
  DiskModel::Read read;

  DiskModel::Kind kind() const;
  const char* name() const;
  // It will never be answered.
  void Abandon(DiskModel::Fate fate) const;
};

enum class GuestDeviceType : uint8_t { kBlk, kScsi };

// The area of a request, its header and its answer.
class GuestRequest {
 public:
  // What the answer says.
  enum class Outcome : uint8_t {
    kOk,
    kFailed,
    kMiscompare,
    kAborted,
    kReset,
    kAttention,
    kNoTarget,
    kNonsense
  };

  GuestRequest(perf::GuestMemory& memory, GuestDeviceType device) : memory_(memory), device_(device) {}

  uint64_t area_bytes() const;
  uint32_t answer_bytes() const;
  // Data as the request wants it at the buffer, which the device reads or writes; nothing for some.
  std::vector<perf::Segment> PutData(const OpenIo& io, uint64_t buffer_gpa) const;
  void PutHeader(const OpenIo& io, uint64_t area_gpa, uint64_t tag) const;
  // LOGICAL UNIT RESET, for the control queue.
  std::vector<perf::Segment> PutReset(uint64_t area_gpa) const;
  bool Plan(perf::LayoutPlanner& planner, uint64_t area_gpa, std::span<const perf::Segment> data,
            perf::RequestLayout* layout) const;
  Outcome Read(uint64_t area_gpa) const;
  std::string Describe(uint64_t area_gpa) const;
  // The byte that says whether it went well, which every answer writes.
  uint8_t& AnswerByte(uint64_t area_gpa) const;

 private:
  std::vector<perf::Segment> PutRange(const OpenIo& io, uint64_t buffer_gpa) const;

  perf::GuestMemory& memory_;
  const GuestDeviceType device_;
};

}  // namespace cleat::sim
