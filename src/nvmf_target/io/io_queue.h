// SPDX-License-Identifier: Apache-2.0
// An I/O queue of a host, over one transport, on one reactor: its commands become requests to the disks behind the namespaces of its
// subsystem.
//
// Life. Made on the control reactor when Connect was answered, and kept by shared_ptr; Start, and all that is not said to be otherwise, on its
// own reactor. It ends when the transport breaks, or by Close. `on_drained` comes once, on the control reactor, when nothing of it is in the
// storage any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nvme/target/controller.h"
#include "nvmf_target/hand_over/saved_association.h"
#include "nvmf_target/io/io_command.h"
#include "nvmf_target/io/io_port.h"
#include "nvmf_target/transport/queue_transport.h"

namespace cleat::nvmf_target {

// A command of a host that changes or reports a reservation, on its way to the control reactor.
struct ReservationCall {
  uint32_t nsid = 0;
  nvme::fabrics::Uuid host_id{};
  nvme::fabrics::SubmissionEntry entry;
  std::vector<uint8_t> data = {};  // that it has brought along
  // Once, on the control reactor.
  std::function<void(nvme::target::Answer)> answer = nullptr;
};

class IoQueue final : public std::enable_shared_from_this<IoQueue>,
                      private nvme::fabrics::TargetQueueOwner,
                      private TransportOwner {
 public:
  struct Parts {
    Reactor& control;
    IoPort& port;                               // both outlive the queue
    SubsystemPort& subsystem;                   // of that port's reactor
    std::unique_ptr<QueueTransport> transport;  // stopped
    bool keeps_data = true;                     // of writes, where it was received
    std::string name;                           // for messages
    const void* association = nullptr;  // whose queue it is: another one for each that is there at a time
    nvme::fabrics::Uuid host_id{};      // by which reservations know its host
    // Until when commands are executed, on the clock of all reactors: moved on by each sign of life of the association.
    std::shared_ptr<const std::atomic<uint64_t>> deadline_ns;
    std::function<void(Error)> on_drained;  // with why it has ended
    // Executes a command of reservations, on the control reactor; not called there after on_drained. nullptr: there are no reservations.
    std::function<void(ReservationCall)> on_reservation = nullptr;
    std::vector<nvme::tcp::SavedCommand> commands = {};  // of a queue that another process had; none is kHold
  };
  explicit IoQueue(Parts parts);
  ~IoQueue();  // drained

  // On any reactor: runs it on the queue's own one, while the queue is kept.
  void Post(std::function<void()> call) { parts_.port.reactor().PostCall(std::move(call)); }

  // Open and ReadOn.
  void Start();
  // Executes what was in flight in another process, and sends, but reads nothing yet: where several queues come from there, all are opened before
  // any reads, so that what a host sends by another path finds the older writes.
  void Open();
  void ReadOn();
  // What is not in the storage yet is dropped, and what waits there for limits or for space.
  void Close(const Error& reason);

  // ---- To another process. StopReading of all queues comes before Settle of any.
  // Reads nothing more; what is in the storage goes on.
  void StopReading();
  // What waits within the storage's pipeline waits no more: for limits, it goes past them; else it ends, and is left undone. `on_quiet`: once, on the
  // control reactor, when nothing of the queue is in the storage.
  void Settle(std::function<void()> on_quiet);
  // Of a queue that is quiet. It is over with that, without on_drained. nullopt: nobody can go on with it, and it has to be closed. Its identifier and
  // its host's address are the caller's to add.
  std::optional<SavedQueue> Save();
  // Instead of Save: it goes on with what was left undone. ReadOn comes next, once all queues have done that.
  void RunAgain();

  // ---- For the port
  // The command, which has waited for it, has a buffer.
  void Proceed(IoCommand& command);
  // There may be room for the command that waits.
  void Resume();
  // The command, which has waited for older ones, may go to the storage.
  void GoOnAfterOlder(IoCommand& command);
  // The command, which was waiting, has no namespace any more.
  void NamespaceGone(IoCommand& command);
  const void* association() const { return parts_.association; }
  const nvme::fabrics::Uuid& host_id() const { return parts_.host_id; }
  // Of its commands, and of what is kept of them for the kernel, in the port's pool for reads and data that is asked for.
  uint64_t& data_bytes() { return data_bytes_; }
  bool ended() const { return queue_->ended(); }
  bool uses_registered_memory() const { return uses_registered_memory_; }
  // What waits within the storage's pipeline is left undone, while it settles.
  void AbortQueuedAgain() {
    if (settles_ && !queue_->ended()) parts_.port.AbortQueued(*this);
  }
  // Its requests are not to wait for space any more.
  bool settles() const { return settles_; }
  // The one front end of all channels that namespaces have.
  static const block::FrontEnd& FrontEnd();

 private:
  // TargetQueueOwner
  nvme::fabrics::TargetCommand* Take(const nvme::fabrics::SubmissionEntry& entry,
                                     uint32_t in_capsule_bytes) override;
  nvme::fabrics::TargetCommand* TakeHere(const nvme::fabrics::SubmissionEntry& entry,
                                         std::span<const uint8_t> here) override;
  void Ahead(const nvme::fabrics::SubmissionEntry& entry) override;
  nvme::fabrics::TargetCommand* Find(uint16_t tag) override;
  void Run(nvme::fabrics::TargetCommand& command) override;
  void DataCame(nvme::fabrics::TargetCommand& command) override;
  void Give(nvme::fabrics::TargetCommand& command) override;
  void Ended(const Error& reason) override;
  // TransportOwner
  void BeginTurn() override { parts_.port.BeginTurn(); }
  std::span<uint8_t> ReceiveBuffer() override { return parts_.port.receive_buffer(); }
  bool MayReceive() override { return !EndIfExpired(); }
  bool MayLend() override { return parts_.port.may_lend(); }
  void GiveKept(const block::Segment& piece, bool in_kernel) override {
    parts_.port.GiveKept(*this, piece, in_kernel);
  }
  void EndTurn() override;

  // The transport tells this queue of its commands, from the first call of this on.
  void Own();
  bool EndIfExpired();
  // The same as of the reactor's time, which was refreshed when the command, or its data, was found.
  bool EndIfFoundLate();
  bool IsForPresentNamespace(const IoCommand& command) const;
  void RunIfSameNamespace(IoCommand& command);
  void Plan(IoCommand& command, const IoPlan& plan);
  void GoOn(IoCommand& command);
  void Submit(IoCommand& command);
  void SubmitReceived(IoCommand& command);
  void Refuse(IoCommand& command, nvme::Status status);
  nvme::Status WhyNotExecuted(const IoCommand& command, const NamespacePort* space) const;
  void CallControl(IoCommand& command);
  void AnswerReservation(IoCommand& command, const nvme::target::Answer& answer);
  void ToStorage(IoCommand& command, NamespacePort& space);
  void ContinueRanges(IoCommand& command);
  bool NextRange(IoCommand& command, nvme::Status& refusal);
  static bool TakeRange(IoCommand& command);
  void Finish(IoCommand& command, nvme::Status status);
  void FinishStopping(IoCommand& command, nvme::Status status);
  void TellIfQuiet();
  void EndBypass();
  void AnswerFabrics(IoCommand& command);
  void FinishClosing();
  static void TransferDone(block::Request& request, const block::Frame& frame);
  static void RangeDone(block::Request& request, const block::Frame& frame);

  Parts parts_;
  nvme::fabrics::TargetQueue* const queue_;
  // With commands that were in flight in another process: these are executed before hosts' other paths are let go on.
  const bool was_handed_over_;
  Error reason_{ErrorCode::kUnavailable, ""};  // of its end
  uint64_t data_bytes_ = 0;
  const bool always_receives_;  // TransportTraits, as the next one
  const bool uses_registered_memory_;
  bool owns_ = false;
  bool disconnecting_ = false;  // once its answers have left
  bool closed_ = false;

  // ---- To another process
  bool opened_ = false;
  bool stops_ = false;     // reading
  bool settles_ = false;   // and all others have stopped: what the storage has not begun is left undone
  bool must_end_ = false;  // a write that was left undone is older than one that goes on
  std::vector<IoCommand*> undone_;
  std::vector<std::pair<NamespacePort*, uint32_t>>
      bypassed_;  // whose limits do not hold meanwhile, by their epochs
  std::function<void()> on_quiet_;
};

}  // namespace cleat::nvmf_target
