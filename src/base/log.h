// SPDX-License-Identifier: Apache-2.0
// The one logger: spdlog, to standard error (which systemd's journal takes), one line an event:
//   2026-01-31T12:00:00.123 info cleat-engine: disks/a: attached to controllers/vm1: target 0
// object: event: reason; next step. A line that comes of an API call ends with ` request=ID` (log_request.h). docs/logs.md has every line (scripts/check_logs.py).
// Never on the hot path. Never a key, never a guest's data.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::log {

// Once, before the first thread. `program` stands in each line. `level` is one of trace, debug, info, warn,
// error, off.
Status Init(std::string_view program, std::string_view level);

// A line that is whole already. Any thread.
void Write(spdlog::level::level_enum level, std::string_view line);

}  // namespace cleat::log
