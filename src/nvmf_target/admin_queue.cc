// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/admin_queue.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <utility>

#include "nvmf_target/socket/listener.h"

namespace cleat::nvmf_target {

using nvme::Status;
using nvme::fabrics::SubmissionEntry;
using nvme::fabrics::TargetCommand;
using nvme::fabrics::TextOfAddress;
using nvme::target::Answer;
using nvme::target::Transfer;

namespace {

constexpr Status kInvalidField{0x4002};
constexpr Status kAborted{0x07};

}  // namespace

AdminQueue::AdminQueue(AdminQueueHost& host, Parts parts)
    : host_(host),
      local_(parts.local),
      peer_address_(parts.peer),
      peer_(TextOfAddress(parts.peer)),
      transport_(std::move(parts.transport)),
      queue_(&transport_->queue()),
      descriptor_(std::move(parts.descriptor)) {
  queue_->SetOwner(*this);
}

AdminQueue::~AdminQueue() {
  CLEAT_CHECK(over_ && io_queues_.empty() && controller_ == nullptr);
}

void AdminQueue::Start() {
  if (const cleat::Status started = StartTransport(); !started.ok()) return Close(started.error());
  host_.control().AddTimer(connect_over_, host_.control().now_ns() + kConnectNs);
}

cleat::Status AdminQueue::StartTransport() {
  return transport_->Start(host_.control(), *this, QueueTransport::Kind::kAdmin);
}

void AdminQueue::ConnectTimer::Fire(Timer& timer) {
  AdminQueue& queue = static_cast<ConnectTimer&>(timer).queue;
  queue.Close({ErrorCode::kDeadlineExceeded, queue.peer_ + ": the host has not connected in time"});
}

// ---- Commands

TargetCommand* AdminQueue::Take(const SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) {
  if (!MayTake()) return nullptr;
  AdminCommand& command = commands_.Take();
  command.Resize(in_capsule_bytes);
  return &command;
}

bool AdminQueue::MayTake() const {
  if (ends_when_sent_) return false;
  // One at a time of a host that is not known yet: its commands take no more memory than that, and none overtakes the proof.
  if (login_ != nullptr) return queue_->commands() == 0;
  return moves_to_ == nullptr && reply_bytes_ <= kRepliesMaxBytes;
}

// What came with it, in one piece.
std::span<const uint8_t> AdminQueue::DataOf(const AdminCommand& command) {
  if (command.data.empty()) return {};
  return {command.data.front().data(), command.data.front().length_bytes};
}

TargetCommand* AdminQueue::Find(uint16_t tag) {
  return commands_.Find(tag);
}

void AdminQueue::Run(TargetCommand& of_target) {
  auto& command = static_cast<AdminCommand&>(of_target);
  const uint32_t bytes = nvme::target::TransferOf(command.entry).to_target_bytes;
  if (bytes == 0 || command.in_capsule) return Execute(command);
  if (bytes > nvme::target::kAdminDataMax || bytes != command.data_bytes)
    return queue_->Answer(command, kInvalidField);
  command.Resize(bytes);
  queue_->Ask(command);
}

void AdminQueue::DataCame(TargetCommand& of_target) {
  Execute(static_cast<AdminCommand&>(of_target));
}

void AdminQueue::Execute(AdminCommand& command) {
  if (login_ != nullptr) return LogIn(command);
  if (controller_ == nullptr) return Connect(command);
  const Answer answer = controller_->Execute(command.entry, DataOf(command), host_.control().now_ns());
  if (queue_->ended()) return;  // with this command
  PublishDeadline();
  // A reset or a shutdown concerns I/O queues, too, whose hosts have not proved themselves yet: the controller does not know them.
  if (!coming_.empty() && !controller_->ready())
    CloseQueues({ErrorCode::kUnavailable, peer_ + ": the host has stopped its controller"});
  if (answer.kind == Answer::Kind::kHeld) {
    command.held = true;
    return;
  }
  if (answer.kind == Answer::Kind::kDisconnect) ends_when_sent_ = true;
  Reply(command, answer);
}

void AdminQueue::Reply(AdminCommand& command, const Answer& answer) {
  command.held = false;
  command.Resize(static_cast<uint32_t>(answer.data.size()));
  command.reply_bytes = answer.data.size();
  reply_bytes_ += command.reply_bytes;
  if (!answer.data.empty()) std::memcpy(command.memory.data(), answer.data.data(), answer.data.size());
  queue_->Answer(command, Status(answer.status), answer.result, static_cast<uint32_t>(answer.data.size()));
  transport_->Wake();
}

// nullopt: the host says of its queue what it said when it made the connection, if it said anything then.
std::optional<Answer> AdminQueue::WhyNotAsAnnounced(const SubmissionEntry& connect) const {
  constexpr uint16_t kInvalidParameters = 1U << 14 | 1U << 8 | nvme::fabrics::kInvalidParameters;
  constexpr uint32_t kQueueIdAt = 42, kQueueSizeAt = 44;  // base 2.0, 6.3
  const auto& announced = transport_->traits().announced;
  if (!announced) return std::nullopt;
  if (connect.cdw10 >> 16 != announced->queue_id)
    return Answer{.result = kQueueIdAt, .status = kInvalidParameters, .data = {}};
  if ((connect.cdw11 & 0xffffU) + 1 > announced->entries)
    return Answer{.result = kQueueSizeAt, .status = kInvalidParameters, .data = {}};
  return std::nullopt;
}

void AdminQueue::Connect(AdminCommand& command) {
  if (const auto refusal = WhyNotAsAnnounced(command.entry)) {
    spdlog::debug("{}: Connect for another queue than its connection was made for", peer_);
    ends_when_sent_ = true;
    return Reply(command, *refusal);
  }
  const auto connected = host_.target().Connect(command.entry, DataOf(command), local_, transport_->secured(),
                                                *this, host_.control().now_ns());
  if (!connected.answer.ok()) {
    spdlog::debug("{}: Connect refused with status {:#x}", peer_, connected.answer.status);
    ends_when_sent_ = true;
    return Reply(command, connected.answer);
  }
  connect_over_.Cancel();
  MarkPackets(*connected.controller);
  if (connected.queue_id == 0) {
    controller_ = connected.controller;
    queue_->BecomeQueue(connected.entries, connected.flow_control, AdminInCapsuleBytes());
  } else {
    queue_->BecomeQueue(connected.entries, connected.flow_control,
                        host_.OfferOf(local_.transport).in_capsule_bytes);
    moves_to_ = static_cast<AdminQueue*>(&connected.controller->owner());
    moves_to_->coming_.insert(this);
    queue_id_ = connected.queue_id;
    joined_ = connected.proof == nullptr;
  }
  if (connected.proof == nullptr) {
    LetIn();
  } else {
    BeginLogin(connected.proof);
  }
  Reply(command, connected.answer);
}

// A discovery service is no export's. Connections that an engine before has handed over have their DSCP.
void AdminQueue::MarkPackets(const nvme::target::TargetController& controller) {
  const uint8_t dscp = controller.discovery() ? 0 : controller.subsystem()->config().dscp;
  if (dscp != 0) transport_->SetDscp(dscp);
}

// Hosts over TCP may bring along what admin commands have (TCP transport 1.0, 3.3.1); over RDMA their capsules are as large as their entry.
uint32_t AdminQueue::AdminInCapsuleBytes() const {
  return local_.transport == nvme::fabrics::TransportType::kTcp ? nvme::tcp::kAdminInCapsuleBytes : 0;
}

void AdminQueue::LetIn() {
  let_in_ = true;
  BecomeIdentified();
  if (moves_to_ != nullptr) return;
  PublishDeadline();
  host_.AssociationBegan(*controller_, peer_);
}

// ---- What a host has to prove

void AdminQueue::BeginLogin(std::shared_ptr<const nvme::auth::ChapSecrets> secrets) {
  const nvme::target::TargetController& controller = asked();
  HostLoginOwner& owner = *this;
  login_ =
      std::make_unique<HostLogin>(host_.control(), host_.logins(),
                                  HostLogin::Config{.peer = PeerOf(peer_address_),
                                                    .host_nqn = controller.host_nqn(),
                                                    .subsystem_nqn = controller.subsystem()->config().nqn,
                                                    .secrets = std::move(secrets),
                                                    .timeout_ns = HostLogin::TimeoutNs(controller.kato_ms())},
                                  owner);
}

void AdminQueue::LogIn(AdminCommand& command) {
  const Answer answer = login_->Execute(command.entry, DataOf(command));
  if (answer.kind == Answer::Kind::kHeld) {
    command.held = true;
    return;
  }
  if (answer.kind == Answer::Kind::kDisconnect) ends_when_sent_ = true;
  if (login_->proved()) {
    if (const cleat::Status admitted = Admit(); !admitted.ok()) return Close(admitted.error());
  }
  Reply(command, answer);
}

cleat::Status AdminQueue::Admit() {
  spdlog::debug("{}: {} has authenticated: {}", peer_, asked().host_nqn(), login_->how());
  if (moves_to_ == nullptr) {
    CLEAT_TRY(host_.target().Admit(*controller_, host_.control().now_ns()));
  } else {
    joined_ = moves_to_->controller_->Join(queue_id_);
    if (!joined_)
      return Error(ErrorCode::kUnavailable,
                   fmt::format("{}: its association takes no queue {} any more", peer_, queue_id_));
  }
  login_.reset();
  LetIn();
  return {};
}

void AdminQueue::LoginAnswers(const Answer& answer) {
  if (answer.kind == Answer::Kind::kDisconnect) ends_when_sent_ = true;
  for (const auto& command : commands_.all()) {
    if (command->in_use && command->held) return Reply(*command, answer);
  }
}

void AdminQueue::LoginFails(const std::string& reason) {
  host_.HostRefused(asked().subsystem()->config().nqn, asked().host_nqn(), peer_, reason);
}

void AdminQueue::LoginIsLate() {
  Close({ErrorCode::kDeadlineExceeded, peer_ + ": the host has not authenticated in time"});
}

void AdminQueue::Give(TargetCommand& of_target) {
  auto& command = static_cast<AdminCommand&>(of_target);
  command.in_use = command.held = false;
  reply_bytes_ -= std::exchange(command.reply_bytes, 0);
  command.Resize(0);
  if (closing_) OverIfDrained();
}

// ---- What the controller says

void AdminQueue::Completed(uint16_t cid, const Answer& answer) {
  for (const auto& command : commands_.all()) {
    if (command->in_use && command->held && command->entry.cid == cid) return Reply(*command, answer);
  }
}

void AdminQueue::EndQueues(nvme::target::QueuesEndFor why) {
  const char* const what =
      why == nvme::target::QueuesEndFor::kReset ? "reset its controller" : "shut its controller down";
  CloseQueues({ErrorCode::kUnavailable, fmt::format("{}: the host has {}", peer_, what)});
}

void AdminQueue::CloseQueues(const Error& reason) {
  while (!coming_.empty()) (*coming_.begin())->Close(reason);
  for (const auto& [id, known] : io_queues_)
    known.queue->Post([queue = known.queue, reason] { queue->Close(reason); });
}

void AdminQueue::EndAssociation(const Error& reason) {
  Close(reason);
}

// ---- I/O queues

void AdminQueue::MoveToAssociation() {
  AdminQueue& association = *std::exchange(moves_to_, nullptr);
  association.coming_.erase(this);
  transport_->Stop();
  queue_ = nullptr;
  Parts parts{.transport = std::move(transport_),
              .local = local_,
              .peer = peer_address_,
              .descriptor = std::move(descriptor_)};
  association.AddQueue(queue_id_, std::move(parts), {});
  BeOver();
}

void AdminQueue::AddQueue(uint16_t queue_id, Parts of_queue, std::vector<nvme::tcp::SavedCommand> commands) {
  const AdminQueueHost::Place place = host_.PlaceOf(*controller_, queue_id, *of_queue.transport);
  IoQueue::Parts parts{
      .control = host_.control(),
      .port = place.port,
      .subsystem = place.subsystem,
      .transport = std::move(of_queue.transport),
      .keeps_data = host_.keeps_data(),
      .name = fmt::format("{}, queue {}", peer_, queue_id),
      .association = this,
      .host_id = controller_->host_id(),
      .deadline_ns = deadline_ns_,
      .on_drained = [this, queue_id](const Error& reason) { QueueDrained(queue_id, reason); },
      .commands = std::move(commands)};
  if (host_.has_reservations())
    parts.on_reservation = [this](ReservationCall call) { host_.Execute(*controller_, std::move(call)); };
  const auto queue = std::make_shared<IoQueue>(std::move(parts));
  io_queues_.emplace(queue_id, Queue{queue, std::move(of_queue.descriptor), place.claim, of_queue.peer});
  host_.StartQueue(*controller_, queue);
  if (closing_ || !controller_->ready())
    CloseQueues({ErrorCode::kUnavailable, peer_ + ": its association ends"});
  host_.AssociationChanged(*controller_, 1);
}

void AdminQueue::QueueDrained(uint16_t queue_id, const Error& reason) {
  spdlog::debug("{}: queue {} is over: {}", peer_, queue_id, reason.message);
  io_queues_.erase(queue_id);
  controller_->QueueEnded(queue_id);
  host_.AssociationChanged(*controller_, -1);
  OverIfDrained();
}

// ---- The end

void AdminQueue::Close(const Error& reason) {
  if (transport_ != nullptr) queue_->Abort(reason);
}

void AdminQueue::Ended(const Error& reason) {
  connect_over_.Cancel();
  if (login_ != nullptr) login_->Stop();
  BecomeIdentified();
  closing_ = true;
  deadline_ns_->store(0, std::memory_order_relaxed);  // what its I/O queues still read is not executed
  // No I/O queue is connected to it from here on.
  if (controller_ != nullptr) controller_->End(reason);
  if (moves_to_ != nullptr) {
    // The association was told of a queue that does not come.
    AdminQueue& association = *std::exchange(moves_to_, nullptr);
    association.coming_.erase(this);
    if (joined_) association.controller_->QueueEnded(queue_id_);
    association.OverIfDrained();
  }
  if (controller_ != nullptr && let_in_) {
    host_.AssociationEnds(*controller_, reason);
  } else if (reason.code == ErrorCode::kPermissionDenied && transport_->in_handshake()) {
    host_.TlsRefused(reason);
  } else {
    spdlog::debug("{}", reason.message);
  }
  // What is on the wire comes back once the transport has let go of it.
  for (const auto& command : commands_.all()) {
    if (command->in_use && command->state == TargetCommand::State::kRunning)
      queue_->Answer(*command, kAborted);
  }
  CloseQueues(reason);
  transport_->Wake();
  OverIfDrained();
}

void AdminQueue::BecomeIdentified() {
  if (!std::exchange(identified_, true)) host_.Identified(peer_address_);
}

void AdminQueue::PublishDeadline() {
  deadline_ns_->store(controller_->deadline_ns(), std::memory_order_relaxed);
  host_.DeadlineChanged(controller_->deadline_ns());
}

// What is executed is looked at in the time of now: this process may have been stopped since the turn began.
bool AdminQueue::MayReceive() {
  host_.control().RefreshNow();
  return true;
}

void AdminQueue::EndTurn() {
  if (queue_->waits() && MayTake()) {
    queue_->Resume();
    transport_->Wake();
  }
  const bool all_sent = queue_->commands() == 0 && !transport_->wants_to_send();
  if (moves_to_ != nullptr && login_ == nullptr && all_sent) return MoveToAssociation();
  if (ends_when_sent_ && all_sent && !queue_->ended())
    queue_->Abort({ErrorCode::kUnavailable, peer_ + ": over"});
  if (queue_->ended()) transport_->Close();
}

void AdminQueue::OverIfDrained() {
  if (closing_ && queue_->commands() == 0 && io_queues_.empty() && coming_.empty()) BeOver();
}

// By mail: whoever called may still be within it.
void AdminQueue::BeOver() {
  if (std::exchange(over_, true)) return;
  host_.control().PostCall([this] {
    if (transport_ != nullptr) transport_->Close();
    if (auto* const controller = std::exchange(controller_, nullptr)) {
      host_.AssociationChanged(*controller, 0);
      host_.target().End(*controller);
    }
    host_.Over(*this);
  });
}

}  // namespace cleat::nvmf_target
