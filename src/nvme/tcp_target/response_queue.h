// SPDX-License-Identifier: Apache-2.0
// The PDUs that a controller has to send, in their order: builds them, gives them out as pieces of memory, many in a batch, and counts what
// went. A command has one thing here at a time: an R2T, or its response, which is a CapsuleResp, a C2HData, or both.
//
// Beside them there is one PDU of the connection's own: ICResp first, C2HTermReq last.
//
// One thread: its connection's. Allocates nothing, but for a connection that has come from another process.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nvme/tcp/pdu.h"
#include "nvme/tcp/pdu_check.h"
#include "nvme/tcp_target/wire.h"

namespace cleat::nvme::tcp {

// Pieces of memory to be sent together.
struct Gather {
  uint32_t count = 0;
  // The command whose data the pieces are, all of them. nullptr: the pieces are anything but data that comes by itself.
  TargetCommand* alone = nullptr;
  bool more = false;  // data that comes by itself is next
};

class ResponseQueue {
 public:
  // As the host's ICReq has it: data of a C2HData begins at multiples of that. From the next PDU on they have digests.
  void PushIcResp(const IcReq& request, uint32_t h2c_data_max_bytes);
  // Instead of all that is queued, which is dropped. Of what is half sent nothing more goes, and then no C2HTermReq either.
  void PushTermReq(TermReason reason, uint32_t information, std::span<const uint8_t> header);
  // Asks for all of the command's data.
  void PushR2t(TargetCommand& command);
  // `data_bytes` of the command's data, if any, then `entry`; of a success that needs no more words the data alone.
  enum class Success : uint8_t { kInCapsule, kWithData };
  void PushResponse(TargetCommand& command, const fabrics::CompletionEntry& entry, uint32_t data_bytes,
                    Success success);
  // Drops all.
  void Clear();
  // Of a connection that comes from another process, whose host was answered before: `unsent` goes first.
  void Restore(Digests digests, uint32_t data_align_bytes, std::vector<uint8_t> unsent);

  Digests digests() const { return digests_; }
  uint32_t data_align_bytes() const { return data_align_bytes_; }
  bool empty() const { return queue_.empty() && own_sent_ == own_bytes_; }
  // Some PDU has gone in part.
  bool half_sent() const {
    return head_sent_ > 0 || (own_sent_ < own_bytes_ && (own_sent_ > 0 || !restored_.empty()));
  }

  // Fills `iovecs` with what is to be sent next. Data of which `alone_from` bytes or more are to be sent, more than 0, comes by itself.
  Gather Fill(std::span<iovec> iovecs, uint32_t alone_from);
  // Counts bytes that went, up to the end of the first command's PDUs, off `bytes`. Returns the command that is whole now and out of the queue,
  // or nullptr: then either `bytes` is 0, or it was a PDU of the connection's own.
  TargetCommand* Consume(size_t& bytes);

 private:
  template <typename Header>
  uint32_t SetHeader(uint8_t* to, Header& header, uint32_t data_bytes) const;
  void MakeDigest(TargetCommand& command) const;
  // How many bytes of the first command's data are to be sent next. 0: something else is to be sent next.
  uint32_t DataThatIsNext();

  IntrusiveList<TargetCommand, &TargetCommand::to_send> queue_;
  uint64_t head_sent_ = 0;  // bytes of the first that went
  Digests digests_;
  uint32_t data_align_bytes_ = kDataAlignUnitBytes;
  alignas(8) uint8_t own_[sizeof(TermReq) + kTermDataMaxBytes] = {};
  // What another process had to send, in the place of a PDU of the connection's own; it may begin and end anywhere in one.
  std::vector<uint8_t> restored_;
  uint32_t own_bytes_ = 0;
  uint32_t own_sent_ = 0;
};

}  // namespace cleat::nvme::tcp
