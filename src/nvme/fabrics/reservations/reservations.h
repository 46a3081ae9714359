// SPDX-License-Identifier: Apache-2.0
// What hosts and targets say to each other of reservations: types, actions, and the data of the four commands.
//
// Source: NVM Express Base Specification 2.0 ("base"), 7.2 to 7.5 (the commands), 8.19 (reservations). Plain values; any thread.
#pragma once

#include <cstdint>

#include "nvme/fabrics/names.h"

namespace cleat::nvme::fabrics {

enum class ReservationType : uint8_t {  // RTYPE
  kNone = 0,
  kWriteExclusive = 1,
  kExclusiveAccess = 2,
  kWriteExclusiveRegistrants = 3,
  kExclusiveAccessRegistrants = 4,
  kWriteExclusiveAll = 5,  // all registrants write, and all others only read
  kExclusiveAccessAll = 6,
};

enum class RegisterAction : uint8_t { kRegister = 0, kUnregister = 1, kReplace = 2 };     // RREGA
enum class AcquireAction : uint8_t { kAcquire = 0, kPreempt = 1, kPreemptAndAbort = 2 };  // RACQA
enum class ReleaseAction : uint8_t { kRelease = 0, kClear = 1 };                          // RRELA
enum class PowerLoss : uint8_t { kAsItIs = 0, kForget = 2, kPersist = 3 };                // CPTPL

// The data that goes to the target.
struct RegisterData {
  uint64_t current_key = 0;  // CRKEY
  uint64_t new_key = 0;      // NRKEY, not 0
};
static_assert(sizeof(RegisterData) == 16);
struct AcquireData {
  uint64_t current_key = 0;    // CRKEY
  uint64_t preempted_key = 0;  // PRKEY; 0 with a type for all registrants: everybody else
};
static_assert(sizeof(AcquireData) == 16);
struct ReleaseData {
  uint64_t current_key = 0;  // CRKEY
};
static_assert(sizeof(ReleaseData) == 8);

// The data of Reservation Report in its extended form (EDS), which has host identifiers of 128 bits: a header, then an entry for each
// controller by which a registrant has come.
struct ReservationReportHeader {
  uint32_t generation = 0;  // GEN
  uint8_t type = 0;         // RTYPE: ReservationType
  uint8_t entries[2] = {};  // REGCTL, the low byte first
  uint8_t reserved1[2] = {};
  uint8_t persists = 0;  // PTPLS
  uint8_t reserved2[54] = {};
};
static_assert(sizeof(ReservationReportHeader) == 64);
struct ReservationReportEntry {
  uint16_t controller_id = 0;  // CNTLID; kAnyController: by none at present
  uint8_t status = 0;          // RCSTS: 1 of a holder
  uint8_t reserved1[5] = {};
  uint64_t key = 0;  // RKEY
  Uuid host_id{};
  uint8_t reserved2[32] = {};
};
static_assert(sizeof(ReservationReportEntry) == 64);

}  // namespace cleat::nvme::fabrics
