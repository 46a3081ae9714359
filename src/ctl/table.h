// SPDX-License-Identifier: Apache-2.0
// Aligned columns for people. Nothing is ever cut off.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleat::ctl {

struct Column {
  std::string name;
  bool details_only = false;  // too much for a line, of interest for the one thing that was asked for
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many cells as there are columns.
  void Add(std::vector<std::string> row);

  // A line for each row under the header, without columns that are empty throughout.
  std::string Rows() const;
  // A line for each cell ("state  READY"), without the empty ones.
  std::string Details() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns an UTF-8 text takes on a terminal, where each character takes one.
size_t WidthOf(std::string_view text);

}  // namespace cleat::ctl
