// SPDX-License-Identifier: Apache-2.0
// How the state wakes the pools' threads, and how these wake a caller that waits for the drive's map. Under the state's mutex.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "control/pools/block_drive.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

struct PoolSignals {
  // A pool's thread may have something to do, or is to be started. Called with the mutex held; set once, before the first request.
  std::function<void(const std::string& id)> wake = [](const std::string&) {};
  CondVar map_written;
  OpenHostDrive open = BlockDrive::OpenAny;                  // set once, before the first request, by tests
  std::map<std::string, std::unique_ptr<HostDrive>> opened;  // by Pools::Create, for the pool's thread: by id

  // The drive is to have another map.
  void MapChanged(PoolEntry& entry) const CLEAT_REQUIRES(holds_state) {
    ++entry.map_changes;
    wake(entry.row.id);
  }
};

}  // namespace cleat::control
