// SPDX-License-Identifier: Apache-2.0
// The PDUs that a host has to send, in their order: builds them, gives them out as pieces of memory, many in a batch, and counts what went.
//
// A command has one PDU here at a time, whose header lies in the command's slot; its data is sent from where it lies. Beside them there is
// one PDU of the connection's own: ICReq first, H2CTermReq last.
//
// One thread: its connection's. Room for all commands of the table; allocates in the constructor only.
#pragma once

#include <sys/uio.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nvme/tcp/pdu.h"
#include "nvme/tcp/pdu_check.h"
#include "nvme/tcp_host/command_table.h"

namespace cleat::nvme::tcp {

class SendQueue {
 public:
  SendQueue(uint32_t depth, Digests digests) : queue_(std::bit_ceil(depth)), digests_(digests) {}

  // The limits that ICResp has.
  void set_controller_limits(uint8_t data_align, uint32_t h2c_data_max_bytes);

  void PushIcReq();
  // Instead of all that is queued. Of what is half sent nothing more goes, and then no H2CTermReq either: the controller would take it for
  // that PDU's data.
  void PushTermReq(TermReason reason, uint32_t information, std::span<const uint8_t> header);
  // The command with its data where slot.in_capsule; `entry` but for cid, flags and data descriptor.
  void PushCapsule(CommandSlot& slot, const fabrics::SubmissionEntry& entry);
  // The next H2CData of what was asked for and has not been sent.
  void PushData(CommandSlot& slot);
  // Takes the command's H2CData out again unless a byte of it went; whether it did.
  bool Withdraw(CommandSlot& slot);
  // Drops all.
  void Clear();

  bool empty() const { return count_ == 0 && own_sent_ == own_bytes_; }
  // Some PDU has gone in part.
  bool half_sent() const { return head_sent_ > 0 || (own_sent_ > 0 && own_sent_ < own_bytes_); }

  uint32_t Fill(std::span<iovec> iovecs);
  // Counts bytes that went, up to the end of the first PDU, off `bytes`. Returns the command whose PDU is whole now and out of the queue, or
  // nullptr: then either `bytes` is 0, or it was a PDU of the connection's own.
  CommandSlot* Consume(size_t& bytes);

 private:
  CommandSlot*& At(uint32_t place) { return queue_[(first_ + place) & (queue_.size() - 1)]; }
  void Push(CommandSlot& slot);
  uint32_t Aligned(uint32_t bytes) const;
  template <typename Header>
  void SetHeader(CommandSlot& slot, Header& header) const;
  void MakeDigest(CommandSlot& slot) const;

  std::vector<CommandSlot*>
      queue_;  // a ring; its size is a power of two, as a division costs more than the rest of a step
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  uint64_t head_sent_ = 0;  // bytes of the first that went
  Digests digests_;
  uint32_t data_align_bytes_ = kDataAlignUnitBytes;
  uint32_t h2c_data_max_bytes_ = kH2cDataLeastBytes;
  alignas(8) uint8_t own_[sizeof(TermReq) + kTermDataMaxBytes] = {};
  uint32_t own_bytes_ = 0;
  uint32_t own_sent_ = 0;
};

}  // namespace cleat::nvme::tcp
