// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/io/write_order.h"

#include <vector>

#include "base/check.h"
#include "nvmf_target/io/io_port.h"
#include "nvmf_target/io/io_queue.h"

namespace cleat::nvmf_target {

WriteOrder::~WriteOrder() {
  CLEAT_CHECK(young_.empty() && old_.empty() && held_.empty() && !age_.pending());
}

bool WriteOrder::Holds(IoCommand& command, NamespacePort& space) {
  if (!space.older->any()) [[likely]]
    return false;
  const auto place = space.older->Hold(
      {.range = command.range, .association = command.queue->association(), .came_ns = reactor_.now_ns()},
      *this);
  if (!place) return false;
  command.told = *place;
  command.is_told = true;
  command.held_at = &space;
  held_.PushBack(command);
  space.older->CountHeld(1);
  return true;
}

void WriteOrder::Drop(IoCommand& command, NamespacePort& space) {
  CLEAT_CHECK(command.is_told && command.held_at == nullptr);
  command.is_told = false;
  space.older->Remove(command.told);
}

void WriteOrder::TakeOut(IoCommand& command) {
  command.ordered.Unlink();
  command.held_at->older->CountHeld(-1);
  command.held_at = nullptr;
}

void WriteOrder::Began(IoCommand& command) {
  if (command.is_told) return old_.PushBack(command);
  command.began_ns = reactor_.now_ns();
  young_.PushBack(command);
  if (!age_.pending()) reactor_.AddTimer(age_, command.began_ns + kYoungNs);
}

void WriteOrder::Over(IoCommand& command) {
  command.ordered.Unlink();
  if (command.is_told) command.space->older->Remove(command.told);
  command.is_told = false;
}

void WriteOrder::Tell(IoCommand& command) {
  command.told = command.space->older->Add(
      {.range = command.range, .association = command.queue->association(), .came_ns = command.began_ns});
  command.is_told = true;
}

void WriteOrder::AgeTimer::Fire(Timer& timer) {
  WriteOrder& order = static_cast<AgeTimer&>(timer).order;
  const uint64_t now_ns = order.reactor_.now_ns();
  for (IoCommand* oldest = order.young_.front(); oldest != nullptr; oldest = order.young_.front()) {
    if (oldest->began_ns + kYoungNs > now_ns)
      return order.reactor_.AddTimer(timer, oldest->began_ns + kYoungNs);
    oldest->ordered.Unlink();
    order.old_.PushBack(*oldest);
    Tell(*oldest);
  }
}

void WriteOrder::TellOf(const IoQueue& queue) {
  IoCommand* next = nullptr;
  for (IoCommand* command = young_.front(); command != nullptr; command = next) {
    next = young_.Next(*command);
    if (command->queue != &queue) continue;
    command->ordered.Unlink();
    old_.PushBack(*command);
    Tell(*command);
  }
}

void WriteOrder::Ended(const IoQueue& queue) {
  TellOf(queue);
  for (IoCommand* command = old_.front(); command != nullptr; command = old_.Next(*command)) {
    if (command->queue == &queue) command->space->older->End(command->told);
  }
}

// ---- What is held

void WriteOrder::MayGoOn() {
  if (!looks_again_.exchange(true)) reactor_.PostCall([this] { LookAgain(); });
}

// A command that goes on may end connections, and what they have is held no more.
void WriteOrder::LookAgain() {
  looks_again_.store(false);
  std::vector<IoCommand*> free;
  for (IoCommand* command = held_.front(); command != nullptr; command = held_.Next(*command)) {
    if (!command->held_at->older->StillHolds(command->told, *this)) free.push_back(command);
  }
  for (IoCommand* const command : free) {
    if (command->held_at == nullptr) continue;
    TakeOut(*command);
    command->queue->GoOnAfterOlder(*command);
  }
}

void WriteOrder::AbandonIf(const std::function<bool(const IoCommand&)>& concerns,
                           const std::function<void(IoCommand&)>& abandon) {
  std::vector<IoCommand*> abandoned;
  for (IoCommand* command = held_.front(); command != nullptr; command = held_.Next(*command)) {
    if (concerns(*command)) abandoned.push_back(command);
  }
  for (IoCommand* const command : abandoned) {
    if (command->held_at == nullptr) continue;
    OlderWrites& older = *command->held_at->older;
    TakeOut(*command);
    command->is_told = false;
    older.Remove(command->told);
    abandon(*command);
  }
}

void WriteOrder::AbandonHeld(const IoQueue& queue, const std::function<void(IoCommand&)>& abandon) {
  AbandonIf([&queue](const IoCommand& command) { return command.queue == &queue; }, abandon);
}

void WriteOrder::AbandonHeld(const NamespacePort& space, const std::function<void(IoCommand&)>& abandon) {
  AbandonIf([&space](const IoCommand& command) { return command.held_at == &space; }, abandon);
}

}  // namespace cleat::nvmf_target
