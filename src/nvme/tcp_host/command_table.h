// SPDX-License-Identifier: Apache-2.0
// The commands of one connection that are in flight, each in a slot with all that its PDUs need: nothing is allocated for a command.
//
// An answer that comes late, or twice, names no command: fabrics/queues/command_ids.h.
//
// One thread: its connection's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "block/memory.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/queues/command_ids.h"
#include "nvme/tcp/pdu.h"

namespace cleat::nvme::tcp {

inline constexpr uint32_t kDepthMax = 1023;

// The longest beginning of a PDU of ours: CapsuleCmd with its digest, and padding for the CPDA (17) that takes most.
inline constexpr uint32_t kSendHeaderMaxBytes = 144;

// A PDU to send: header in `bytes` with digest and padding, then data of the command, then the data's digest.
struct SendPdu {
  alignas(8) uint8_t bytes[kSendHeaderMaxBytes];
  uint32_t header_bytes = 0;
  uint32_t data_offset_bytes = 0;  // in the command's data
  uint32_t data_bytes = 0;
  uint32_t digest = 0;
  uint32_t digest_bytes = 0;
  bool digest_made = false;

  uint64_t size_bytes() const { return uint64_t{header_bytes} + data_bytes + digest_bytes; }
};

// What becomes of one command. All but what names the slot begins anew with each use.
struct CommandSlot {
  std::span<const block::Segment> to_target;
  std::span<const block::Segment> from_target;
  uint64_t cookie = 0;
  uint32_t data_bytes = 0;  // either way
  uint16_t cid = 0;
  uint16_t ttag = 0;
  bool in_use = false;
  bool may_lack_data = false;  // a controller can't execute it without data that is not in its capsule
  bool in_capsule = false;
  bool capsule_begun = false;  // a byte of it went
  bool capsule_sent = false;
  bool data_begun = false;    // a byte of an H2CData went
  bool data_queued = false;   // an H2CData is queued, or partly sent
  bool answered = false;      // ... and waits until that has left
  bool last_came = false;     // C2HData with LAST
  bool digest_wrong = false;  // of a C2HData
  uint32_t asked_bytes = 0;   // the data that R2Ts have asked for, from its beginning
  uint32_t moved_bytes = 0;   // that went in whole PDUs, or came
  fabrics::CompletionEntry answer;
  SendPdu pdu;
};

class CommandTable {
 public:
  explicit CommandTable(uint32_t depth) : slots_(depth), free_(depth), ids_(depth) {
    CLEAT_CHECK(depth > 0 && depth <= kDepthMax);
    for (uint32_t i = 0; i < depth; ++i) free_[i] = static_cast<uint16_t>(depth - 1 - i);
    free_count_ = depth;
  }

  uint32_t free() const { return free_count_; }
  std::span<CommandSlot> slots() { return slots_; }

  CommandSlot& Take() {
    CLEAT_CHECK(free_count_ > 0);
    const uint16_t number = free_[--free_count_];
    CommandSlot& slot = slots_[number];
    slot.cid = ids_.Take(number);
    slot.in_use = true;
    slot.in_capsule = slot.may_lack_data = slot.capsule_begun = slot.capsule_sent = false;
    slot.data_begun = slot.data_queued = slot.answered = slot.last_came = slot.digest_wrong = false;
    slot.asked_bytes = slot.moved_bytes = 0;
    return slot;
  }

  // The command that has the CID now, or nullptr.
  CommandSlot* Find(uint16_t cid) {
    const uint16_t number = ids_.Find(cid);
    if (number == fabrics::CommandIds::kNoNumber) return nullptr;
    CommandSlot& slot = slots_[number];
    return slot.cid == cid ? &slot : nullptr;
  }

  void Free(CommandSlot& slot) {
    CLEAT_CHECK(slot.in_use);
    slot.in_use = false;
    ids_.Free(slot.cid);
    free_[free_count_++] = static_cast<uint16_t>(&slot - slots_.data());
  }

 private:
  std::vector<CommandSlot> slots_;
  std::vector<uint16_t> free_;  // the one that was freed last is used first: it is in the cache
  fabrics::CommandIds ids_;
  uint32_t free_count_ = 0;
};

}  // namespace cleat::nvme::tcp
