// SPDX-License-Identifier: Apache-2.0
// Defects that a negative control plants in the simulation's own parts, to see that the checks would find them.
#pragma once

#include <cstdint>

namespace cleat::sim {

enum class Defect : uint8_t {
  kNone,
  // Of the storage
  kLoseWrite,      // acknowledged, not done
  kTearWrite,      // half of a block is written
  kMisplaceWrite,  // a block is written to its neighbour's place
  kStaleRead,      // a read returns what was there before the last write
  kCompleteTwice,  // a request is completed a second time
  kTwoOwners,      // a disk that is in use is given to a second writer
  kKeepOwner,      // a released disk remains owned
  kLeakDisk,       // a disk that was closed stays open
  // Of the transport
  kLoseKick,    // the guest's notification does not arrive
  kHideStatus,  // a change of the endpoint's state is not told
  // Of the ring, as a broken device would do it
  kDropCompletion,       // a used entry never comes
  kDuplicateCompletion,  // a used entry comes twice
  kSwapStatus,           // a failed request is reported as done
};

}  // namespace cleat::sim
