// SPDX-License-Identifier: Apache-2.0
// What a controller's TCP connection keeps of a command: the PDUs that go out for it, an R2T or its answer, but for the data, which is the command's.
//
// One thread: its connection's.
#pragma once

#include <cstdint>

#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/tcp/pdu.h"

namespace cleat::nvme::tcp {

using fabrics::TargetCommand;

// A header with its digest, and padding for the HPDA that takes most.
inline constexpr uint32_t kResponseHeadMaxBytes = (uint32_t{kDataAlignMax} + 1) * kDataAlignUnitBytes;
// What comes behind data: its digest, and a CapsuleResp with one.
inline constexpr uint32_t kResponseTailMaxBytes = kDigestBytes + sizeof(CapsuleResp) + kDigestBytes;

struct Wire {
  bool digest_is_wrong = false;  // of data that came
  bool makes_digest = false;     // of the data that goes, once it is sent
  uint32_t head_bytes = 0;
  uint32_t sent_data_bytes = 0;  // of the C2HData
  uint32_t tail_bytes = 0;
  alignas(8) uint8_t head[kResponseHeadMaxBytes];
  alignas(8) uint8_t tail[kResponseTailMaxBytes];

  uint64_t pdu_bytes() const { return uint64_t{head_bytes} + sent_data_bytes + tail_bytes; }
};

inline Wire& WireOf(TargetCommand& command) {
  return command.wire<Wire>();
}
inline const Wire& WireOf(const TargetCommand& command) {
  return command.wire<Wire>();
}

}  // namespace cleat::nvme::tcp
