// SPDX-License-Identifier: Apache-2.0
// The layouts of virtio-scsi (virtio 1.2, 5.6.6), and its addresses of logical units (5.6.6.1). The sizes of CDB and
// sense data are the defaults, which the front end does not let the driver change.
#pragma once

#include <linux/virtio_scsi.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "scsi/target.h"

namespace cleat::virtio {

inline constexpr uint32_t kScsiTargetsMax = 8;

using ScsiRequestHeader = virtio_scsi_cmd_req;
using ScsiResponse = virtio_scsi_cmd_resp;
using ScsiManagementRequest = virtio_scsi_ctrl_tmf_req;
using ScsiNotificationRequest = virtio_scsi_ctrl_an_req;
using ScsiNotificationResponse = virtio_scsi_ctrl_an_resp;
using ScsiEvent = virtio_scsi_event;
static_assert(sizeof(ScsiRequestHeader) == 51 && sizeof(ScsiResponse) == 108);
static_assert(sizeof(ScsiManagementRequest) == 24 && sizeof(ScsiNotificationRequest) == 16);
static_assert(sizeof(ScsiNotificationResponse) == 5 && sizeof(ScsiEvent) == 16);

inline constexpr uint8_t kScsiFunctionComplete = VIRTIO_SCSI_S_OK;  // the same number (5.6.6.2)

struct ScsiAddress {
  enum class Unit : uint8_t {
    kNone,        // nobody has this address
    kZero,        // LUN 0 of `target`
    kReportLuns,  // the REPORT LUNS well-known unit of `target`, or of the device when `target` is kScsiTargetsMax
    kOther,       // another LUN of `target`
  };
  Unit unit = Unit::kNone;
  uint32_t target = kScsiTargetsMax;

  // 01, target, then a LUN of one level: peripheral (00b) or flat (01b) addressing. Or C1 01: the device's REPORT
  // LUNS unit.
  static ScsiAddress Parse(const uint8_t (&lun)[8]) {
    if (std::memcmp(lun, scsi::kReportLunsUnit.data(), sizeof(lun)) == 0)
      return {Unit::kReportLuns, kScsiTargetsMax};
    if (lun[0] != 1 || lun[1] >= kScsiTargetsMax) return {};
    const uint32_t target = lun[1];
    if ((lun[4] | lun[5] | lun[6] | lun[7]) != 0) return {Unit::kOther, target};
    if (lun[2] == scsi::kReportLunsUnit[0] && lun[3] == scsi::kReportLunsUnit[1])
      return {Unit::kReportLuns, target};
    if ((lun[2] & 0x80) == 0 && (lun[2] & 0x3f) == 0 && lun[3] == 0) return {Unit::kZero, target};
    return {Unit::kOther, target};
  }
  static std::array<uint8_t, 8> OfTarget(uint32_t target) { return {1, static_cast<uint8_t>(target)}; }
};

}  // namespace cleat::virtio
