// SPDX-License-Identifier: Apache-2.0
// cleat-perf compare.
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "perf/report/compare.h"
#include "perf/tool/command_line.h"

namespace cleat::perf {
namespace {

constexpr const char* kCompareFooter =
    R"(Files: --json results of 'run' and 'ring-loop', or an object name -> {value, unit, spread, runs} as the
benchmarks write it (build/bench/results.json). Shows A, B and B / A; with spreads, whether a difference is
larger than both.

Example: cleat-perf compare before.json after.json

Exit status: 0 - the table was printed, 1 - errors.)";

class CompareCommand final : public Command {
 public:
  explicit CompareCommand(CLI::App& parent) {
    app = parent.add_subcommand("compare", "Two result files as ratios");
    app->footer(kCompareFooter);
    app->add_option("A", a_, "Result file")->required();
    app->add_option("B", b_, "Result file, in relation to A")->required();
  }

  int Run(const std::vector<std::string>& /*command_line*/) override {
    auto a = Read(a_);
    if (!a) return Complain(a.error());
    auto b = Read(b_);
    if (!b) return Complain(b.error());
    std::fputs(CompareTable(*a, *b).c_str(), stdout);
    return kExitGood;
  }

 private:
  static Result<std::vector<ResultValue>> Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return ErrnoError(errno, path);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return ReadResults(text, path);
  }

  std::string a_, b_;
};

}  // namespace

std::unique_ptr<Command> AddCompareCommand(CLI::App& app) {
  return std::make_unique<CompareCommand>(app);
}

}  // namespace cleat::perf
