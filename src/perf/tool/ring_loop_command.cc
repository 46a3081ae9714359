// SPDX-License-Identifier: Apache-2.0
// cleat-perf ring-loop.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "perf/bare_loops/ring_loop.h"
#include "perf/report/report.h"
#include "perf/tool/command_line.h"

namespace cleat::perf {
namespace {

constexpr const char* kRingLoopFooter =
    R"(The driver and the rings of 'run', and for a device a loop on another core of this process that takes each
chain, reads its header and writes its status: what the machine allows, without an engine. An engine's
nanoseconds a request are to be read against these. Results are named <split|packed>_qd<depth>.

Examples:
  cleat-perf ring-loop --cores 0,1
  cleat-perf ring-loop --cores 0,1 --depths 1,32 --time 0.5 --json -

Exit status: 0 - all went well, 1 - errors.)";

class RingLoopCommand final : public Command {
 public:
  explicit RingLoopCommand(CLI::App& parent) {
    app =
        parent.add_subcommand("ring-loop", "Calibrate the machine: the same rings, a bare loop behind them");
    app->footer(kRingLoopFooter);
    app->add_option("--cores", cores_, "Two: of the generator, of the device (default: the kernel chooses)")
        ->type_name("LIST");
    app->add_option("--depths", depths_, "Requests in flight, one measurement each")
        ->type_name("LIST")
        ->capture_default_str();
    app->add_option("--block-size", block_size_, "Bytes a request (nobody touches them)")
        ->type_name("SIZE")
        ->capture_default_str();
    app->add_option("--time", time_s_, "Seconds a measurement")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_flag("!--no-indirect", indirect_, "Chains in the ring instead of indirect tables");
    AddJson(*app, json_);
  }

  int Run(const std::vector<std::string>& command_line) override {
    Result<std::vector<uint32_t>> depths = ParseList(depths_, kLoadDepthMax);
    if (!depths) return Complain(depths.error());
    Result<uint64_t> block_bytes = ParseSize(block_size_);
    if (!block_bytes) return Complain(block_bytes.error());
    RingLoopOptions options{
        .indirect = indirect_,
        .block_bytes = static_cast<uint32_t>(std::min<uint64_t>(*block_bytes, UINT32_MAX)),
        .time_ns = Nanoseconds(time_s_)};
    if (!cores_.empty()) {
      Result<std::vector<uint32_t>> cores = ParseList(cores_, kCoreNumberMax);
      if (!cores) return Complain(cores.error());
      if (cores->size() != 2) return Complain({ErrorCode::kInvalidArgument, "--cores: two are wanted"});
      options.generator_core = static_cast<int>((*cores)[0]);
      options.device_core = static_cast<int>((*cores)[1]);
    }
    Json result;
    uint64_t errors = 0;
    for (const bool packed : {false, true}) {
      for (const uint32_t depth : *depths) {
        options.packed = packed;
        options.depth = depth;
        Result<RingLoopReport> report = RunRingLoop(options);
        if (!report) return Complain(report.error());
        errors += report->errors;
        const std::string name = fmt::format("{}_qd{}", packed ? "packed" : "split", depth);
        result[name] = {{"ns_per_request", std::round(report->ns_per_request() * 100) / 100},
                        {"requests", report->requests},
                        {"errors", report->errors},
                        {"elapsed_ns", report->elapsed_ns},
                        {"latency_ns", LatencyJson(report->latency)}};
        if (json_ != "-") {
          fmt::print("{:<14} {:>8.1f} ns a request, {:>6.2f} million a second, p99 {} ns\n", name,
                     report->ns_per_request(), 1e3 / report->ns_per_request(),
                     report->latency.PercentileNs(0.99));
        }
      }
    }
    const Json settings = {{"depths", *depths},
                           {"block_bytes", *block_bytes},
                           {"time_ns", options.time_ns},
                           {"indirect", indirect_},
                           {"cores", cores_}};
    if (Status status = WriteJson(json_, command_line, settings, result); !status)
      return Complain(status.error());
    return errors == 0 ? kExitGood : kExitFailed;
  }

 private:
  std::string cores_, json_;
  std::string depths_ = "1,32,128";
  std::string block_size_ = "4k";
  double time_s_ = 1;
  bool indirect_ = true;
};

}  // namespace

std::unique_ptr<Command> AddRingLoopCommand(CLI::App& app) {
  return std::make_unique<RingLoopCommand>(app);
}

}  // namespace cleat::perf
