// SPDX-License-Identifier: Apache-2.0
#include "ctl/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace cleat::ctl {
namespace {

constexpr size_t kGap = 2;

void Pad(std::string& line, std::string_view text, size_t width) {
  line += text;
  line.append(width + kGap - WidthOf(text), ' ');
}

}  // namespace

size_t WidthOf(std::string_view text) {
  constexpr unsigned kContinuationMask = 0xC0;
  constexpr unsigned kContinuation = 0x80;
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & kContinuationMask) != kContinuation;
  }));
}

void Table::Add(std::vector<std::string> row) {
  CLEAT_CHECK(row.size() == columns_.size());
  rows_.push_back(std::move(row));
}

std::string Table::Rows() const {
  std::vector<size_t> widths(columns_.size());  // 0: not shown
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].details_only) continue;
    for (const auto& row : rows_) widths[i] = std::max(widths[i], WidthOf(row[i]));
    if (widths[i] > 0 || rows_.empty()) widths[i] = std::max(widths[i], columns_[i].name.size());
  }
  std::string text;
  const auto add = [&](const auto& cell) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] > 0) Pad(line, cell(i), widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add([&](size_t i) { return std::string_view(columns_[i].name); });
  for (const auto& row : rows_) {
    add([&](size_t i) { return std::string_view(row[i]); });
  }
  return text;
}

std::string Table::Details() const {
  size_t width = 0;
  for (const Column& column : columns_) width = std::max(width, column.name.size());
  std::string text;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (row[i].empty()) continue;
      std::string name = columns_[i].name;
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      Pad(text, name, width);
      text += row[i] + "\n";
    }
  }
  return text;
}

}  // namespace cleat::ctl
