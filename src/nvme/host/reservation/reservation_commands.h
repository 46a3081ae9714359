// SPDX-License-Identifier: Apache-2.0
// The commands of reservations, by which a namespace knows who may write to it: Reservation Register, Report, Acquire and Release. They go
// over I/O queues. To a target a host is its identifier (HOSTID), whichever controller it comes by: each may register one key, and is a
// registrant then. In the types for all registrants, each of them holds the reservation, until the last one is gone.
//
// Source: NVM Express Base Specification 2.0 ("base"), 7.2 to 7.5 (the commands), 8.19 (reservations). Plain values; any thread. Reports come
// from a target: each field is checked before it is used, and memory is taken for kRegistrantsMax registrants at most.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "nvme/command.h"
#include "nvme/fabrics/identify.h"
#include "nvme/fabrics/names.h"
#include "nvme/fabrics/reservations/reservations.h"
#include "nvme/identify.h"

namespace cleat::nvme::host {

using fabrics::AcquireAction;
using fabrics::AcquireData;
using fabrics::PowerLoss;
using fabrics::RegisterAction;
using fabrics::RegisterData;
using fabrics::ReleaseAction;
using fabrics::ReleaseData;
using fabrics::ReservationType;

// "Write Exclusive - All Registrants"; "no" for kNone.
std::string_view NameOf(ReservationType type);

enum class ExistingKey : uint8_t { kHasToFit, kIgnored };  // IEKEY

constexpr Command ReservationRegister(uint32_t nsid, RegisterAction action, ExistingKey existing,
                                      PowerLoss power_loss) {
  return {.opcode = static_cast<uint8_t>(Opcode::kReservationRegister),
          .nsid = nsid,
          .cdw10 = static_cast<uint32_t>(power_loss) << 30 |
                   (existing == ExistingKey::kIgnored ? 1U << 3 : 0U) | static_cast<uint32_t>(action)};
}
// Without IEKEY, which targets refuse here.
constexpr Command ReservationAcquire(uint32_t nsid, AcquireAction action, ReservationType type) {
  return {.opcode = static_cast<uint8_t>(Opcode::kReservationAcquire),
          .nsid = nsid,
          .cdw10 = static_cast<uint32_t>(type) << 8 | static_cast<uint32_t>(action)};
}
// `type`: the one that is held; of no meaning for kClear.
constexpr Command ReservationRelease(uint32_t nsid, ReleaseAction action, ReservationType type) {
  return {.opcode = static_cast<uint8_t>(Opcode::kReservationRelease),
          .nsid = nsid,
          .cdw10 = static_cast<uint32_t>(type) << 8 | static_cast<uint32_t>(action)};
}
// The extended form (EDS), which has host identifiers of 128 bits. `bytes`: of the room for it, a multiple of four.
constexpr Command ReservationReportOf(uint32_t nsid, uint32_t bytes) {
  constexpr uint32_t kDwordBytes = 4;
  return {.opcode = static_cast<uint8_t>(Opcode::kReservationReport),
          .nsid = nsid,
          .cdw10 = bytes / kDwordBytes - 1,
          .cdw11 = 1};
}

// The room for a report: what each controller may transfer (MDTS is 8 KiB at least).
inline constexpr uint32_t kReportBytes = 8192;
inline constexpr uint32_t kReportHeaderBytes = sizeof(fabrics::ReservationReportHeader);
inline constexpr uint32_t kReportEntryBytes = sizeof(fabrics::ReservationReportEntry);
inline constexpr uint32_t kRegistrantsMax = (kReportBytes - kReportHeaderBytes) / kReportEntryBytes;

struct Registrant {
  fabrics::Uuid host_id{};
  uint64_t key = 0;
  bool holder = false;  // RCSTS; of a type for all registrants some targets say it of one alone

  bool operator==(const Registrant&) const = default;
};
// "host 00112233-... with key 00000000000000ffh".
std::string TextOf(const Registrant& registrant);

struct ReservationReport {
  uint32_t generation = 0;  // GEN: changes with the registrants
  ReservationType type = ReservationType::kNone;
  bool persistent = false;              // PTPLS: the registrants outlive the target's process or power
  std::vector<Registrant> registrants;  // a host once, by whichever controllers it is registered

  // nullptr: it is no registrant.
  const Registrant* Find(const fabrics::Uuid& host_id) const;
  // How many hosts have registered this key.
  size_t CountOf(uint64_t key) const;
};

// `data`: what came. An error begins with `who`. kDataLoss: damage, by the name of the field. kResourceExhausted: more than kRegistrantsMax.
Result<ReservationReport> ParseReservationReport(std::span<const uint8_t> data, const std::string& who);

// kUnimplemented, naming what is missing, unless all registrants of the namespace can write and others be kept out.
cleat::Status CheckReservations(const ControllerInfo& controller, const fabrics::FabricsInfo& fabrics,
                                const NamespaceInfo& space, const std::string& who);

}  // namespace cleat::nvme::host
