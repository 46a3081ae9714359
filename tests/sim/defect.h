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
  // Of how a process dies, and of who comes after it
  kNoInflightLog,     // nothing says what was in flight
  kNoLock,            // the successor does not wait for what its predecessor has under way
  kReplayBeforeLock,  // ... it does, but its rings run meanwhile
  kDrainCutShort,     // a process that is to end gives the disk up with requests under way
  kFailAtStop,        // ... it fails them
  kBlindCompare,      // a compare and write that ran before runs again
  // Of a hand-over
  kTakeBeforeYield,  // a process takes a controller that another one still serves, and no lock stands between them
  // Of a disk that takes another one's place
  kNoIdentities,  // an engine is not told which disk is which
  // Of the order in which the in-flight log is written, split rings'
  kLogWhenUsed,      // a request is noted only when it is answered
  kBatchAfterUsed,   // the used index comes before the batch is noted
  kClearBeforeUsed,  // a batch is cleared before the used index
  kClearAfterDone,   // a batch is finished before its entries are cleared
  // ... and packed rings'
  kNoteAfterUsed,          // the used descriptor comes before the log says so
  kPackedClearBeforeUsed,  // the log says that it was used before the descriptor
  kTakenBeforeNoted,       // entries leave the free list before they are in flight
};

}  // namespace cleat::sim
