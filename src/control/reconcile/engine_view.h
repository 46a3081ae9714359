// SPDX-License-Identifier: Apache-2.0
// What the reconciler knows of one connected engine, and the decision what to ask of it next. Lives from the
// engine's hello to the end of that connection, on the link's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cleat/engine/v1/engine.pb.h"
#include "control/engine_link.h"
#include "control/intent.h"
#include "control/memory_keeper.h"

namespace cleat::control {

// Waits twice as long after each failure.
struct Backoff {
  uint32_t failures = 0;
  uint64_t not_before_ns = 0;
};

struct ControllerView {
  std::optional<engine::v1::ControllerStatus> actual;
  std::map<uint32_t, engine::v1::AttachmentStatus> attachments;  // by target
  bool busy = false;                // a request about the controller itself is on its way
  std::set<uint32_t> targets_busy;  // about these: a disk that hangs holds up no other
  Backoff backoff;
  std::map<uint32_t, Backoff> attachment_backoffs;
  // Targets whose disk could not be opened since its last owner's writes may still land (block::Device::Acquire).
  std::set<uint32_t> unproven;
  std::string last_error;             // of what was asked about it; empty after a success
  uint64_t take_failed_since_ns = 0;  // it stands by and can't be taken; 0: not so
  bool take_given_up = false;         // ... for so long that it is made anew instead
};

// The id of the group of the controller that is there; empty: none of either.
std::string GroupOf(const ControllerView& view);

struct EngineView {
  EngineInfo info;
  // Set when the engine holds things that this store can't have made: they are left alone, nothing is asked.
  bool foreign = false;
  std::map<std::string, ControllerView> controllers;
  std::map<std::string, uint64_t> memories;  // disks whose memory it holds, and the size that it knows
  std::map<std::string, Backoff>
      memory_work;  // disks with a request about their memory on its way, or failed
  std::set<std::string> memory_busy;
  std::map<std::string, Backoff> resize_work;  // the same for their size
  std::set<std::string> resize_busy;
  std::map<std::string, Backoff> limit_work;  // and for their limits
  std::set<std::string> limit_busy;
  // What it has of groups, by id; and whether it has the memory in which they count, in this connection.
  std::map<std::string, engine::v1::Group> groups;
  std::map<std::string, Backoff> group_work;
  std::set<std::string> group_busy;
  // Clusters that it knows, by id, and the revision of their spec.
  std::map<std::string, uint64_t> clusters;
  std::map<std::string, Backoff> cluster_work;
  std::set<std::string> cluster_busy;
  v1::CephStatus ceph;  // its connections
  enum class GroupMemory : uint8_t { kNotGiven, kAsked, kGiven } group_memory = GroupMemory::kNotGiven;
  Backoff group_memory_work;
  uint64_t progress_ns = 0;          // when it last answered a request about a controller with OK
  uint32_t standing_by = 0;          // controllers, as was reported last
  bool recount = false;              // that number may have changed, or the next ones
  std::set<std::string> left_alone;  // controllers: IsLeftAlone
  size_t left_alone_told = 0;        // as was reported last
};

// The next thing to do about a controller. What only concerns cleatd's own books (kForget...) is done at
// once, the rest is a request to the engine.
struct Step {
  enum class Kind {
    kForgetAttachment,  // intent
    kForgetController,
    kDetach,  // target
    kDeleteController,
    kWaitForGroup,  // which has to be there first
    kPutController,
    kServeController,  // its disks are there, as far as they can be
    kTakeController,   // the same, of one that stands by and is to be served
    kKeepMemory,       // intent
    kAttach,           // intent
    kWaitForDisk,      // intent: its content isn't there (yet)
    kWaitForCluster,   // intent: the engine does not know its cluster yet, or not as it is now
  };
  Kind kind;
  uint32_t target = 0;
  const AttachmentIntent* intent = nullptr;  // into the ControllerIntent that was given
  bool standby = false;                      // of kPutController
};

// Owns nothing and connects to nobody, until it is taken.
bool StandsBy(const ControllerView& view);
// Owns its disks, and its guest may be there.
bool Serves(const ControllerView& view);
// Whether `there` stands by with every disk that it needs to take over from `here`. A disk that `here` has not open is not
// needed. Without `here`, whose engine is dead, every disk is but those that could not be opened.
bool IsPrepared(const ControllerIntent& intent, const ControllerView* here, const ControllerView& there);
// Whether nothing is being done, or to be done, about the controller where it is served.
bool IsResizing(const ControllerIntent& intent, const EngineView& engine);
bool IsQuiet(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view);

// Whether the engine knows a smaller size of the disk than this: behind a guest, or of memory that it holds.
// `controllers` are those that have the disk, for an engine has hundreds and this is asked with every change.
bool IsBehind(const EngineView& engine, const std::vector<std::string>& controllers, const std::string& disk,
              uint64_t size_bytes);

// The disk that is to be stored as the controller's last one; not known: none is. An engine of before identities gives its guest
// whichever is attached.
DiskIdentity NextDiskOf(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view);

// Whether the controller, as an engine has it, was made or changed after the backup from which the store was restored, and nobody has
// spoken of it by name since. What has just the revision of its row is no stranger, whatever was lost.
bool IsLeftAlone(const std::vector<LostRevisions>& lost, const ControllerIntent& intent,
                 const ControllerView& view);

// Whether an attachment of the disk is open there with older limits than these.
bool IsBehindLimits(const EngineView& engine, const std::vector<std::string>& controllers,
                    const std::string& disk, uint64_t limits_revision);
// Whether a controller of that group is there.
bool HasControllersOf(const EngineView& engine, const std::string& group);

// Everything that can be done now, in the order in which it must be done: take away what should not be,
// forget what is gone, then put what is missing. Steps that wait for a back-off are left out.
//
// The engine's thing is the right one when it has the intent's revision, and it has not failed.
std::vector<Step> PlanSteps(const ControllerIntent& intent, const EngineView& engine,
                            const ControllerView& view, const MemoryKeeper& memory, uint64_t now_ns);

}  // namespace cleat::control
