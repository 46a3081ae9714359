// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/reservation/reservation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "block/memory.h"

namespace cleat::nvme::host {
namespace {

constexpr uint64_t kMillisecondNs = 1'000'000;
constexpr ReservationType kType = ReservationType::kWriteExclusiveAll;
constexpr nvme::Status kConflict(0x83);  // Reservation Conflict (NVM command set 1.0, 3.1)

bool Is(nvme::Status status, nvme::Status other) {
  return status.type() == other.type() && status.code() == other.code();
}

constexpr size_t kFamilyBytes = sizeof(uint64_t);

// Most significant byte first, so that reports show the numbers as logs do.
void PutNumber(uint64_t number, uint8_t* to) {
  for (size_t i = 0; i < sizeof(number); ++i) to[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
}
uint64_t NumberAt(const uint8_t* from) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof(number); ++i) number = number << 8 | from[i];
  return number;
}

}  // namespace

fabrics::Uuid HostIdOf(uint64_t family, LifeId life) {
  fabrics::Uuid host_id;
  PutNumber(family, host_id.data());
  PutNumber(life, host_id.data() + kFamilyBytes);
  return host_id;
}

std::optional<LifeId> LifeOf(const fabrics::Uuid& host_id, uint64_t family) {
  if (NumberAt(host_id.data()) != family) return std::nullopt;
  return NumberAt(host_id.data() + kFamilyBytes);
}

// The data of the one command that is under way.
struct Reservation::Memory {
  alignas(uint64_t) std::array<uint8_t, sizeof(RegisterData)> keys{};
  alignas(uint64_t) std::array<uint8_t, kReportBytes> report{};
  const std::shared_ptr<block::MemoryRegion> keys_region =
      block::MemoryRegion::Borrow(keys.data(), keys.size());
  const std::shared_ptr<block::MemoryRegion> report_region =
      block::MemoryRegion::Borrow(report.data(), report.size());
  block::Segment segment;

  template <typename Data>
  void Put(const Data& data) {
    static_assert(sizeof(Data) == sizeof(keys));
    std::memcpy(keys.data(), &data, sizeof(data));
  }
};

Reservation::Reservation(ReservationConfig config, ReservationOwner& owner)
    : config_(std::move(config)),
      host_id_(HostIdOf(config_.family, config_.life)),
      owner_(owner),
      memory_(std::make_unique<Memory>()) {
  CLEAT_CHECK(config_.family != 0 && config_.life != 0 && config_.nsid != 0);
  CLEAT_CHECK(config_.command_timeout_ns > 0 && config_.abort_timeout_ns > 0);
}

Reservation::~Reservation() {
  CLEAT_CHECK(!in_flight_);
}

const char* Reservation::NameOf(Step step) {
  switch (step) {
    case Step::kNone:
      break;
    case Step::kLook:
    case Step::kCheck:
    case Step::kSee:
    case Step::kFind:
    case Step::kConfirm:
      return "Reservation Report";
    case Step::kRegister:
      return "Reservation Register";
    case Step::kAcquire:
      return "Reservation Acquire";
    case Step::kPreempt:
      return "Reservation Acquire (Preempt and Abort)";
    case Step::kBackOut:
    case Step::kLeave:
      return "Reservation Register (Unregister)";
  }
  return "nothing";
}

bool Reservation::IsReport(Step step) {
  return step == Step::kLook || step == Step::kCheck || step == Step::kSee || step == Step::kFind ||
         step == Step::kConfirm;
}

// ---- Tasks

void Reservation::Join(uint64_t now_ns) {
  CLEAT_CHECK(!begun_);
  begun_ = true;
  host_ns_ = now_ns_ = now_ns;
  Begin(Step::kLook);
}

void Reservation::See() {
  Begin(Step::kSee);
}

void Reservation::ShutOut(LifeId dead) {
  CLEAT_CHECK(dead != config_.life && !busy());
  dead_ = dead;
  failed_.reset();
  Begin(Step::kFind);
}

void Reservation::Leave() {
  Begin(Step::kLeave);
}

void Reservation::Begin(Step step) {
  CLEAT_CHECK(!busy() && begun_);
  step_ = step;
  tries_ = 0;
  if (over_) {
    EndTask({ErrorCode::kFailedPrecondition, config_.who + ": this life has no part in the reservation"});
    return;
  }
  Send(step);
}

Command Reservation::CommandOf(Step step) const {
  const PowerLoss forget = config_.registrants_persist ? PowerLoss::kForget : PowerLoss::kAsItIs;
  switch (step) {
    case Step::kRegister:
      // Linux's target replaces nothing where nothing is.
      return found_own_
                 ? ReservationRegister(config_.nsid, RegisterAction::kReplace, ExistingKey::kIgnored, forget)
                 : ReservationRegister(config_.nsid, RegisterAction::kRegister, ExistingKey::kHasToFit,
                                       forget);
    case Step::kAcquire:
      return ReservationAcquire(config_.nsid, AcquireAction::kAcquire, kType);
    case Step::kPreempt:
      return ReservationAcquire(config_.nsid, AcquireAction::kPreemptAndAbort, kType);
    case Step::kBackOut:
    case Step::kLeave:
      return ReservationRegister(config_.nsid, RegisterAction::kUnregister, ExistingKey::kHasToFit,
                                 PowerLoss::kAsItIs);
    default:
      return ReservationReportOf(config_.nsid, kReportBytes);
  }
}

void Reservation::Send(Step step) {
  step_ = step;
  in_flight_ = true;
  deadline_ns_ = now_ns_ + (step == Step::kPreempt ? config_.abort_timeout_ns : config_.command_timeout_ns);
  fabrics::QueuedCommand command{.entry = fabrics::EntryOf(CommandOf(step)),
                                 .to_target = {},
                                 .from_target = {},
                                 .cookie = ++command_number_};
  const uint64_t key = KeyOf(config_.life);
  const bool report = IsReport(step);
  if (step == Step::kRegister) {
    registered_ = true;
    memory_->Put(RegisterData{.current_key = 0, .new_key = key});
  } else if (step == Step::kAcquire || step == Step::kPreempt) {
    memory_->Put(
        AcquireData{.current_key = key, .preempted_key = step == Step::kPreempt ? dead_key_ : uint64_t{0}});
  } else if (!report) {
    memory_->Put(RegisterData{.current_key = key, .new_key = 0});
  }
  const block::MemoryRegion& region = report ? *memory_->report_region : *memory_->keys_region;
  memory_->segment = {
      .region = &region, .offset_bytes = 0, .length_bytes = static_cast<uint32_t>(region.size_bytes())};
  (report ? command.from_target : command.to_target) = {&memory_->segment, 1};
  owner_.SendReservation(config_.life, command);
}

// ---- Answers

void Reservation::Completed(uint64_t cookie, const Entry& entry, uint64_t data_bytes) {
  if (!in_flight_ || cookie != command_number_) return;
  in_flight_ = false;
  if (step_ == Step::kNone) return;  // the deadline was before
  const Step step = step_;
  if (IsReport(step)) {
    TookReport(step, ReportOf(entry, data_bytes));
  } else {
    TookChange(step, entry.status());
  }
}

void Reservation::Unanswered(uint64_t cookie) {
  if (!in_flight_ || cookie != command_number_) return;
  in_flight_ = false;
  if (step_ == Step::kNone) return;
  Break({ErrorCode::kUnavailable,
         fmt::format("{}: the path ended before {} was answered", config_.who, NameOf(step_))});
}

void Reservation::Tick(uint64_t now_ns) {
  const uint64_t passed_ns = now_ns - std::min(now_ns, host_ns_);
  host_ns_ += passed_ns;
  now_ns_ += std::min(passed_ns, kTickCountsNs);
  if (step_ == Step::kNone || now_ns_ < deadline_ns_) return;
  const uint64_t timeout_ns = step_ == Step::kPreempt ? config_.abort_timeout_ns : config_.command_timeout_ns;
  Break({ErrorCode::kDeadlineExceeded, fmt::format("{}: the target has not answered {} in {} ms", config_.who,
                                                   NameOf(step_), timeout_ns / kMillisecondNs)});
}

Error Reservation::StatusError(Step step, nvme::Status status) const {
  ErrorCode code = ErrorCode::kIo;
  if (Is(status, kConflict)) code = ErrorCode::kFailedPrecondition;
  if (MayRetry(status)) code = ErrorCode::kUnavailable;
  return {code, fmt::format("{}: {}: {}", config_.who, NameOf(step), nvme::NameOf(status))};
}

// Targets that have no room for one more say so with various statuses.
Error Reservation::RegisterError(nvme::Status status) const {
  Error error = StatusError(Step::kRegister, status);
  error.message += fmt::format(
      "; the namespace has {} registrants: if the target has no room for more, remove there those of "
      "connections that are gone",
      registrants_);
  return error;
}

Result<ReservationReport> Reservation::ReportOf(const Entry& entry, uint64_t data_bytes) const {
  if (!entry.status().ok()) return StatusError(step_, entry.status());
  const size_t bytes = std::min<uint64_t>(data_bytes, memory_->report.size());
  return ParseReservationReport({memory_->report.data(), bytes}, config_.who);
}

void Reservation::TookReport(Step step, const Result<ReservationReport>& report) {
  switch (step) {
    case Step::kLook:
      TookLook(report);
      break;
    case Step::kCheck:
      TookCheck(report);
      break;
    case Step::kFind:
      TookFind(report);
      break;
    case Step::kConfirm:
      TookConfirm(report);
      break;
    default:
      step_ = Step::kNone;
      if (report && joined_) (void)CheckOwn(*report);
      owner_.Seen(config_.life, report);
  }
}

void Reservation::TookChange(Step step, nvme::Status status) {
  switch (step) {
    case Step::kRegister:
      if (status.ok()) {
        Send(Step::kCheck);
      } else {
        FailJoin(RegisterError(status));
      }
      break;
    case Step::kAcquire:
      // A conflict: somebody was faster, and the report says who.
      if (status.ok() || Is(status, kConflict)) {
        Send(Step::kCheck);
      } else {
        FailJoin(StatusError(step, status));
      }
      break;
    case Step::kBackOut:
      registered_ = !status.ok() && !Is(status, kConflict);
      EndJoin(*std::exchange(failed_, std::nullopt));
      break;
    case Step::kPreempt:
      if (!status.ok()) failed_ = StatusError(step, status);
      tries_ = 0;
      Send(Step::kConfirm);
      break;
    default:
      step_ = Step::kNone;
      over_ = true;
      joined_ = false;
      // A conflict: it was no registrant any more.
      registered_ = !status.ok() && !Is(status, kConflict);
      owner_.Left(config_.life, registered_ ? StatusError(step, status) : cleat::Status());
  }
}

// ---- Join

cleat::Status Reservation::CheckOthers(const ReservationReport& report) const {
  for (const Registrant& other : report.registrants) {
    if (LifeOf(other.host_id, config_.family)) continue;
    std::string holds;
    if (other.holder) holds = fmt::format(", which holds a {} reservation", host::NameOf(report.type));
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{}: another host has the namespace: {}{}; where it has no use for it any more, remove "
                    "its registration (nvme resv-register --rrega=1 there, or nvme resv-acquire --racqa=1 "
                    "--prkey={:#x})",
                    config_.who, TextOf(other), holds, other.key));
  }
  if (report.type == ReservationType::kNone || report.type == kType) return {};
  return Error(ErrorCode::kFailedPrecondition,
               fmt::format("{}: a {} reservation is held, and Cleat's is {}: release it (nvme resv-release)",
                           config_.who, host::NameOf(report.type), host::NameOf(kType)));
}

// Whether this life's writes are safe. False once: nothing repairs it, since Register is not sent again.
cleat::Status Reservation::CheckOwn(const ReservationReport& report) {
  const Registrant* const own = report.Find(host_id_);
  const bool registered = own != nullptr && own->key == KeyOf(config_.life);
  if (registered && report.type == kType) return {};
  joined_ = false;
  registered_ = own != nullptr;
  return Error(ErrorCode::kFailedPrecondition,
               registered ? fmt::format("{}: {} reservation is held any more, in place of {}", config_.who,
                                        host::NameOf(report.type), host::NameOf(kType))
                          : fmt::format("{}: this host is no registrant any more", config_.who));
}

void Reservation::TookLook(const Result<ReservationReport>& report) {
  const cleat::Status others = report ? CheckOthers(*report) : cleat::Status(report.error());
  if (!others) {
    FailJoin(others.error());
    return;
  }
  found_own_ = report->Find(host_id_) != nullptr;
  registrants_ = report->registrants.size();
  Send(Step::kRegister);
}

// Two hosts that begin at once each register before they look, so that one of them sees the other at least: never do both go on.
void Reservation::TookCheck(const Result<ReservationReport>& report) {
  if (!report) {
    FailJoin(report.error());
    return;
  }
  if (const auto others = CheckOthers(*report); !others) {
    FailJoin(others.error());
    return;
  }
  if (report->type == ReservationType::kNone && report->Find(host_id_) != nullptr) {
    if (tries_++ < kHoldTriesMax) {
      Send(Step::kAcquire);
    } else {
      FailJoin({ErrorCode::kAborted,
                fmt::format(
                    "{}: no reservation is held after {} tries to acquire it: see which other host releases "
                    "it",
                    config_.who, kHoldTriesMax)});
    }
    return;
  }
  if (const auto own = CheckOwn(*report); !own) {
    registered_ = true;  // listed or not: it is taken back
    FailJoin(own.error());
    return;
  }
  joined_ = true;
  EndJoin({});
}

void Reservation::FailJoin(const Error& reason) {
  if (!registered_) {
    EndJoin(reason);
    return;
  }
  failed_ = reason;
  Send(Step::kBackOut);
}

void Reservation::EndJoin(const cleat::Status& status) {
  step_ = Step::kNone;
  over_ = !status.ok();
  owner_.Joined(config_.life, status);
}

// ---- ShutOut

void Reservation::TookFind(const Result<ReservationReport>& report) {
  cleat::Status own = report ? CheckOwn(*report) : cleat::Status(report.error());
  // What a look has found gone may be listed again, by a target that is broken; nobody knows what it let in meanwhile.
  if (own && !joined_) {
    own = Error(
        ErrorCode::kFailedPrecondition,
        config_.who + ": the target lists this life again, which had no part in the reservation before");
  }
  if (!own) {
    EndShutOut(ShutOutEnd::kNotYet, own.error().message);
    return;
  }
  const fabrics::Uuid dead_id = HostIdOf(config_.family, dead_);
  const Registrant* const dead = report->Find(dead_id);
  if (dead == nullptr) {
    EndShutOut(
        ShutOutEnd::kNever,
        fmt::format("{}: host {} is no registrant here: it came to another target, or was removed before",
                    config_.who, fabrics::TextOfUuid(dead_id)));
    return;
  }
  // The list may have come from a file, to a process that never had the life, while another one still has it.
  if (report->persistent) {
    EndShutOut(ShutOutEnd::kNotYet,
               config_.who +
                   ": registrants outlive the target's process (PTPLS), so that it may list one that it "
                   "has never had a connection of");
    return;
  }
  if (report->CountOf(dead->key) != 1) {
    EndShutOut(ShutOutEnd::kNotYet,
               fmt::format("{}: {} shares its key with others, who would be shut out too", config_.who,
                           TextOf(*dead)));
    return;
  }
  dead_key_ = dead->key;
  Send(Step::kPreempt);
}

// The command's success counts where the reservation was held throughout, as without one a registrant is removed and may write all the same.
void Reservation::TookConfirm(const Result<ReservationReport>& report) {
  if (!report) {
    if (report.error().code == ErrorCode::kUnavailable && ++tries_ < kReportTriesMax) {
      Send(Step::kConfirm);
      return;
    }
    EndShutOut(ShutOutEnd::kNotYet, failed_ ? failed_->message : report.error().message);
    return;
  }
  const cleat::Status own = CheckOwn(*report);
  const bool still_there = report->Find(HostIdOf(config_.family, dead_)) != nullptr;
  if (failed_) {
    EndShutOut(still_there ? ShutOutEnd::kNotYet : ShutOutEnd::kNever,
               still_there
                   ? failed_->message
                   : failed_->message + ", and the registrant is gone: no further try can wait for it");
    return;
  }
  if (!own) {
    EndShutOut(still_there ? ShutOutEnd::kNotYet : ShutOutEnd::kNever, own.error().message);
    return;
  }
  if (still_there) {
    EndShutOut(ShutOutEnd::kNever,
               config_.who +
                   ": the target says that it has preempted a registrant, which it has still: it is not "
                   "believed");
    return;
  }
  EndShutOut(ShutOutEnd::kProved, {});
}

void Reservation::EndShutOut(ShutOutEnd end, std::string reason) {
  step_ = Step::kNone;
  failed_.reset();
  owner_.ShutOutEnded(config_.life, dead_, {.end = end, .reason = std::move(reason)});
}

// ---- Ends

// A command that is not answered may be executed whenever: no other one of this life follows it.
void Reservation::Break(const Error& reason) {
  over_ = true;
  joined_ = false;
  EndTask(reason);
}

void Reservation::EndTask(const Error& reason) {
  switch (std::exchange(step_, Step::kNone)) {
    case Step::kNone:
      return;
    case Step::kFind:
    case Step::kPreempt:
    case Step::kConfirm:
      EndShutOut(ShutOutEnd::kNotYet, reason.message);
      return;
    case Step::kSee:
      owner_.Seen(config_.life, reason);
      return;
    case Step::kLeave:
      owner_.Left(config_.life, reason);
      return;
    case Step::kBackOut:
      EndJoin(*std::exchange(failed_, std::nullopt));
      return;
    default:
      EndJoin(reason);
  }
}

}  // namespace cleat::nvme::host
