// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_hostile/attack.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace cleat::perf {
namespace {

constexpr uint16_t kDepth = 31;

constexpr auto Table() {
  using namespace nvme_abuses;
  using Stage = NvmeAbuseStage;
  using Due = NvmeAbuseDue;
  using Needs = NvmeAbuseNeeds;
  return std::to_array<NvmeAbuseCase>({
      {"Silence", Stage::kSocket, Due::kAny, &Silence},
      {"Garbage", Stage::kSocket, Due::kNoSuccess, &Garbage},
      {"IcReqSplit", Stage::kSocket, Due::kServe, &IcReqSplit},
      {"IcReqTwiceAtOnce", Stage::kSocket, Due::kNoSuccess, &IcReqTwiceAtOnce},
      {"NoIcReq", Stage::kSocket, Due::kNoSuccess, &NoIcReq},
      {"IcReqVersion", Stage::kSocket, Due::kAny, &IcReqVersion},
      {"IcReqLength", Stage::kSocket, Due::kNoSuccess, &IcReqLength},
      {"IcReqAlignment", Stage::kSocket, Due::kAny, &IcReqAlignment},
      {"IcReqDigests", Stage::kSocket, Due::kAny, &IcReqDigests},
      {"IcReqHalf", Stage::kSocket, Due::kAny, &IcReqHalf},
      {"IcReqAgain", Stage::kInitialized, Due::kNoSuccess, &IcReqAgain},
      {"IcReqOnAnIoQueue", Stage::kIo, Due::kNoSuccess, &IcReqAgain},
      {"UnknownType", Stage::kInitialized, Due::kNoSuccess, &UnknownType},
      {"TargetsType", Stage::kInitialized, Due::kNoSuccess, &TargetsType},
      {"HeaderLength", Stage::kInitialized, Due::kNoSuccess, &HeaderLength},
      {"PduLengthShort", Stage::kInitialized, Due::kNoSuccess, &PduLengthShort},
      {"PduLengthHuge", Stage::kInitialized, Due::kNoSuccess, &PduLengthHuge},
      {"PduDataOffset", Stage::kInitialized, Due::kNoSuccess, &PduDataOffset},
      {"DigestFlags", Stage::kInitialized, Due::kAny, &DigestFlags},
      {"HeaderDigestWrong", Stage::kInitialized, Due::kNoSuccess, &HeaderDigestWrong, Needs::kHeaderDigest},
      {"ConnectDigestWrong", Stage::kInitialized, Due::kNoSuccess, &ConnectDigestWrong, Needs::kDataDigest},
      {"Termination", Stage::kInitialized, Due::kNoSuccess, &Termination},
      {"TerminationOfAnIoQueue", Stage::kIo, Due::kNoSuccess, &Termination},
      {"CommandBeforeConnect", Stage::kInitialized, Due::kNoSuccess, &CommandBeforeConnect},
      {"DataBeforeConnect", Stage::kInitialized, Due::kNoSuccess, &DataBeforeConnect},
      {"ConnectSplit", Stage::kInitialized, Due::kServe, &ConnectSplit},
      {"ConnectHalf", Stage::kInitialized, Due::kAny, &ConnectHalf},
      {"ConnectShort", Stage::kInitialized, Due::kNoSuccess, &ConnectShort},
      {"ConnectEndlessName", Stage::kInitialized, Due::kNoSuccess, &ConnectEndlessName},
      {"ConnectFormat", Stage::kInitialized, Due::kNoSuccess, &ConnectFormat},
      {"ConnectNoEntries", Stage::kInitialized, Due::kNoSuccess, &ConnectNoEntries},
      {"ConnectManyEntries", Stage::kInitialized, Due::kAny, &ConnectManyEntries},
      {"ConnectForeign", Stage::kInitialized, Due::kNoSuccess, &ConnectForeign},
      {"ConnectTwice", Stage::kAdmin, Due::kNoSuccess, &ConnectTwice},
      {"DataUnasked", Stage::kIo, Due::kNoSuccess, &DataUnasked},
      {"DataBeyond", Stage::kIo, Due::kNoSuccess, &DataBeyond},
      {"DataTooLong", Stage::kIo, Due::kNoSuccess, &DataTooLong},
      {"DataOffset", Stage::kIo, Due::kNoSuccess, &DataOffset},
      {"DataTag", Stage::kIo, Due::kNoSuccess, &DataTag},
      {"DataCid", Stage::kIo, Due::kNoSuccess, &DataCid},
      {"DataLengthLies", Stage::kIo, Due::kNoSuccess, &DataLengthLies},
      {"DataDigestWrong", Stage::kIo, Due::kNoSuccess, &DataDigestWrong, Needs::kDataDigest},
      {"DataTwice", Stage::kIo, Due::kNoSuccess, &DataTwice},
      {"DataWithoutEnd", Stage::kIo, Due::kAny, &DataWithoutEnd},
      {"DataNeverComes", Stage::kIo, Due::kAny, &DataNeverComes},
      {"DataHalf", Stage::kIo, Due::kAny, &DataHalf},
      {"SglType", Stage::kIo, Due::kNoSuccess, &SglType},
      {"SglTooShort", Stage::kIo, Due::kNoSuccess, &SglTooShort},
      {"SglTooLong", Stage::kIo, Due::kAny, &SglTooLong},
      {"SglBeyondCapsule", Stage::kIo, Due::kNoSuccess, &SglBeyondCapsule},
      {"SglHuge", Stage::kIo, Due::kNoSuccess, &SglHuge},
      {"ReadTooShort", Stage::kIo, Due::kNoSuccess, &ReadTooShort},
      {"CapsuleTooLarge", Stage::kIo, Due::kNoSuccess, &CapsuleTooLarge},
      {"CapsuleWithoutData", Stage::kIo, Due::kNoSuccess, &CapsuleWithoutData},
      {"CapsuleDigestWrong", Stage::kIo, Due::kNoSuccess, &CapsuleDigestWrong, Needs::kDataDigest},
      {"AcrossTheEnd", Stage::kIo, Due::kNoSuccess, &AcrossTheEnd},
      {"BeyondTheEnd", Stage::kIo, Due::kNoSuccess, &BeyondTheEnd},
      {"UnknownOpcode", Stage::kIo, Due::kNoSuccess, &UnknownOpcode},
      {"UnknownNamespace", Stage::kIo, Due::kNoSuccess, &UnknownNamespace},
      {"ReservedFlags", Stage::kIo, Due::kAny, &ReservedFlags},
      {"DuplicateCid", Stage::kIo, Due::kAny, &DuplicateCid},
      {"RangesMissing", Stage::kIo, Due::kNoSuccess, &RangesMissing},
      {"AnswersUnread", Stage::kIo, Due::kAny, &AnswersUnread},
      {"LeftUnderWay", Stage::kIo, Due::kAny, &LeftUnderWay},
      {"UnknownAdminOpcode", Stage::kAdmin, Due::kNoSuccess, &UnknownAdminOpcode},
      {"UnknownProperty", Stage::kAdmin, Due::kAny, &UnknownProperty},
      {"IdentifyWithoutRoom", Stage::kAdmin, Due::kAny, &IdentifyWithoutRoom},
      {"EventsWithoutEnd", Stage::kAdmin, Due::kAny, &EventsWithoutEnd},
      {"WriteSplit", Stage::kIo, Due::kServe, &WriteSplit},
  });
}
constexpr auto kAbuses = Table();

// A connection in the stage that an abuse wants, and what keeps it alive.
struct Stage {
  UniqueFd socket;
  NvmeTcpConnection connection;
  std::unique_ptr<NvmeTcpController> controller;
  std::unique_ptr<NvmeTcpQueue> queue;

  RawLine Line(uint64_t patience_ns) const {
    if (queue != nullptr) return {queue->connection(), patience_ns};
    if (controller != nullptr) return {controller->admin_connection(), patience_ns};
    if (connection.socket) return {connection, patience_ns};
    return {socket.get(), patience_ns};
  }
};

// Where the target has digests, half of the connections are without them.
NvmeTcpDigests DigestsFor(const NvmeVictim& victim, NvmeAbuseNeeds needs, Random& random) {
  const bool with_header = random.Chance(1, 2) || needs == NvmeAbuseNeeds::kHeaderDigest;
  const bool with_data = random.Chance(1, 2) || needs == NvmeAbuseNeeds::kDataDigest;
  return {.header = victim.target.digests.header && with_header,
          .data = victim.target.digests.data && with_data};
}

Result<Stage> Reach(const NvmeVictim& victim, const NvmeAbuseCase& abuse, Random& random) {
  const NvmeAbuseStage wanted = abuse.stage;
  NvmeTcpOptions options = victim.target;
  options.digests = DigestsFor(victim, abuse.needs, random);
  options.queues = 1;
  options.depth = kDepth;
  Stage stage;
  const Deadline deadline(options.timeout_ns);
  if (wanted == NvmeAbuseStage::kSocket) {
    CLEAT_ASSIGN(stage.socket, ConnectSocket(options.address, deadline));
    return stage;
  }
  if (wanted == NvmeAbuseStage::kInitialized) {
    CLEAT_ASSIGN(stage.connection, NvmeTcpConnection::Open(options.address, options.digests, deadline));
    return stage;
  }
  CLEAT_ASSIGN(stage.controller, NvmeTcpController::Open(options));
  if (wanted == NvmeAbuseStage::kAdmin) return stage;
  CLEAT_TRY(stage.controller->ReserveQueues(1));
  CLEAT_ASSIGN(stage.queue, stage.controller->OpenQueue(1));
  return stage;
}

NvmeOutcome OutcomeOf(const RawHeard& heard) {
  switch (heard.what) {
    case RawHeard::What::kSilence:
      return NvmeOutcome::kSilent;
    case RawHeard::What::kClosed:
      return NvmeOutcome::kClosed;
    case RawHeard::What::kTermination:
      return NvmeOutcome::kTerminated;
    case RawHeard::What::kResponse:
      return heard.status == 0 ? NvmeOutcome::kServed : NvmeOutcome::kRefused;
    case RawHeard::What::kInitialized:
    case RawHeard::What::kData:  // the last of it, which is a success
      return NvmeOutcome::kServed;
    default:
      return NvmeOutcome::kAnswered;
  }
}

// A reset, or an orderly end.
void Leave(int socket, Random& random) {
  const linger reset{.l_onoff = 1, .l_linger = 0};
  if (random.Chance(1, 2)) setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  shutdown(socket, random.Chance(1, 2) ? SHUT_WR : SHUT_RDWR);
}

NvmeAttackResult Judge(const NvmeAbuseCase& abuse, NvmeAttack& attack) {
  NvmeAttackResult result;
  if (!attack.problem.empty()) {
    result.problem = attack.problem;
    return result;
  }
  if (attack.leaves) {
    Leave(attack.line.socket(), attack.random);
    result.outcome = NvmeOutcome::kLeft;
    return result;
  }
  if (abuse.due == NvmeAbuseDue::kServe && attack.was_served) {
    result.outcome = NvmeOutcome::kServed;
    return result;
  }
  const RawHeard heard = attack.heard ? *attack.heard : attack.line.HearTheEnd();
  result.outcome = OutcomeOf(heard);
  result.reason = result.outcome == NvmeOutcome::kTerminated ? heard.reason : heard.status;
  if (!attack.wrong.empty()) {
    result.finding = attack.wrong;
  } else if (abuse.due == NvmeAbuseDue::kServe) {
    result.finding =
        fmt::format("was {}, and is allowed", kNvmeOutcomeNames[static_cast<size_t>(result.outcome)]);
  } else if (abuse.due == NvmeAbuseDue::kNoSuccess && result.outcome == NvmeOutcome::kServed) {
    result.finding = "was served with success, and is not allowed";
  }
  return result;
}

}  // namespace

RawPdu NvmeAttack::Capsule(const wire::NvmeCommand& command, std::span<const uint8_t> data) const {
  wire::PduCommand pdu{};
  pdu.command = command;
  return line.Make(pdu, wire::kPduCommand, data);
}

std::span<const NvmeAbuseCase> NvmeAbuses() {
  return kAbuses;
}

NvmeAttackResult CommitAbuse(const NvmeVictim& victim, const NvmeAbuseCase& abuse, uint64_t seed) {
  Random random(seed);
  const Result<Stage> stage = Reach(victim, abuse, random);
  if (!stage) {
    NvmeAttackResult result;
    result.problem = stage.error().message;
    return result;
  }
  // What has to be served is waited for as others wait: a target that is slow has done nothing wrong.
  const bool is_allowed = abuse.due == NvmeAbuseDue::kServe;
  RawLine line = stage->Line(is_allowed ? victim.target.timeout_ns : victim.patience_ns);
  NvmeAttack attack{
      .victim = victim, .random = random, .line = line, .wrong = {}, .problem = {}, .heard = {}};
  abuse.commit(attack);
  return Judge(abuse, attack);
}

}  // namespace cleat::perf
