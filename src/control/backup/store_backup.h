// SPDX-License-Identifier: Apache-2.0
// Backups: a copy of the store as it is at one moment, made while cleatd writes to it. Any thread.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/v1/cleat.pb.h"
#include "control/store/store.h"

namespace cleat::control {

struct StoreBackup {
  v1::StoreInfo info;
  UniqueFd file;  // of info.size_bytes; it has no name any more
};

// Makes a copy in the store's folder, where it takes as much room as the store. kDataLoss when the copy does not pass SQLite's check. `newest`: the last
// revision that was handed out. A cleatd that starts from the copy goes on from there, not from the end of the revisions that are
// reserved, so that what engines were given since is newer to it, and left alone (Reconciler::IsForeign).
Result<StoreBackup> BackUp(Store& store, uint64_t newest);

// Puts a copy of the store beside it, as cleat.db.before-restore-TIME, of mode 0600 and durable when it returns. Returns its path.
Result<std::string> KeepBeside(Store& store);

// Removes what a cleatd that ended in the middle of a backup has left in the folder.
void RemoveUnfinishedBackups(const std::string& folder);

}  // namespace cleat::control
