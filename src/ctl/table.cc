// SPDX-License-Identifier: Apache-2.0
#include "ctl/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace cleat::ctl {

void Table::Add(std::vector<std::string> row) {
  CLEAT_CHECK(row.size() == header_.size());
  rows_.push_back(std::move(row));
}

std::string Table::Rows() const {
  size_t columns = header_.size();
  const auto last_empty = [&](const auto& row) { return row.back().empty(); };
  if (std::all_of(rows_.begin(), rows_.end(), last_empty)) --columns;
  std::vector<size_t> widths(columns);
  for (size_t i = 0; i < columns; ++i) {
    widths[i] = header_[i].size();
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < columns; ++i) line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add(header_);
  for (const auto& row : rows_) add(row);
  return text;
}

std::string Table::Details() const {
  size_t width = 0;
  for (const std::string& name : header_) width = std::max(width, name.size());
  std::string text;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < header_.size(); ++i) {
      if (row[i].empty()) continue;
      std::string name = header_[i];
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      text += fmt::format("{:<{}}{}\n", name, width + 2, row[i]);
    }
  }
  return text;
}

std::string HumanSize(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  uint64_t scale = 1;
  while (unit + 1 < std::size(kUnits) && bytes / scale >= 1024) {
    scale *= 1024;
    ++unit;
  }
  if (bytes % scale == 0) return fmt::format("{} {}", bytes / scale, kUnits[unit]);
  // Halves are the only tenths that a power of two has.
  if (bytes % (scale / 2) == 0) return fmt::format("{}.5 {}", bytes / scale, kUnits[unit]);
  return fmt::format("{} B", bytes);
}

}  // namespace cleat::ctl
