// SPDX-License-Identifier: Apache-2.0
// Misbehaviour on request: what a broken or hostile guest, or whoever sits on its socket, can do to a back
// end. Each case is a value with a name and the outcome the specification (or plain safety) asks for, so that
// a test is a loop over a table. Whatever the case, other devices must not notice.
//
// Functions, no state: they use the ring, memory or front end that they are given, on the caller's thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "perf/ring/driver_ring.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::perf {

// ---- On the ring: one malformed chain or index.
enum class RingAbuse : uint8_t {
  kSelfLoop,                // a descriptor whose next is itself
  kChainLoop,               // two that point at each other
  kNextOutOfRange,          // next >= queue size
  kHeadOutOfRange,          // available entry >= queue size
  kAvailIndexJump,          // the index goes ahead by more than the queue size
  kDuplicateHead,           // the same chain made available twice
  kIndirectInIndirect,      // an indirect descriptor in an indirect table
  kIndirectZeroLength,      // an indirect table of 0 bytes
  kIndirectOddLength,       // ... of 24 bytes
  kIndirectTooLarge,        // ... of almost 4 GiB
  kIndirectOutsideMemory,   // ... where no memory is
  kIndirectWithNext,        // INDIRECT and NEXT in one descriptor
  kIndirectWritable,        // INDIRECT and WRITE: the specification has the device ignore WRITE
  kIndirectLoop,            // a loop in the table
  kIndirectNextOutOfRange,  // next >= entries of the table
  kAddressOutsideMemory,    // data where no memory is
  kAddressWraps,            // data that ends behind 2^64
  kCrossesRegionEnd,        // data that starts in memory and ends where none is
  kLengthHuge,              // 4 GiB - 1 of data
  kHeaderOutsideMemory,     // the request's header where no memory is
  kStatusOutsideMemory,     // its status where no memory is
  kZeroLengthDescriptor,    // one without bytes, amid the data
  kWritableBeforeReadable,  // a readable descriptor after a writable one
  kNoStatus,                // nothing writable at all
  kNothingReadable,         // a status and no header
  kHeaderTooShort,          // 8 of its 16 bytes
  kUnknownType,             // request type 0x7fff
  kDataNotWholeSectors,     // a read of 100 bytes
  kSectorBeyondEnd,         // a read at the disk's end
  kSectorWraps,             // a read at sector 2^64 - 1
  kDiscardRangeShort,       // 15 bytes of range
  kDiscardBeyondEnd,        // a range at sector 2^63
  kDiscardUnknownFlags,     // reserved flags set
  // Packed rings only. There, of the above, kHeadOutOfRange is a buffer id, kDuplicateHead one that is in use, and
  // kAvailIndexJump a chain that goes on all round the ring.
  kNotAvailable,  // a chain goes on with a descriptor that has the wrong AVAIL and USED bits
  kIndirectLast,  // an indirect descriptor at the end of a chain
};

enum class RingOutcome : uint8_t {
  kErrorStatus,    // completed with a status other than OK; the ring goes on
  kRingBroken,     // nothing can be trusted any more: the device stops the ring and says so
  kErrorOrBroken,  // either, the specification leaves it open
  kTolerated,      // anything goes, success too, as long as nobody is hurt
};

struct RingAbuseCase {
  RingAbuse abuse;
  const char* name;
  RingOutcome outcome;
  bool needs_indirect;  // VIRTIO_F_INDIRECT_DESC negotiated
  bool needs_discard;   // VIRTIO_BLK_F_DISCARD negotiated
};

std::span<const RingAbuseCase> RingAbuseCases();  // of a split ring
std::span<const RingAbuseCase> PackedRingAbuseCases();

// Guest memory that an abuse writes its header, data, status and tables to; one page, from Allocate.
inline constexpr uint64_t kAbuseScratchBytes = GuestMemory::kPageBytes;
// Where in the scratch memory the status goes, preset to BlkCompletion::kNoStatus.
inline constexpr uint64_t kAbuseStatusOffset = 1024;
// The completion's token, if there is one.
inline constexpr uint64_t kAbuseToken = 0xabadcafe;

// Puts the case into the ring, of either format, publishes and kicks. `capacity_sectors` is the disk's. Fails only when the
// ring has no four free descriptors.
Status Apply(RingAbuse abuse, DriverRing& ring, const GuestMemory& memory, uint64_t scratch_gpa,
             uint64_t capacity_sectors);

// ---- In the set-up: messages that are whole, with contents that can't be. For a front end after Open() and
// SetMemTable(memory); ring 0 is used. The front end asks for acknowledgements (AckMode::kAlways) where it
// can.
enum class SetupAbuse : uint8_t {
  kDescOutsideMemory,
  kAvailOutsideMemory,
  kUsedOutsideMemory,
  kRingCrossesRegionEnd,
  kRingMisaligned,
  kRingSizeZero,
  kRingSizeNotPowerOfTwo,
  kRingSizeHuge,     // 2^20
  kKickIsNoEventfd,  // a descriptor that can't be read
  kRegionSizeZero,
  kRegionWraps,     // guest-physical end behind 2^64
  kRegionSizeHuge,  // 2^62 bytes
  kRegionsOverlap,
  kRegionOffsetBehindFile,
  kFileShorterThanRegion,  // touching it is SIGBUS
  kTooManyRegions,         // the count says 9, the payload has 8
  kInflightTooSmall,
};

struct SetupAbuseCase {
  SetupAbuse abuse;
  const char* name;
};

std::span<const SetupAbuseCase> SetupAbuseCases();

// OK when the back end acknowledged or can't; an error when it refused or hung up. Either is fair.
Status Apply(SetupAbuse abuse, Frontend& frontend, GuestMemory& memory);

// ---- On the socket: not even messages. For a connected front end; where the connection stays open
// afterwards the caller decides for how long.
enum class SocketAbuse : uint8_t {
  kSilence,            // nothing at all
  kHalfHeader,         // 6 bytes, then nothing
  kHalfPayload,        // a header that says 8, 4 bytes, then nothing
  kByteByByte,         // a good message in single bytes
  kOversizePayload,    // a payload length of 1 MiB
  kHugePayload,        // ... of 2^32 - 1
  kUnknownRequest,     // request 9999
  kBadVersion,         // version 0
  kReplyNobodyWanted,  // with the reply flag set
  kTooManyFds,         // 32 with one message
  kFdsOnHalfHeader,    // descriptors with half a header, then nothing
  kMemTableWithoutFds,
  kMemTableWithFewFds,
  kKickWithoutFd,
  kBadRingIndex,      // ring 0xffff
  kWrongPayloadSize,  // SET_VRING_NUM with 4 bytes
  kFlood,             // requests as fast as the socket takes them, the answers unread
  kGarbage,           // random bytes
};

struct SocketAbuseCase {
  SocketAbuse abuse;
  const char* name;
  bool stays_half;  // the peer's message never ends: it is up to the back end's own patience
};

std::span<const SocketAbuseCase> SocketAbuseCases();

// Errors are those of the socket: kUnavailable when the back end hangs up in the middle, which is its right.
Status Apply(SocketAbuse abuse, Frontend& frontend);

}  // namespace cleat::perf
