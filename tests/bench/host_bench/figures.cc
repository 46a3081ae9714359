// SPDX-License-Identifier: Apache-2.0
#include "figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "perf/report/report.h"

namespace cleat::bench {
namespace {

double Spread(const std::vector<double>& runs) {
  const auto [low, high] = std::minmax_element(runs.begin(), runs.end());
  return (*high - *low) / 2;
}

}  // namespace

double Percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

void Figures::Add(const std::string& name, const std::string& unit, std::vector<double> runs) {
  CLEAT_CHECK(!runs.empty());
  fmt::print("  {} = {:.4g} {} (+- {:.2g})\n", name, Percentile(runs, 0.5), unit, Spread(runs));
  std::fflush(stdout);
  figures_[name] = {unit, std::move(runs)};
}

double Figures::Value(const std::string& name) const {
  const auto found = figures_.find(name);
  CLEAT_CHECK(found != figures_.end());
  return Percentile(found->second.runs, 0.5);
}

Status Figures::Write(const std::string& path) const {
  perf::Json json = perf::Json::object();
  for (const auto& [name, figure] : figures_) {
    json[name] = {{"value", Percentile(figure.runs, 0.5)},
                  {"unit", figure.unit},
                  {"spread", Spread(figure.runs)},
                  {"runs", figure.runs}};
  }
  return perf::WriteText(path, json.dump(2) + "\n");
}

}  // namespace cleat::bench
