// SPDX-License-Identifier: Apache-2.0
// A controller's place for a disk. Whoever works on the disk holds `operations` (one operation at a time, first come
// first served); looking at it takes no lock. Owned by the Controller, on the control reactor.
#pragma once

#include <memory>

#include "engine/attached/attached_disk.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"

namespace cleat::engine {

struct Target {
  explicit Target(Reactor& control) : operations(control) {}
  AsyncMutex operations;
  std::unique_ptr<AttachedDisk> disk;
};

}  // namespace cleat::engine
