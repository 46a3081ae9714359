// SPDX-License-Identifier: Apache-2.0
// How an NVMe command ended: what its status means for a request, whether to try again, and how people call it.
//
// Source: NVM Express Base Specification 2.0, 3.3.3.2.1 (Status Field); NVM Command Set Specification 1.0, 3.1. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "block/request.h"

namespace cleat::nvme {

// The Status Field without its phase tag, as the kernel hands it on: status code in bits 7:0, its type in 10:8, then what to do.
class Status {
 public:
  constexpr explicit Status(uint16_t field) : field_(field) {}

  constexpr bool ok() const { return (field_ & kCodes) == 0; }
  constexpr uint8_t code() const { return field_ & 0xff; }
  constexpr uint8_t type() const { return field_ >> 8 & 7; }
  constexpr uint16_t field() const { return field_; }
  constexpr bool do_not_retry() const { return (field_ & kDoNotRetry) != 0; }

 private:
  static constexpr uint16_t kCodes = 0x7ff;
  static constexpr uint16_t kDoNotRetry = 1U << 14;
  uint16_t field_;
};

// Status Fields as a controller answers with them: Status takes them. Those of fabrics' own are in fabrics/commands.h.
namespace status_field {
inline constexpr uint16_t kSuccess = 0;
// Generic (base 3.3.3.2.1.2.1).
inline constexpr uint16_t kInvalidOpcode = 0x01;
inline constexpr uint16_t kInvalidField = 0x02;
inline constexpr uint16_t kCommandIdConflict = 0x03;
inline constexpr uint16_t kInternalError = 0x06;
inline constexpr uint16_t kAbortedByQueueDeletion = 0x08;
inline constexpr uint16_t kInvalidNamespace = 0x0b;
inline constexpr uint16_t kCommandSequence = 0x0c;
inline constexpr uint16_t kSglLengthInvalid = 0x0f;
inline constexpr uint16_t kSglTypeInvalid = 0x11;
inline constexpr uint16_t kHostIdFormat = 0x18;
inline constexpr uint16_t kKeepAliveExpired = 0x19;
inline constexpr uint16_t kKeepAliveInvalid = 0x1a;
// Command specific (base 3.3.3.2.1.2.2).
inline constexpr uint16_t kCommandSpecific = 1U << 8;
inline constexpr uint16_t kInvalidQueueId = kCommandSpecific | 0x01;
inline constexpr uint16_t kEventRequestsExceeded = kCommandSpecific | 0x05;
inline constexpr uint16_t kInvalidLogPage = kCommandSpecific | 0x09;
inline constexpr uint16_t kFeatureNotSaveable = kCommandSpecific | 0x0d;
inline constexpr uint16_t kFeatureNotChangeable = kCommandSpecific | 0x0e;
inline constexpr uint16_t kCommandSetsRejected = kCommandSpecific | 0x2b;
// Of Cross-Controller Reset, from revision 2.3.
inline constexpr uint16_t kResetInProgress = kCommandSpecific | 0x3f;
inline constexpr uint16_t kResetLogFull = kCommandSpecific | 0x40;
inline constexpr uint16_t kResetLimitExceeded = kCommandSpecific | 0x41;

inline constexpr uint16_t kDoNotRetry = 1U << 14;
}  // namespace status_field

// What a request becomes that ended so, after the tries that MayRetry allows.
block::IoStatus StatusOf(Status status);
// Whether the same command may succeed later, and the drive does not say that it won't.
bool MayRetry(Status status);
// There is no way to the drive at present; nothing is said of the drive (base 3.3.3.2.1.2.4).
constexpr bool IsPathError(Status status) {
  return status.type() == 3;
}
// "Unrecovered Read Error (2/81h)"; one that is in no table: "status 2/8fh". Statuses are written as type/code.
std::string NameOf(Status status);

// ---- In Request::error_number, which otherwise is an errno: those are smaller.

// ENOSPC where the drive has no space, which other layers know by that.
int32_t ErrorNumberOf(Status status);
// nullopt: it is an errno.
constexpr std::optional<Status> StatusOfErrorNumber(int32_t error_number) {
  constexpr int32_t kMark = 0x8000;
  if ((error_number & kMark) == 0) return std::nullopt;
  return Status(static_cast<uint16_t>(error_number & 0x7ff));
}

}  // namespace cleat::nvme
