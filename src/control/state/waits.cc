// SPDX-License-Identifier: Apache-2.0
#include "control/state/waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "control/model/errors.h"

namespace cleat::control {
namespace {

using std::chrono::steady_clock;

constexpr size_t kWaitersMax = 64;
constexpr std::chrono::seconds kWaitDefault{30};
constexpr std::chrono::seconds kWaitMax{3600};
// How often a waiter looks whether its caller is still there.
constexpr std::chrono::milliseconds kWaitTurn{500};

Error Failed(std::string_view name, std::string why) {
  return RefuseFor(name, v1::REASON_WAIT_FAILED, fmt::format("{}: {}", name, why));
}

// "FAILED (no such file)"
std::string StateText(std::string_view state, std::string_view prefix, const std::string& message) {
  if (state.starts_with(prefix)) state.remove_prefix(prefix.size());
  return message.empty() ? std::string(state) : fmt::format("{} ({})", state, message);
}

Error StoppedWaiting() {
  return Refuse(v1::REASON_STOPPING, "cleatd is stopping: wait again when it is back");
}

Error BadCondition(const v1::WaitRequest& request) {
  return RefuseFor(request.name(), v1::REASON_INVALID_FIELD,
                   fmt::format("{}: condition {} makes no sense of it", request.name(),
                               static_cast<int>(request.condition())),
                   {{"field", "condition"}});
}

}  // namespace

Result<std::chrono::nanoseconds> CheckTimeout(const google::protobuf::Duration& timeout) {
  if (timeout.seconds() == 0 && timeout.nanos() == 0) return std::chrono::nanoseconds(kWaitDefault);
  const std::chrono::nanoseconds wanted =
      std::chrono::seconds(std::clamp<int64_t>(timeout.seconds(), -1, kWaitMax.count() + 1)) +
      std::chrono::nanoseconds(timeout.nanos());
  if (wanted.count() > 0 && wanted <= kWaitMax) return wanted;
  return Refuse(v1::REASON_INVALID_FIELD,
                fmt::format("timeout must be more than 0 and at most {} s", kWaitMax.count()),
                {{"field", "timeout"}});
}

Result<v1::WaitResponse> Waits::Wait(const v1::WaitRequest& given, const std::function<bool()>& cancelled) {
  v1::WaitRequest request = given;
  if (request.condition() == v1::WAIT_CONDITION_UNSPECIFIED) request.set_condition(v1::WAIT_CONDITION_READY);
  if (!v1::WaitCondition_IsValid(request.condition())) return BadCondition(request);
  CLEAT_ASSIGN(const auto timeout, CheckTimeout(request.timeout()));
  const steady_clock::time_point deadline = steady_clock::now() + timeout;

  const StateLock lock(core_.mutex);
  if (waiters_ >= kWaitersMax) {
    return Refuse(
        v1::REASON_TOO_MANY_WATCHERS,
        fmt::format("{} Wait calls are under way, which is the most: repeat in a moment", kWaitersMax),
        {{"limit", std::to_string(kWaitersMax)}});
  }
  ++waiters_;
  Result<v1::WaitResponse> result = StoppedWaiting();
  while (!stopping_) {
    Finding finding = Find(request);
    if (finding.done) {
      result = std::move(*finding.done);
      break;
    }
    if (finding.failed) {
      result = std::move(*finding.failed);
      break;
    }
    const steady_clock::time_point now = steady_clock::now();
    if (now >= deadline || cancelled()) {
      result = RefuseFor(
          request.name(), v1::REASON_WAIT_TIMED_OUT,
          fmt::format("{} is still {}: the request that is waited for stands", request.name(), finding.state),
          {{"state", finding.state}});
      break;
    }
    core_.publisher.AwaitPublished(core_.mutex, std::min(deadline, now + kWaitTurn));
  }
  --waiters_;
  return result;
}

uint64_t Waits::AwaitChange(uint64_t revision, steady_clock::time_point deadline) {
  const StateLock lock(core_.mutex);
  while (core_.publisher.newest_published() <= revision && !stopping_ &&
         core_.publisher.AwaitPublished(core_.mutex, deadline)) {
  }
  return core_.publisher.newest_published();
}

void Waits::Stop() {
  const StateLock lock(core_.mutex);
  stopping_ = true;
}

// ---- What is there

Waits::Finding Waits::Find(const v1::WaitRequest& request) {
  if (auto disk = ParseDiskName(request.name()); disk.ok()) return FindDiskState(request, *disk);
  if (auto cluster = ParseClusterName(request.name()); cluster.ok())
    return FindClusterState(request, *cluster);
  if (auto subsystem = ParseSubsystemName(request.name()); subsystem.ok())
    return FindSubsystemState(request, *subsystem);
  if (auto pool = ParsePoolName(request.name()); pool.ok()) return FindPoolState(request, *pool);
  if (auto group = ParseGroupName(request.name()); group.ok()) return FindGroupState(request, *group);
  if (auto controller = ParseControllerName(request.name()); controller.ok()) {
    return FindControllerState(request, *controller);
  }
  if (auto attachment = ParseAttachmentName(request.name()); attachment.ok()) {
    return FindAttachmentState(request, *attachment);
  }
  if (auto engine = ParseEngineName(request.name()); engine.ok()) return FindEngineState(request, *engine);
  return {.failed = RefuseFor(request.name(), v1::REASON_INVALID_NAME,
                              fmt::format("'{:.200}' is no name of a disk, cluster, subsystem, pool, group, "
                                          "controller, attachment or engine",
                                          request.name()),
                              {{"field", "name"}})};
}

// What is the same of all resources: GONE, and something that is not there or won't stay.
std::optional<Waits::Finding> Waits::FindAbsence(const v1::WaitRequest& request, bool exists, bool leaving,
                                                 const std::string& state) {
  const bool gone = request.condition() == v1::WAIT_CONDITION_GONE;
  if (!exists) {
    if (!gone) return Finding{.failed = NotFound(request.name())};
    v1::WaitResponse response;
    response.set_gone(request.name());
    return Finding{.done = std::move(response)};
  }
  if (gone) return Finding{.state = state};
  if (leaving) return Finding{.failed = Failed(request.name(), "it is being removed")};
  return std::nullopt;
}

Waits::Finding Waits::FindDiskState(const v1::WaitRequest& request, const std::string& id) {
  const DiskEntry* entry = core_.tables.disks.Find(id);
  const v1::Disk disk = entry == nullptr ? v1::Disk() : core_.view.Show(*entry);
  std::string state =
      StateText(v1::DiskState_Name(disk.status().state()), "DISK_STATE_", disk.status().message());
  const bool leaving = entry != nullptr && entry->row.deleting;
  if (auto absence = FindAbsence(request, entry != nullptr, leaving, state)) return *absence;
  if (request.condition() == v1::WAIT_CONDITION_IN_USE) return {.failed = BadCondition(request)};
  if (disk.status().state() == v1::DISK_STATE_LOST)
    return {.failed = Failed(request.name(), disk.status().message())};
  const bool grown = disk.status().size_bytes() >= disk.spec().size_bytes();
  const std::string behind = core_.propagation.BehindLimits(*entry);
  if (disk.status().state() == v1::DISK_STATE_READY && grown && behind.empty()) {
    v1::WaitResponse response;
    *response.mutable_disk() = disk;
    return {.done = std::move(response)};
  }
  if (!grown) {
    state = fmt::format("{}, and a guest still has {} bytes of {}", state, disk.status().size_bytes(),
                        disk.spec().size_bytes());
  }
  if (!behind.empty()) state = fmt::format("{}, and {} has older limits", state, behind);
  return {.state = std::move(state)};
}

// A cluster or a group is READY when all of its engines know its present settings; `behind`: which do not.
template <typename Entry, typename Show>
Waits::Finding Waits::FindSettings(const v1::WaitRequest& request, const Entry* entry,
                                   const std::string& behind, Show show) {
  std::string state = behind.empty() ? "READY" : fmt::format("waited for: {}", behind);
  if (auto absence = FindAbsence(request, entry != nullptr, false, state)) return *absence;
  if (request.condition() == v1::WAIT_CONDITION_IN_USE) return {.failed = BadCondition(request)};
  if (!behind.empty()) return {.state = std::move(state)};
  v1::WaitResponse response;
  show(*entry, response);
  return {.done = std::move(response)};
}

Waits::Finding Waits::FindClusterState(const v1::WaitRequest& request, const std::string& id) {
  const ClusterEntry* entry = core_.tables.clusters.Find(id);
  const std::string behind = entry == nullptr ? std::string() : core_.propagation.BehindSpec(*entry);
  return FindSettings(request, entry, behind,
                      [this](const ClusterEntry& cluster, v1::WaitResponse& response) CLEAT_REQUIRES(
                          holds_state) { *response.mutable_cluster() = core_.view.Show(cluster); });
}

// A subsystem is READY as soon as it is there: engines are told of it with each of its disks.
Waits::Finding Waits::FindSubsystemState(const v1::WaitRequest& request, const std::string& id) {
  return FindSettings(request, core_.tables.subsystems.Find(id), "",
                      [this](const SubsystemEntry& subsystem, v1::WaitResponse& response) CLEAT_REQUIRES(
                          holds_state) { *response.mutable_subsystem() = core_.view.Show(subsystem); });
}

Waits::Finding Waits::FindPoolState(const v1::WaitRequest& request, const std::string& id) {
  const PoolEntry* entry = core_.tables.pools.Find(id);
  const v1::Pool pool = entry == nullptr ? v1::Pool() : core_.view.Show(*entry);
  std::string state =
      StateText(v1::PoolState_Name(pool.status().state()), "POOL_STATE_", pool.status().message());
  if (auto absence = FindAbsence(request, entry != nullptr, false, state)) return *absence;
  if (request.condition() == v1::WAIT_CONDITION_IN_USE) return {.failed = BadCondition(request)};
  if (pool.status().state() == v1::POOL_STATE_READY) {
    v1::WaitResponse response;
    *response.mutable_pool() = pool;
    return {.done = std::move(response)};
  }
  if (request.fail_fast() && pool.status().state() == v1::POOL_STATE_FAILED)
    return {.failed = Failed(request.name(), pool.status().message())};
  return {.state = std::move(state)};
}

Waits::Finding Waits::FindGroupState(const v1::WaitRequest& request, const std::string& id) {
  const GroupEntry* entry = core_.tables.groups.Find(id);
  const std::string behind = entry == nullptr ? std::string() : core_.propagation.BehindLimits(*entry);
  return FindSettings(request, entry, behind,
                      [this](const GroupEntry& group, v1::WaitResponse& response) CLEAT_REQUIRES(
                          holds_state) { *response.mutable_group() = core_.view.Show(group); });
}

Waits::Finding Waits::FindControllerState(const v1::WaitRequest& request, const std::string& id) {
  const ControllerEntry* entry = core_.tables.controllers.Find(id);
  const v1::Controller controller = entry == nullptr ? v1::Controller() : core_.view.Show(*entry);
  const v1::ControllerStatus& status = controller.status();
  std::string state =
      StateText(v1::ControllerState_Name(status.state()), "CONTROLLER_STATE_", status.message());
  const bool leaving = entry != nullptr && entry->row.deleting;
  if (auto absence = FindAbsence(request, entry != nullptr, leaving, state)) return *absence;
  bool done = status.state() == v1::CONTROLLER_STATE_READY;
  if (request.condition() == v1::WAIT_CONDITION_READY) {
    done = done || status.state() == v1::CONTROLLER_STATE_IDLE ||
           status.state() == v1::CONTROLLER_STATE_CONNECTING ||
           status.state() == v1::CONTROLLER_STATE_HANDSHAKE;
  }
  if (done) {
    v1::WaitResponse response;
    *response.mutable_controller() = controller;
    return {.done = std::move(response)};
  }
  if (request.fail_fast() && (status.failures() > 0 || status.state() == v1::CONTROLLER_STATE_FAILED)) {
    return {.failed = Failed(request.name(), status.message())};
  }
  return {.state = std::move(state)};
}

Waits::Finding Waits::FindAttachmentState(const v1::WaitRequest& request, const AttachmentIds& ids) {
  const AttachmentEntry* entry = core_.tables.FindAttachment(ids.controller, ids.id);
  const v1::Attachment attachment = entry == nullptr ? v1::Attachment() : core_.view.Show(*entry);
  const v1::AttachmentStatus& status = attachment.status();
  std::string state =
      StateText(v1::AttachmentState_Name(status.state()), "ATTACHMENT_STATE_", status.message());
  const bool leaving = entry != nullptr && entry->row.deleting;
  if (auto absence = FindAbsence(request, entry != nullptr, leaving, state)) return *absence;
  const DiskEntry& disk = core_.tables.DiskOf(entry->row);
  if (disk.status.state() == v1::DISK_STATE_LOST)
    return {.failed = Failed(request.name(), disk.status.message())};
  const uint64_t wanted = disk.row.spec.size_bytes();
  const bool ready = status.state() == v1::ATTACHMENT_STATE_READY;
  const bool open = ready || status.state() == v1::ATTACHMENT_STATE_INCOMING;
  bool done = open && status.size_bytes() >= wanted;
  if (open && !done) {
    state = fmt::format("{}, and the guest still has {} bytes of {}", state, status.size_bytes(), wanted);
  }
  if (done && request.condition() == v1::WAIT_CONDITION_IN_USE) {
    const v1::Controller controller = core_.view.Show(core_.tables.controllers.At(ids.controller));
    done = ready && controller.status().state() == v1::CONTROLLER_STATE_READY;
    state = fmt::format("{}, but its controller is {}", ready ? "READY" : "INCOMING",
                        StateText(v1::ControllerState_Name(controller.status().state()), "CONTROLLER_STATE_",
                                  controller.status().message()));
  }
  if (done) {
    v1::WaitResponse response;
    *response.mutable_attachment() = attachment;
    return {.done = std::move(response)};
  }
  if (request.fail_fast() && (status.failures() > 0 || status.state() == v1::ATTACHMENT_STATE_FAILED)) {
    return {.failed = Failed(request.name(), status.message())};
  }
  return {.state = std::move(state)};
}

Waits::Finding Waits::FindEngineState(const v1::WaitRequest& request, const std::string& id) {
  const EngineEntry* const entry = core_.tables.engines.Find(id);
  if (request.condition() != v1::WAIT_CONDITION_READY) return {.failed = BadCondition(request)};
  if (entry == nullptr) return {.state = "unknown: it has not connected"};
  if (!entry->status.connected()) return {.state = "not connected: " + entry->status.message()};
  if (IsNotAnswering(*entry)) return {.state = "not answering: " + entry->status.message()};
  v1::WaitResponse response;
  *response.mutable_engine() = core_.view.Show(*entry);
  return {.done = std::move(response)};
}

}  // namespace cleat::control
