// SPDX-License-Identifier: Apache-2.0
// A host's writes, and its answers, while its connections go from one engine to the next: what tests of that share.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/unit/nvmf_target/raw_host.h"

namespace cleat::nvmf_target::hand_over_host {

inline constexpr uint32_t kBlocks = 8;

inline bool Succeeds(const std::optional<nvme::fabrics::CompletionEntry>& answer) {
  return answer && answer->status().ok();
}
inline void SendWrite(test::RawHost& queue, uint64_t block, uint8_t value) {
  queue.Send(test::BlocksEntry(nvme::Opcode::kWrite, block, kBlocks, true),
             std::vector<uint8_t>(kBlocks * 512, value));
}

}  // namespace cleat::nvmf_target::hand_over_host
