// SPDX-License-Identifier: Apache-2.0
// Waiting: each change wakes every waiter, which looks at the resource as it is then. A failure is not missed by that: a
// status counts its failures until the next success.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/host_state.h"
#include "control/refusals.h"

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

Result<v1::WaitResponse> HostState::Wait(const v1::WaitRequest& given,
                                         const std::function<bool()>& cancelled) {
  v1::WaitRequest request = given;
  if (request.condition() == v1::WAIT_CONDITION_UNSPECIFIED) request.set_condition(v1::WAIT_CONDITION_READY);
  if (!v1::WaitCondition_IsValid(request.condition())) return BadCondition(request);
  CLEAT_ASSIGN(const auto timeout, CheckTimeout(request.timeout()));
  const steady_clock::time_point deadline = steady_clock::now() + timeout;

  const MutexLock lock(mutex_);
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
    published_.WaitUntil(mutex_, std::min(deadline, now + kWaitTurn));
  }
  --waiters_;
  return result;
}

uint64_t HostState::AwaitChange(uint64_t revision, steady_clock::time_point deadline) {
  const MutexLock lock(mutex_);
  while (revision_ <= revision && !stopping_ && published_.WaitUntil(mutex_, deadline)) {
  }
  return revision_;
}

void HostState::StopWatchers() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  published_.NotifyAll();
  hub_.Stop();
}

bool HostState::CheckStore() {
  const MutexLock lock(mutex_);
  if (store_.writable()) return true;
  const bool writable = store_.Probe().ok();
  if (writable) PlaceWaiting();  // who could not be while it was not
  return writable;
}

// ---- What is there ----

HostState::Finding HostState::Find(const v1::WaitRequest& request) {
  if (auto disk = ParseDiskName(request.name()); disk.ok()) return FindDiskState(request, *disk);
  if (auto cluster = ParseClusterName(request.name()); cluster.ok())
    return FindClusterState(request, *cluster);
  if (auto group = ParseGroupName(request.name()); group.ok()) return FindGroupState(request, *group);
  if (auto controller = ParseControllerName(request.name()); controller.ok()) {
    return FindControllerState(request, *controller);
  }
  if (auto attachment = ParseAttachmentName(request.name()); attachment.ok()) {
    return FindAttachmentState(request, *attachment);
  }
  if (auto engine = ParseEngineName(request.name()); engine.ok()) return FindEngineState(request, *engine);
  return {.failed = RefuseFor(
              request.name(), v1::REASON_INVALID_NAME,
              fmt::format("'{:.200}' is no name of a disk, cluster, group, controller, attachment or engine",
                          request.name()),
              {{"field", "name"}})};
}

namespace {

// What is the same of all resources: GONE, and something that is not there or won't stay.
template <typename Finding>
std::optional<Finding> FindAbsence(const v1::WaitRequest& request, bool exists, bool leaving,
                                   const std::string& state) {
  const bool gone = request.condition() == v1::WAIT_CONDITION_GONE;
  if (!exists) {
    if (!gone) return Finding{.failed = NotThere(request.name())};
    v1::WaitResponse response;
    response.set_gone(request.name());
    return Finding{.done = std::move(response)};
  }
  if (gone) return Finding{.state = state};
  if (leaving) return Finding{.failed = Failed(request.name(), "it is being removed")};
  return std::nullopt;
}

}  // namespace

HostState::Finding HostState::FindDiskState(const v1::WaitRequest& request, const std::string& id) {
  const DiskEntry* entry = FindDisk(id);
  const v1::Disk disk = entry == nullptr ? v1::Disk() : Show(*entry);
  std::string state =
      StateText(v1::DiskState_Name(disk.status().state()), "DISK_STATE_", disk.status().message());
  const bool leaving = entry != nullptr && entry->row.deleting;
  if (auto absence = FindAbsence<Finding>(request, entry != nullptr, leaving, state)) return *absence;
  if (request.condition() == v1::WAIT_CONDITION_IN_USE) return {.failed = BadCondition(request)};
  if (disk.status().state() == v1::DISK_STATE_LOST)
    return {.failed = Failed(request.name(), disk.status().message())};
  const bool grown = disk.status().size_bytes() >= disk.spec().size_bytes();
  const std::string behind = BehindLimits(*entry);
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

HostState::Finding HostState::FindClusterState(const v1::WaitRequest& request, const std::string& id) {
  const ClusterEntry* entry = FindCluster(id);
  const std::string behind = entry == nullptr ? std::string() : BehindSpec(*entry);
  std::string state = behind.empty() ? "READY" : fmt::format("waited for: {}", behind);
  if (auto absence = FindAbsence<Finding>(request, entry != nullptr, false, state)) return *absence;
  if (request.condition() == v1::WAIT_CONDITION_IN_USE) return {.failed = BadCondition(request)};
  if (!behind.empty()) return {.state = std::move(state)};
  v1::WaitResponse response;
  *response.mutable_cluster() = Show(*entry);
  return {.done = std::move(response)};
}

HostState::Finding HostState::FindGroupState(const v1::WaitRequest& request, const std::string& id) {
  const GroupEntry* entry = FindGroup(id);
  const std::string behind = entry == nullptr ? std::string() : BehindLimits(*entry);
  std::string state = behind.empty() ? "READY" : fmt::format("waited for: {}", behind);
  if (auto absence = FindAbsence<Finding>(request, entry != nullptr, false, state)) return *absence;
  if (request.condition() == v1::WAIT_CONDITION_IN_USE) return {.failed = BadCondition(request)};
  if (!behind.empty()) return {.state = std::move(state)};
  v1::WaitResponse response;
  *response.mutable_group() = Show(*entry);
  return {.done = std::move(response)};
}

HostState::Finding HostState::FindControllerState(const v1::WaitRequest& request, const std::string& id) {
  const ControllerEntry* entry = FindController(id);
  const v1::Controller controller = entry == nullptr ? v1::Controller() : Show(*entry);
  const v1::ControllerStatus& status = controller.status();
  std::string state =
      StateText(v1::ControllerState_Name(status.state()), "CONTROLLER_STATE_", status.message());
  const bool leaving = entry != nullptr && entry->row.deleting;
  if (auto absence = FindAbsence<Finding>(request, entry != nullptr, leaving, state)) return *absence;
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

HostState::Finding HostState::FindAttachmentState(const v1::WaitRequest& request, const AttachmentIds& ids) {
  const AttachmentEntry* entry = FindAttachment(ids.controller, ids.id);
  const v1::Attachment attachment = entry == nullptr ? v1::Attachment() : Show(*entry);
  const v1::AttachmentStatus& status = attachment.status();
  std::string state =
      StateText(v1::AttachmentState_Name(status.state()), "ATTACHMENT_STATE_", status.message());
  const bool leaving = entry != nullptr && entry->row.deleting;
  if (auto absence = FindAbsence<Finding>(request, entry != nullptr, leaving, state)) return *absence;
  const DiskEntry& disk = *FindDisk(*ParseDiskName(entry->row.spec.disk()));
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
    const v1::Controller controller = Show(*FindController(ids.controller));
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

HostState::Finding HostState::FindEngineState(const v1::WaitRequest& request, const std::string& id) {
  const auto it = engines_.find(id);
  if (request.condition() != v1::WAIT_CONDITION_READY) return {.failed = BadCondition(request)};
  if (it == engines_.end()) return {.state = "unknown: it has not connected"};
  if (!it->second.status.connected()) return {.state = "not connected: " + it->second.status.message()};
  v1::WaitResponse response;
  *response.mutable_engine() = Show(id, it->second);
  return {.done = std::move(response)};
}

}  // namespace cleat::control
