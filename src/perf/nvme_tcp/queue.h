// SPDX-License-Identifier: Apache-2.0
// One queue pair over NVMe/TCP, admin or I/O, on the host's side: commands are posted into slots, sent many at a time, and their data goes
// from and to the caller's memory without a copy in between but the kernel's. Data of commands lies in the capsule as far as that has room
// and is asked for by R2T otherwise (NVMe/TCP 1.0, 3.3). What the target sends is checked: each length, offset and identifier. A target
// that breaks the rules breaks the queue (broken_reason), it never makes it write where no command's data is.
//
// Owned by a controller or a driver, used by one thread at a time; the memory that commands name outlives it. Nothing is allocated after
// the slots were prepared. Post only remembers: Flush sends, Pop receives, and neither waits.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/nvme_tcp/connection.h"
#include "perf/wire/nvme_tcp.h"

namespace cleat::perf {

// How a command has ended.
struct NvmeAnswer {
  static constexpr uint16_t kNone = 0xffff;
  uint64_t result = 0;
  uint16_t status = kNone;  // without the phase tag; 0: success
  bool good() const { return status == 0; }
  uint16_t code() const { return status & wire::kNvmeStatusMask; }
};

class NvmeTcpQueue {
 public:
  static constexpr uint16_t kSlotsMax = 8192;
  static constexpr size_t kPiecesMax = 126;  // of one command's data

  // What a slot does when it is posted. Entry and answer stay where they are; the entry's identifier and SGL are written here.
  struct Request {
    wire::NvmeCommand* entry = nullptr;
    NvmeAnswer* answer = nullptr;
    std::span<const iovec> data;  // copied
    bool to_host = false;
  };
  struct Stats {
    uint64_t sends = 0;     // system calls
    uint64_t receives = 0;  // likewise, those that found nothing aside
    uint64_t ready_to_transfer = 0;
    uint64_t answers_with_data = 0;  // completions that came with the last of the data
  };

  NvmeTcpQueue(NvmeTcpConnection connection, uint16_t slots);
  NvmeTcpQueue(const NvmeTcpQueue&) = delete;
  NvmeTcpQueue& operator=(const NvmeTcpQueue&) = delete;

  // From now on so much data fits into a command's capsule.
  void set_capsule_data_bytes(uint32_t bytes) { capsule_data_bytes_ = bytes; }
  uint16_t slots() const { return static_cast<uint16_t>(slots_.size()); }

  void Prepare(uint16_t slot, const Request& request);  // not while it is posted
  void Post(uint16_t slot);                             // the same again as often as wanted
  bool HasUnsent() const { return pending_count_ > 0 || vector_at_ < vectors_.size(); }
  // Sends what the socket takes now.
  void Flush();
  // A slot whose command has ended; false when there is none now.
  bool Pop(uint16_t* slot) {
    if (done_count_ == 0 && !ReceiveSome()) return false;
    *slot = TakeDone();
    return true;
  }

  bool broken() const { return !broken_reason_.empty(); }
  const std::string& broken_reason() const { return broken_reason_; }

  // A command by itself, in slot 0, to its end: while nothing else is posted.
  Result<NvmeAnswer> Execute(wire::NvmeCommand command, std::span<uint8_t> data, bool to_host,
                             const Deadline& deadline);

  int socket() const { return connection_.socket.get(); }
  const NvmeTcpConnection& connection() const { return connection_; }
  const Stats& stats() const { return stats_; }

 private:
  static constexpr size_t kFramesMax = 64;         // PDUs that are sent at once
  static constexpr size_t kHeaderRoomBytes = 128;  // header, its digest, padding up to the largest alignment
  static constexpr size_t kReceiveBytes =
      size_t{256} << 10;  // what is received at once, data that goes straight to its place aside
  static constexpr size_t kVectorsMax = 1024;  // UIO_MAXIOV

  enum class State : uint8_t {
    kFree,
    kQueued,    // posted, not yet sent
    kSent,      // the target has the command, and whatever of its data was asked for
    kTransfer,  // the target has asked for data that was not sent yet
  };
  struct Slot {
    Request request;
    std::vector<iovec> data;
    uint32_t data_bytes = 0;
    uint32_t moved_bytes = 0;    // of the data, in order, in either direction
    uint32_t asked_to_byte = 0;  // the end of what the target has asked for
    uint16_t tag = 0;            // of that
    State state = State::kFree;
    bool damaged = false;  // a digest of its data was wrong
  };
  struct Frame {  // a PDU but its data
    alignas(8) std::array<uint8_t, kHeaderRoomBytes> header;
    uint32_t data_digest;
  };
  // Where the receiver stands within a PDU with data.
  struct Incoming {
    uint16_t slot = 0;
    uint32_t left_bytes = 0;
    uint32_t digest = 0;  // of the data so far
    bool digest_follows = false;
    bool success = false;
  };

  void PushPending(uint16_t slot);
  uint16_t PopPending();
  void PushDone(uint16_t slot);
  uint16_t TakeDone();

  void FormFrames();
  void FormCommand(Frame& frame, uint16_t id);
  void FormTransfer(Frame& frame, uint16_t id);
  void AddFrame(Frame& frame, size_t header_bytes, Slot& slot, uint32_t data_bytes);
  void Advance(size_t sent_bytes);

  bool ReceiveSome();
  bool ReceiveOnce();
  void Parse();
  bool ParseData();
  bool ParseHeader();
  void Landed(uint32_t bytes);
  void EndIncoming();
  void TakeDataHeader(const wire::PduTransfer& pdu);
  void TakeReadyToTransfer(const wire::PduTransfer& pdu);
  void TakeResponse(const wire::PduResponse& pdu);
  void Complete(uint16_t id, uint16_t status, uint64_t result);
  Slot* Waiting(uint16_t id);  // nullptr when no command of that identifier has been sent
  void Break(std::string reason);
  void BreakRules(std::string reason);
  template <typename Take>
  static void ForPieces(const Slot& slot, uint32_t offset_bytes, uint32_t size_bytes, Take take);

  NvmeTcpConnection connection_;
  uint32_t capsule_data_bytes_ = wire::kAdminCapsuleDataBytes;
  std::vector<Slot> slots_;

  std::vector<uint16_t> pending_;  // a ring of slots that have something to send, each at most once
  size_t pending_first_ = 0, pending_count_ = 0;
  std::vector<uint16_t> done_;  // a ring of slots that have ended
  size_t done_first_ = 0, done_count_ = 0;

  std::vector<Frame> frames_;
  size_t frames_used_ = 0;
  std::vector<iovec> vectors_;  // of the frames that are being sent
  size_t vector_at_ = 0;

  std::vector<uint8_t> received_;
  size_t received_first_ = 0, received_end_ = 0;
  bool drained_ = false;  // the last receive took all that there was
  Incoming incoming_;

  std::string broken_reason_;
  Stats stats_;
};

template <typename Take>
void NvmeTcpQueue::ForPieces(const Slot& slot, uint32_t offset_bytes, uint32_t size_bytes, Take take) {
  for (const iovec& piece : slot.data) {
    if (size_bytes == 0) return;
    if (offset_bytes >= piece.iov_len) {
      offset_bytes -= static_cast<uint32_t>(piece.iov_len);
      continue;
    }
    const auto bytes = static_cast<uint32_t>(
        piece.iov_len - offset_bytes < size_bytes ? piece.iov_len - offset_bytes : size_bytes);
    take(static_cast<uint8_t*>(piece.iov_base) + offset_bytes, bytes);
    offset_bytes = 0;
    size_bytes -= bytes;
  }
}

}  // namespace cleat::perf
