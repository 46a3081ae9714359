// SPDX-License-Identifier: Apache-2.0
// What the reconciler knows of one connected engine, and questions about that: plain data and pure functions. A view lives from the
// engine's hello to the end of that connection (ConnectedEngines), on the link's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cleat/engine/v1/engine.pb.h"
#include "cleat/v1/cleat.pb.h"
#include "control/link/engine_link.h"
#include "control/model/intent.h"
#include "control/reconcile/engines/heartbeat.h"
#include "control/reconcile/engines/pending_requests.h"

namespace cleat::control {

struct ControllerView {
  std::optional<engine::v1::ControllerStatus> actual;
  std::map<uint32_t, engine::v1::AttachmentStatus> attachments;  // by target
  PendingRequest request;                                        // about the controller itself
  PendingRequests<uint32_t> targets;  // about each target: a disk that hangs holds up no other
  // Targets whose disk could not be opened since its last owner's writes may still land (block::Device::Acquire).
  std::set<uint32_t> unproven;
  std::string last_error;             // of what was asked about it; empty after a success
  uint64_t take_failed_since_ns = 0;  // it stands by and can't be taken; 0: not so
  bool take_given_up = false;         // ... for so long that it is made anew instead
};

struct EngineView {
  EngineInfo info;
  // Set when the engine holds things that this store can't have made: they are left alone, and the engine is asked for nothing.
  bool foreign = false;
  std::map<std::string, ControllerView> controllers;
  std::map<std::string, uint64_t> memories;  // disks whose memory it holds, and the size that it knows
  PendingRequests<DiskId> memory_requests;
  PendingRequests<DiskId> resize_requests;
  PendingRequests<DiskId> limit_requests;
  // Groups that the engine has, by id; and whether it was given, in this connection, the memory in which they count.
  std::map<std::string, engine::v1::Group> groups;
  PendingRequests<GroupId> group_requests;
  bool has_group_memory = false;
  PendingRequest group_memory_request;
  // Clusters that it knows, by id, and the revision of their spec.
  std::map<std::string, uint64_t> clusters;
  PendingRequests<ClusterId> cluster_requests;
  v1::CephStatus ceph;  // its connections
  Heartbeat heartbeat;
  // What is wrong with an engine that does not answer, for people; empty: it answers, or is of before heartbeats.
  std::string not_answering = {};
  uint64_t not_answering_since_s = 0;  // UNIX time
  struct Kill {
    bool sent = false;      // SIGKILL, or that could not be sent
    bool reported = false;  // that it has not ended the process
    uint64_t own_ns = 0;    // when it was sent (heartbeat.h)
  } kill;
  std::string waits_for = {};       // why it can't take the controllers for which it stands by, for people
  uint64_t progress_ns = 0;         // when it last answered a request about a controller with OK
  uint32_t standing_by = 0;         // controllers, as was reported last
  bool recount = false;             // that number may have changed, or the next ones
  std::set<std::string> unclaimed;  // controllers: IsUnclaimed
  size_t unclaimed_reported = 0;    // their number, as was reported last

  // Null when the engine has, and is asked for, nothing of the controller.
  const ControllerView* FindController(const std::string& controller) const;
};

// The id of the group of the controller, as the engine has it; empty when there is no controller or no group.
std::string GroupOf(const ControllerView& view);
// Whether the controller owns nothing and connects to nobody until it is taken.
bool StandsBy(const ControllerView& view);
// Whether the controller owns its disks, and its guest may be there.
bool Serves(const ControllerView& view);
// Whether the engine lets in those hosts of an export that it is to let in; true of any other controller, and of one that it does not have.
bool KnowsHosts(const ControllerIntent& intent, const ControllerView& view);

// Whether this is a SCSI or NVMF controller that the engine doesn't serve yet, none of whose disks is being asked for or has to wait for its
// last owner's writes. A guest that goes on after an engine's restart would take disks that are still to come for gone. A disk that is
// detached and that the engine does not have is not waited for, also before its row is forgotten.
bool IsHeldBack(const ControllerIntent& intent, const ControllerView& view);

// The attachment of that target that is not being detached; null when there is none.
const AttachmentIntent* FindLive(const ControllerIntent& intent, uint32_t target);
// Whether the disk will not come back by itself: it holds up no controller.
bool IsLost(const AttachmentIntent& intent);

// Whether `there` stands by with every disk that it needs to take over from `here`. A disk that `here` has not open is not
// needed. Without `here`, whose engine is dead, every disk is but those that could not be opened.
bool IsPrepared(const ControllerIntent& intent, const ControllerView* here, const ControllerView& there);
// Whether the engine is being told the size of a disk of the controller.
bool IsResizing(const ControllerIntent& intent, const EngineView& engine);
// Whether nothing is being done, or is to be done, about the controller in the engine that serves it.
bool IsQuiet(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view);

// Whether the engine knows a smaller size of the disk than its row says: behind a guest, or of memory that it holds.
// `controllers` are those that have the disk, for an engine has hundreds and this is asked with every change.
bool IsBehind(const EngineView& engine, const std::vector<std::string>& controllers, const DiskRow& row);
// Whether an attachment of the disk is open there with older limits than these.
bool IsBehindLimits(const EngineView& engine, const std::vector<std::string>& controllers,
                    const std::string& disk, uint64_t limits_revision);
// Whether a controller of that group is there.
bool HasControllersOf(const EngineView& engine, const std::string& group);

// The disk that is to be stored as the controller's last one; an unknown identity when none is. An engine from before identities gives
// its guest whichever disk is attached.
DiskIdentity NextDiskOf(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view);

}  // namespace cleat::control
