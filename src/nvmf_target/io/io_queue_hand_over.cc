// SPDX-License-Identifier: Apache-2.0
// An I/O queue that goes to another process: it stops to read, then nothing of it waits in the storage's pipeline, then it is saved; or it goes on after
// all.
#include <utility>

#include "nvmf_target/io/io_queue.h"

namespace cleat::nvmf_target {

using nvme::Status;
using nvme::fabrics::TargetCommand;

namespace {

constexpr uint32_t kNoNamespace = UINT32_MAX;  // an identifier that none has

}  // namespace

void IoQueue::StopReading() {
  if (queue_->ended()) return;
  stops_ = true;
  parts_.transport->SetReads(false);
  parts_.port.Forget(*this);
  parts_.port.AbandonWaiting(*this, [this](IoCommand& command) { undone_.push_back(&command); });
}

void IoQueue::Settle(std::function<void()> on_quiet) {
  on_quiet_ = std::move(on_quiet);
  if (stops_ && !queue_->ended()) {
    settles_ = true;
    for (NamespacePort& space : parts_.subsystem.namespaces) {
      if (!space.open) continue;
      bypassed_.emplace_back(&space, space.epoch);
      space.channel->BeginBypass();
    }
    parts_.port.AbortQueued(*this);
  }
  TellIfQuiet();
}

// A namespace that has gone meanwhile has no limits.
void IoQueue::EndBypass() {
  for (const auto& [space, epoch] : std::exchange(bypassed_, {})) {
    if (space->channel != nullptr && space->epoch == epoch) space->channel->EndBypass();
  }
}

// What the storage has not begun, or has no space for, whoever has the queue next does again. While others' writes are held for one of those that
// is not possible: they go on now, and it would land behind them. Nor is a flush that had no space done again: storage tells of what it has lost
// only once.
void IoQueue::FinishStopping(IoCommand& command, Status status) {
  const bool had_no_space = command.status == block::IoStatus::kNoSpace && command.op != block::Op::kFlush;
  const bool undone =
      !queue_->ended() && !command.must_end && (command.status == block::IoStatus::kAborted || had_no_space);
  if (!undone) {
    parts_.port.Done(command);
    const uint32_t data_bytes = command.op == block::Op::kRead && status.ok() ? command.data_bytes : 0;
    parts_.transport->Wake();
    queue_->Answer(command, status, 0, data_bytes);
  } else {
    must_end_ |= ChangesData(command.op) && command.space->older->held() > 0;
    parts_.port.Undone(command);
    undone_.push_back(&command);
  }
  TellIfQuiet();
}

void IoQueue::TellIfQuiet() {
  const bool is_quiet = closed_ || (!queue_->ended() && stops_ && queue_->running() == undone_.size());
  if (on_quiet_ != nullptr && is_quiet) parts_.control.PostCall(std::exchange(on_quiet_, nullptr));
}

std::optional<SavedQueue> IoQueue::Save() {
  EndBypass();
  const bool is_quiet = !queue_->ended() && stops_ && queue_->running() == undone_.size();
  if (!is_quiet || disconnecting_ || must_end_ || !parts_.transport->may_be_saved()) return std::nullopt;
  closed_ = true;
  undone_.clear();
  parts_.port.FlushCounters();
  // The next process does not know what was behind an identifier when the command came, so that such a command names none there.
  queue_->ForEachUnanswered([this](TargetCommand& command) {
    if (!IsForPresentNamespace(static_cast<IoCommand&>(command))) command.entry.nsid = kNoNamespace;
  });
  return parts_.transport->Save();
}

void IoQueue::RunAgain() {
  EndBypass();
  on_quiet_ = nullptr;
  stops_ = settles_ = false;
  if (queue_->ended()) return;
  if (must_end_)
    return queue_->Abort(
        {ErrorCode::kUnavailable, parts_.name + ": newer writes have overtaken one of its own"});
  BeginTurn();
  if (EndIfExpired()) return;
  for (IoCommand* const command : std::exchange(undone_, {})) RunIfSameNamespace(*command);
  parts_.port.order().TellOf(*this);
  parts_.transport->Wake();
}

}  // namespace cleat::nvmf_target
