// SPDX-License-Identifier: Apache-2.0
// PDUs as somebody sends them who keeps no rule: each field of the header, each length and each digest can be another one than it should
// be (NVMe/TCP 1.0, 3.3, 3.6). And the line on which they go out, which hears what the target answers. A line does not own its socket and
// is used by one thread; it waits up to a deadline. Nothing that the target sends is believed: a PDU of it has a limit, kHeardBytesMax.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "perf/nvme_tcp/connection.h"
#include "perf/vhost_user/deadline.h"
#include "perf/wire/nvme_tcp.h"

namespace cleat::perf {

struct RawPdu {
  wire::PduHeader head{};     // as it goes out
  std::vector<uint8_t> rest;  // of the header, behind those eight bytes
  std::vector<uint8_t> data;
  NvmeTcpDigests digests;  // that follow
  uint32_t padding_bytes = 0;
  bool wrong_header_digest = false;
  bool wrong_data_digest = false;

  // A PDU that keeps the rules, of one of wire's structures. ICReq and terminations have no digests.
  template <typename Pdu>
  static RawPdu Make(Pdu pdu, wire::PduType type, std::span<const uint8_t> data = {},
                     NvmeTcpDigests digests = {}, uint32_t alignment_bytes = wire::kPduAlignmentUnitBytes) {
    RawPdu raw;
    pdu.header = {.type = type,
                  .flags = 0,
                  .header_bytes = static_cast<uint8_t>(sizeof pdu),
                  .data_at = 0,
                  .pdu_bytes = 0};
    raw.head = pdu.header;
    raw.rest.resize(sizeof pdu - sizeof pdu.header);
    std::memcpy(raw.rest.data(), reinterpret_cast<const uint8_t*>(&pdu) + sizeof pdu.header, raw.rest.size());
    raw.data.assign(data.begin(), data.end());
    raw.digests = {.header = digests.header, .data = digests.data && !data.empty()};
    raw.Measure(alignment_bytes);
    return raw;
  }

  std::vector<uint8_t> Bytes() const;

 private:
  void Measure(uint32_t alignment_bytes);
};

// What comes from the target within the time.
struct RawHeard {
  enum class What : uint8_t {
    kSilence,
    kClosed,
    kTermination,
    kInitialized,  // ICResp
    kResponse,
    kData,
    kReady,  // R2T
    kOther,  // nothing that a target may send
  };
  What what = What::kSilence;
  uint16_t reason = 0;  // FES of a termination
  uint16_t status = 0;  // of a response, without the phase tag
  uint16_t cid = 0;
  uint16_t tag = 0;
  uint8_t flags = 0;
  uint32_t offset_bytes = 0;
  uint32_t length_bytes = 0;
  std::vector<uint8_t> data;
};

class RawLine {
 public:
  static constexpr uint32_t kHeardBytesMax = 2U << 20;

  RawLine(int socket, uint64_t patience_ns) : socket_(socket), patience_ns_(patience_ns) {}
  // A line over a connection that was initialised.
  RawLine(const NvmeTcpConnection& connection, uint64_t patience_ns)
      : socket_(connection.socket.get()),
        patience_ns_(patience_ns),
        digests_(connection.digests),
        data_to_target_max_(connection.data_to_target_max),
        alignment_bytes_(connection.data_alignment_bytes) {}

  // A PDU of this connection that keeps the rules so far.
  template <typename Pdu>
  RawPdu Make(const Pdu& pdu, wire::PduType type, std::span<const uint8_t> data = {}) const {
    return RawPdu::Make(pdu, type, data, digests_, alignment_bytes_);
  }

  // Whether all of it went out: a target that has closed the connection, or reads no more, is an answer too.
  bool Send(std::span<const uint8_t> bytes) { return SendWhole(socket_, bytes, Deadline(patience_ns_)).ok(); }
  bool Send(const RawPdu& pdu) { return Send(pdu.Bytes()); }
  // In pieces of one byte, or cut at a random place, so that each piece is a segment of its own.
  bool SendSplit(const RawPdu& pdu, Random& random);

  RawHeard Hear() { return Hear(patience_ns_); }
  RawHeard Hear(uint64_t patience_ns);
  // Skips data and requests for it, up to what ends a command or the connection.
  RawHeard HearTheEnd();

  int socket() const { return socket_; }
  NvmeTcpDigests digests() const { return digests_; }
  uint32_t data_to_target_max() const { return data_to_target_max_; }

 private:
  static constexpr uint32_t kPdusSkippedMax = 4096;

  int socket_;
  uint64_t patience_ns_;
  NvmeTcpDigests digests_;
  uint32_t data_to_target_max_ = wire::kMaxDataToTargetMin;
  uint32_t alignment_bytes_ = wire::kPduAlignmentUnitBytes;
};

}  // namespace cleat::perf
