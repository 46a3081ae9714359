// SPDX-License-Identifier: Apache-2.0
// Many runs of the simulated host, one seed after the other.
#pragma once

#include <cstdint>
#include <string>

#include "host_run.h"

namespace cleat::sim {

// Up to the first seed that violates something: what, and how to run it again. Empty: none does. Adds to `sum`.
std::string RunHostSeeds(uint64_t first, uint64_t count, HostResult& sum);
void PrintSum(const HostResult& sum);

}  // namespace cleat::sim
