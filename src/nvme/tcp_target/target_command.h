// SPDX-License-Identifier: Apache-2.0
// One command of a host on a controller's TCP connection, from its capsule to its response. Its owner keeps it in a pool, and decides what
// it does; the connection keeps what is on the wire in it, so that nothing is allocated for a command.
//
//   kReceiving --> kRunning --Ask--> kAsked --> kRunning --Answer--> kAnswering --> given back
//   the data of its capsule, if it has any; the owner's; an R2T, and the data that it asked for; the response
//
// One thread: its connection's.
#pragma once

#include <cstdint>
#include <span>

#include "base/intrusive_list.h"
#include "block/memory.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/tcp/pdu.h"

namespace cleat::nvme::tcp {

// Data of one command, and so of one H2CData (MAXH2CDATA) and one C2HData: its digest is made in one go.
inline constexpr uint32_t kTargetDataMaxBytes = 1 << 20;
// A header with its digest, and padding for the HPDA that takes most.
inline constexpr uint32_t kResponseHeadMaxBytes = (uint32_t{kDataAlignMax} + 1) * kDataAlignUnitBytes;
// What comes behind data: its digest, and a CapsuleResp with one.
inline constexpr uint32_t kResponseTailMaxBytes = kDigestBytes + sizeof(CapsuleResp) + kDigestBytes;

struct TargetCommand {
  enum class State : uint8_t { kFree, kReceiving, kRunning, kAsked, kAnswering };

  // ---- The owner's
  uint16_t tag = 0;  // by which the owner finds it (TTAG); never changes
  // Memory for what the command moves, either way: data_bytes at least where any is moved. In use until the command is given back, or
  // longer where it is lent.
  std::span<const block::Segment> data;

  // ---- The connection's, for the owner to read
  fabrics::SubmissionEntry entry;
  uint32_t data_bytes = 0;  // that the command moves, as its descriptor says
  bool in_capsule = false;  // they came along with it
  State state = State::kFree;

  // ---- The connection's
  uint32_t moved_bytes = 0;  // that came
  bool digest_is_wrong = false;
  uint32_t head_bytes = 0;
  uint32_t sent_data_bytes = 0;  // of the C2HData
  uint32_t tail_bytes = 0;
  bool makes_digest = false;  // of the data, once it is sent

  // ---- The transport's
  // The transport sends some of the data from the command's memory, which it goes on using beyond Give. The owner clears this in Give, and may
  // use the memory for something else once the transport has given it back.
  bool lent = false;

  alignas(8) uint8_t head[kResponseHeadMaxBytes];
  alignas(8) uint8_t tail[kResponseTailMaxBytes];
  ListHook of_connection;
  ListHook to_send;

  uint64_t pdu_bytes() const { return uint64_t{head_bytes} + sent_data_bytes + tail_bytes; }
};

}  // namespace cleat::nvme::tcp
