// SPDX-License-Identifier: Apache-2.0
// Aligned columns for people.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cleat::ctl {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  // As many cells as the header has.
  void Add(std::vector<std::string> row);

  // A line for each row under the header. A last column that is empty throughout is left out.
  std::string Rows() const;
  // A line for each cell ("state  READY"), without the empty ones.
  std::string Details() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// "10 GiB", "512 B", "1.5 MiB"; always exact: in bytes when it is not a multiple of half a unit.
std::string HumanSize(uint64_t bytes);

}  // namespace cleat::ctl
