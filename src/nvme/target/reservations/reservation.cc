// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/reservations/reservation.h"

#include <algorithm>

namespace cleat::nvme::target {

const Registrant* Reservation::Find(const fabrics::Uuid& host_id) const {
  const auto found = std::ranges::find(registrants, host_id, &Registrant::host_id);
  return found == registrants.end() ? nullptr : &*found;
}

bool Reservation::IsHolder(const fabrics::Uuid& host_id) const {
  if (!held()) return false;
  return is_for_all() ? Find(host_id) != nullptr : holder == host_id;
}

bool MayExecute(const Reservation& reservation, const fabrics::Uuid& host_id, ReservationAccess access) {
  const bool reads = access == ReservationAccess::kReads;
  switch (reservation.type) {
    case ReservationType::kNone:
      return true;
    case ReservationType::kWriteExclusive:
      return reads || reservation.IsHolder(host_id);
    case ReservationType::kExclusiveAccess:
      return reservation.IsHolder(host_id);
    case ReservationType::kWriteExclusiveRegistrants:
    case ReservationType::kWriteExclusiveAll:
      return reads || reservation.Find(host_id) != nullptr;
    case ReservationType::kExclusiveAccessRegistrants:
    case ReservationType::kExclusiveAccessAll:
      return reservation.Find(host_id) != nullptr;
  }
  return false;  // a type that there is not lets nobody in
}

}  // namespace cleat::nvme::target
