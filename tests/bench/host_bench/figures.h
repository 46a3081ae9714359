// SPDX-License-Identifier: Apache-2.0
// What was measured, by name, and the file it goes to: an object name -> {value, unit, spread, runs}. The value is the
// median of the runs, the spread half of what lies between the smallest and the largest, in the value's unit.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace cleat::bench {

// The value that `part` (0 to 1) of all are at or below; 0 of none.
double Percentile(std::vector<double> values, double part);

class Figures {
 public:
  // Also says it on standard output.
  void Add(const std::string& name, const std::string& unit, std::vector<double> runs);
  double Value(const std::string& name) const;  // CLEAT_CHECKs that it is there
  Status Write(const std::string& path) const;

 private:
  struct Figure {
    std::string unit;
    std::vector<double> runs;
  };
  std::map<std::string, Figure> figures_;
};

}  // namespace cleat::bench
