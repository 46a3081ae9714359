// SPDX-License-Identifier: Apache-2.0
// A host of the tests' own, byte by byte: one connection, which sends what it is told to and shows what comes. For what no host that keeps the
// rules does.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/fabrics/commands.h"
#include "nvme/tcp/pdu.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test {

class RawHost {
 public:
  // Connected, with ICReq and ICResp exchanged.
  explicit RawHost(TargetRig& rig);

  // Sends a capsule with what it brings along, and waits for nothing.
  void Send(nvme::fabrics::SubmissionEntry entry, const std::vector<uint8_t>& data = {});
  // Waits for a response, and returns its entry; data of reads before it is dropped. nullopt: the connection has ended.
  std::optional<nvme::fabrics::CompletionEntry> Answer();
  std::optional<nvme::fabrics::CompletionEntry> Do(const nvme::fabrics::SubmissionEntry& entry,
                                                   const std::vector<uint8_t>& data = {}) {
    Send(entry, data);
    return Answer();
  }
  // Connect of an admin queue, and what enables the controller; returns its identifier.
  uint16_t BecomeAdmin(uint32_t kato_ms = 5000);
  // Sends Connect of an I/O queue.
  void SendConnect(uint16_t queue_id, uint16_t controller_id);
  // Of the command that was sent last.
  uint16_t last_cid() const { return static_cast<uint16_t>(cid_ - 1); }
  // The next PDU is an R2T: its tag.
  uint16_t AskedTag();
  template <typename Pdu>
  void SendPdu(const Pdu& pdu, const std::vector<uint8_t>& data) {
    SendBytes(&pdu, sizeof(pdu));
    SendBytes(data.data(), data.size());
  }
  void Close() { fd_.Reset(); }

 private:
  // Waits until so many bytes are there; false: the end came before.
  bool Receive(size_t bytes, std::vector<uint8_t>& out);
  void SendBytes(const void* data, size_t bytes) const;

  TargetRig& rig_;
  UniqueFd fd_;
  uint16_t cid_ = 0;
};

// Reads or writes blocks of 512 bytes, with the data in the capsule or by the transport.
nvme::fabrics::SubmissionEntry BlocksEntry(nvme::Opcode opcode, uint64_t block, uint32_t blocks,
                                           bool in_capsule);

}  // namespace cleat::test
