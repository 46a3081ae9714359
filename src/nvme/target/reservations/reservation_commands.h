// SPDX-License-Identifier: Apache-2.0
// What the four commands of reservations make of a namespace's, whom to tell of it, and what a report says.
//
// An outcome is in force, and is told, only once whoever has asked for it has stored it. Preempt and Abort changes what Preempt does; that what the
// preempted hosts have under way is over is the caller's to see to.
//
// Source: NVM Express Base Specification 2.0 ("base"), 7.2 to 7.5 (the commands), 8.19 (reservations), 5.16.1.24 (notifications). Pure; any
// thread. Hostile hosts: each field of `entry` and each byte of the data is checked.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nvme/command.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/reservations/reservation.h"

namespace cleat::nvme::target {

// Of log page 80h.
enum class ReservationNotice : uint8_t {
  kRegistrationPreempted = 1,  // the host that hears it is no registrant any more
  kReservationReleased = 2,    // the host that hears it still is one
  kReservationPreempted = 3,   // all registrations were cleared
};

// As an answer: the Status Field without its phase tag.
inline constexpr uint16_t kReservationConflict = 0x83;

struct ReservationOutcome {
  uint16_t status = 0;
  Reservation after;  // as before where nothing has changed
  // To hosts, each once, and never to the one that asks.
  std::vector<std::pair<fabrics::Uuid, ReservationNotice>> notices;
};

// Whether, when it has succeeded, the commands of the hosts that were preempted have to end, whether the reservation allows them or not.
constexpr bool IsPreemptAndAbort(const fabrics::SubmissionEntry& entry) {
  constexpr uint32_t kAction = 7;
  return entry.opcode == static_cast<uint8_t>(Opcode::kReservationAcquire) &&
         (entry.cdw10 & kAction) == static_cast<uint32_t>(fabrics::AcquireAction::kPreemptAndAbort);
}

// Register, Acquire and Release of `host_id`. `data`: what came with it, any bytes and any length: too short is refused.
ReservationOutcome Execute(const Reservation& now, const fabrics::Uuid& host_id,
                           const fabrics::SubmissionEntry& entry, std::span<const uint8_t> data);

// ---- Reservation Report

// How many bytes it asks for (NUMD); more than any descriptor has room for, where a host says so.
constexpr uint64_t ReportBytesOf(const fabrics::SubmissionEntry& entry) {
  constexpr uint64_t kDwordBytes = 4;
  return (uint64_t{entry.cdw10} + 1) * kDwordBytes;
}
// `data_bytes`: the room that the command's descriptor has. 0: it is answered with ReportOf of ReportBytesOf.
uint16_t CheckReport(const fabrics::SubmissionEntry& entry, uint32_t data_bytes);

struct ReportedController {
  uint16_t id = 0;
  fabrics::Uuid host_id{};
};
// The extended form, cut at `bytes` or filled with zeroes up to there. A registrant has an entry for each of its controllers, and one where it
// has none.
std::vector<uint8_t> ReportOf(const Reservation& reservation, std::span<const ReportedController> controllers,
                              uint32_t bytes);

}  // namespace cleat::nvme::target
