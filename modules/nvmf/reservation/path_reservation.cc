// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/reservation/path_reservation.h"

#include <utility>

namespace cleat::modules {

using nvme::fabrics::CompletionEntry;
using nvme::host::LifeId;

namespace {

IoQueueId WithEntries(IoQueueId id, uint32_t entries) {
  id.entries = entries;
  return id;
}

}  // namespace

// ---- The queue

void PathReservation::Queue::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (!IsOfLogin(cookie)) return reservation_.reservation_.Completed(cookie, entry, data_bytes);
  if (TakeLogin(cookie, entry, data_bytes)) reservation_.QueueReady();
}

void PathReservation::Queue::Unanswered(uint64_t cookie, nvme::fabrics::Reached /*reached*/) {
  if (IsOfLogin(cookie)) return;
  reservation_.is_lost_ = true;
  reservation_.reservation_.Unanswered(cookie);
}

void PathReservation::Queue::Ended(const Error& reason) {
  reservation_.QueueEnded(EndLogin(reason));
}

// ---- Tasks

PathReservation::PathReservation(nvme::host::ReservationConfig config, const IoQueueTarget& target,
                                 const IoQueueId& queue, Reactor& control, PathReservationOwner& owner)
    : target_(target),
      queue_id_(WithEntries(queue, kEntries)),
      control_(control),
      owner_(owner),
      reservation_(std::move(config), *this) {}

// The command that is under way, if one is, comes back before its memory goes. Nobody is told any more.
PathReservation::~PathReservation() {
  over_ = true;
  if (waits_) reservation_.Unanswered(std::exchange(waits_, std::nullopt)->cookie);
  if (queue_ != nullptr && !queue_->ended())
    queue_->End({ErrorCode::kCancelled, IoQueue::NameOf(target_, queue_id_) + ": the life is over"});
}

void PathReservation::Join() {
  reservation_.Join(control_.now_ns());
}

void PathReservation::See() {
  reservation_.See();
}

void PathReservation::ShutOut(LifeId dead) {
  reservation_.ShutOut(dead);
}

void PathReservation::Leave() {
  reservation_.Leave();
}

void PathReservation::SendReservation(LifeId /*life*/, const nvme::fabrics::QueuedCommand& command) {
  // A queue that ends may have no room while it still tells of answers.
  if (queue_ != nullptr && queue_->ready() && queue_->queue().room() > 0) {
    queue_->queue().Submit(command);
  } else {
    waits_ = command;
  }
  Wake();
}

// ---- What the reservation says

void PathReservation::Joined(LifeId life, const Status& status) {
  used_ns_ = control_.now_ns();
  if (!over_) owner_.Joined(life, status);
}

void PathReservation::Seen(LifeId life, const Result<nvme::host::ReservationReport>& report) {
  used_ns_ = control_.now_ns();
  if (!over_) owner_.Seen(life, report);
}

void PathReservation::ShutOutEnded(LifeId life, LifeId dead, const nvme::host::ShutOutResult& result) {
  used_ns_ = control_.now_ns();
  if (!over_) owner_.ShutOutEnded(life, dead, result);
}

void PathReservation::Left(LifeId life, const Status& status) {
  used_ns_ = control_.now_ns();
  if (!over_) owner_.Left(life, status);
}

// ---- Time

void PathReservation::Wake() {
  tick_.Cancel();
  control_.AddTimer(tick_, control_.now_ns());
}

void PathReservation::Tick() {
  reservation_.Tick(control_.now_ns());
  if (queue_ != nullptr && queue_->ended()) queue_.reset();
  if (queue_ != nullptr) queue_->CheckOverdue();
  if (queue_ != nullptr) CloseIdleQueue();
  if (queue_ == nullptr && waits_ && control_.now_ns() >= try_at_ns_) TryQueue();
  if ((queue_ != nullptr || waits_) && !tick_.pending())
    control_.AddTimer(tick_, control_.now_ns() + kTickNs);
  if (const auto broken = std::exchange(broken_, std::nullopt)) owner_.ReservationBroken(life(), *broken);
}

// A command that is under way while no task is, is one that the target has not answered in time.
void PathReservation::CloseIdleQueue() {
  if (busy() || queue_->ended()) return;
  const std::string name = IoQueue::NameOf(target_, queue_id_);
  if (reservation_.in_flight()) {
    queue_->End({ErrorCode::kDeadlineExceeded, name + ": a reservation command was not answered in time"});
  } else if (control_.now_ns() - used_ns_ >= kIdleNs) {
    queue_->End({ErrorCode::kCancelled, name + ": no task"});
  }
}

void PathReservation::TryQueue() {
  ++tries_;
  queue_ = std::make_unique<Queue>(*this, target_, queue_id_);
  queue_->Start();
}

void PathReservation::QueueReady() {
  tries_ = 0;
  queue_id_.place = 0;
  used_ns_ = control_.now_ns();
  if (!waits_) return;
  const nvme::fabrics::QueuedCommand command = *std::exchange(waits_, std::nullopt);
  queue_->queue().Submit(command);
}

// Within a callback of the queue, which is destroyed later.
void PathReservation::QueueEnded(const Error& reason) {
  if (waits_) {
    if (queue_->IsForgiven(reason)) --tries_;
    if (reason.code != ErrorCode::kPermissionDenied && tries_ < IoQueue::kConnectTriesMax) {
      queue_id_.place = queue_->place();
      try_at_ns_ = control_.now_ns() + queue_->PauseNs();
      return Wake();
    }
    is_lost_ = true;
    reservation_.Unanswered(std::exchange(waits_, std::nullopt)->cookie);
  }
  if (over_) return;
  if (is_lost_) broken_ = reason;
  Wake();
}

}  // namespace cleat::modules
