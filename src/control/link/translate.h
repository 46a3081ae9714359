// SPDX-License-Identifier: Apache-2.0
// Between the API's messages and those that the engine speaks. Pure functions.
#pragma once

#include "base/result.h"
#include "cleat/engine/v1/engine.pb.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"

namespace cleat::control {

engine::v1::Limits ToEngine(const v1::Limits& limits, uint64_t revision);
// `path_checked`: as PutBackend has it.
engine::v1::Disk ToEngine(const DiskRow& row, bool path_checked);
engine::v1::Cluster ToEngine(const ClusterRow& row);
engine::v1::Group ToEngine(const GroupRow& row);
engine::v1::InDoubt ToEngine(const v1::InDoubt& in_doubt);
// For an engine that speaks that version of the protocol: without what came later.
engine::v1::Controller ToEngine(const ControllerIntent& intent, uint32_t protocol);
engine::v1::Attachment ToEngine(const AttachmentIntent& intent, uint32_t protocol);

// A code that this version does not know becomes kInternal.
Status FromEngine(const engine::v1::Reply& reply);
v1::ControllerStatus FromEngine(const engine::v1::ControllerStatus& status);
v1::ControllerType FromEngine(engine::v1::ControllerType type);
v1::AttachmentState FromEngine(engine::v1::AttachmentState state);
v1::CephStatus FromEngine(const engine::v1::CephStatus& status);
// Its storage is open: its size and limits are what they will be, whoever owns it.
bool IsOpen(engine::v1::AttachmentState state);
v1::StorageState FromEngine(engine::v1::StorageState state);
// Without who has asked.
// The request's secrets are wrapped.
engine::v1::Discover ToEngine(const v1::DiscoverSubsystemsRequest& request, uint32_t timeout_ms, bool watch);
v1::DiscoverSubsystemsResponse FromEngine(const engine::v1::Discovery& discovery);
AttachmentReport ReportOf(const engine::v1::AttachmentStatus& status);

}  // namespace cleat::control
