// SPDX-License-Identifier: Apache-2.0
// All that the API shows of a host, as its List calls give it. Plain values.
#pragma once

#include "cleat/v1/cleat.pb.h"
#include "control/state/host_state.h"

namespace cleat::sim {

struct Shown {
  // The pages hold all that a simulated host has. On a thread of cleatd's, or while none is under way.
  explicit Shown(control::HostState& state);

  v1::ListEnginesResponse engines;
  v1::ListDisksResponse disks;
  v1::ListGroupsResponse groups;
  v1::ListControllersResponse controllers;
  v1::ListAttachmentsResponse attachments;
};

}  // namespace cleat::sim
