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
