// SPDX-License-Identifier: Apache-2.0
// cleat-perf copy-loop.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "perf/bare_loops/copy_loop.h"
#include "perf/load/load_options.h"
#include "perf/report/report.h"
#include "perf/tool/command_line.h"

namespace cleat::perf {
namespace {

constexpr int kCoreMax = 1023;

constexpr const char* kCopyLoopFooter =
    R"(Copies random blocks of a memory of the disk's size into as many buffers as requests would be in flight: what a memory
disk does to memory, with nothing around it.

Example:
  cleat-perf copy-loop --core 0 --disk 512M --depth 32

Exit status: 0 - all went well, 1 - errors.)";

class CopyLoopCommand final : public Command {
 public:
  explicit CopyLoopCommand(CLI::App& parent) {
    app = parent.add_subcommand("copy-loop",
                                "Calibrate the machine: the copies of a memory disk, nothing else");
    app->footer(kCopyLoopFooter);
    app->add_option("--core", options_.core, "To run on (default: the kernel chooses)")
        ->check(CLI::Range(0, kCoreMax))
        ->option_text("N");
    app->add_option("--disk", disk_, "Size of the memory that is copied from")
        ->type_name("SIZE")
        ->capture_default_str();
    app->add_option("--block-size", block_size_, "Bytes a copy")->type_name("SIZE")->capture_default_str();
    app->add_option("--depth", options_.depth, "Buffers that are copied to, in turn")
        ->check(CLI::Range(1U, kLoadDepthMax))
        ->capture_default_str();
    app->add_option("--time", time_s_, "Seconds")->check(CLI::PositiveNumber)->capture_default_str();
    AddJson(*app, json_);
  }

  int Run(const std::vector<std::string>& command_line) override {
    Result<uint64_t> disk_bytes = ParseSize(disk_);
    if (!disk_bytes) return Complain(disk_bytes.error());
    Result<uint64_t> block_bytes = ParseSize(block_size_);
    if (!block_bytes) return Complain(block_bytes.error());
    options_.disk_bytes = *disk_bytes;
    options_.block_bytes = static_cast<uint32_t>(std::min<uint64_t>(*block_bytes, UINT32_MAX));
    options_.time_ns = Nanoseconds(time_s_);
    Result<CopyLoopReport> report = RunCopyLoop(options_);
    if (!report) return Complain(report.error());
    if (json_ != "-") {
      fmt::print("copy  {:>8.1f} ns a block\n", report->ns_per_copy());
    }
    const Json settings = {{"disk_bytes", options_.disk_bytes},
                           {"block_bytes", options_.block_bytes},
                           {"depth", options_.depth},
                           {"time_ns", options_.time_ns},
                           {"core", options_.core}};
    const Json result = {{"ns_per_copy", std::round(report->ns_per_copy() * 100) / 100},
                         {"copied_blocks", report->copied_blocks}};
    const Status status = WriteJson(json_, command_line, settings, result);
    return status ? kExitGood : Complain(status.error());
  }

 private:
  CopyLoopOptions options_;
  std::string disk_ = "512M";
  std::string block_size_ = "4k";
  std::string json_;
  double time_s_ = 1;
};

}  // namespace

std::unique_ptr<Command> AddCopyLoopCommand(CLI::App& app) {
  return std::make_unique<CopyLoopCommand>(app);
}

}  // namespace cleat::perf
