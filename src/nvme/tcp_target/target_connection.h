// SPDX-License-Identifier: Apache-2.0
// The controller's end of one NVMe/TCP connection, which is one queue: PDUs that come in become commands, their outcomes PDUs that go out.
// The connection has no socket: whoever has one asks for memory to send from (FillSend) and to receive to (ReceiveSpace), and says how
// many bytes went and came (Sent, Received).
//
// Memory. A command's data is received to and sent from the memory that the owner gave it, until the owner's Give. What FillSend and
// ReceiveSpace gave is good until the next call of any method here: a send is always FillSend, the system call, Sent, with nothing in
// between, and copies. Only the data of Gather::alone may be sent from where it is (MSG_ZEROCOPY). Whoever does that marks the command
// as lent (TargetCommand::lent), as its memory is in use beyond Give then.
//
// A host is not trusted: whatever it sends that it may not ends the connection (target_connection.cc and pdu_check.h have the rules), with a
// reason that names the rule, and with a C2HTermReq where no PDU of ours is half sent. A data digest that is wrong fails its command alone,
// with Transient Transport Error (0/22h); a header digest that is wrong ends the connection.
//
// Source: NVM Express TCP Transport Specification 1.0. One thread, that of its owner and its socket. Limits: as many commands as the queue
// has entries, one before it has any (Connect).
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/tcp/pdu.h"
#include "nvme/tcp/pdu_check.h"
#include "nvme/tcp/receiver.h"
#include "nvme/tcp_target/response_queue.h"
#include "nvme/tcp_target/saved_connection.h"
#include "nvme/tcp_target/wire.h"

namespace cleat::nvme::tcp {

struct TargetConnectionOptions {
  std::string name;  // in errors: "10.0.0.7:41234"
  // A successful read's data says so, without a response of its own, where the host has switched flow control of its queue off (tcp 3.3.2).
  bool success_with_data = true;
};

class TargetConnection final : public fabrics::TargetQueue, private PduSink {
 public:
  explicit TargetConnection(const TargetConnectionOptions& options);
  TargetConnection(const TargetConnectionOptions& options, fabrics::TargetQueueOwner& owner);

  // ---- For the owner.
  void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) override;
  // Whether the owner hears Ahead.
  void SetLooksAhead(bool on) { receiver_.set_looks_ahead(on); }
  void Ask(TargetCommand& command) override;
  using TargetQueue::Answer;
  void Answer(TargetCommand& command, Status status, uint64_t result, uint32_t data_bytes) override;
  // Not between FillSend and Sent.
  void Abort(const Error& reason) override;
  void Resume() override;
  bool waits() const override { return receiver_.waits() && !ended_; }
  bool connected() const { return connected_; }
  // Whether the host owes data: of a PDU that has begun, or that was asked for.
  bool expects_data() const { return receiving_ != nullptr || asked_ > 0; }

  // ---- From one process to the next (hand_over.cc)
  // All that is not in the socket. Of commands that are with the owner nothing has had an effect, and nothing will. Afterwards the connection has
  // ended, without a word to its host or to Ended, and all commands are given back. Connected, and not ended; not between FillSend and Sent.
  SavedConnection Save();
  // Of a new connection: it goes on as `saved` says, which has passed Check, but for the commands. TakeBack comes next for each of these, then
  // Resume, and only then anything is received.
  void Restore(SavedConnection& saved);
  // Of a command that the owner gives, as Take does with 0 bytes: it is where it was, with memory of its own for the data that has come. One that is
  // not kAwaitData is with the owner.
  void TakeBack(TargetCommand& command, SavedCommand& saved);

  // ---- For the socket.
  bool wants_to_send() const { return !responses_.empty(); }
  // Data of `alone_from` bytes or more comes by itself.
  Gather FillSend(std::span<iovec> iovecs, uint32_t alone_from) {
    return responses_.Fill(iovecs, alone_from);
  }
  uint32_t FillSend(std::span<iovec> iovecs) { return responses_.Fill(iovecs, UINT32_MAX).count; }
  // The first `bytes` of what FillSend gave were taken by the transport. May call the owner.
  void Sent(size_t bytes);
  // Where to put what comes next, `buffer` (receiver.h) the last of it; returns how many pieces, at least one. Neither ended nor waiting.
  uint32_t ReceiveSpace(std::span<iovec> iovecs, std::span<uint8_t> buffer) {
    return receiver_.Space(iovecs, buffer);
  }
  // `bytes` have come there. Calls the owner.
  void Received(size_t bytes) { receiver_.Received(bytes); }

 private:
  // PduSink
  After HeaderCame(const PduHeader& pdu, Payload& payload) override;
  bool PayloadCame(bool digest_is_right) override;
  void Refused(const Refusal& refusal, std::span<const uint8_t> header) override;
  void CommandAhead(const CapsuleCmd& pdu) override { owner_->Ahead(pdu.entry); }

  std::optional<Refusal> Take(const IcReq& pdu);
  std::optional<Refusal> Take(const CapsuleCmd& pdu, Payload& payload, bool& later);
  std::optional<Refusal> Take(const H2cData& pdu, Payload& payload);
  void CapsuleIsWhole(TargetCommand& command);
  void LetGo(TargetCommand& command);
  void End(const Error& reason);
  // hand_over.cc
  TargetCommand* FindRestored(uint16_t tag, uint16_t cid) const;
  SavedCommand SavedOf(const TargetCommand& command) const;
  // Of a command that has come from another process with data, or awaits some.
  struct Restored {
    TargetCommand* command = nullptr;
    uint16_t tag =
        0;  // by which the host knows it, of one that awaits data; another command here may have it, too
    std::unique_ptr<uint8_t[]> bytes;
    std::shared_ptr<block::MemoryRegion> region;
    block::Segment segment;
  };

  const TargetConnectionOptions options_;
  Receiver receiver_;
  ResponseQueue responses_;
  std::map<const TargetCommand*, Restored> restored_;  // those that are not given back yet
  TargetCommand* receiving_ = nullptr;                 // whose data is coming
  uint32_t receiving_bytes_ = 0;
  uint32_t asked_ = 0;  // commands in kAsked
  uint32_t in_capsule_bytes_ = kAdminInCapsuleBytes;
  bool connected_ = false;
};

}  // namespace cleat::nvme::tcp
