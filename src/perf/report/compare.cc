// SPDX-License-Identifier: Apache-2.0
#include "perf/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "perf/report/report.h"

namespace cleat::perf {
namespace {

constexpr size_t kValuesMax = 10'000;
constexpr int kNestingMax = 16;

std::string Joined(const std::string& name, const std::string& key) {
  return name.empty() ? key : fmt::format("{}.{}", name, key);
}

void Flatten(const Json& json, const std::string& name, int depth, std::vector<ResultValue>* values) {
  if (values->size() >= kValuesMax || depth > kNestingMax) return;
  if (json.is_number()) {
    values->push_back({.name = name, .value = json.get<double>(), .unit = {}});
    return;
  }
  if (json.is_array()) {
    for (const auto& element : json) {
      if (!element.is_object()) continue;
      const std::string key = element.contains("name") && element["name"].is_string() ? element["name"] : "";
      if (!key.empty()) Flatten(element, Joined(name, key), depth + 1, values);
    }
    return;
  }
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) Flatten(value, Joined(name, key), depth + 1, values);
}

std::string Number(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  return size >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.3f}", value);
}

}  // namespace

Result<std::vector<ResultValue>> ReadResults(std::string_view text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(ErrorCode::kInvalidArgument, name + ": this is no JSON object");
  std::vector<ResultValue> values;
  if (json.contains("result") && json.contains("version")) {
    Flatten(json["result"], {}, 0, &values);
  } else {
    for (const auto& [key, entry] : json.items()) {
      if (!entry.is_object() || !entry.contains("value") || !entry["value"].is_number()) continue;
      ResultValue value{.name = key, .value = entry["value"].get<double>(), .unit = {}};
      if (entry.contains("spread") && entry["spread"].is_number())
        value.spread = entry["spread"].get<double>();
      if (entry.contains("unit") && entry["unit"].is_string()) value.unit = entry["unit"].get<std::string>();
      values.push_back(std::move(value));
    }
  }
  if (values.empty()) {
    return Error(
        ErrorCode::kInvalidArgument,
        name + ": neither a result of cleat-perf nor an object of name -> {value, unit, spread, runs}");
  }
  return values;
}

std::string CompareTable(const std::vector<ResultValue>& a, const std::vector<ResultValue>& b) {
  size_t width = 4;
  for (const auto* side : {&a, &b}) {
    for (const ResultValue& value : *side) width = std::max(width, value.name.size());
  }
  std::string text = fmt::format("{:<{}} {:>14} {:>14} {:>8}\n", "name", width, "A", "B", "B / A");
  std::string lonely;
  const auto find = [](const std::vector<ResultValue>& values, const std::string& name) {
    const auto found =
        std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.name == name; });
    return found == values.end() ? nullptr : &*found;
  };
  for (const ResultValue& left : a) {
    const ResultValue* right = find(b, left.name);
    if (right == nullptr) {
      lonely += fmt::format("{:<{}} {:>14} {:>14}\n", left.name, width, Number(left.value), "-");
      continue;
    }
    const std::string ratio = left.value == 0 ? (right->value == 0 ? "1.000" : "-")
                                              : fmt::format("{:.3f}", right->value / left.value);
    text += fmt::format("{:<{}} {:>14} {:>14} {:>8}", left.name, width, Number(left.value),
                        Number(right->value), ratio);
    if (!left.unit.empty()) text += " " + left.unit;
    const double spread = left.spread + right->spread;
    if (spread > 0 && std::abs(right->value - left.value) <= spread) text += " (within the spread)";
    text += "\n";
  }
  for (const ResultValue& right : b) {
    if (find(a, right.name) != nullptr) continue;
    lonely += fmt::format("{:<{}} {:>14} {:>14}\n", right.name, width, "-", Number(right.value));
  }
  return text + lonely;
}

}  // namespace cleat::perf
