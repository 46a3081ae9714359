// SPDX-License-Identifier: Apache-2.0
// The host's end of one NVMe/TCP connection, which is one queue: commands become PDUs that go out, PDUs that come in become completions.
// The connection has no socket: the owner of one asks for memory to send from (FillSend) and to receive to (ReceiveSpace), and says how
// many bytes went and came (Sent, Received).
//
// Memory. A command's memory is sent from and received to in place. It is in use until the owner's Completed or Unanswered, which never come
// while the connection still means to send from it: a command that is answered in the middle of its data is held back until the PDU has
// left. What FillSend and ReceiveSpace gave is good until the next call of any method here; so a send is always FillSend, the system call,
// Sent, with nothing in between, and only a copying send (no MSG_ZEROCOPY): with Sent the bytes have left our memory.
//
// A guest may change its memory while it is sent. Then the data digest, which is made of what was read before, does not fit the data, and
// the controller refuses that command: the guest's own. Likewise for what was received and is changed before its digest is checked.
//
// A controller is not trusted: whatever it sends that it may not ends the connection (host_connection.cc and pdu_check.h have the rules),
// with a reason that names the rule, and with an H2CTermReq where no PDU of ours is half sent. A data digest that is wrong fails its
// command alone, with Transient Transport Error (0/22h), when that is answered; a header digest that is wrong ends the connection.
//
// Source: NVM Express TCP Transport Specification 1.0. One thread, that of its owner and its socket. No memory is allocated after the
// constructor but for the text of the error that ends it. Limits: kDepthMax commands, kCommandDataMaxBytes each.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/tcp/pdu.h"
#include "nvme/tcp/pdu_check.h"
#include "nvme/tcp/receiver.h"
#include "nvme/tcp_host/command_table.h"
#include "nvme/tcp_host/send_queue.h"

namespace cleat::nvme::tcp {

struct HostConnectionOptions {
  std::string name;  // in errors: "controllers' name, queue 1"
  uint32_t depth = 128;
  // Data to the controller that goes along with its command: IOCCSZ * 16 - 64 on I/O queues. Connect has kAdminInCapsuleBytes on each.
  uint32_t in_capsule_bytes = kAdminInCapsuleBytes;
  Digests digests = {};
  uint32_t receive_buffer_bytes = 64 * 1024;
};

class HostConnection final : public fabrics::QueuePair, private PduSink {
 public:
  // `owner` outlives it. options.depth: 1 to kDepthMax; receive_buffer_bytes: kReceiveBufferLeastBytes at least.
  HostConnection(const HostConnectionOptions& options, fabrics::QueuePairOwner& owner);
  HostConnection(const HostConnection&) = delete;
  HostConnection& operator=(const HostConnection&) = delete;

  // The socket is connected: an ICReq goes out. The owner hears Connected when its answer is right. Once.
  void Start();

  // ---- For the owner.
  uint32_t room() const override { return connected_ && !ended_ ? table_.free() : 0; }
  // The segments that command's spans name stay as the memory does.
  void Submit(const fabrics::QueuedCommand& command) override;
  // At once: Unanswered and Ended come before it returns. After the end it does nothing. What was given by FillSend before is not counted as
  // sent, so it is not called between FillSend and Sent.
  void Abort(const Error& reason) override;
  // The value that Identify has; used from the next Submit on.
  void set_in_capsule_bytes(uint32_t bytes) { in_capsule_bytes_ = bytes; }
  bool connected() const { return connected_; }
  // After its end there may be one last PDU to send, which says why; nothing more is received.
  bool ended() const { return ended_; }

  // ---- For the socket.
  bool wants_to_send() const { return !sends_.empty(); }
  // What to send next, at most iovecs.size() pieces; returns how many. 0: nothing.
  uint32_t FillSend(std::span<iovec> iovecs) { return sends_.Fill(iovecs); }
  // The first `bytes` of what FillSend gave were taken by the transport. May call the owner.
  void Sent(size_t bytes);
  // Where to put what comes next; returns how many pieces, at least one until the end, and 0 after it. iovecs is not empty.
  uint32_t ReceiveSpace(std::span<iovec> iovecs) { return ended_ ? 0 : receiver_.Space(iovecs, buffer_); }
  // `bytes` have come there. Calls the owner.
  void Received(size_t bytes);

 private:
  // PduSink
  After HeaderCame(const PduHeader& pdu, Payload& payload) override;
  bool PayloadCame(bool digest_is_right) override;
  void Refused(const Refusal& refusal, std::span<const uint8_t> header) override;

  std::optional<Refusal> Connect(const IcResp& pdu);
  std::optional<Refusal> Take(const CapsuleResp& pdu);
  std::optional<Refusal> Take(const C2hData& pdu, Payload& payload);
  std::optional<Refusal> Take(const R2t& pdu);
  std::optional<Refusal> Find(PduType type, uint16_t cid, size_t offset, CommandSlot*& slot);
  std::optional<Refusal> Answer(CommandSlot& slot, const fabrics::CompletionEntry& entry);
  void Complete(CommandSlot& slot);
  void Terminated(const TermReq& pdu);
  static fabrics::Reached ReachedBy(const CommandSlot& slot);
  void End(const Error& reason);

  fabrics::QueuePairOwner& owner_;
  const std::string name_;
  const Digests digests_;
  uint32_t in_capsule_bytes_;
  bool started_ = false;
  bool connected_ = false;
  bool ended_ = false;
  CommandTable table_;
  SendQueue sends_;
  Receiver receiver_;
  std::vector<uint8_t> buffer_;
  // The command whose data is coming, while it does.
  CommandSlot* receiving_ = nullptr;
  uint32_t receiving_bytes_ = 0;
  bool receiving_succeeds_ = false;  // the present C2HData has SUCCESS
};

}  // namespace cleat::nvme::tcp
