// SPDX-License-Identifier: Apache-2.0
// What an engine's file descriptors are enough for, for people: the same numbers that controllers and disks reserve before they are served.
#pragma once

#include <cstdint>

#include "engine/protocol/backend.h"
#include "vhost/descriptors_needed.h"

namespace cleat::engine {

// How many disks on files find so many descriptors, each behind a controller of its own with one queue, which connects to its QEMU.
inline uint64_t DisksWithin(uint64_t descriptors) {
  return descriptors / (vhost::DescriptorsNeeded(1, vhost::SocketMode::kClient) + FilesOfFileDisk());
}

}  // namespace cleat::engine
