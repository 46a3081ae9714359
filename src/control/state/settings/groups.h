// SPDX-License-Identifier: Apache-2.0
// Groups of controllers. One is gone from the store as soon as no controller is in it; engines that still have it are told by the reconciler
// to drop it. Any thread; what needs the state's mutex says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class Groups {
 public:
  explicit Groups(StateCore& core) : core_(core) {}  // which outlives it

  Status Fill(std::vector<GroupRow> rows) CLEAT_REQUIRES(holds_state);  // from the store

  // ---- The API
  Result<v1::Group> Create(const v1::CreateGroupRequest& request);
  Result<v1::Group> Get(const v1::GetGroupRequest& request);
  Result<v1::ListGroupsResponse> List(const v1::ListGroupsRequest& request);
  Result<v1::Group> Update(const v1::UpdateGroupRequest& request);
  Result<v1::DeleteGroupResponse> Delete(const v1::DeleteGroupRequest& request);

  // ---- For controllers
  // Puts a controller in the group that its spec names, or takes it out.
  void Join(const ControllerRow& row) CLEAT_REQUIRES(holds_state);
  void Leave(const ControllerRow& row) CLEAT_REQUIRES(holds_state);
  // Something that the controller's group needs to be told to engines has changed.
  void MarkGroupOf(const ControllerRow& row) CLEAT_REQUIRES(holds_state);

  // ---- The reconciler's questions and reports
  // A group that has controllers on that engine, or standing by there; tombstones apart.
  std::optional<GroupRow> RowOn(const std::string& engine, const std::string& id);
  std::vector<std::string> On(const std::string& engine);
  std::vector<std::string> Controllers(const std::string& id);
  // No report: that engine does not have it.
  void Report(const std::string& engine, const std::string& id, const std::optional<GroupReport>& report);

 private:
  Result<uint32_t> FreeSlot(const std::string& name) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  uint32_t last_slot_ CLEAT_GUARDED_BY(holds_state) = 0;  // given to a group
};

}  // namespace cleat::control
