// SPDX-License-Identifier: Apache-2.0
// NVMe commands as every transport sends them: the fields of a submission queue entry that say what is to be done. Where the data is,
// and in which queue the command goes, is the transport's.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.3.3.1; NVM Command Set Specification 1.0 ("NVM"), 3.2. Plain values; any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace cleat::nvme {

static_assert(std::endian::native == std::endian::little,
              "NVMe is little-endian, and its structures are read and written in place");

// The commands of I/O queues (NVM 3.2, figure 15 in revision 1.0).
enum class Opcode : uint8_t {
  kFlush = 0x00,
  kWrite = 0x01,
  kRead = 0x02,
  kWriteZeroes = 0x08,
  kDatasetManagement = 0x09,
  // Base 7: of all I/O command sets (nvme/host/reservation).
  kReservationRegister = 0x0d,
  kReservationReport = 0x0e,
  kReservationAcquire = 0x11,
  kReservationRelease = 0x15,
};

// The commands of the admin queue (base 5).
enum class AdminOpcode : uint8_t {
  kGetLogPage = 0x02,
  kIdentify = 0x06,
  kAbort = 0x08,
  kSetFeatures = 0x09,
  kGetFeatures = 0x0a,
  kAsyncEventRequest = 0x0c,
  kKeepAlive = 0x18,
  kCrossControllerReset = 0x38,  // from revision 2.3 (TP 8028)
  kFabrics = 0x7f,               // base 6: which of them, its FCTYPE says
};

// What Identify returns (its CNS field, base 5.17.1), 4096 bytes each.
enum class IdentifyCns : uint8_t {
  kNamespace = 0x00,         // of the NVM command set (NVM 4.1.5.1)
  kController = 0x01,        // base 5.17.2.1
  kActiveNamespaces = 0x02,  // their identifiers, above the one that is given (base 5.17.2.2)
  kDescriptors = 0x03,       // what a namespace is called besides (base 5.17.2.3)
  kCommandSetNamespace =
      0x05,  // what the command set has of a namespace beside (NVM 4.1.5.3); this and those below: of 2.0
  kCommandSetController = 0x06,  // what the NVM command set limits beside (NVM 4.1.5.4)
  kCommandSetActive = 0x07,      // as kActiveNamespaces, of one command set (base 5.17.2.6)
  kIndependentNamespace = 0x08,  // what a namespace has whatever its command set (base 5.17.2.7)
  kAllocatedNamespaces = 0x10,   // as kActiveNamespaces, attached or not (base 5.17.2.9)
  kAllocatedNamespace = 0x11,    // as kNamespace (base 5.17.2.10)
  kCommandSets = 0x1c,           // which combinations there are (base 5.17.2.19)
};

inline constexpr uint32_t kIdentifyBytes = 4096;

// What Get Log Page returns (its LID field, base 5.16.1).
enum class LogPage : uint8_t {
  kSupportedPages = 0x00,     // base 5.16.1.1
  kErrors = 0x01,             // base 5.16.1.2
  kSmart = 0x02,              // SMART / Health Information (base 5.16.1.3)
  kFirmwareSlots = 0x03,      // base 5.16.1.4
  kChangedNamespaces = 0x04,  // base 5.16.1.5
  kCommandEffects = 0x05,     // base 5.16.1.6
  kAna = 0x0c,                // Asymmetric Namespace Access (base 5.16.1.13)
  kFeatureEffects = 0x12,     // base 5.16.1.19
  kManagementEffects = 0x13,  // of NVMe-MI's commands (base 5.16.1.20)
  kControllerResets = 0x1e,   // Cross-Controller Reset, from revision 2.3 (TP 8028)
  kDiscovery = 0x70,          // base 5.16.1.23
  kReservations = 0x80,       // Reservation Notification (base 5.16.1.24)
};

// What Set Features sets (its FID field, base 5.27.1).
enum class Feature : uint8_t {
  kArbitration = 0x01,
  kPowerManagement = 0x02,
  kTemperatureThreshold = 0x04,
  kErrorRecovery = 0x05,
  kWriteCache = 0x06,
  kQueues = 0x07,
  kWriteAtomicity = 0x0a,
  kAsyncEvents = 0x0b,
  kKeepAliveTimer = 0x0f,
  kCommandSetProfile = 0x19,
  kHostIdentifier = 0x81,
  kReservationMask = 0x82,         // Reservation Notification Mask
  kReservationPersistence = 0x83,  // of a namespace
};

inline constexpr uint32_t kSmartLogBytes = 512;
inline constexpr uint32_t kAllNamespaces = 0xffff'ffff;  // as NSID: the controller

struct Command {
  uint8_t opcode = 0;
  uint32_t nsid = 0;
  uint32_t cdw10 = 0;
  uint32_t cdw11 = 0;
  uint32_t cdw12 = 0;
};

// One range of a Dataset Management command (NVM 3.2.3), 16 bytes of data.
struct DatasetRange {
  uint32_t attributes = 0;
  uint32_t blocks = 0;
  uint64_t first_block = 0;
};
static_assert(sizeof(DatasetRange) == 16);

// The most blocks that one command's field holds; it is written as one less.
inline constexpr uint32_t kBlocksMax = 1U << 16;

inline constexpr uint32_t kForceUnitAccess = 1U << 30;   // read, write, write zeroes: CDW12
inline constexpr uint32_t kDeallocate = 1U << 25;        // write zeroes: CDW12.DEAC
inline constexpr uint32_t kDatasetDeallocate = 1U << 2;  // CDW11.AD

// `blocks`: 1 to kBlocksMax, of the namespace's format.
constexpr Command OnBlocks(Opcode opcode, uint32_t nsid, uint64_t first_block, uint32_t blocks,
                           uint32_t flags) {
  return {.opcode = static_cast<uint8_t>(opcode),
          .nsid = nsid,
          .cdw10 = static_cast<uint32_t>(first_block),
          .cdw11 = static_cast<uint32_t>(first_block >> 32),
          .cdw12 = (blocks - 1) | flags};
}

constexpr Command Flush(uint32_t nsid) {
  return {.opcode = static_cast<uint8_t>(Opcode::kFlush), .nsid = nsid};
}

// One range is deallocated: a hint, after which the range may read as anything that was ever there.
constexpr Command Deallocate(uint32_t nsid) {
  return {
      .opcode = static_cast<uint8_t>(Opcode::kDatasetManagement), .nsid = nsid, .cdw11 = kDatasetDeallocate};
}

constexpr Command Identify(IdentifyCns cns, uint32_t nsid) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kIdentify),
          .nsid = nsid,
          .cdw10 = static_cast<uint32_t>(cns)};
}

// `bytes`: a multiple of four, at most 256 KiB, from the page's beginning.
constexpr Command GetLogPage(LogPage page, uint32_t nsid, uint32_t bytes) {
  constexpr uint32_t kDwordBytes = 4;
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kGetLogPage),
          .nsid = nsid,
          .cdw10 = (bytes / kDwordBytes - 1) << 16 | static_cast<uint32_t>(page)};
}

constexpr Command SetFeature(Feature feature, uint32_t value) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kSetFeatures),
          .cdw10 = static_cast<uint32_t>(feature),
          .cdw11 = value};
}

// Stays with the controller until it has an event to tell.
constexpr Command AsyncEventRequest() {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kAsyncEventRequest)};
}

constexpr Command KeepAlive() {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kKeepAlive)};
}

}  // namespace cleat::nvme
