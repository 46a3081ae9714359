// SPDX-License-Identifier: Apache-2.0
// A disk as the map on a drive has it, for a store that does not know it. The bytes may be anybody's: they are checked as if a caller had sent
// them. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cleat/v1/cleat.pb.h"
#include "pool/layout.h"

namespace cleat::control {

inline constexpr size_t kProblemBytesMax = 200;

struct FoundDisk {
  std::string id;                    // empty: the map does not say which
  std::optional<v1::DiskSpec> spec;  // complete, with its extents; nullopt: there is none that can be read
  std::string problem;               // for people: why it can't be made on any host; empty: it can
};

// `label`: of the drive that the map is on.
FoundDisk ReadFoundDisk(const pool::MapDisk& disk, const pool::Label& label);

// Printable ASCII, and no longer than kProblemBytesMax: errors repeat what is wrong in them.
std::string ProblemText(const std::string& message);

}  // namespace cleat::control
