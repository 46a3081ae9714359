// SPDX-License-Identifier: Apache-2.0
// cleat-perf hostile.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "perf/nvme_hostile/hostile_run.h"
#include "perf/report/report.h"
#include "perf/tool/command_line.h"

namespace cleat::perf {
namespace {

constexpr const char* kHostileFooter =
    R"(Attackers send one abuse after another, each on a connection of its own and chosen by the seed: wrong types, lengths and offsets of PDUs,
PDUs in pieces, wrong digests, data that nobody asked for or beyond what was, commands before Connect, identifiers twice, impossible SGLs,
connections that are left in each state. A crowd of connections says nothing. Beside them a witness, which keeps all rules, writes and
checks the last blocks of the namespace (a quarter, 4 MiB at most), and a host that comes afterwards reads them all once more.
What is on the namespace is lost. There is no TLS and no authentication.

Findings are what the target did against the rules: an abuse that was served with success, or something odd and allowed that was not.
Each has its attack's number: --seed S --first N --attacks 1, beside the same options, commits that one again.

Exit status: 0 - the target has stood it, 1 - findings, errors, it serves no longer, or nothing could be sent, 2 - the witness was given wrong data.

Examples:
  cleat-perf hostile --nvme-tcp 10.0.0.1:4420 --nqn nqn.2024-01.org.example:scratch --time 600 --header-digest --data-digest
  cleat-perf hostile --nvme-tcp 10.0.0.1:4420 --nqn nqn.2024-01.org.example:scratch --only DataBeyond --only DataTwice --attacks 1000)";

class HostileCommand final : public Command {
 public:
  explicit HostileCommand(CLI::App& parent) {
    app = parent.add_subcommand("hostile",
                                "Send an NVMe/TCP target what it has to survive, and see whether it does");
    app->footer(kHostileFooter);
    AddTargetOptions();
    AddRunOptions();
  }

  int Run(const std::vector<std::string>& command_line) override {
    Prepare();
    Result<NvmeHostileReport> report = RunHostile(options_);
    if (!report) return Complain(report.error());
    int status = report->good() ? kExitGood : kExitFailed;
    if (report->wrong_data()) status = kExitDataFault;
    if (json_ != "-") std::fputs(HostileText(*report).c_str(), stdout);
    if (Status written = WriteJson(json_, command_line, OptionsJson(), HostileJson(*report)); !written)
      status = std::max(status, Complain(written.error()));
    return status;
  }

 private:
  void AddTargetOptions() {
    const char* group = "Target";
    const NvmeTargetOptions target = AddNvmeTarget(
        *app, options_.target, group,
        {.address = "Its address and port",
         .host_id = "another one for each association",
         .header_digest = "The target does header digests: the witness has them, and half of the attacks",
         .data_digest = "Likewise, of data"});
    target.address->required();
    target.nqn->required();
    app->add_option("--timeout", timeout_s_,
                    "Seconds that the witness waits for an answer before the target counts as dead")
        ->check(CLI::PositiveNumber)
        ->capture_default_str()
        ->group(group);
  }

  void AddRunOptions() {
    const char* group = "Run";
    app->add_option("--time", time_s_, "Seconds (default 10, unless --attacks is given)")
        ->check(CLI::PositiveNumber)
        ->group(group);
    app->add_option("--attacks", options_.attacks, "So many attacks")->group(group);
    app->add_option("--first", options_.first_attack, "The number of the first one")->group(group);
    app->add_option("--seed", options_.seed,
                    "Of everything random (default: another one each time; it is printed)")
        ->group(group);
    app->add_option("--only", options_.only,
                    "Commit this abuse alone. Repeatable; an unknown name lists them all")
        ->type_name("NAME")
        ->group(group);
    app->add_option("--attackers", options_.attackers, "Attacks at once")
        ->check(CLI::Range(uint16_t{1}, kNvmeAttackersMax))
        ->capture_default_str()
        ->group(group);
    app->add_option("--connections", options_.crowd,
                    "Connections at once that say nothing, opened and left again and again")
        ->check(CLI::Range(0U, kNvmeCrowdMax))
        ->capture_default_str()
        ->group(group);
    app->add_option("--patience", patience_ms_, "Milliseconds that an attacker waits for an answer")
        ->check(CLI::Range(1, 60'000))
        ->capture_default_str()
        ->group(group);
    AddJson(*app, json_)->group(group);
  }

  void Prepare() {
    if (time_s_ == 0 && options_.attacks == 0) time_s_ = 10;
    options_.time_ns = Nanoseconds(time_s_);
    options_.patience_ns = static_cast<uint64_t>(patience_ms_) * kNsPerMs;
    options_.target.timeout_ns = Nanoseconds(timeout_s_);
    if (app->get_option("--seed")->empty()) options_.seed = Random(MonotonicClock().NowNs()).Next();
    options_.stop = StopOnSignals();
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(options_.seed));
    AllowManyDescriptors();
  }

  Json OptionsJson() const {
    Json json;
    json["header_digest"] = options_.target.digests.header;
    json["data_digest"] = options_.target.digests.data;
    json["seed"] = options_.seed;
    json["first"] = options_.first_attack;
    json["attacks"] = options_.attacks;
    json["time_ns"] = options_.time_ns;
    json["attackers"] = options_.attackers;
    json["connections"] = options_.crowd;
    json["patience_ns"] = options_.patience_ns;
    json["timeout_ns"] = options_.target.timeout_ns;
    json["only"] = options_.only;
    return json;
  }

  NvmeHostileOptions options_;
  double time_s_ = 0, timeout_s_ = 10;
  int patience_ms_ = 200;
  std::string json_;
};

}  // namespace

std::unique_ptr<Command> AddHostileCommand(CLI::App& app) {
  return std::make_unique<HostileCommand>(app);
}

}  // namespace cleat::perf
