// SPDX-License-Identifier: Apache-2.0
// Restores the store from a backup while cleatd runs. Any thread.
#pragma once

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/state/controllers/unclaimed.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class StoreUpload;

class Restorer {
 public:
  // Both outlive it.
  Restorer(StateCore& core, const Unclaimed& unclaimed) : core_(core), unclaimed_(unclaimed) {}

  // As the API says. Unless it is a dry run, the store takes no more writes after it: everything is to be loaded anew.
  Result<v1::RestoreStoreResponse> Restore(StoreUpload& upload, const v1::RestoreStoreOptions& options);

 private:
  // Whether callers might name what the backup names, or it is stored already.
  Status CheckPaths(const Rows& restored) const CLEAT_EXCLUDES(holds_state);
  // What goes live: no revision is ever given twice, and each controller is where it is now.
  Result<LostRevisions> Prepare(StoreUpload& upload, const Rows& present) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  const Unclaimed& unclaimed_;
};

}  // namespace cleat::control
