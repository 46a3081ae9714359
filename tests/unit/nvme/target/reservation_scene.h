// SPDX-License-Identifier: Apache-2.0
// A namespace of the tests' own with its reservation, and hosts that send it commands.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nvme/fabrics/commands.h"
#include "nvme/host/reservation/reservation_commands.h"
#include "nvme/target/reservations/reservation.h"
#include "nvme/target/reservations/reservation_commands.h"

namespace cleat::nvme::target::reservation_scene {

using fabrics::AcquireAction;
using fabrics::PowerLoss;
using fabrics::RegisterAction;
using fabrics::ReleaseAction;
using fabrics::SubmissionEntry;
using fabrics::Uuid;
using host::ExistingKey;
using Notices = std::vector<std::pair<Uuid, ReservationNotice>>;

inline constexpr uint16_t kDnr = status_field::kDoNotRetry;
inline constexpr uint16_t kConflict = kReservationConflict | kDnr;
inline constexpr uint16_t kInvalid = status_field::kInvalidField | kDnr;
inline constexpr Uuid kA = {1}, kB = {2}, kC = {3};
inline constexpr uint64_t kKeyA = 0xa, kKeyB = 0xb, kKeyC = 0xc;
inline constexpr uint32_t kNsid = 3;
inline constexpr ReservationType kTypes[] = {ReservationType::kWriteExclusive,
                                             ReservationType::kExclusiveAccess,
                                             ReservationType::kWriteExclusiveRegistrants,
                                             ReservationType::kExclusiveAccessRegistrants,
                                             ReservationType::kWriteExclusiveAll,
                                             ReservationType::kExclusiveAccessAll};

inline bool IsForAll(ReservationType type) {
  return type == ReservationType::kWriteExclusiveAll || type == ReservationType::kExclusiveAccessAll;
}
inline bool IsForHolder(ReservationType type) {
  return type == ReservationType::kWriteExclusive || type == ReservationType::kExclusiveAccess;
}

template <typename Data>
inline std::span<const uint8_t> Bytes(const Data& data) {
  return {reinterpret_cast<const uint8_t*>(&data), sizeof(data)};
}

// A namespace, and hosts that send it commands.
struct Namespace {
  uint16_t Do(const Uuid& host, const SubmissionEntry& entry, std::span<const uint8_t> data) {
    const Reservation before = now;
    ReservationOutcome outcome = Execute(before, host, entry, data);
    if (outcome.status != 0) {
      EXPECT_EQ(outcome.after, before) << "refused";
      EXPECT_TRUE(outcome.notices.empty());
    }
    now = std::move(outcome.after);
    notices = std::move(outcome.notices);
    return outcome.status;
  }
  template <typename Data>
  uint16_t Do(const Uuid& host, const Command& command, const Data& data) {
    return Do(host, fabrics::EntryOf(command), Bytes(data));
  }

  uint16_t Register(const Uuid& host, uint64_t key) {
    return Change(host, RegisterAction::kRegister, 0, key);
  }
  uint16_t Unregister(const Uuid& host, uint64_t key) {
    return Change(host, RegisterAction::kUnregister, key, 0);
  }
  uint16_t Change(const Uuid& host, RegisterAction action, uint64_t current, uint64_t next,
                  ExistingKey existing = ExistingKey::kHasToFit, PowerLoss power = PowerLoss::kAsItIs) {
    return Do(host, host::ReservationRegister(kNsid, action, existing, power),
              fabrics::RegisterData{.current_key = current, .new_key = next});
  }
  uint16_t Acquire(const Uuid& host, uint64_t key, ReservationType type) {
    return Do(host, host::ReservationAcquire(kNsid, AcquireAction::kAcquire, type),
              fabrics::AcquireData{.current_key = key});
  }
  uint16_t Preempt(const Uuid& host, uint64_t key, uint64_t preempted, ReservationType type,
                   AcquireAction action = AcquireAction::kPreempt) {
    return Do(host, host::ReservationAcquire(kNsid, action, type),
              fabrics::AcquireData{.current_key = key, .preempted_key = preempted});
  }
  uint16_t Release(const Uuid& host, uint64_t key, ReservationType type) {
    return Do(host, host::ReservationRelease(kNsid, ReleaseAction::kRelease, type),
              fabrics::ReleaseData{.current_key = key});
  }
  uint16_t Clear(const Uuid& host, uint64_t key) {
    return Do(host, host::ReservationRelease(kNsid, ReleaseAction::kClear, ReservationType::kNone),
              fabrics::ReleaseData{.current_key = key});
  }
  bool Has(const Uuid& host) const { return now.Find(host) != nullptr; }

  Reservation now;
  Notices notices;  // of the last command
};

// Three registrants, of whom A holds a reservation of this type.
inline Namespace HeldByA(ReservationType type) {
  Namespace space;
  EXPECT_EQ(space.Register(kC, kKeyC), 0);
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.Register(kB, kKeyB), 0);
  EXPECT_EQ(space.Acquire(kA, kKeyA, type), 0);
  EXPECT_EQ(space.now.type, type);
  EXPECT_EQ(space.now.holder, IsForAll(type) ? std::nullopt : std::optional(kA));
  return space;
}

}  // namespace cleat::nvme::target::reservation_scene
