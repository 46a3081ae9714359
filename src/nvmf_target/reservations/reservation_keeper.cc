// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/reservations/reservation_keeper.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/fabrics/commands.h"
#include "nvme/target/reservations/reservation_commands.h"

namespace cleat::nvmf_target {

using nvme::target::Answer;
using nvme::target::Reservation;
using nvme::target::ReservationNotice;
using nvme::target::ReservationType;

namespace {

constexpr uint64_t kAbortAgainNs = 50 * kNsPerMs;
const std::vector<nvme::fabrics::Uuid> kNobody;

Answer Refused(uint16_t status) {
  return {.status = status, .data = {}};
}

}  // namespace

ReservationKeeper::ReservationKeeper(Parts parts) : parts_(std::move(parts)), idle_(parts_.control) {}

ReservationKeeper::~ReservationKeeper() {
  CLEAT_CHECK(!busy_ && calls_.empty());
}

// ---- What is stored

Task<Status> ReservationKeeper::Load() {
  while (busy_) (void)co_await idle_.Wait();
  busy_ = true;
  auto loaded = co_await parts_.store.Load(parts_.uuid);
  if (loaded.ok()) {
    reservation_ = std::move(*loaded);
    shut_ = false;
    co_await Publish(kNobody);
  }
  GoOn();
  if (loaded.ok()) co_return Ok{};
  co_return Error(loaded.error().code,
                  parts_.name + ": its reservation can't be read: " + loaded.error().message);
}

Task<void> ReservationKeeper::LoadOrShut() {
  while (busy_) (void)co_await idle_.Wait();
  busy_ = true;
  in_doubt_.reset();
  auto loaded = co_await parts_.store.Load(parts_.uuid);
  if (loaded.ok()) {
    co_await Open(std::move(*loaded));
  } else {
    if (!std::exchange(shut_, true))
      spdlog::error("{}: nobody may use it, as its reservation can't be read: {}; tried again every {} s",
                    parts_.name, loaded.error().message, kLoadAgainNs / kNsPerSecond);
    co_await Publish(kNobody);
    ReadLater();
  }
  GoOn();
}

Task<void> ReservationKeeper::Open(Reservation loaded) {
  if (std::exchange(shut_, false)) spdlog::info("{}: its reservation could be read after all", parts_.name);
  reservation_ = std::move(loaded);
  co_await Publish(kNobody);
  parts_.on_change();
}

void ReservationKeeper::ReadLater() {
  if (!closing_ && !again_.pending()) parts_.control.AddTimer(again_, parts_.control.now_ns() + kLoadAgainNs);
}

void ReservationKeeper::AgainTimer::Fire(Timer& timer) {
  ReservationKeeper& keeper = static_cast<AgainTimer&>(timer).keeper;
  keeper.reads_again_ = true;
  keeper.Begin();
}

// While the namespace is shut, whatever is stored comes into force; while a change is in doubt, that change alone may.
Task<void> ReservationKeeper::ReadAgain() {
  if (!shut_ && !in_doubt_) co_return;
  auto loaded = co_await parts_.store.Load(parts_.uuid);
  if (!loaded.ok()) {
    ReadLater();
  } else if (shut_) {
    co_await Open(std::move(*loaded));
  } else if (const auto after = std::exchange(in_doubt_, std::nullopt); *loaded == *after) {
    co_await Adopt(*after, kNobody);
  }
}

// ---- Commands

void ReservationKeeper::Execute(ReservationCall call) {
  if (closing_) return call.answer(Refused(kInvalidNamespace.field()));
  const auto waiting = std::ranges::count(calls_, call.host_id, &ReservationCall::host_id);
  if (static_cast<size_t>(waiting) >= kCallsOfOneMax)
    return call.answer(Refused(nvme::status_field::kInternalError));
  calls_.push_back(std::move(call));
  Begin();
}

Task<void> ReservationKeeper::Close() {
  closing_ = true;
  reads_again_ = false;
  again_.Cancel();
  for (ReservationCall& call : std::exchange(calls_, {})) call.answer(Refused(kInvalidNamespace.field()));
  while (busy_) (void)co_await idle_.Wait();
}

void ReservationKeeper::Begin() {
  if (!std::exchange(busy_, true)) Spawn(DoNext());
}

Task<void> ReservationKeeper::DoNext() {
  if (std::exchange(reads_again_, false)) {
    co_await ReadAgain();
  } else if (!calls_.empty()) {
    const ReservationCall call = std::move(calls_.front());
    calls_.pop_front();
    Answer answer = co_await ExecuteOne(call);
    call.answer(std::move(answer));
  }
  GoOn();
}

void ReservationKeeper::GoOn() {
  if (!calls_.empty() || reads_again_) return parts_.control.PostCall([this] { Spawn(DoNext()); });
  busy_ = false;
  idle_.Pulse();
}

Task<Answer> ReservationKeeper::ExecuteOne(const ReservationCall& call) {
  if (shut_) co_return Refused(nvme::status_field::kInternalError);
  if (call.entry.opcode == static_cast<uint8_t>(nvme::Opcode::kReservationReport)) co_return Report(call);
  const auto outcome = nvme::target::Execute(reservation_, call.host_id, call.entry, call.data);
  if (outcome.status != 0) co_return Refused(outcome.status);
  Hosts to_abort;
  if (nvme::target::IsPreemptAndAbort(call.entry)) {
    for (const auto& [host_id, notice] : outcome.notices) {
      if (notice == ReservationNotice::kRegistrationPreempted) to_abort.push_back(host_id);
    }
  }
  Status stored = Ok{};
  if (outcome.after != reservation_) {
    stored = co_await parts_.store.Store(parts_.uuid, outcome.after);
    if (!stored.ok() && parts_.may_log())
      spdlog::warn("{}: a host's change of its reservation is refused: {}", parts_.name,
                   stored.error().message);
    const bool is_there = stored.ok() || co_await IsStoredAllTheSame(outcome.after);
    if (!is_there) co_return Refused(nvme::status_field::kInternalError);
    co_await Adopt(outcome.after, to_abort);
  }
  for (const auto& [host_id, notice] : outcome.notices)
    parts_.target.NotifyOfReservation(parts_.nqn, parts_.nsid, host_id, notice);
  co_return stored.ok() ? Answer{} : Refused(nvme::status_field::kInternalError);
}

Answer ReservationKeeper::Report(const ReservationCall& call) const {
  // Its queue has checked that there is room for so much.
  const auto bytes = static_cast<uint32_t>(nvme::target::ReportBytesOf(call.entry));
  return {.data = nvme::target::ReportOf(reservation_, parts_.target.ControllersOf(parts_.nqn), bytes)};
}

// After an error: what the next process would find is in force here too. Anything else that is there is nobody's doing here, and not believed.
Task<bool> ReservationKeeper::IsStoredAllTheSame(const Reservation& after) {
  auto loaded = co_await parts_.store.Load(parts_.uuid);
  if (loaded.ok()) co_return *loaded == after;
  in_doubt_ = after;
  ReadLater();
  co_return false;
}

Task<void> ReservationKeeper::Adopt(const Reservation& after, const Hosts& to_abort) {
  const bool other_holder = after.type != reservation_.type || after.holder != reservation_.holder;
  in_doubt_.reset();
  reservation_ = after;
  co_await Publish(to_abort);
  if (other_holder) parts_.on_change();
}

// ---- The reactors

// nullptr: everybody may do everything.
std::shared_ptr<const Reservation> ReservationKeeper::InForce() const {
  if (!shut_) return reservation_.held() ? std::make_shared<const Reservation>(reservation_) : nullptr;
  Reservation nobodys;
  nobodys.type = ReservationType::kExclusiveAccess;
  return std::make_shared<const Reservation>(nobodys);
}

Task<void> ReservationKeeper::Publish(const Hosts& to_abort) {
  const auto in_force = InForce();
  // On all reactors before any is waited for: what is held on one may wait for what another one has in the storage.
  for (const Place& place : parts_.places) {
    co_await place.port->reactor().Enter();
    NamespacePort& space = place.subsystem->namespaces[parts_.nsid - 1];
    space.reservation = in_force;
    space.shut = shut_;
    place.port->EndForbidden(space, to_abort);
    co_await parts_.control.Enter();
  }
  co_await AwaitForbidden();
  (void)parts_.target.SetReservationPersists(parts_.nqn, parts_.nsid, reservation_.persists);
}

Task<void> ReservationKeeper::AwaitForbidden() {
  for (const Place& place : parts_.places) {
    Reactor& reactor = place.port->reactor();
    co_await reactor.Enter();
    NamespacePort& space = place.subsystem->namespaces[parts_.nsid - 1];
    Event ended(reactor);
    space.rights_ended = &ended;
    while (space.to_end > 0) {
      const Deadline again(reactor, ended, reactor.now_ns() + kAbortAgainNs);
      (void)co_await ended.Wait();
      // What has come to wait within the storage's pipeline since is not waited for either.
      place.port->AbortForbidden(space);
    }
    space.rights_ended = nullptr;
    co_await parts_.control.Enter();
  }
}

}  // namespace cleat::nvmf_target
