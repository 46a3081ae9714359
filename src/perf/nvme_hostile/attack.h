// SPDX-License-Identifier: Apache-2.0
// What a broken or hostile host can send to an NVMe/TCP target, one connection for each: a table of abuses, each with the stage of the
// connection in which it is committed and what the target owes then. An attack makes its connection, commits its abuse and hears how the
// target answers. All that is random comes from the attack's seed, so that an attack can be had again. One thread; no state is kept.
//
// Writes go to the victim's blocks alone, whatever else is wrong with them. Never sent: what could do away with the target's namespace or
// keep other hosts out (Format, Sanitize, namespace and firmware commands, reservations, Property Set), as a target may obey it rightly.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/random.h"
#include "perf/nvme_hostile/line.h"
#include "perf/nvme_tcp/controller.h"

namespace cleat::perf {

enum class NvmeAbuseStage : uint8_t {
  kSocket,       // a TCP connection on which nothing was said
  kInitialized,  // ICReq and ICResp are exchanged
  kAdmin,        // the admin queue of a controller that is enabled
  kIo,           // its first I/O queue
};

// What was agreed on in ICReq, or the abuse would be none.
enum class NvmeAbuseNeeds : uint8_t { kNothing, kHeaderDigest, kDataDigest };

enum class NvmeAbuseDue : uint8_t {
  kServe,      // odd and allowed: the target has to do as asked
  kNoSuccess,  // anything but a success
  kAny,        // the specification leaves it open
};

enum class NvmeOutcome : uint8_t {
  kServed,      // with success; of ICReq: ICResp
  kRefused,     // the command failed
  kTerminated,  // C2HTermReq
  kClosed,      // the connection, without a word
  kAnswered,    // anything else
  kSilent,      // nothing within the patience, and the connection is open
  kLeft,        // the attacker itself closed the connection, which was the abuse
  kNoStart,     // what comes before the abuse has failed: nothing was sent
};
inline constexpr std::array<const char*, 8> kNvmeOutcomeNames = {
    "served", "refused", "terminated", "closed", "answered", "silent", "left", "not begun"};

// A target, and the part of its namespace that attacks may write to.
struct NvmeVictim {
  NvmeTcpOptions target;
  uint32_t nsid = 0;
  uint32_t block_bytes = 0;
  uint64_t disk_blocks = 0;
  uint64_t first_block = 0;
  uint64_t blocks = 0;  // kVictimBlocksMin at least
  uint32_t transfer_bytes_max = UINT32_MAX;
  uint32_t capsule_data_bytes = 0;
  uint64_t patience_ns = 0;  // how long an answer is waited for
};
inline constexpr uint64_t kVictimBlocksMin = 64;

// While an abuse is committed.
struct NvmeAttack {
  const NvmeVictim& victim;
  Random& random;
  RawLine& line;
  bool leaves = false;            // the attacker closes the connection now
  bool was_served = false;        // kServe: as it should be
  std::string wrong;              // what the target was seen to do against the rules
  std::string problem;            // why the abuse could not be committed
  std::optional<RawHeard> heard;  // the answer, where the abuse itself has heard it

  // A command's PDU on this connection, its data with it.
  RawPdu Capsule(const wire::NvmeCommand& command, std::span<const uint8_t> data = {}) const;
};

using NvmeAbuse = void(NvmeAttack& attack);

struct NvmeAbuseCase {
  const char* name;
  NvmeAbuseStage stage;
  NvmeAbuseDue due;
  NvmeAbuse* commit;
  NvmeAbuseNeeds needs = NvmeAbuseNeeds::kNothing;
};

// What the table has, which says what is due.
namespace nvme_abuses {

// Of PDUs and of Connect (attack_frames.cc).
NvmeAbuse Silence, Garbage, IcReqSplit, IcReqTwiceAtOnce, NoIcReq, IcReqVersion, IcReqLength, IcReqAlignment,
    IcReqDigests, IcReqHalf, IcReqAgain, UnknownType, TargetsType, HeaderLength, PduLengthShort,
    PduLengthHuge, PduDataOffset, DigestFlags, HeaderDigestWrong, ConnectDigestWrong, Termination,
    CommandBeforeConnect, DataBeforeConnect, ConnectSplit, ConnectHalf, ConnectShort, ConnectEndlessName,
    ConnectFormat, ConnectNoEntries, ConnectManyEntries, ConnectForeign, ConnectTwice;

// Of commands and their data (attack_commands.cc).
NvmeAbuse DataUnasked, DataBeyond, DataTooLong, DataOffset, DataTag, DataCid, DataLengthLies, DataDigestWrong,
    DataTwice, DataWithoutEnd, DataNeverComes, DataHalf, SglType, SglTooShort, SglTooLong, SglBeyondCapsule,
    SglHuge, ReadTooShort, CapsuleTooLarge, CapsuleWithoutData, CapsuleDigestWrong, AcrossTheEnd,
    BeyondTheEnd, UnknownOpcode, UnknownNamespace, ReservedFlags, DuplicateCid, RangesMissing, AnswersUnread,
    LeftUnderWay, UnknownAdminOpcode, UnknownProperty, IdentifyWithoutRoom, EventsWithoutEnd, WriteSplit;

}  // namespace nvme_abuses

// All that there are: where an attack's number leads depends on their order.
std::span<const NvmeAbuseCase> NvmeAbuses();

struct NvmeAttackResult {
  NvmeOutcome outcome = NvmeOutcome::kNoStart;
  uint16_t reason = 0;  // FES of a termination, or a failed command's status
  std::string finding;  // what the target did against the rules, or nothing
  std::string problem;  // kNoStart: why
};

NvmeAttackResult CommitAbuse(const NvmeVictim& victim, const NvmeAbuseCase& abuse, uint64_t seed);

}  // namespace cleat::perf
