// SPDX-License-Identifier: Apache-2.0
// What the order of RDMA READs is worth: Cleat's beside others', in a model of an adapter, in virtual time. The same seeds give the same figures on
// every machine.
//
//   cleat-rdma-bench --json FILE [--quick]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "host_bench/figures.h"
#include "tests/sim/rdma/read_comparison.h"

namespace cleat::bench {
namespace {

using sim::rdma::Comparison;
using sim::rdma::LatencyLaw;
using sim::rdma::Load;
using sim::rdma::PolicyKind;

constexpr std::array kLaws = {LatencyLaw::kEven, LatencyLaw::kExponential};

const char* NameOf(LatencyLaw law) {
  return law == LatencyLaw::kEven ? "even" : "exponential";
}

// An adapter, a link, or a load, and what the names of its figures begin with.
struct Setting {
  std::string prefix;
  Load load;
};

std::vector<Setting> MakeSettings(uint32_t writes) {
  Load as_they_come;
  as_they_come.writes = writes;
  Load in_order = as_they_come;
  in_order.in_order = true;
  Load polled = in_order;
  polled.poll_ns = in_order.mean_ns / 10;
  Load full_link = in_order;
  full_link.link_ns = in_order.mean_ns / 4;
  Load mixed = in_order;
  mixed.mixed = true;
  return {{"rdma_reads_as_they_come", as_they_come},
          {"rdma_reads_in_order", in_order},
          {"rdma_reads_polled", polled},
          {"rdma_reads_full_link", full_link},
          {"rdma_reads_mixed", mixed}};
}

// Of two, that of which the median is worse.
const std::vector<double>& Worse(const std::vector<double>& first, const std::vector<double>& second,
                                 bool higher_is_worse) {
  return (Percentile(first, 0.5) > Percentile(second, 0.5)) == higher_is_worse ? first : second;
}

void AddComparison(const Setting& setting, PolicyKind other, Figures& figures) {
  std::array<Comparison, 2> laws;
  for (size_t i = 0; i < kLaws.size(); ++i) {
    Load load = setting.load;
    load.law = kLaws[i];
    laws[i] = CompareWith(other, load);
    const std::string suffix = std::string(sim::rdma::NameOf(other)) + "_policy_" + NameOf(kLaws[i]);
    figures.Add(setting.prefix + "_throughput_vs_" + suffix, "ratio", laws[i].throughput);
    figures.Add(setting.prefix + "_write_p99_vs_" + suffix, "ratio", laws[i].p99);
    figures.Add(setting.prefix + "_most_vs_" + suffix, "ratio", laws[i].most);
    figures.Add(setting.prefix + "_credit_use_of_" + suffix, "%", laws[i].credit_use_percent);
    if (load.mixed) figures.Add(setting.prefix + "_small_write_p99_vs_" + suffix, "ratio", laws[i].small_p99);
  }
  if (setting.prefix != "rdma_reads_as_they_come" || other != PolicyKind::kSpdk) return;
  // The bars, which are of this adapter: docs/nvmeof.md.
  figures.Add("rdma_read_throughput_vs_spdk_policy", "ratio",
              Worse(laws[0].throughput, laws[1].throughput, false));
  figures.Add("rdma_write_p99_vs_spdk_policy", "ratio", Worse(laws[0].p99, laws[1].p99, true));
  std::vector<double> use = laws[0].cleat_credit_use_percent;
  use.insert(use.end(), laws[1].cleat_credit_use_percent.begin(), laws[1].cleat_credit_use_percent.end());
  figures.Add("rdma_credit_use_percent", "%", {*std::min_element(use.begin(), use.end())});
}

// 99th percentile of a write, in READs' mean time, over the number of its READs.
void AddCurves(const Setting& setting, Figures& figures) {
  for (const PolicyKind kind : sim::rdma::kPolicyKinds) {
    for (uint32_t reads = sim::rdma::kReadsMin; reads <= sim::rdma::kReadsMax; reads += 2) {
      Load load = setting.load;
      load.law = LatencyLaw::kExponential;
      load.reads_a_write = reads;
      const auto p99_ns = static_cast<double>(RunPolicy(kind, load).p99_ns);
      figures.Add(setting.prefix + "_write_p99_" + sim::rdma::NameOf(kind) + "_of_" + std::to_string(reads),
                  "reads", {p99_ns / static_cast<double>(load.mean_ns)});
    }
  }
}

int Main(int argc, char** argv) {
  CLI::App app("What the order of RDMA READs is worth, in a model of an adapter.");
  std::string json;
  std::string bin_dir;
  int core = -1;
  bool quick = false;
  app.add_option("--json", json, "The figures, to a file or - for standard output")->required();
  app.add_option("--bin-dir", bin_dir, "Not used: nothing else is run");
  app.add_option("--engine-core", core, "Not used: time is virtual");
  app.add_flag("--quick", quick, "A smoke test. Its figures mean little");
  CLI11_PARSE(app, argc, argv);
  Figures figures;
  for (const Setting& setting : MakeSettings(quick ? 100 : 4'000)) {
    for (const PolicyKind other : sim::rdma::kPolicyKinds) {
      if (other != PolicyKind::kCleat) AddComparison(setting, other, figures);
    }
    if (setting.prefix == "rdma_reads_in_order") AddCurves(setting, figures);
  }
  const Status written = figures.Write(json);
  if (!written) {
    std::fprintf(stderr, "cleat-rdma-bench: %s\n", written.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cleat::bench

int main(int argc, char** argv) {
  return cleat::bench::Main(argc, argv);
}
