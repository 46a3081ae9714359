// SPDX-License-Identifier: Apache-2.0
// Numbers of the SCSI standards that are used here: operation codes and service actions (SPC-4 annex D, SBC-4 5.1),
// status codes (SAM-5 5.3), sense keys and additional sense codes (SPC-4 4.5.6).
#pragma once

#include <cstdint>

namespace cleat::scsi {

enum Opcode : uint8_t {
  kTestUnitReady = 0x00,
  kRequestSense = 0x03,
  kRead6 = 0x08,
  kWrite6 = 0x0a,
  kInquiry = 0x12,
  kModeSelect6 = 0x15,
  kModeSense6 = 0x1a,
  kStartStopUnit = 0x1b,
  kSendDiagnostic = 0x1d,
  kReadCapacity10 = 0x25,
  kRead10 = 0x28,
  kWrite10 = 0x2a,
  kWriteAndVerify10 = 0x2e,
  kVerify10 = 0x2f,
  kPreFetch10 = 0x34,
  kSynchronizeCache10 = 0x35,
  kWriteSame10 = 0x41,
  kUnmap = 0x42,
  kModeSelect10 = 0x55,
  kModeSense10 = 0x5a,
  kRead16 = 0x88,
  kCompareAndWrite = 0x89,
  kWrite16 = 0x8a,
  kWriteAndVerify16 = 0x8e,
  kVerify16 = 0x8f,
  kPreFetch16 = 0x90,
  kSynchronizeCache16 = 0x91,
  kWriteSame16 = 0x93,
  kServiceActionIn16 = 0x9e,
  kReportLuns = 0xa0,
  kMaintenanceIn = 0xa3,
  kRead12 = 0xa8,
  kWrite12 = 0xaa,
};

// Service actions.
inline constexpr uint8_t kReadCapacity16Action = 0x10;          // of SERVICE ACTION IN(16)
inline constexpr uint8_t kGetLbaStatusAction = 0x12;            // of SERVICE ACTION IN(16)
inline constexpr uint8_t kReportSupportedOpcodesAction = 0x0c;  // of MAINTENANCE IN

enum class ScsiStatus : uint8_t {
  kGood = 0x00,
  kCheckCondition = 0x02,
  kBusy = 0x08,
  kReservationConflict = 0x18,
};

enum class SenseKey : uint8_t {
  kNoSense = 0x0,
  kMediumError = 0x3,
  kHardwareError = 0x4,
  kIllegalRequest = 0x5,
  kUnitAttention = 0x6,
  kDataProtect = 0x7,
  kAbortedCommand = 0xb,
  kMiscompare = 0xe,
};

// Additional sense code and its qualifier, as asc << 8 | ascq.
enum class SenseCode : uint16_t {
  kNone = 0x0000,
  kWriteError = 0x0c00,
  kUnrecoveredReadError = 0x1100,
  kParameterListLengthError = 0x1a00,
  kMiscompareDuringVerify = 0x1d00,
  kInvalidOpcode = 0x2000,
  kLbaOutOfRange = 0x2100,
  kInvalidFieldInCdb = 0x2400,
  kLogicalUnitNotSupported = 0x2500,
  kInvalidFieldInParameterList = 0x2600,
  kWriteProtected = 0x2700,
  kSpaceAllocationFailed = 0x2707,
  kBusDeviceReset = 0x2903,
  kNexusLoss = 0x2907,
  kCapacityChanged = 0x2a09,
  kCommandsClearedByDeviceServer = 0x2f02,
  kSavingParametersNotSupported = 0x3900,
  kInternalTargetFailure = 0x4400,
};

}  // namespace cleat::scsi
