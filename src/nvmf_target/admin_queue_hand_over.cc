// SPDX-License-Identifier: Apache-2.0
// An association that goes from one process to the next. Its admin queue is read to the end, as it has nothing in the storage: the host's word that
// it lives is heard while its I/O queues are waited for.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "nvmf_target/admin_queue.h"

namespace cleat::nvmf_target {

using nvme::fabrics::TargetCommand;
using nvme::fabrics::TextOfAddress;
using nvme::fabrics::TransportAddress;
using nvme::tcp::SavedCommand;

namespace {

constexpr uint32_t kIoEntriesMax = 1U << 16;

cleat::Status Wrong(std::string text) {
  return Error(ErrorCode::kInvalidArgument, std::move(text));
}

bool IsHeld(const SavedCommand& command) {
  return command.next == SavedCommand::Next::kHold;
}

}  // namespace

// ---- The process that gives it away

std::map<uint16_t, std::shared_ptr<IoQueue>> AdminQueue::queues() const {
  std::map<uint16_t, std::shared_ptr<IoQueue>> queues;
  for (const auto& [id, known] : io_queues_) queues.emplace(id, known.queue);
  return queues;
}

TransportAddress AdminQueue::TakeOut(uint16_t queue_id) {
  const auto known = io_queues_.extract(queue_id);
  controller_->QueueEnded(queue_id);
  host_.AssociationChanged(*controller_, -1);
  return known.mapped().peer;
}

bool AdminQueue::may_leave() const {
  return let_in_ && !closing_ && !over_ && !ends_when_sent_ && coming_.empty() && io_queues_.empty() &&
         controller_->may_be_saved() && transport_->may_be_saved();
}

// All that is with this end are Asynchronous Event Requests.
SavedAssociation AdminQueue::Leave() {
  CLEAT_CHECK(may_leave());
  SavedAssociation saved;
  saved.controller = controller_->Save();
  SavedQueue& queue = saved.queues.emplace_back(transport_->Save());
  queue.peer = peer_address_;
  for (SavedCommand& command : queue.connection.commands) {
    if (command.next == SavedCommand::Next::kRun) command.next = SavedCommand::Next::kHold;
  }
  closing_ = over_ = true;
  host_.AssociationChanged(*controller_, 0);
  host_.target().End(*std::exchange(controller_, nullptr));
  return saved;
}

void AdminQueue::GiveUp(const Error& reason) {
  Close(reason);
  OverIfDrained();
}

// ---- The process that takes it

cleat::Status AdminQueue::Check(const SavedAssociation& saved) {
  std::set<uint16_t> ids;
  for (const SavedQueue& queue : saved.queues) {
    const bool is_admin = queue.id == 0;
    if (ids.empty() != is_admin || !ids.insert(queue.id).second)
      return Wrong(fmt::format("queue {} twice, or out of place", queue.id));
    if (!is_admin && !queue.socket.valid()) return Wrong(fmt::format("queue {} without a socket", queue.id));
    CLEAT_TRY(
        nvme::tcp::Check(queue.connection, is_admin ? nvme::target::kAdminEntriesMax : kIoEntriesMax,
                         is_admin ? nvme::tcp::kAdminInCapsuleBytes : nvme::fabrics::kTransferBytesMax));
    if (!is_admin && std::ranges::any_of(queue.connection.commands, IsHeld))
      return Wrong(fmt::format("an Asynchronous Event Request on queue {}", queue.id));
  }
  if (ids.empty()) return Wrong("no queue");
  // The controller and the connection know of the same.
  std::multiset<uint16_t> held;
  for (const SavedCommand& command : saved.queues.front().connection.commands) {
    if (IsHeld(command)) held.insert(command.entry.cid);
  }
  const auto& requests = saved.controller.event_requests;
  if (held != std::multiset<uint16_t>(requests.begin(), requests.end()))
    return Wrong("Asynchronous Event Requests that are not those of its controller");
  return {};
}

cleat::Status AdminQueue::RestoreController(const std::string& nqn, const SavedAssociation& saved) {
  auto& target = host_.target();
  host_.control().RefreshNow();
  CLEAT_ASSIGN(nvme::target::TargetController* const controller,
               target.Restore(nqn, saved.controller, *this, host_.control().now_ns()));
  for (size_t i = 1; i < saved.queues.size(); ++i) {
    if (controller->Join(saved.queues[i].id)) continue;
    while (--i > 0) controller->QueueEnded(saved.queues[i].id);
    target.End(*controller);
    return Wrong("more I/O queues than it was granted");
  }
  controller_ = controller;
  return {};
}

// Nothing fails from where the controller is there.
cleat::Status AdminQueue::Restore(const std::string& nqn, SavedAssociation& saved,
                                  std::vector<Parts> queues) {
  identified_ = over_ = true;
  CLEAT_TRY(RestoreController(nqn, saved));
  over_ = false;
  let_in_ = true;
  PublishDeadline();
  for (size_t i = 0; i < queues.size(); ++i) {
    SavedQueue& queue = saved.queues[i + 1];
    AddQueue(queue.id, std::move(queues[i]), std::move(queue.connection.commands));
  }
  if (const cleat::Status started = StartTransport(); !started.ok()) {
    Close(started.error());
    return {};
  }
  for (SavedCommand& command : saved.queues.front().connection.commands) {
    if (!queue_->ended()) TakeBack(command);
  }
  host_.AssociationChanged(*controller_, 0);
  return {};
}

// What has come with Connect waits, as far as anything has, for the stream's next turn (EndTurn).
void AdminQueue::TakeBack(SavedCommand& saved) {
  AdminCommand& command = commands_.Take();
  const SavedCommand::Next next = saved.next;
  transport_->TakeBack(command, saved);
  if (next == SavedCommand::Next::kHold) command.held = true;
  if (next == SavedCommand::Next::kRun) Run(command);
  if (next == SavedCommand::Next::kRunWithData) Execute(command);
}

}  // namespace cleat::nvmf_target
