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
#include "nvme/tcp_target/target_command.h"

namespace cleat::nvme::tcp {

// What the owner of a connection does with commands. Called from within the connection's methods; may call Ask and Answer from there, and
// may not destroy the connection.
class TargetConnectionOwner {
 public:
  // A command's memory, with room for `in_capsule_bytes` of data. nullptr: there is none now, and the owner calls Resume when there is.
  virtual TargetCommand* Take(const fabrics::SubmissionEntry& entry, uint32_t in_capsule_bytes) = 0;
  // The same of one whose data has come already, and lies at `here`, in the buffer that ReceiveSpace was given. If that is the memory of the command
  // that is returned, the data stays there, and the owner gives that buffer to ReceiveSpace only when it is through with it; else it is copied.
  virtual TargetCommand* TakeHere(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> here) {
    return Take(entry, static_cast<uint32_t>(here.size()));
  }
  // After SetLooksAhead: a command that comes soon, this one or the next, unless the host has sent what it may not. Nothing of it is checked, and it
  // may be told of again.
  virtual void Ahead(const fabrics::SubmissionEntry& /*entry*/) {}
  // The one that has the tag, if it is a command of this connection; else nullptr.
  virtual TargetCommand* Find(uint16_t tag) = 0;
  // Its capsule is whole: Ask or Answer comes next, now or later.
  virtual void Run(TargetCommand& command) = 0;
  // The data that was asked for is there: Answer comes next, now or later.
  virtual void DataCame(TargetCommand& command) = 0;
  // The connection has done with it: nothing refers to its memory any more, unless it is lent. Once for each Take.
  virtual void Give(TargetCommand& command) = 0;
  // The end, once: `reason` names what broke. Commands that were on the wire are given back before. Those that run stay until they are
  // answered, which gives them back at once.
  virtual void Ended(const Error& reason) = 0;

 protected:
  ~TargetConnectionOwner() = default;
};

struct TargetConnectionOptions {
  std::string name;  // in errors: "10.0.0.7:41234"
  // A successful read's data says so, without a response of its own, where the host has switched flow control of its queue off (tcp 3.3.2).
  bool success_with_data = true;
};

class TargetConnection final : private PduSink {
 public:
  // `owner` outlives it.
  TargetConnection(const TargetConnectionOptions& options, TargetConnectionOwner& owner);
  ~TargetConnection();  // without a command
  TargetConnection(const TargetConnection&) = delete;
  TargetConnection& operator=(const TargetConnection&) = delete;

  // ---- For the owner.
  // Connect has succeeded: the queue has that many entries. `in_capsule_bytes`: what commands may bring along from now on.
  void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes);
  // Whether the owner hears Ahead.
  void SetLooksAhead(bool on) { receiver_.set_looks_ahead(on); }
  // From now on somebody else owns it, in whose thread it is from then on. No command may be on its way in; what is to be sent stays.
  void SetOwner(TargetConnectionOwner& owner) { owner_ = &owner; }
  // All of the command's data, which is not in its capsule. `command.data` has room for it.
  void Ask(TargetCommand& command);
  // `data_bytes` of command.data go along; none with an error. Of a connection that has ended: gives it back at once.
  void Answer(TargetCommand& command, Status status, uint64_t result = 0, uint32_t data_bytes = 0);
  // At once: Give and Ended come before it returns. After the end it does nothing. Not between FillSend and Sent.
  void Abort(const Error& reason);
  // Tells the command that waits for room again.
  void Resume();
  bool waits() const { return receiver_.waits() && !ended_; }
  bool connected() const { return connected_; }
  bool ended() const { return ended_; }
  // Commands that were taken and not given back.
  uint32_t commands() const { return commands_; }
  // Whether the host owes data: of a PDU that has begun, or that was asked for.
  bool expects_data() const { return receiving_ != nullptr || asked_ > 0; }

  // Commands that are with the owner, which has not answered or asked.
  uint32_t running();
  // Of those, and of those whose data is awaited. `visit` answers none, and asks for none.
  void ForEachUnanswered(const std::function<void(TargetCommand&)>& visit);

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
  void Begin(TargetCommand& command);
  void GiveBack(TargetCommand& command);
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

  TargetConnectionOwner* owner_;
  const TargetConnectionOptions options_;
  Receiver receiver_;
  ResponseQueue responses_;
  IntrusiveList<TargetCommand, &TargetCommand::of_connection> on_wire_;  // all of its commands
  std::map<const TargetCommand*, Restored> restored_;                    // those that are not given back yet
  TargetCommand* receiving_ = nullptr;                                   // whose data is coming
  uint32_t receiving_bytes_ = 0;
  uint32_t commands_ = 0;
  uint32_t asked_ = 0;  // commands in kAsked
  uint32_t entries_ = 1;
  uint32_t in_capsule_bytes_ = kAdminInCapsuleBytes;
  uint16_t sq_head_ = 0;
  bool flow_control_ = true;
  bool connected_ = false;
  bool ended_ = false;
};

}  // namespace cleat::nvme::tcp
