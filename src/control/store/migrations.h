// SPDX-License-Identifier: Apache-2.0
// The schema of the store and the steps that lead to it. Each step is one transaction that also sets user_version,
// so that a store is always of exactly one version. Steps are only ever added; a store of any older version goes
// through those that it lacks. There is no way back: a copy made before the upgrade is what a downgrade starts from.
#pragma once

#include <sqlite3.h>

#include <string>

#include "base/result.h"

namespace cleat::control {

inline constexpr uint64_t kSchemaVersion = 15;

// Brings `db` from version `from` (0: empty) to kSchemaVersion. An error leaves it at the last step that was done.
Status MigrateSchema(sqlite3* db, uint64_t from, const std::string& path);

}  // namespace cleat::control
