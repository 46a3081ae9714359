// SPDX-License-Identifier: Apache-2.0
// A host's connection on the control reactor, where each begins. Its Connect says what it is: an admin queue stays here, with the association
// that it makes and its I/O queues; an I/O queue goes to its association, and from there to its reactor.
//
//   accepted --ICReq, Connect--> admin queue ... ending, when it breaks or has to --> its I/O queues are drained --> over
//                           \--> moved: handed to the association's AdminQueue --> over here
//
// A host that has something to prove does so on each queue behind its Connect (login/host_login.h): until then an admin queue's commands are not
// executed, an I/O queue does not move, and either counts as a connection that has not said what it is.
//
// A host that has not connected within kConnectNs is dropped. All of it is on the control reactor.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor_budget.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/target.h"
#include "nvmf/login/login_line.h"
#include "nvmf_target/hand_over/saved_association.h"
#include "nvmf_target/io/io_queue.h"
#include "nvmf_target/login/host_login.h"
#include "nvmf_target/memory/owned_commands.h"
#include "nvmf_target/transport/queue_transport.h"

namespace cleat::nvmf_target {

// What an AdminQueue needs of the service that has it. Outlives it.
class AdminQueueHost {
 public:
  virtual Reactor& control() = 0;
  virtual nvme::target::Target& target() = 0;
  virtual std::span<uint8_t> receive_buffer() = 0;
  virtual bool keeps_data() const = 0;
  // The port and the part of the subsystem that an I/O queue gets. Of a controller of a subsystem.
  struct Place {
    IoPort& port;
    SubsystemPort& subsystem;
    std::shared_ptr<void> claim;  // kept as long as the queue is there
  };
  // `transport`: which may have a reactor, or a core that is best for it (placement.h).
  virtual Place PlaceOf(const nvme::target::TargetController& controller, uint16_t queue_id,
                        const QueueTransport& transport) = 0;
  virtual const nvme::target::TransportOffer& OfferOf(nvme::fabrics::TransportType transport) const = 0;
  // A command of reservations of one of the controller's I/O queues. Where there are none, no such command comes.
  virtual bool has_reservations() const = 0;
  virtual void Execute(const nvme::target::TargetController& controller, ReservationCall call) = 0;
  // A new I/O queue of the controller's starts, on its own reactor, now or when its subsystem is through with what it does to all queues.
  virtual void StartQueue(const nvme::target::TargetController& controller,
                          std::shared_ptr<IoQueue> queue) = 0;
  virtual void AssociationBegan(const nvme::target::TargetController& controller,
                                const std::string& peer) = 0;
  // The association has so many I/O queues more.
  virtual void AssociationChanged(const nvme::target::TargetController& controller, int more_queues) = 0;
  // The controller's deadline is another one.
  virtual void DeadlineChanged(uint64_t deadline_ns) = 0;
  // The line of the arithmetic that hosts' proofs take.
  virtual nvmf::LoginLine& logins() = 0;
  // A host has come to the subsystem and is not believed to be who it says it is.
  virtual void HostRefused(const std::string& subsystem_nqn, const std::string& host_nqn,
                           const std::string& peer, const std::string& reason) = 0;
  // A connection has said what it is, and proved what it has to, or is over before it has.
  virtual void Identified(const nvme::fabrics::TransportAddress& peer) = 0;
  // A host has come by TLS, and there is no key that both have; names its address.
  virtual void TlsRefused(const Error& reason) = 0;
  // Its admin queue has ended; what its I/O queues have in the storage goes on.
  virtual void AssociationEnds(const nvme::target::TargetController& controller, const Error& reason) = 0;
  // Nothing of it is left: it is destroyed once its caller is done.
  virtual void Over(class AdminQueue& queue) = 0;

 protected:
  ~AdminQueueHost() = default;
};

class AdminQueue final : private nvme::fabrics::TargetQueueOwner,
                         private nvme::target::ControllerOwner,
                         private TransportOwner,
                         private HostLoginOwner {
 public:
  static constexpr uint64_t kConnectNs = 10 * kNsPerSecond;

  // Answers that wait to be sent, at most, before more commands are read.
  static constexpr uint64_t kRepliesMaxBytes = 1 << 20;

  struct Parts {
    std::unique_ptr<QueueTransport> transport;  // stopped
    nvme::fabrics::TransportAddress local;
    nvme::fabrics::TransportAddress peer;
    DescriptorBudget::Reservation descriptor;  // of its socket
  };
  AdminQueue(AdminQueueHost& host, Parts parts);
  ~AdminQueue();  // over
  AdminQueue(const AdminQueue&) = delete;
  AdminQueue& operator=(const AdminQueue&) = delete;

  void Start();
  // Its association and all queues of it end. As long as the storage takes.
  void Close(const Error& reason);

  // ---- From one process to the next (admin_queue_hand_over.cc)
  // Whether it may go on here. An error says why not.
  static cleat::Status Check(const SavedAssociation& saved);
  // Instead of Start, of a queue that was made with the transport of the association's admin queue: `queues` are those of the I/O queues, and `saved` has
  // passed Check. An error: the association is none that may go on here, and this queue is to be destroyed with it.
  cleat::Status Restore(const std::string& nqn, SavedAssociation& saved, std::vector<Parts> queues);
  // By their identifiers.
  std::map<uint16_t, std::shared_ptr<IoQueue>> queues() const;
  // The I/O queue, which was saved, is over. Gives its host's address.
  nvme::fabrics::TransportAddress TakeOut(uint16_t queue_id);
  // Whether another process may go on with the association, of which all I/O queues were taken out.
  bool may_leave() const;
  // With the admin queue's socket alone. It is over with that, and is to be destroyed.
  SavedAssociation Leave();
  // Close, of an association that can't leave; its queues that could were taken out.
  void GiveUp(const Error& reason);

  // nullptr: it is not an association yet.
  const nvme::target::TargetController* controller() const { return controller_; }
  size_t io_queues() const { return io_queues_.size(); }
  const std::string& peer() const { return peer_; }

 private:
  struct AdminCommand : OwnedCommand {
    uint64_t reply_bytes = 0;
    bool held = false;  // until Completed
  };
  struct ConnectTimer : Timer {
    explicit ConnectTimer(AdminQueue& q) : Timer(&Fire), queue(q) {}
    static void Fire(Timer& timer);
    AdminQueue& queue;
  };

  // TargetQueueOwner
  nvme::fabrics::TargetCommand* Take(const nvme::fabrics::SubmissionEntry& entry,
                                     uint32_t in_capsule_bytes) override;
  nvme::fabrics::TargetCommand* Find(uint16_t tag) override;
  void Run(nvme::fabrics::TargetCommand& command) override;
  void DataCame(nvme::fabrics::TargetCommand& command) override;
  void Give(nvme::fabrics::TargetCommand& command) override;
  void Ended(const Error& reason) override;
  // ControllerOwner
  void Completed(uint16_t cid, const nvme::target::Answer& answer) override;
  void EndQueues(nvme::target::QueuesEndFor why) override;
  void EndAssociation(const Error& reason) override;
  // TransportOwner
  std::span<uint8_t> ReceiveBuffer() override { return host_.receive_buffer(); }
  bool MayReceive() override;
  void EndTurn() override;
  // HostLoginOwner
  void LoginAnswers(const nvme::target::Answer& answer) override;
  void LoginFails(const std::string& reason) override;
  void LoginIsLate() override;

  static std::span<const uint8_t> DataOf(const AdminCommand& command);
  void Execute(AdminCommand& command);
  void Connect(AdminCommand& command);
  std::optional<nvme::target::Answer> WhyNotAsAnnounced(const nvme::fabrics::SubmissionEntry& connect) const;
  bool MayTake() const;
  // The controller that its Connect has asked for.
  const nvme::target::TargetController& asked() const {
    return moves_to_ == nullptr ? *controller_ : *moves_to_->controller_;
  }
  // What the host has to prove before LetIn.
  void BeginLogin(std::shared_ptr<const nvme::auth::ChapSecrets> secrets);
  void LogIn(AdminCommand& command);
  // The host is believed: its association begins, or its I/O queue may move there. An error: this comes too late.
  cleat::Status Admit();
  void LetIn();
  uint32_t AdminInCapsuleBytes() const;
  void MarkPackets(const nvme::target::TargetController& controller);
  void Reply(AdminCommand& command, const nvme::target::Answer& answer);
  // Of an I/O queue: the association that it belongs to takes it over, once the answer to its Connect has left.
  void MoveToAssociation();
  // `commands`: of a queue that was elsewhere.
  void AddQueue(uint16_t queue_id, Parts parts, std::vector<nvme::tcp::SavedCommand> commands);
  cleat::Status RestoreController(const std::string& nqn, const SavedAssociation& saved);
  void TakeBack(nvme::tcp::SavedCommand& saved);
  void CloseQueues(const Error& reason);
  void BecomeIdentified();
  void PublishDeadline();
  void QueueDrained(uint16_t queue_id, const Error& reason);
  void OverIfDrained();  // not of one whose transport has moved
  cleat::Status StartTransport();
  void BeOver();

  AdminQueueHost& host_;
  const nvme::fabrics::TransportAddress local_;
  const nvme::fabrics::TransportAddress peer_address_;
  const std::string peer_;
  std::unique_ptr<QueueTransport> transport_;  // nullptr: moved
  nvme::fabrics::TargetQueue* queue_;          // of the transport
  OwnedCommands<AdminCommand> commands_;
  ConnectTimer connect_over_{*this};

  nvme::target::TargetController* controller_ = nullptr;  // of this association
  // When it expires, for the reactors of its I/O queues.
  const std::shared_ptr<std::atomic<uint64_t>> deadline_ns_ = std::make_shared<std::atomic<uint64_t>>(0);
  DescriptorBudget::Reservation descriptor_;
  struct Queue {
    std::shared_ptr<IoQueue> queue;
    DescriptorBudget::Reservation descriptor;
    std::shared_ptr<void> claim;  // of its place
    nvme::fabrics::TransportAddress peer;
  };
  std::map<uint16_t, Queue> io_queues_;
  std::set<AdminQueue*> coming_;    // I/O queues whose Connect is being answered
  AdminQueue* moves_to_ = nullptr;  // of such a one: its association
  uint16_t queue_id_ = 0;
  bool joined_ = false;               // the association's controller has its identifier
  std::unique_ptr<HostLogin> login_;  // nullptr: nothing is to be proved, or it was
  bool let_in_ = false;
  uint64_t reply_bytes_ = 0;  // of commands that were not given back
  bool identified_ = false;
  bool ends_when_sent_ = false;  // a refused Connect, or Disconnect
  bool closing_ = false;
  bool over_ = false;
};

}  // namespace cleat::nvmf_target
