// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_hostile/hostile_run.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

namespace cleat::perf {
namespace {

constexpr int kLookMs = 20;  // between two looks at whether the time is over
// In the place of an attack's number, which is never so high.
constexpr uint64_t kCrowdSeed = UINT64_MAX - 1;
constexpr uint64_t kWitnessSeed = UINT64_MAX - 2;

uint64_t SeedOf(uint64_t seed, uint64_t number) {
  return Random(seed ^ Random(number + 1).Next()).Next();
}

bool IsPossible(const NvmeAbuseCase& abuse, NvmeTcpDigests digests) {
  if (abuse.needs == NvmeAbuseNeeds::kHeaderDigest) return digests.header;
  return abuse.needs != NvmeAbuseNeeds::kDataDigest || digests.data;
}

Result<NvmeAbuseCase> Named(const std::string& name, NvmeTcpDigests digests) {
  const std::span<const NvmeAbuseCase> all = NvmeAbuses();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& abuse) { return abuse.name == name; });
  if (found == all.end()) {
    std::string names;
    for (const NvmeAbuseCase& abuse : all)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", abuse.name);
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("no abuse is named '{}': there are {}", name, names));
  }
  if (!IsPossible(*found, digests)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} is about a digest, which the target is not asked for: ask for it", name));
  }
  return *found;
}

Result<std::vector<NvmeAbuseCase>> Chosen(const NvmeHostileOptions& options) {
  std::vector<NvmeAbuseCase> chosen;
  for (const std::string& name : options.only) {
    CLEAT_ASSIGN(const NvmeAbuseCase abuse, Named(name, options.target.digests));
    chosen.push_back(abuse);
  }
  if (!options.only.empty()) return chosen;
  std::ranges::copy_if(NvmeAbuses(), std::back_inserter(chosen),
                       [&](const auto& abuse) { return IsPossible(abuse, options.target.digests); });
  return chosen;
}

class HostileRun {
 public:
  explicit HostileRun(const NvmeHostileOptions& options)
      : options_(options), witness_(options.target, SeedOf(options.seed, kWitnessSeed)) {}

  Result<NvmeHostileReport> Run() {
    CLEAT_ASSIGN(abuses_, Chosen(options_));
    CLEAT_TRY(witness_.Begin());
    CLEAT_TRY(ShareOut());
    const uint64_t begin_ns = clock_.NowNs();
    std::thread witness([this] {
      witness_.Run(done_);
      witness_ended_.store(true);
    });
    std::thread crowd([this] { Crowd(); });
    std::vector<std::thread> threads;
    for (Attacker& attacker : attackers_) threads.emplace_back([this, &attacker] { Attack(attacker); });
    Watch(begin_ns);
    over_.store(true);
    for (std::thread& thread : threads) thread.join();
    crowd.join();
    done_.store(true);  // after the last attack
    witness.join();
    witness_.Recheck();
    NvmeHostileReport report = Report();
    report.elapsed_ns = clock_.NowNs() - begin_ns;
    return report;
  }

 private:
  struct Attacker {
    NvmeVictim victim;
    std::vector<NvmeHostileReport::Kind> kinds;
    NvmeHostileReport sum;
  };

  // The blocks before the witness's, in equal parts: the last attacker's are next to the witness's.
  Status ShareOut() {
    const NvmeTcpController::Namespace& disk = witness_.disk();
    const uint64_t blocks = witness_.first_block() / options_.attackers;
    if (blocks < kVictimBlocksMin) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: namespace {} has {} blocks for each of {} attackers, {} are wanted: use fewer",
                      options_.target.address, disk.nsid, blocks, options_.attackers, kVictimBlocksMin));
    }
    attackers_.resize(options_.attackers);
    uint64_t first_block = witness_.first_block() - blocks * options_.attackers;
    for (Attacker& attacker : attackers_) {
      attacker.victim = {.target = options_.target,
                         .nsid = disk.nsid,
                         .block_bytes = disk.block_bytes,
                         .disk_blocks = disk.blocks,
                         .first_block = first_block,
                         .blocks = blocks,
                         .transfer_bytes_max = witness_.facts().transfer_bytes_max,
                         .capsule_data_bytes = witness_.facts().capsule_data_bytes,
                         .patience_ns = options_.patience_ns};
      attacker.kinds.resize(abuses_.size());
      first_block += blocks;
    }
    return Ok{};
  }

  void Watch(uint64_t begin_ns) {
    while (!witness_ended_.load() && attackers_over_.load() < attackers_.size()) {
      if (options_.time_ns != 0 && clock_.NowNs() - begin_ns >= options_.time_ns) return;
      if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) return;
      poll(nullptr, 0, kLookMs);
    }
  }

  void Attack(Attacker& attacker) {
    while (!over_.load()) {
      const uint64_t taken = next_attack_.fetch_add(1);
      if (options_.attacks != 0 && taken >= options_.attacks) break;
      const uint64_t number = options_.first_attack + taken;
      Random random(SeedOf(options_.seed, number));
      const size_t kind = random.Below(abuses_.size());
      const NvmeAttackResult result = CommitAbuse(attacker.victim, abuses_[kind], random.Next());
      Count(attacker, kind, number, result);
      // A target that takes no connections is not asked again at once.
      if (result.outcome == NvmeOutcome::kNoStart) poll(nullptr, 0, kLookMs);
    }
    attackers_over_.fetch_add(1);
  }

  void Count(Attacker& attacker, size_t kind, uint64_t number, const NvmeAttackResult& result) const {
    NvmeHostileReport::Kind& counts = attacker.kinds[kind];
    NvmeHostileReport& sum = attacker.sum;
    ++sum.attacks;
    const bool is_sent = result.outcome != NvmeOutcome::kNoStart;
    ++(is_sent ? counts.sent : sum.not_begun);
    ++counts.outcomes[static_cast<size_t>(result.outcome)];
    if (result.outcome == NvmeOutcome::kTerminated) ++counts.reasons[result.reason];
    if (result.outcome == NvmeOutcome::kRefused) ++counts.statuses[result.reason];
    if (sum.first_problem.empty()) sum.first_problem = result.problem;
    if (result.finding.empty()) return;
    ++sum.finding_count;
    if (sum.findings.size() < kNvmeFindingsMax)
      sum.findings.push_back(fmt::format("attack {}: {} {}", number, abuses_[kind].name, result.finding));
  }

  // Connections that say nothing, half an ICReq, or no more than that; when all are there, they go at once.
  void Crowd() {
    Random random(SeedOf(options_.seed, kCrowdSeed));
    const std::vector<uint8_t> request = RawPdu::Make(wire::PduInitialize{}, wire::kPduIcReq).Bytes();
    std::vector<UniqueFd> sockets;
    while (!over_.load() && options_.crowd > 0) {
      auto socket = ConnectSocket(options_.target.address, Deadline(options_.target.timeout_ns));
      if (!socket) {
        ++crowd_refused_;
        poll(nullptr, 0, kLookMs);
      } else {
        ++crowd_opened_;
        const std::array<size_t, 3> lengths = {0, request.size() / 2, request.size()};
        const std::span<const uint8_t> said = std::span(request).first(lengths[random.Below(lengths.size())]);
        if (!said.empty()) RawLine(socket->get(), options_.patience_ns).Send(said);
        sockets.push_back(std::move(*socket));
      }
      crowd_most_ = std::max(crowd_most_, static_cast<uint32_t>(sockets.size()));
      if (sockets.size() < options_.crowd) continue;
      poll(nullptr, 0, static_cast<int>(options_.patience_ns / kNsPerMs));
      EndCrowd(&sockets, random);
    }
    EndCrowd(&sockets, random);
  }

  static void EndCrowd(std::vector<UniqueFd>* sockets, Random& random) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    for (const UniqueFd& socket : *sockets) {
      if (random.Chance(1, 2)) setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    sockets->clear();
  }

  NvmeHostileReport Report() {
    NvmeHostileReport report;
    report.seed = options_.seed;
    for (size_t kind = 0; kind < abuses_.size(); ++kind) {
      NvmeHostileReport::Kind sum;
      sum.name = abuses_[kind].name;
      for (const Attacker& attacker : attackers_) {
        const NvmeHostileReport::Kind& one = attacker.kinds[kind];
        sum.sent += one.sent;
        for (size_t i = 0; i < sum.outcomes.size(); ++i) sum.outcomes[i] += one.outcomes[i];
        for (const auto& [reason, count] : one.reasons) sum.reasons[reason] += count;
        for (const auto& [status, count] : one.statuses) sum.statuses[status] += count;
      }
      report.kinds.push_back(std::move(sum));
    }
    for (const Attacker& attacker : attackers_) {
      report.attacks += attacker.sum.attacks;
      report.not_begun += attacker.sum.not_begun;
      report.finding_count += attacker.sum.finding_count;
      for (const std::string& finding : attacker.sum.findings) {
        if (report.findings.size() < kNvmeFindingsMax) report.findings.push_back(finding);
      }
      if (report.first_problem.empty()) report.first_problem = attacker.sum.first_problem;
    }
    report.crowd_opened = crowd_opened_;
    report.crowd_refused = crowd_refused_;
    report.crowd_most = crowd_most_;
    report.witness = witness_.report();
    return report;
  }

  const NvmeHostileOptions options_;
  const MonotonicClock clock_;
  NvmeWitness witness_;
  std::vector<NvmeAbuseCase> abuses_;
  std::vector<Attacker> attackers_;
  std::atomic<uint64_t> next_attack_{0};
  std::atomic<size_t> attackers_over_{0};
  std::atomic<bool> over_{false};  // for attackers and crowd
  std::atomic<bool> done_{false};  // for the witness
  std::atomic<bool> witness_ended_{false};
  // The crowd's, read after it has ended.
  uint64_t crowd_opened_ = 0;
  uint64_t crowd_refused_ = 0;
  uint32_t crowd_most_ = 0;
};

Status CheckOptions(const NvmeHostileOptions& options) {
  if (options.attackers == 0 || options.attackers > kNvmeAttackersMax || options.crowd > kNvmeCrowdMax) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{} attackers and a crowd of {}: from 1 to {} attackers and a crowd of {} at most are wanted",
            options.attackers, options.crowd, kNvmeAttackersMax, kNvmeCrowdMax));
  }
  if (options.time_ns == 0 && options.attacks == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "neither a time nor a number of attacks is given: give one of them");
  if (options.patience_ns == 0)
    return Error(ErrorCode::kInvalidArgument, "an attacker has to wait for answers: the patience is 0");
  return Ok{};
}

}  // namespace

Result<NvmeHostileReport> RunHostile(const NvmeHostileOptions& options) {
  CLEAT_TRY(CheckOptions(options));
  return HostileRun(options).Run();
}

}  // namespace cleat::perf
