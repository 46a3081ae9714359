// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/reservations/reservation_commands.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "nvme/fabrics/commands.h"
#include "nvme/status.h"

namespace cleat::nvme::target {
namespace {

using fabrics::AcquireAction;
using fabrics::PowerLoss;
using fabrics::RegisterAction;
using fabrics::ReleaseAction;
using fabrics::SubmissionEntry;
using fabrics::Uuid;

constexpr uint32_t kAction = 7, kIgnoreKey = 1U << 3;

constexpr uint16_t Never(uint16_t status) {
  return status | status_field::kDoNotRetry;
}

// nullopt: it is too short.
template <typename Data>
std::optional<Data> DataIn(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Data)) return std::nullopt;
  Data data;
  std::memcpy(&data, bytes.data(), sizeof(data));
  return data;
}

// RTYPE of Acquire and Release. nullopt: there is no such reservation.
std::optional<ReservationType> TypeIn(const SubmissionEntry& entry) {
  const auto type = static_cast<uint8_t>(entry.cdw10 >> 8);
  if (type == 0 || type > static_cast<uint8_t>(ReservationType::kExclusiveAccessAll)) return std::nullopt;
  return static_cast<ReservationType>(type);
}

// CPTPL. nullopt: the value is reserved.
std::optional<PowerLoss> PowerLossIn(const SubmissionEntry& entry) {
  constexpr uint32_t kReserved = 1;
  const uint32_t value = entry.cdw10 >> 30;
  if (value == kReserved) return std::nullopt;
  return static_cast<PowerLoss>(value);
}

// One command's work on a copy, which is given back only where the command succeeds.
class Change {
 public:
  Change(const Reservation& now, const Uuid& host_id) : now_(now), host_id_(host_id) { outcome_.after = now; }

  ReservationOutcome Register(const SubmissionEntry& entry, std::span<const uint8_t> bytes);
  ReservationOutcome Acquire(const SubmissionEntry& entry, std::span<const uint8_t> bytes);
  ReservationOutcome Release(const SubmissionEntry& entry, std::span<const uint8_t> bytes);
  ReservationOutcome Refused(uint16_t status) const {
    return {.status = status, .after = now_, .notices = {}};
  }

 private:
  Reservation& after() { return outcome_.after; }
  ReservationOutcome Done() { return std::move(outcome_); }
  ReservationOutcome Conflict() const { return Refused(Never(kReservationConflict)); }
  ReservationOutcome InvalidField() const { return Refused(Never(status_field::kInvalidField)); }
  ReservationOutcome TooShort() const { return Refused(Never(status_field::kSglLengthInvalid)); }
  bool HasKey(uint64_t key) const {
    const Registrant* const own = now_.Find(host_id_);
    return own != nullptr && own->key == key;
  }

  void Put(uint64_t key);
  void Free();
  void SettleHolder();
  template <typename Which>
  size_t Remove(const Which& which);
  void Hold(ReservationType type);
  ReservationOutcome Preempt(ReservationType type, uint64_t key);
  ReservationOutcome Clear();
  void TellOthers(ReservationNotice notice);

  const Reservation& now_;
  const Uuid& host_id_;
  ReservationOutcome outcome_;
};

// Registers the host that asks, or gives it another key.
void Change::Put(uint64_t key) {
  const auto at = std::ranges::lower_bound(after().registrants, host_id_, {}, &Registrant::host_id);
  if (at != after().registrants.end() && at->host_id == host_id_) {
    at->key = key;
  } else {
    after().registrants.insert(at, {.host_id = host_id_, .key = key});
  }
}

void Change::Free() {
  after().type = ReservationType::kNone;
  after().holder.reset();
}

// A reservation ends with the registration of who holds it, or of the last one of all that do.
void Change::SettleHolder() {
  if (!after().held()) return;
  const bool is_left = after().is_for_all() ? !after().registrants.empty()
                                            : after().holder && after().Find(*after().holder) != nullptr;
  if (!is_left) Free();
}

// Registrants that are preempted, and told so. How many there were.
template <typename Which>
size_t Change::Remove(const Which& which) {
  for (const Registrant& registrant : after().registrants) {
    if (which(registrant) && registrant.host_id != host_id_)
      outcome_.notices.emplace_back(registrant.host_id, ReservationNotice::kRegistrationPreempted);
  }
  return std::erase_if(after().registrants, which);
}

void Change::Hold(ReservationType type) {
  after().type = type;
  after().holder.reset();
  if (!after().is_for_all()) after().holder = host_id_;
}

void Change::TellOthers(ReservationNotice notice) {
  for (const Registrant& registrant : after().registrants) {
    if (registrant.host_id != host_id_) outcome_.notices.emplace_back(registrant.host_id, notice);
  }
}

// ---- Reservation Register (base 7.3)

ReservationOutcome Change::Register(const SubmissionEntry& entry, std::span<const uint8_t> bytes) {
  const std::optional<PowerLoss> power_loss = PowerLossIn(entry);
  const auto action = static_cast<RegisterAction>(entry.cdw10 & kAction);
  const bool ignores_key = (entry.cdw10 & kIgnoreKey) != 0;
  if (!power_loss || action > RegisterAction::kReplace) return InvalidField();
  const auto data = DataIn<fabrics::RegisterData>(bytes);
  if (!data) return TooShort();
  const Registrant* const own = now_.Find(host_id_);
  if (action == RegisterAction::kUnregister) {
    if (own == nullptr || (!ignores_key && own->key != data->current_key)) return Conflict();
    std::erase_if(after().registrants, [&](const Registrant& one) { return one.host_id == host_id_; });
    SettleHolder();
    const bool for_registrants = now_.type == ReservationType::kWriteExclusiveRegistrants ||
                                 now_.type == ReservationType::kExclusiveAccessRegistrants;
    if (for_registrants && !after().held()) TellOthers(ReservationNotice::kReservationReleased);
  } else {
    if (data->new_key == 0) return InvalidField();
    // A host that ignores what there is may replace a key that it never had (base 8.19.4).
    const bool replaces = action == RegisterAction::kReplace;
    if (replaces && !ignores_key && (own == nullptr || own->key != data->current_key)) return Conflict();
    if (!replaces && own != nullptr && own->key != data->new_key) return Conflict();
    // There may be room when another has left: the host may try again.
    if (own == nullptr && now_.registrants.size() >= kRegistrantsMax)
      return Refused(status_field::kInternalError);
    Put(data->new_key);
  }
  if (*power_loss != PowerLoss::kAsItIs) after().persists = *power_loss == PowerLoss::kPersist;
  ++after().generation;
  return Done();
}

// ---- Reservation Acquire (base 7.2)

ReservationOutcome Change::Acquire(const SubmissionEntry& entry, std::span<const uint8_t> bytes) {
  const std::optional<ReservationType> type = TypeIn(entry);
  const auto action = static_cast<AcquireAction>(entry.cdw10 & kAction);
  if (!type || action > AcquireAction::kPreemptAndAbort || (entry.cdw10 & kIgnoreKey) != 0)
    return InvalidField();
  const auto data = DataIn<fabrics::AcquireData>(bytes);
  if (!data) return TooShort();
  if (!HasKey(data->current_key)) return Conflict();
  if (action != AcquireAction::kAcquire) return Preempt(*type, data->preempted_key);
  if (!now_.held()) {
    Hold(*type);
    return Done();
  }
  // Once more by who has it already: a host whose answer was lost may ask again.
  return now_.IsHolder(host_id_) && now_.type == *type ? Done() : Conflict();
}

// Whose key it is decides what is preempted (base 8.19.7): the holder's the reservation too, all others' their registrations alone. That may be
// the key of the host that asks, which stays a registrant where it takes the reservation, and leaves with all who have that key where not.
ReservationOutcome Change::Preempt(ReservationType type, uint64_t key) {
  const auto has_key = [&](const Registrant& one) { return one.key == key; };
  const Registrant* const holder = now_.holder ? now_.Find(*now_.holder) : nullptr;
  const bool all = now_.held() && now_.is_for_all();
  if (all && key == 0) {
    (void)Remove([&](const Registrant& one) { return one.host_id != host_id_; });
    Hold(type);
  } else if (holder != nullptr && holder->key == key) {
    (void)Remove([&](const Registrant& one) { return has_key(one) && one.host_id != host_id_; });
    Hold(type);
    if (type != now_.type) TellOthers(ReservationNotice::kReservationReleased);
  } else {
    // Key 0 is no registrant's. While a reservation is held, a host that names it is in error.
    if (key == 0 && now_.held()) return InvalidField();
    if (Remove(has_key) == 0) return Conflict();
    SettleHolder();
  }
  ++after().generation;
  return Done();
}

// ---- Reservation Release (base 7.4)

ReservationOutcome Change::Release(const SubmissionEntry& entry, std::span<const uint8_t> bytes) {
  const auto action = static_cast<ReleaseAction>(entry.cdw10 & kAction);
  if (action > ReleaseAction::kClear || (entry.cdw10 & kIgnoreKey) != 0) return InvalidField();
  const std::optional<ReservationType> type = TypeIn(entry);
  if (action == ReleaseAction::kRelease && !type) return InvalidField();
  const auto data = DataIn<fabrics::ReleaseData>(bytes);
  if (!data) return TooShort();
  if (!HasKey(data->current_key)) return Conflict();
  if (action == ReleaseAction::kClear) return Clear();
  // Of a registrant that holds nothing there is nothing to be released.
  if (!now_.IsHolder(host_id_)) return Done();
  if (*type != now_.type) return InvalidField();
  Free();
  const bool for_holder =
      now_.type == ReservationType::kWriteExclusive || now_.type == ReservationType::kExclusiveAccess;
  if (!for_holder) TellOthers(ReservationNotice::kReservationReleased);
  return Done();
}

ReservationOutcome Change::Clear() {
  TellOthers(ReservationNotice::kReservationPreempted);
  after().registrants.clear();
  Free();
  ++after().generation;
  return Done();
}

}  // namespace

ReservationOutcome Execute(const Reservation& now, const Uuid& host_id, const SubmissionEntry& entry,
                           std::span<const uint8_t> data) {
  Change change(now, host_id);
  switch (static_cast<Opcode>(entry.opcode)) {
    case Opcode::kReservationRegister:
      return change.Register(entry, data);
    case Opcode::kReservationAcquire:
      return change.Acquire(entry, data);
    case Opcode::kReservationRelease:
      return change.Release(entry, data);
    default:
      return change.Refused(Never(status_field::kInvalidOpcode));
  }
}

uint16_t CheckReport(const SubmissionEntry& entry, uint32_t data_bytes) {
  constexpr uint32_t kExtended = 1;  // EDS
  if ((entry.cdw11 & kExtended) == 0) return Never(status_field::kHostIdFormat);
  if (ReportBytesOf(entry) > data_bytes) return Never(status_field::kSglLengthInvalid);
  return status_field::kSuccess;
}

std::vector<uint8_t> ReportOf(const Reservation& reservation, std::span<const ReportedController> controllers,
                              uint32_t bytes) {
  std::vector<uint8_t> report(bytes);
  const auto put = [&](size_t offset, const auto& part) {
    if (offset < report.size())
      std::memcpy(report.data() + offset, &part, std::min(sizeof(part), report.size() - offset));
  };
  size_t entries = 0;
  const auto add = [&](const Registrant& registrant, uint16_t controller_id) {
    const fabrics::ReservationReportEntry entry = {
        .controller_id = controller_id,
        .status = static_cast<uint8_t>(reservation.IsHolder(registrant.host_id) ? 1 : 0),
        .key = registrant.key,
        .host_id = registrant.host_id};
    put(sizeof(fabrics::ReservationReportHeader) + entries * sizeof(entry), entry);
    ++entries;
  };
  for (const Registrant& registrant : reservation.registrants) {
    const size_t before = entries;
    for (const ReportedController& controller : controllers) {
      if (controller.host_id == registrant.host_id) add(registrant, controller.id);
    }
    if (entries == before) add(registrant, fabrics::kAnyController);
  }
  const auto count = static_cast<uint16_t>(std::min<size_t>(entries, UINT16_MAX));
  put(0, fabrics::ReservationReportHeader{
             .generation = reservation.generation,
             .type = static_cast<uint8_t>(reservation.type),
             .entries = {static_cast<uint8_t>(count), static_cast<uint8_t>(count >> 8)},
             .persists = static_cast<uint8_t>(reservation.persists ? 1 : 0)});
  return report;
}

}  // namespace cleat::nvme::target
