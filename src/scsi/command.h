// SPDX-License-Identifier: Apache-2.0
// One SCSI command on its way through a logical unit: what the transport received, and what became of it. It is the
// block request too, so that the I/O path allocates nothing and a completion finds its way back.
//
// Ownership: the transport fills a command in and lends it to UnitChannel::Execute (or scsi/target.h); `on_done` gives it
// back, once, on the same reactor, perhaps before Execute returns.
#pragma once

#include <cstdint>
#include <span>

#include "base/intrusive_list.h"
#include "block/request.h"
#include "block/segments.h"
#include "scsi/command_table.h"
#include "scsi/sense.h"

namespace cleat::scsi {

// Why a command in flight should come to its end. One that is a single request of the storage goes on to its
// ordinary end, one of many steps takes no further one. kBusy: not for good, the initiator should try again.
enum class Abort : uint8_t { kNone, kBusy, kTask, kReset, kRemoved };

// Whether the command was carried out at all (SAM-5 5.3.1's service response, as virtio-scsi needs it).
enum class Delivery : uint8_t {
  kComplete,  // `scsi_status` and `sense` say how
  kOverrun,   // the command asks for more data than there is room (or data) for, or for the other direction
  kAborted,   // `abort` says why; some steps may have been taken
};

struct Command : block::Request {
  // ---- From the transport
  using DoneFn = void (*)(Command& command);
  DoneFn on_done = nullptr;
  // Whether its queue is being stopped, so that it waits for nothing that may not come; nullptr: never.
  bool (*queue_drains)(const Command& command) = nullptr;
  Cdb cdb{};
  uint64_t tag = 0;
  std::span<block::Segment>
      data_in;  // for the device to write; the list belongs to the command and may be cut
  std::span<block::Segment> data_out;
  uint64_t data_in_bytes = 0;
  uint64_t data_out_bytes = 0;

  // ---- What became of it
  Delivery delivery = Delivery::kComplete;
  ScsiStatus scsi_status = ScsiStatus::kGood;
  Sense sense;                     // with kCheckCondition, to be written in the
  bool descriptor_sense = false;   // descriptor or the fixed format
  uint64_t transferred_bytes = 0;  // in either direction; the rest is residual

  // ---- While it is in flight
  Abort abort = Abort::kNone;
  const CommandInfo* info = nullptr;
  uint64_t lba = 0;
  uint64_t blocks = 0;    // or what else the length field counts
  uint64_t sequence = 0;  // order of arrival in its unit channel
  ListHook in_flight;

  void Prepare() {
    delivery = Delivery::kComplete;
    scsi_status = ScsiStatus::kGood;
    sense = {};
    descriptor_sense = false;
    transferred_bytes = 0;
    abort = Abort::kNone;
    fua = may_unmap = false;
    segments = {};
  }
  // Looks the CDB up and takes the LBA and the length out of it.
  void Decode();

  // ---- Outcomes
  void Check(SenseKey key, SenseCode code) {
    End(ScsiStatus::kCheckCondition);
    sense = {};
    sense.key = key;
    sense.code = code;
  }
  void End(ScsiStatus how) {
    scsi_status = how;
    transferred_bytes = 0;
  }
  void CheckInformation(SenseKey key, SenseCode code, uint64_t information) {
    Check(key, code);
    sense.has_information = true;
    sense.information = information;
  }
  void RefuseField(BadField field, Sense::Pointer where = Sense::Pointer::kCdb);
  void RefuseOpcode();  // INVALID COMMAND OPERATION CODE, or the field of an unknown service action
  // Data-in of `reply`, as far as the allocation length reaches. Decode found it to fit.
  void Reply(std::span<const uint8_t> reply);
};

// Cuts a list of segments to its first `bytes`, which it has, and returns it.
inline std::span<const block::Segment> TakeFirst(std::span<block::Segment>& segments, uint64_t bytes) {
  size_t count = 0;
  while (bytes > 0) {
    block::Segment& segment = segments[count++];
    if (segment.length_bytes > bytes) segment.length_bytes = static_cast<uint32_t>(bytes);
    bytes -= segment.length_bytes;
  }
  return segments = segments.first(count);
}

}  // namespace cleat::scsi
