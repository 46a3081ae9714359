// SPDX-License-Identifier: Apache-2.0
// An engine's counters without cleatd: read from its memory, found by its process id. Takes the permission to look into
// that process: root's, or the same user's.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "observe/reader.h"

namespace cleat::ctl {

// kNotFound: no such process, or it has no counters. kPermissionDenied.
Result<std::unique_ptr<observe::SegmentReader>> OpenCountersOf(pid_t engine);

// What cleatd would answer, in one page. `name`: a full name, or an id of disks and controllers; empty for all.
v1::GetStatsResponse StatsOf(const observe::SegmentReader& reader, const std::string& name, bool histograms);

}  // namespace cleat::ctl
