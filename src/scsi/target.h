// SPDX-License-Identifier: Apache-2.0
// What a target answers itself: for logical units that it does not have, and for the REPORT LUNS well-known logical
// unit (SPC-4 8.2). A target of ours has LUN 0 and that one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "scsi/command.h"

namespace cleat::scsi {

using Lun = std::array<uint8_t, 8>;
inline constexpr Lun kReportLunsUnit = {0xc1, 0x01};

// LUN inventory (SPC-4 6.33), as the CDB's SELECT REPORT asks; sets the outcome. `units`: what is listed as the
// logical units; inside a target that is LUN 0.
inline constexpr std::array<Lun, 1> kTargetUnits{};
inline constexpr size_t kListedUnitsMax = 8;
void ReplyWithLuns(Command& command, std::span<const Lun> units = kTargetUnits);

// A command to a LUN that is not there: INQUIRY says so, REPORT LUNS and REQUEST SENSE answer, the rest is LOGICAL
// UNIT NOT SUPPORTED (SPC-4 5.11, SAM-5 4.6.4). Calls on_done.
void ExecuteForAbsentUnit(Command& command);

// A command to the REPORT LUNS well-known logical unit. Calls on_done.
void ExecuteForReportLunsUnit(Command& command, std::span<const Lun> units);

}  // namespace cleat::scsi
