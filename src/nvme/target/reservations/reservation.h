// SPDX-License-Identifier: Apache-2.0
// What a namespace knows of the hosts that share it: who is registered, who holds a reservation, and what the others may do meanwhile.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.19 (reservations), figure 452 (what each type lets whom do). A plain value with pure
// functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "nvme/fabrics/names.h"
#include "nvme/fabrics/reservations/reservations.h"

namespace cleat::nvme::target {

// Of one namespace: the next that would register is refused.
inline constexpr size_t kRegistrantsMax = 64;

using fabrics::ReservationType;

struct Registrant {
  fabrics::Uuid host_id{};
  uint64_t key = 0;
  bool operator==(const Registrant&) const = default;
};

struct Reservation {
  uint32_t generation = 0;  // GEN
  ReservationType type = ReservationType::kNone;
  bool persists = false;                // over a loss of power (PTPLS)
  std::vector<Registrant> registrants;  // each host once, by host identifier
  std::optional<fabrics::Uuid> holder;  // a registrant; nullopt: nobody, or all of them by the type

  bool operator==(const Reservation&) const = default;
  bool held() const { return type != ReservationType::kNone; }
  // By a type for all registrants each of them holds it.
  bool is_for_all() const {
    return type == ReservationType::kWriteExclusiveAll || type == ReservationType::kExclusiveAccessAll;
  }
  // nullptr: it is no registrant.
  const Registrant* Find(const fabrics::Uuid& host_id) const;
  bool IsHolder(const fabrics::Uuid& host_id) const;
};

// Which of the two groups of commands one belongs to.
enum class ReservationAccess : uint8_t {
  kReads,   // Read, Compare, Verify
  kWrites,  // Write, Write Zeroes, Write Uncorrectable, Dataset Management, Flush
};

bool MayExecute(const Reservation& reservation, const fabrics::Uuid& host_id, ReservationAccess access);

}  // namespace cleat::nvme::target
