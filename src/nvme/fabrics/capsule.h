// SPDX-License-Identifier: Apache-2.0
// What NVMe over Fabrics sends in its capsules: entries of submission and completion queues, and the descriptors that say where the data is.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.3.2 (capsules), 3.3.3.1 (submission queue entry), 3.3.3.2 (completion queue entry),
// 4.1.2 (SGL); NVM Express TCP Transport Specification 1.0, 3.3.1 (which descriptors). Plain values; any thread.
#pragma once

#include <bit>
#include <cstdint>

#include "nvme/command.h"
#include "nvme/status.h"

namespace cleat::nvme::fabrics {

static_assert(std::endian::native == std::endian::little);

// An SGL descriptor in its 16 bytes (base 4.1.2.1).
struct SglDescriptor {
  uint64_t address = 0;  // of a data block; an offset into the capsule where the data is in it
  uint32_t length_bytes = 0;
  uint8_t reserved[3] = {};
  uint8_t type = 0;  // SglType in bits 7:4, its subtype in 3:0
};
static_assert(sizeof(SglDescriptor) == 16);

// Type and subtype as one byte.
inline constexpr uint8_t kSglInCapsule =
    0x01;  // a data block at an offset: the data follows the entry in its capsule
inline constexpr uint8_t kSglByTransport =
    0x5a;  // a transport data block: the transport brings it in messages of its own

// The opcode of fabrics commands on any queue (base 6).
inline constexpr auto kFabricsOpcode = static_cast<uint8_t>(AdminOpcode::kFabrics);

// Bits 7:6 of the entry's second byte: SGLs (all of fabrics).
inline constexpr uint8_t kFlagsSgl = 0x40;

struct SubmissionEntry {
  uint8_t opcode = 0;
  uint8_t flags = 0;
  uint16_t cid = 0;  // the queue pair's to choose
  uint32_t nsid = 0;
  uint32_t cdw2 = 0;
  uint32_t cdw3 = 0;
  uint64_t metadata = 0;
  SglDescriptor data;
  uint32_t cdw10 = 0;
  uint32_t cdw11 = 0;
  uint32_t cdw12 = 0;
  uint32_t cdw13 = 0;
  uint32_t cdw14 = 0;
  uint32_t cdw15 = 0;
};
static_assert(sizeof(SubmissionEntry) == 64);

constexpr SubmissionEntry EntryOf(const Command& command) {
  return {.opcode = command.opcode,
          .flags = kFlagsSgl,
          .nsid = command.nsid,
          .data = {},
          .cdw10 = command.cdw10,
          .cdw11 = command.cdw11,
          .cdw12 = command.cdw12};
}

struct CompletionEntry {
  uint64_t result = 0;  // DW0 and DW1: the command's
  uint16_t sq_head = 0;
  uint16_t sq_id = 0;  // reserved in fabrics
  uint16_t cid = 0;
  uint16_t status_field = 0;  // with the phase tag, which fabrics do not use, in bit 0

  Status status() const { return Status(static_cast<uint16_t>(status_field >> 1)); }
};
static_assert(sizeof(CompletionEntry) == 16);

}  // namespace cleat::nvme::fabrics
