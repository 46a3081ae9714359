// SPDX-License-Identifier: Apache-2.0
// Controllers: made on an engine that has room, moved, and deleted. Where an engine may still have a deleted one, its row stays as a
// tombstone until the engine has confirmed that it is gone. Any thread; what needs the state's mutex says so.
#pragma once

#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/state/controllers/unclaimed.h"
#include "control/state/engines/engines.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/publish/state_core.h"
#include "control/state/settings/groups.h"
#include "control/state/writes/row_under_way.h"

namespace cleat::control {

class Controllers {
 public:
  // All outlive it.
  Controllers(StateCore& core, const SpecKeys& keys, Groups& groups, Engines& engines, Unclaimed& unclaimed)
      : core_(core), keys_(keys), groups_(groups), engines_(engines), unclaimed_(unclaimed) {}

  // From the store, after the groups.
  Status Fill(std::vector<ControllerRow> rows) CLEAT_REQUIRES(holds_state);

  // ---- The API
  Result<v1::Controller> Create(const v1::CreateControllerRequest& request);
  Result<v1::Controller> Get(const v1::GetControllerRequest& request);
  Result<v1::ListControllersResponse> List(const v1::ListControllersRequest& request);
  Result<v1::Controller> Update(const v1::UpdateControllerRequest& request);
  Result<v1::DeleteControllerResponse> Delete(const v1::DeleteControllerRequest& request);

  // ---- Secrets of exports' hosts
  // Whether the hosts have the secrets that are asked for; true of a controller that is not there. Hosts that one of the two does not have do
  // not count.
  Result<bool> AreSameSecrets(const std::string& id, const v1::ControllerSpec& spec);
  // Wraps all of them under the current key-encryption key. kUnavailable when the store can't be written: try again.
  Status RewrapKeys();

  // ---- The reconciler's questions
  ControllerIntent IntentOf(const std::string& id);
  std::vector<std::string> On(const std::string& engine);
  // The engine's own, and those that are to stand by there.
  std::vector<std::string> For(const std::string& engine);

  // ---- The reconciler's reports. Those about things that are gone meanwhile, or aren't that engine's, are ignored.
  void Report(const std::string& engine, const std::string& id, const v1::ControllerStatus& status);
  // Removes a tombstone. kUnavailable when the store can't be written: try again.
  Status Forget(const std::string& id);
  // A blk controller's guest has forgotten its last disk: the one that is attached now becomes that, durably, before it is served.
  Status ReportNextDisk(const std::string& engine, const std::string& id, DiskIdentity disk);
  // After a restore: the engine says which disk the blk controller's guest had last, if the store can't know.
  Status LearnLastDisk(const std::string& id, DiskIdentity disk, const std::string& name);

  // ---- Placing
  // Chooses an engine for each controller that has none, as far as there are any. After the end of an upgrade and of a
  // controller, which make room, it happens by itself.
  void Place();
  void PlaceWaiting() CLEAT_REQUIRES(holds_state);  // lets go of the mutex meanwhile
  // The same, if an earlier one could not be stored, or is about to fail: the store takes writes again.
  void PlaceAgain();
  // That the controller is to stand by on that engine, for as long as a move takes; empty: no more. Not durable.
  void PrepareMove(const std::string& id, const std::string& engine);
  // Controllers of an engine that is no more, but for those whose spec names it: they are placed anew. Returns which.
  Result<std::vector<std::string>> PlaceAnew(const std::string& engine);
  // All of them in one transaction, durable when it returns OK. Those that are gone meanwhile are left out.
  Status Move(const std::vector<Placement>& moves);

 private:
  // Where an export's NQN is left out: that of the one that is there, or that an engine has and the restored store does not; else a new one.
  Status CompleteNqn(const std::string& id, v1::ControllerSpec& spec) const CLEAT_REQUIRES(holds_state);
  // The controller that is there already, or why it can't be made; nullptr when it can. `spec` is without secrets.
  Result<ControllerEntry*> CheckNew(const std::string& id, const v1::ControllerSpec& spec,
                                    const AskedHosts& secrets) CLEAT_REQUIRES(holds_state);
  // Its socket, or its NQN.
  static Status CheckStandbyFree(const std::string& name, const v1::ControllerSpec& spec,
                                 const std::string& other_name, const v1::ControllerSpec& other);
  Status CheckReachFree(const std::string& name, const v1::ControllerSpec& spec) const
      CLEAT_REQUIRES(holds_state);
  // What an update says of an export's hosts, without their secrets, and these.
  struct Hosts {
    v1::ControllerSpec spec;
    AskedHosts secrets;
  };
  // Puts into `row` what the update says of it. The hosts have no revision yet.
  Status ChangeRow(const v1::UpdateControllerRequest& request, const Hosts& hosts, ControllerRow& row) const;
  static Status CheckKeyIsSpared(const std::string& name, const v1::ControllerSpec& spec);
  Status CheckNoDisks(const std::string& name, const ControllerEntry& entry) const
      CLEAT_REQUIRES(holds_state);
  // What follows lets go of the mutex meanwhile.
  Status Commit(ControllerEntry entry, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  Status MakeTombstone(ControllerEntry& entry, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  Status Erase(const std::string& id, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  // Of a controller that the restored store does not know: its row is there only until the engine has let it go.
  Status DeleteUnclaimed(const std::string& id, const WriteNames& names) CLEAT_REQUIRES(holds_state);

  Status RewrapKeysOf(const std::string& id) CLEAT_REQUIRES(holds_state);
  void MoveTo(ControllerRow row) CLEAT_REQUIRES(holds_state);
  void ForgetStatus(ControllerEntry& entry) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  const SpecKeys& keys_;
  Groups& groups_;
  Engines& engines_;
  Unclaimed& unclaimed_;
  size_t creating_ CLEAT_GUARDED_BY(holds_state) = 0;            // rows under way
  bool placing_unstored_ CLEAT_GUARDED_BY(holds_state) = false;  // it is being written, or could not be
};

}  // namespace cleat::control
