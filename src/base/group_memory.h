// SPDX-License-Identifier: Apache-2.0
// The memory in which all engines of a host count what groups of controllers have used: cleatd makes it, zeroed, and gives
// it to each engine (ShareGroups); what is in it is src/qos/group_table.h's business. Here is what both must know.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat {

inline constexpr size_t kGroupMemoryBytes = size_t{1} << 20;

// A memfd of that size, all zeroes, sealed against any change of its size, so that nobody who maps it can be hurt by one.
Result<UniqueFd> MakeGroupMemory();

}  // namespace cleat
