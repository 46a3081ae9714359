// SPDX-License-Identifier: Apache-2.0
// Bytes from the other side become PDUs: headers are whole and checked before anybody sees them, data goes to the memory of its command.
// The same for a host and for a controller; which PDUs may come is a table (pdu_check.h).
//
// Bytes are received into a buffer that holds many PDUs. Data that begins there is copied; the rest of it, which has not come yet, is
// received in its place, in front of the buffer. So a large transfer is copied in its first part only, and a small one costs no system call.
// Data that lies in the buffer whole may also stay there, if the buffer's owner keeps it for as long (Payload::here).
// The buffer is lent for one Space and the Received after it: connections of a thread may share one. A header that came in part is kept.
//
// One thread: its connection's. Allocates in the constructor, where a PDU has to wait (After::kLater): as much as has come behind it, and where
// the connection goes to another process.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
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
  IcReq ic_req;
  IcResp ic_resp;
  TermReq term_req;
  CapsuleCmd capsule_cmd;
  CapsuleResp capsule_resp;
  H2cData h2c_data;
  C2hData c2h_data;
  R2t r2t;
};

// Where the data of a PDU goes.
struct Payload {
  std::span<const block::Segment> to;
  uint64_t offset_bytes = 0;
  uint32_t bytes = 0;  // how much comes
  // Where it lies in the buffer, if all of it has come, with its digest; else empty. A sink that sets `to` to just that memory has it there
  // without a copy; it must not be received to again before the sink is through with it.
  std::span<const uint8_t> here = {};
};

// What becomes of a PDU that came. kLater: there is no room for it now, and Resume brings it again, with all that came behind it.
enum class After : uint8_t { kGoOn, kLater, kEnded };

// Hears of what was received. kEnded: the connection has ended, and nothing more is looked at.
class PduSink {
 public:
  // The header of a PDU. Where payload.bytes is not 0 that much data comes next, to where the sink sets `payload`, then PayloadCame.
  virtual After HeaderCame(const PduHeader& pdu, Payload& payload) = 0;
  // Of a receiver that looks ahead: a command that lies in the buffer, as the PDU that is heard of next or behind that. Nothing of it is checked.
  virtual void CommandAhead(const CapsuleCmd& /*pdu*/) {}
  // False: the connection has ended.
  virtual bool PayloadCame(bool digest_is_right) = 0;
  // The connection can't go on.
  virtual void Refused(const Refusal& refusal, std::span<const uint8_t> header) = 0;

 protected:
  ~PduSink() = default;
};

class Receiver {
 public:
  // `shapes`, kHostReceives or kControllerReceives, and `sink` outlive it.
  Receiver(const PduShapes& shapes, PduSink& sink);

  // PDUs have digests from here on.
  void set_digests(Digests digests) { digests_ = digests; }
  // Whether the sink hears CommandAhead.
  void set_looks_ahead(bool on) { looks_ahead_ = on; }

  // A PDU waits for Resume, which brings it to the sink again. No Space, and no Received, before that.
  bool waits() const { return waits_; }
  void Resume();

  // Fills `iovecs` with where to receive to: what is missing of a command's data, then `buffer`. Returns how many; at least one. `buffer`,
  // of kReceiveBufferLeastBytes at least, stays until Received, which comes before the next Space; what it has then is not needed any more.
  uint32_t Space(std::span<iovec> iovecs, std::span<uint8_t> buffer);
  void Received(size_t bytes);

  // ---- A connection that goes to another process, whose receiver begins with what was not used here.
  // Appends what has come of the PDU that is under way, from its first byte on, and what is kept behind that. The memory that the sink gave for its
  // data is still there.
  void SaveTo(std::vector<uint8_t>& received) const;
  // Of a receiver to which nothing has come: `received`, if it is anything, waits for Resume.
  void Restore(std::vector<uint8_t> received);

 private:
  enum class Part : uint8_t { kHeader, kPadding, kPayload, kDigest };

  uint32_t buffered() const { return static_cast<uint32_t>(end_ - at_); }
  void ParseAll();
  bool Parse();
  // Each takes what there is of its part. False: more bytes are needed, a PDU waits, or the connection has ended.
  bool ParseHeader();
  bool ParsePadding();
  bool ParsePayload();
  bool ParseDigest();
  std::optional<Refusal> MeasurePayload(const PduHeader& pdu);
  void FindPayload(const CommonHeader& common);
  void LookAhead(uint32_t pdu_bytes);
  void TakePlaced(size_t bytes);
  void KeepHeader();
  bool Refuse(const Refusal& refusal, uint32_t header_bytes);

  const PduShapes& shapes_;
  PduSink& sink_;
  size_t kept_from_ = 0;  // what of kept_ was used since, while a PDU waits
  std::vector<uint8_t>
      kept_;  // what was not used of the last buffer: part of a header or digest, or what a PDU that waits begins
  std::span<uint8_t> buffer_;    // that Space was lent, and how much of it was kept
  const uint8_t* at_ = nullptr;  // of what is not used yet, while it is parsed
  const uint8_t* end_ = nullptr;
  size_t placed_bytes_ = 0;  // the room in front of the buffer that Space gave
  bool payload_given_whole_ = false;
  bool in_buffer_ = false;  // what is parsed lies in buffer_
  bool looks_ahead_ = false;
  bool waits_ = false;
  Digests digests_;
  Part part_ = Part::kHeader;
  uint32_t padding_bytes_ = 0;
  Payload payload_;  // what is still to come
  // Of the PDU whose data is under way: how much it has, and its header, with the digest, from the buffer and from then on in header_.
  uint32_t payload_bytes_ = 0;
  uint32_t header_bytes_ = 0;
  const uint8_t* header_at_ = nullptr;
  std::array<uint8_t, kHeaderMaxBytes + kDigestBytes> header_{};
  Crc32c digest_;
};

}  // namespace cleat::nvme::tcp
