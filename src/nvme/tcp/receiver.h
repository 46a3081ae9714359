// SPDX-License-Identifier: Apache-2.0
// Bytes from a controller become PDUs: headers are whole and checked before anybody sees them, data goes to the memory of its command.
//
// Bytes are received into a buffer that holds many PDUs. Data that begins there is copied; the rest of it, which has not come yet, is
// received in its place, in front of the buffer. So a large read is copied in its first part only, and a small one costs no system call.
//
// One thread: its connection's. Allocates in the constructor only.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block/memory.h"
#include "nvme/tcp/crc32c.h"
#include "nvme/tcp/pdu.h"
#include "nvme/tcp/pdu_check.h"

namespace cleat::nvme::tcp {

inline constexpr uint32_t kReceiveBufferLeastBytes = 512;

// A header from the buffer, whole, with a right digest, of the length of its type.
union PduHeader {
  PduHeader() : common() {}
  CommonHeader common;
  IcResp ic_resp;
  TermReq term_req;
  CapsuleResp capsule_resp;
  C2hData c2h_data;
  R2t r2t;
};

// Where the data of a C2HData goes.
struct Payload {
  std::span<const block::Segment> to;
  uint64_t offset_bytes = 0;
  uint32_t bytes = 0;
};

// Hears of what was received. False: the connection has ended, and nothing more is looked at.
class PduSink {
 public:
  // The header of a PDU. Of a C2HData its data comes next, to where `payload` is set, which is as long as the PDU has data, then PayloadCame.
  virtual bool HeaderCame(const PduHeader& pdu, Payload& payload) = 0;
  virtual bool PayloadCame(bool digest_is_right) = 0;
  // The connection can't go on.
  virtual void Refused(const Refusal& refusal, std::span<const uint8_t> header) = 0;

 protected:
  ~PduSink() = default;
};

class Receiver {
 public:
  Receiver(uint32_t buffer_bytes, PduSink& sink);

  // PDUs have digests from here on.
  void set_digests(Digests digests) { digests_ = digests; }

  uint32_t Space(std::span<iovec> iovecs);
  void Received(size_t bytes);

 private:
  enum class Part : uint8_t { kHeader, kPadding, kPayload, kDigest };

  uint32_t buffered() const { return end_ - begin_; }
  bool Parse();
  // Each takes what there is of its part. False: more bytes are needed, or the connection has ended.
  bool ParseHeader();
  bool ParsePadding();
  bool ParsePayload();
  bool ParseDigest();
  void TakePlaced(size_t bytes);
  bool Refuse(const Refusal& refusal, uint32_t header_bytes);

  PduSink& sink_;
  std::vector<uint8_t> buffer_;
  uint32_t begin_ = 0;  // of what is not used yet
  uint32_t end_ = 0;
  size_t placed_bytes_ = 0;  // the room in front of the buffer that Space gave
  bool payload_given_whole_ = false;
  Digests digests_;
  Part part_ = Part::kHeader;
  uint32_t padding_bytes_ = 0;
  Payload payload_;  // what is still to come
  Crc32c digest_;
};

}  // namespace cleat::nvme::tcp
