// SPDX-License-Identifier: Apache-2.0
// An I/O queue of a host, which is one TCP connection, on one reactor: its commands become requests to the disks behind the namespaces of its
// subsystem.
//
// Life. Made on the control reactor when Connect was answered, and kept by shared_ptr; Start, and all that is not said to be otherwise, on its
// own reactor. It ends when the connection breaks, or by Close. `on_drained` comes once, on the control reactor, when nothing of it is in the
// storage any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "nvme/tcp_target/target_connection.h"
#include "nvmf_target/io/io_command.h"
#include "nvmf_target/io/io_port.h"
#include "nvmf_target/socket/target_stream.h"

namespace cleat::nvmf_target {

class IoQueue final : public std::enable_shared_from_this<IoQueue>,
                      private nvme::tcp::TargetConnectionOwner,
                      private StreamOwner {
 public:
  struct Parts {
    Reactor& control;
    IoPort& port;              // both outlive the queue
    SubsystemPort& subsystem;  // of that port's reactor
    std::unique_ptr<nvme::tcp::TargetConnection> connection;
    std::unique_ptr<TargetStream> stream;  // stopped
    StreamTuning tuning;
    std::string name;                   // for messages
    const void* association = nullptr;  // whose queue it is: another one for each that is there at a time
    // Until when commands are executed, on the clock of all reactors: moved on by each sign of life of the association.
    std::shared_ptr<const std::atomic<uint64_t>> deadline_ns;
    std::function<void(Error)> on_drained;  // with why it has ended
  };
  explicit IoQueue(Parts parts);
  ~IoQueue();  // drained

  // On any reactor: runs it on the queue's own one, while the queue is kept.
  void Post(std::function<void()> call) { parts_.port.reactor().PostCall(std::move(call)); }

  void Start();
  // What is not in the storage yet is dropped, and what waits there for limits or for space.
  void Close(const Error& reason) { connection_->Abort(reason); }

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
  // Of its commands, in the port's pool for reads and data that is asked for.
  uint64_t& data_bytes() { return data_bytes_; }
  bool ended() const { return connection_->ended(); }
  // The one front end of all channels that namespaces have.
  static const block::FrontEnd& FrontEnd();

 private:
  // TargetConnectionOwner
  nvme::tcp::TargetCommand* Take(const nvme::fabrics::SubmissionEntry& entry,
                                 uint32_t in_capsule_bytes) override;
  nvme::tcp::TargetCommand* Find(uint16_t tag) override;
  void Run(nvme::tcp::TargetCommand& command) override;
  void DataCame(nvme::tcp::TargetCommand& command) override;
  void Give(nvme::tcp::TargetCommand& command) override;
  void Ended(const Error& reason) override;
  // StreamOwner
  void BeginTurn() override { parts_.port.BeginTurn(); }
  bool MayReceive() override { return !EndIfExpired(); }
  void EndTurn() override;

  bool EndIfExpired();
  void Plan(IoCommand& command, const IoPlan& plan);
  void GoOn(IoCommand& command);
  void Submit(IoCommand& command);
  void ToStorage(IoCommand& command, NamespacePort& space);
  void SubmitTransfer(IoCommand& command, NamespacePort& space);
  void ContinueRanges(IoCommand& command);
  bool NextRange(IoCommand& command, nvme::Status& refusal);
  static bool TakeRange(IoCommand& command);
  void Finish(IoCommand& command, nvme::Status status);
  void AnswerFabrics(IoCommand& command);
  void FinishClosing();
  static void TransferDone(block::Request& request, const block::Frame& frame);
  static void RangeDone(block::Request& request, const block::Frame& frame);

  Parts parts_;
  nvme::tcp::TargetConnection* const connection_;
  Error reason_{ErrorCode::kUnavailable, ""};  // of its end
  uint64_t data_bytes_ = 0;
  bool disconnecting_ = false;  // once its answers have left
  bool closed_ = false;
};

}  // namespace cleat::nvmf_target
