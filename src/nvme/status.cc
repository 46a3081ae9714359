// SPDX-License-Identifier: Apache-2.0
#include "nvme/status.h"

#include <fmt/format.h>

#include <cerrno>

namespace cleat::nvme {
namespace {

using block::IoStatus;

enum Type : uint8_t { kGeneric = 0, kCommandSpecific = 1, kMedia = 2, kPath = 3 };
enum class Retry : uint8_t { kNo, kYes };

struct Row {
  uint8_t type;
  uint8_t code;
  const char* name;  // the specification's
  IoStatus status;
  Retry retry;
};

// What a guest gets follows from IoStatus: for a virtio-blk disk VIRTIO_BLK_S_UNSUPP or _IOERR, for a SCSI disk the sense that
// scsi/unit_channel.cc has for it. The sense is the one of "NVM Express: SCSI Translation Reference" 1.5, 7, with one exception: what is
// neither the medium's fault nor the guest's, and so comes from this host's commands or the way to the drive, is HARDWARE ERROR, INTERNAL
// TARGET FAILURE, where that document says ILLEGAL REQUEST, NOT READY or ABORTED COMMAND, since it has no host in between.
constexpr Row kTable[] = {
    // Base specification 2.0, 3.3.3.2.1.2.1: generic.
    {kGeneric, 0x00, "Successful Completion", IoStatus::kOk, Retry::kNo},
    {kGeneric, 0x01, "Invalid Command Opcode", IoStatus::kUnsupported, Retry::kNo},
    {kGeneric, 0x02, "Invalid Field in Command", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x03, "Command ID Conflict", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x04, "Data Transfer Error", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x05, "Commands Aborted due to Power Loss Notification", IoStatus::kHardwareError,
     Retry::kYes},
    {kGeneric, 0x06, "Internal Error", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x07, "Command Abort Requested", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x08, "Command Aborted due to SQ Deletion", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x0b, "Invalid Namespace or Format", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x0c, "Command Sequence Error", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x13, "PRP Offset Invalid", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x14, "Atomic Write Unit Exceeded", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x15, "Operation Denied", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x1b, "Command Aborted due to Preempt and Abort", IoStatus::kReservationConflict, Retry::kNo},
    {kGeneric, 0x1c, "Sanitize Failed", IoStatus::kHardwareError, Retry::kNo},
    {kGeneric, 0x1d, "Sanitize In Progress", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x20, "Namespace is Write Protected", IoStatus::kReadOnly, Retry::kNo},
    {kGeneric, 0x21, "Command Interrupted", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x22, "Transient Transport Error", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x24, "Admin Command Media Not Ready", IoStatus::kHardwareError, Retry::kYes},
    // NVM command set 1.0, 3.1: generic codes of this command set.
    {kGeneric, 0x80, "LBA Out of Range", IoStatus::kInvalid, Retry::kNo},
    {kGeneric, 0x81, "Capacity Exceeded", IoStatus::kNoSpace, Retry::kNo},
    {kGeneric, 0x82, "Namespace Not Ready", IoStatus::kHardwareError, Retry::kYes},
    {kGeneric, 0x83, "Reservation Conflict", IoStatus::kReservationConflict, Retry::kNo},
    {kGeneric, 0x84, "Format In Progress", IoStatus::kHardwareError, Retry::kYes},
    // NVM command set 1.0, 3.1: command specific.
    {kCommandSpecific, 0x80, "Conflicting Attributes", IoStatus::kHardwareError, Retry::kNo},
    {kCommandSpecific, 0x81, "Invalid Protection Information", IoStatus::kHardwareError, Retry::kNo},
    {kCommandSpecific, 0x82, "Attempted Write to Read Only Range", IoStatus::kReadOnly, Retry::kNo},
    {kCommandSpecific, 0x83, "Command Size Limit Exceeded", IoStatus::kHardwareError, Retry::kNo},
    // Base specification 2.0, 3.3.3.2.1.2.3, and NVM command set 1.0, 3.1: media and data integrity.
    {kMedia, 0x80, "Write Fault", IoStatus::kIoError, Retry::kYes},
    {kMedia, 0x81, "Unrecovered Read Error", IoStatus::kIoError, Retry::kYes},
    {kMedia, 0x82, "End-to-end Guard Check Error", IoStatus::kIoError, Retry::kYes},
    {kMedia, 0x83, "End-to-end Application Tag Check Error", IoStatus::kIoError, Retry::kYes},
    {kMedia, 0x84, "End-to-end Reference Tag Check Error", IoStatus::kIoError, Retry::kYes},
    {kMedia, 0x85, "Compare Failure", IoStatus::kMiscompare, Retry::kNo},
    {kMedia, 0x86, "Access Denied", IoStatus::kHardwareError, Retry::kNo},
    {kMedia, 0x87, "Deallocated or Unwritten Logical Block", IoStatus::kIoError, Retry::kNo},
    // Base specification 2.0, 3.3.3.2.1.2.4: path related.
    {kPath, 0x00, "Internal Path Error", IoStatus::kHardwareError, Retry::kYes},
    {kPath, 0x01, "Asymmetric Access Persistent Loss", IoStatus::kHardwareError, Retry::kYes},
    {kPath, 0x02, "Asymmetric Access Inaccessible", IoStatus::kHardwareError, Retry::kYes},
    {kPath, 0x03, "Asymmetric Access Transition", IoStatus::kHardwareError, Retry::kYes},
    {kPath, 0x60, "Controller Pathing Error", IoStatus::kHardwareError, Retry::kYes},
    {kPath, 0x70, "Host Pathing Error", IoStatus::kHardwareError, Retry::kYes},
    {kPath, 0x71, "Command Aborted By Host", IoStatus::kHardwareError, Retry::kYes},
};

// Only errors come here.
const Row* Find(Status status) {
  for (const Row& row : kTable) {
    if (row.type == status.type() && row.code == status.code()) return &row;
  }
  return nullptr;
}

}  // namespace

IoStatus StatusOf(Status status) {
  if (const Row* row = Find(status)) return row->status;
  return status.type() == kMedia ? IoStatus::kIoError : IoStatus::kHardwareError;
}

bool MayRetry(Status status) {
  if (status.do_not_retry()) return false;
  const Row* row = Find(status);
  return row != nullptr && row->retry == Retry::kYes;
}

std::string NameOf(Status status) {
  if (const Row* row = Find(status))
    return fmt::format("{} ({}/{:02x}h)", row->name, status.type(), status.code());
  return fmt::format("status {}/{:02x}h", status.type(), status.code());
}

int32_t ErrorNumberOf(Status status) {
  constexpr int32_t kMark = 0x8000;
  if (StatusOf(status) == IoStatus::kNoSpace) return ENOSPC;
  return kMark | status.type() << 8 | status.code();
}

}  // namespace cleat::nvme
