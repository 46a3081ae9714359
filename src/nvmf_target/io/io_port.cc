// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/io/io_port.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "nvmf_target/io/io_queue.h"

namespace cleat::nvmf_target {

IoPort::~IoPort() {
  CLEAT_CHECK(free_.size() == commands_.size() && paused_.empty() && !trim_.pending());
}

void IoPort::LearnCpu() {
  cpu_set_t cpus;
  if (pthread_getaffinity_np(pthread_self(), sizeof(cpus), &cpus) != 0 || CPU_COUNT(&cpus) != 1) return;
  int cpu = 0;
  while (!CPU_ISSET(cpu, &cpus)) ++cpu;
  cpu_.store(cpu, std::memory_order_relaxed);
}

void IoPort::UseCounters(observe::ReactorCounters* counters) {
  if (counters == nullptr || counters_ != nullptr) return;
  counters_ = counters;
  recorder_.emplace(*counters);
}

// ---- Commands and their memory

IoCommand* IoPort::Take(IoQueue& queue, uint32_t of_capsule_bytes) {
  block::Segment buffer;
  if (of_capsule_bytes > 0 && !of_capsules_.Take(of_capsule_bytes, buffer)) return nullptr;
  IoCommand* const command = TakeFree(queue);
  if (command == nullptr) {
    if (of_capsule_bytes > 0) of_capsules_.Give(buffer);
    return nullptr;
  }
  command->buffer = buffer;
  command->buffer_of = BufferOf::kCapsules;
  command->data = {&command->buffer, of_capsule_bytes > 0 ? 1U : 0U};
  return command;
}

IoCommand* IoPort::TakeReceived(IoQueue& queue, std::span<const uint8_t> data) {
  block::Segment buffer;
  if (!received_.Keep(data, buffer)) return nullptr;
  IoCommand* const command = TakeFree(queue);
  if (command == nullptr) {
    received_.LetGo(buffer);
    return nullptr;
  }
  command->buffer = buffer;
  command->buffer_of = BufferOf::kReceived;
  command->data = {&command->buffer, 1};
  return command;
}

IoCommand* IoPort::TakeFree(IoQueue& queue) {
  if (free_.empty() && !AddCommand(commands_max_)) return nullptr;
  IoCommand& command = *commands_[free_.back()];
  free_.pop_back();
  command.queue = &queue;
  command.buffer_of = BufferOf::kData;
  return &command;
}

bool IoPort::AddCommand(size_t most) {
  if (commands_.size() >= most) return false;
  commands_.push_back(std::make_unique<IoCommand>());
  commands_.back()->tag = static_cast<uint16_t>(commands_.size() - 1);
  free_.reserve(commands_.capacity());
  free_.push_back(commands_.back()->tag);
  return true;
}

// Were it to wait, a host's data that another command awaits could stand in the socket behind it.
IoCommand* IoPort::TakeRestored(IoQueue& queue) {
  constexpr size_t kTags = 1U << 16;
  if (free_.empty() && !AddCommand(kTags)) return nullptr;
  return TakeFree(queue);
}

bool IoPort::IsWithinShare(IoQueue& queue, uint32_t bytes) const {
  const uint64_t share = queue.uses_registered_memory() ? registered_share_bytes_ : share_bytes_;
  return queue.data_bytes() == 0 || queue.data_bytes() + bytes <= share;
}

bool IoPort::TakeShare(IoCommand& command) {
  CLEAT_CHECK(command.buffer.region == nullptr);
  if (!IsWithinShare(*command.queue, command.data_bytes)) return false;
  uint64_t& used = command.queue->data_bytes();
  const bool is_registered = command.queue->uses_registered_memory();
  nvme::fabrics::DataBuffers& pool = is_registered ? registered_ : data_;
  if (!pool.Take(command.data_bytes, command.buffer)) return false;
  used += command.data_bytes;
  command.buffer_of = is_registered ? BufferOf::kRegistered : BufferOf::kData;
  command.data = {&command.buffer, 1};
  return true;
}

bool IoPort::TakeBuffer(IoCommand& command) {
  if (waiting_.empty() && TakeShare(command)) return true;
  waiting_.PushBack(command);
  // Others that wait may have what this one may not.
  if (waiting_.front() != &command) ServeLater();
  return false;
}

void IoPort::Give(IoCommand& command) {
  if (command.waiting.linked()) command.waiting.Unlink();
  if (command.buffer.region != nullptr) GiveBuffer(command);
  command.data = {};
  command.plans_later = command.for_control = false;
  command.queue = nullptr;
  free_.push_back(command.tag);
  ServeLater();
}

void IoPort::GiveBuffer(IoCommand& command) {
  switch (command.buffer_of) {
    case BufferOf::kData:
      command.queue->data_bytes() -= command.data_bytes;
      data_.Give(command.buffer);
      break;
    case BufferOf::kRegistered:
      command.queue->data_bytes() -= command.data_bytes;
      registered_.Give(command.buffer);
      break;
    case BufferOf::kCapsules:
      of_capsules_.Give(command.buffer);
      break;
    case BufferOf::kReceived:
      received_.LetGo(command.buffer);
      break;
  }
  command.buffer = {};
  command.data = {};
  if (!trim_.pending()) reactor_.AddTimer(trim_, reactor_.now_ns() + kTrimNs);
}

block::Segment IoPort::TakeLent(IoCommand& command) {
  CLEAT_CHECK(command.buffer_of == BufferOf::kData && command.buffer.region != nullptr);
  command.data = {};
  lent_bytes_ += command.buffer.length_bytes;
  return std::exchange(command.buffer, {});
}

void IoPort::GiveKept(IoQueue& queue, const block::Segment& piece, bool in_kernel) {
  queue.data_bytes() -= piece.length_bytes;
  lent_bytes_ -= piece.length_bytes;
  if (in_kernel) data_.ReplacePages(piece);
  data_.Give(piece);
  if (!trim_.pending()) reactor_.AddTimer(trim_, reactor_.now_ns() + kTrimNs);
  ServeLater();
}

void IoPort::TrimTimer::Fire(Timer& timer) {
  IoPort& port = static_cast<TrimTimer&>(timer).port;
  const bool data_left = port.data_.Trim();
  const bool capsules_left = port.of_capsules_.Trim();
  port.received_.Trim();
  if (data_left || capsules_left) port.reactor_.AddTimer(timer, port.reactor_.now_ns() + kTrimNs);
}

// ---- Queues that wait

void IoPort::Forget(IoQueue& queue) {
  std::erase(paused_, &queue);
}

void IoPort::AbandonWaiting(IoQueue& queue, const std::function<void(IoCommand&)>& abandon) {
  IoCommand* next = nullptr;
  for (IoCommand* command = waiting_.front(); command != nullptr; command = next) {
    next = waiting_.Next(*command);
    if (command->queue != &queue) continue;
    command->waiting.Unlink();
    abandon(*command);
  }
  ServeLater();
}

void IoPort::AbortQueued(const IoQueue& queue) {
  std::vector<IoCommand*> of_queue;
  for (IoCommand* command = running_.front(); command != nullptr; command = running_.Next(*command)) {
    if (command->queue == &queue) of_queue.push_back(command);
  }
  for (IoCommand* const command : of_queue) {
    // A command that was ended meanwhile, by the end of another, has no namespace.
    if (command->space == nullptr || command->queue != &queue) continue;
    block::PipelineChannel& channel = *command->space->channel;
    channel.AbortQueued(command);
    channel.EndWaits();
  }
}

void IoPort::EndForbidden(NamespacePort& space, std::span<const nvme::fabrics::Uuid> also) {
  for (IoCommand* command = running_.front(); command != nullptr; command = running_.Next(*command)) {
    if (command->space != &space || command->must_end) continue;
    const nvme::fabrics::Uuid& host_id = command->queue->host_id();
    const bool may =
        space.reservation == nullptr || MayExecute(*space.reservation, host_id, AccessOf(command->op));
    if (may && std::ranges::find(also, host_id) == also.end()) continue;
    command->must_end = true;
    ++space.to_end;
  }
  AbortForbidden(space);
}

// Commands are of the port's pool: those that have ended meanwhile, by the end of another, are there still, and have to end no more.
void IoPort::AbortForbidden(NamespacePort& space) {
  if (space.to_end == 0) return;
  std::vector<IoCommand*> forbidden;
  for (IoCommand* command = running_.front(); command != nullptr; command = running_.Next(*command)) {
    if (command->space == &space && command->must_end) forbidden.push_back(command);
  }
  for (IoCommand* const command : forbidden) {
    if (command->space == &space && command->must_end) space.channel->AbortQueued(command);
  }
  space.channel->EndWaits();
}

void IoPort::ServeLater() {
  if ((waiting_.empty() && paused_.empty()) || std::exchange(serves_later_, true)) return;
  reactor_.PostCall([this] {
    serves_later_ = false;
    ServeWaiting();
  });
}

void IoPort::ServeWaiting() {
  bool data_is_short = false, registered_is_short = false;
  IoCommand* next = nullptr;
  for (IoCommand* command = waiting_.front(); command != nullptr && !(data_is_short && registered_is_short);
       command = next) {
    next = waiting_.Next(*command);
    if (!IsWithinShare(*command->queue, command->data_bytes)) continue;
    // Of either pool the first that may have memory finds none: nobody who wants the same passes it by.
    bool& is_short = command->queue->uses_registered_memory() ? registered_is_short : data_is_short;
    is_short = is_short || !TakeShare(*command);
    if (is_short) continue;
    command->waiting.Unlink();
    IoQueue& queue = *command->queue;
    queue.Proceed(*command);
    // That may have ended connections, and what waited with them; those that are passed by have their turn later.
    if (next != nullptr && !next->waiting.linked()) next = waiting_.front();
  }
  for (size_t left = paused_.size(); left > 0 && !paused_.empty(); --left) {
    IoQueue* const queue = paused_.front();
    paused_.pop_front();
    queue->Resume();
    // It found no room again: nor will the others.
    if (!paused_.empty() && paused_.back() == queue) return;
  }
}

// ---- What is in the storage

void IoPort::BeginTurn() {
  turn_began_ns_ = reactor_.now_ns();
  ++batch_;
}

void IoPort::Submitted(IoCommand& command, NamespacePort& space) {
  command.space = &space;
  ++space.in_flight;
  ++in_storage_;
  running_.PushBack(command);
  if (ChangesData(command.op)) order_.Began(command);
  command.stamps.Seen(turn_began_ns_, turn_began_ns_, batch_);
  if (counters_ != nullptr) counters_->Watch(*this);
}

void IoPort::LeaveStorage(IoCommand& command) {
  if (ChangesData(command.op)) order_.Over(command);
  NamespacePort& space = *std::exchange(command.space, nullptr);
  command.running.Unlink();
  --in_storage_;
  if (std::exchange(command.must_end, false)) [[unlikely]] {
    if (--space.to_end == 0 && space.rights_ended != nullptr) space.rights_ended->Set();
  }
  if (--space.in_flight == 0 && space.drained != nullptr) space.drained->Set();
}

void IoPort::Undone(IoCommand& command) {
  LeaveStorage(command);
}

void IoPort::Done(IoCommand& command) {
  const NamespacePort& space = *command.space;
  if (space.counters != nullptr && recorder_) {
    const bool failed = command.status != block::IoStatus::kOk;
    recorder_->Ended(*space.counters, command, command.column, failed ? 0 : command.counted_bytes, failed);
  }
  LetGoOfReceived(command);
  LeaveStorage(command);
}

void IoPort::FlushCounters() {
  if (!recorder_ || recorder_->empty()) return;
  reactor_.RefreshNow();
  recorder_->Flush(reactor_.now_ns(), 0);
}

void IoPort::VisitInFlight(observe::InFlightVisitor& visitor) {
  for (IoCommand* command = running_.front(); command != nullptr; command = running_.Next(*command)) {
    if (command->space->counters != nullptr)
      visitor.Visit(*command->space->counters, command->column, *command);
  }
}

}  // namespace cleat::nvmf_target
