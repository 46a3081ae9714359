// SPDX-License-Identifier: Apache-2.0
#include "control/api/apply_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/callers/call_guard.h"
#include "control/model/change_recorder.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/disk_settings.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

using std::chrono::steady_clock;

constexpr size_t kErrorBytesMax = kMessageBytesMax / 4;
// How often it looks whether its caller is still there.
constexpr std::chrono::milliseconds kTurn{500};

template <typename Resources>
Status Collect(const Resources& resources, std::set<std::string>* names,
               const std::function<bool(std::string_view)>& ok) {
  for (const auto& resource : resources) {
    if (!ok(resource.name())) {
      return Refuse(v1::REASON_INVALID_NAME,
                    fmt::format("'{:.200}' is not a name of its kind", resource.name()), {{"field", "name"}});
    }
    if (!names->insert(resource.name()).second) {
      return RefuseFor(resource.name(), v1::REASON_INVALID_FIELD,
                       fmt::format("{} is named twice", resource.name()));
    }
  }
  return Ok{};
}

bool IsBusy(const Error& error) {
  return ReasonOf(error) == v1::REASON_RESOURCE_BUSY;
}

Labels LabelsOf(const google::protobuf::Map<std::string, std::string>& labels) {
  return {labels.begin(), labels.end()};
}

}  // namespace

bool ApplyHostCall::Names::Empty() const {
  return disks.empty() && groups.empty() && clusters.empty() && subsystems.empty() && controllers.empty() &&
         attachments.empty();
}

Result<ApplyHostCall::Names> ApplyHostCall::NamesOf(const v1::ApplyHostRequest& request) const {
  Names names;
  CLEAT_TRY(Collect(request.disks(), &names.disks, [](auto name) { return ParseDiskName(name).ok(); }));
  CLEAT_TRY(Collect(request.groups(), &names.groups, [](auto name) { return ParseGroupName(name).ok(); }));
  CLEAT_TRY(
      Collect(request.clusters(), &names.clusters, [](auto name) { return ParseClusterName(name).ok(); }));
  CLEAT_TRY(Collect(request.subsystems(), &names.subsystems,
                    [](auto name) { return ParseSubsystemName(name).ok(); }));
  CLEAT_TRY(Collect(request.controllers(), &names.controllers,
                    [](auto name) { return ParseControllerName(name).ok(); }));
  CLEAT_TRY(Collect(request.attachments(), &names.attachments,
                    [](auto name) { return ParseAttachmentName(name).ok(); }));
  return names;
}

Result<v1::ApplyHostResponse> ApplyHostCall::Apply(const v1::ApplyHostRequest& request) {
  if (!v1::ApplyMode_IsValid(request.mode())) {
    return Refuse(v1::REASON_INVALID_FIELD, "mode is none that this version knows", {{"field", "mode"}});
  }
  CLEAT_ASSIGN(const auto timeout, CheckTimeout(request.timeout()));
  CLEAT_ASSIGN(auto wanted, NamesOf(request));
  deadline_ = steady_clock::now() + timeout;
  dry_run_ = request.dry_run();
  response_.set_complete(true);

  if (request.mode() == v1::APPLY_MODE_EXACT) {
    CLEAT_ASSIGN(const auto removals, PlanRemovals(request, wanted));
    for (const Removal& removal : removals) RemoveOne(removal);
  }
  for (const v1::Group& group : request.groups()) ApplyGroup(group);
  for (const v1::Cluster& cluster : request.clusters()) ApplyCluster(cluster);
  for (const v1::Subsystem& subsystem : request.subsystems()) ApplySubsystem(subsystem);
  for (const v1::Disk& disk : request.disks()) ApplyDisk(disk);
  for (const v1::Controller& controller : request.controllers()) ApplyController(controller);
  for (const v1::Attachment& attachment : request.attachments()) ApplyAttachment(attachment);
  return std::move(response_);
}

void ApplyHostCall::Report(const std::string& name, v1::ApplyAction action) {
  v1::ApplyResult& result = *response_.add_results();
  result.set_name(name);
  result.set_action(action);
}

void ApplyHostCall::ReportFailed(const std::string& name, const Error& error) {
  if (const auto& recorder = ChangeRecorder::Current(); recorder != nullptr && !dry_run_)
    recorder->Refused(name, error);
  Report(name, v1::APPLY_ACTION_FAILED);
  google::rpc::Status& status = *response_.mutable_results()->rbegin()->mutable_error();
  status = ToRpcStatus(error);
  error_bytes_ += status.ByteSizeLong();
  if (error_bytes_ > kErrorBytesMax)
    status.clear_message();  // its reason says enough, and the answer stays sendable
  response_.set_complete(false);
}

template <typename Call>
auto ApplyHostCall::RetryWhileBusy(Call call) -> decltype(call()) {
  for (;;) {
    const uint64_t revision = state_.NewestRevision();
    auto result = call();
    const steady_clock::time_point now = steady_clock::now();
    if (result.ok() || !IsBusy(result.error()) || now >= deadline_ || cancelled_()) return result;
    state_.waits().AwaitChange(revision, std::min(deadline_, now + kTurn));
  }
}

// ---- Removing ----

// How many there are, and the newest revision of their intent: one that was made or changed has a newer one, and one that was
// removed is missing.
std::string ApplyHostCall::Host::Etag() const {
  size_t count = 0;
  uint64_t newest = 0;
  for (const PresentByName* kind : {&disks, &groups, &clusters, &subsystems, &controllers, &attachments}) {
    count += kind->size();
    for (const auto& [name, present] : *kind) newest = std::max(newest, RevisionOfEtag(present.etag));
  }
  return fmt::format("{:x}-{:x}", newest, count);
}

Result<ApplyHostCall::Host> ApplyHostCall::PresentHost() {
  Host host;
  CLEAT_ASSIGN(const auto watcher, state_.WatchSettled());
  for (;;) {
    CLEAT_ASSIGN(const auto event, watcher->Next(std::chrono::milliseconds(0)));
    CLEAT_CHECK(event != nullptr);  // the snapshot is there as a whole
    const v1::WatchResponse& resource = *event;
    if (resource.has_synced()) return host;
    if (resource.has_disk() && resource.disk().status().state() != v1::DISK_STATE_DELETING)
      host.disks[resource.disk().name()] = {resource.disk().etag(), resource.disk().spec().has_encryption()};
    if (resource.has_cluster())
      host.clusters[resource.cluster().name()] = {resource.cluster().etag(),
                                                  resource.cluster().spec().has_wrapped_key()};
    if (resource.has_subsystem())
      host.subsystems[resource.subsystem().name()] = {resource.subsystem().etag(),
                                                      !WrappedKeysIn(resource.subsystem().spec()).empty()};
    if (resource.has_group()) host.groups[resource.group().name()] = {resource.group().etag()};
    if (resource.has_controller() && resource.controller().status().state() != v1::CONTROLLER_STATE_DELETING)
      host.controllers[resource.controller().name()] = {resource.controller().etag(),
                                                        !WrappedKeysIn(resource.controller().spec()).empty()};
    if (resource.has_attachment() && resource.attachment().status().state() != v1::ATTACHMENT_STATE_DETACHING)
      host.attachments[resource.attachment().name()] = {resource.attachment().etag()};
  }
}

template <auto kKind, auto kMethod, typename Request>
Status ApplyHostCall::Remove(HostState& state, const Removal& removal) {
  Request request;
  request.set_name(removal.name);
  request.set_etag(removal.present.etag);
  CLEAT_TRY(((state.*kKind)().*kMethod)(request));
  return Ok{};
}

Result<std::vector<ApplyHostCall::Removal>> ApplyHostCall::PlanRemovals(const v1::ApplyHostRequest& request,
                                                                        const Names& wanted) {
  auto host = PresentHost();
  CLEAT_TRY(host);
  response_.set_etag(host->Etag());
  if (!request.etag().empty() && request.etag() != response_.etag()) {
    return Refuse(
        v1::REASON_ETAG_MISMATCH,
        fmt::format(
            "the host was changed: its etag is '{}', not '{:.40}'. Repeat the dry run, and decide anew",
            response_.etag(), request.etag()),
        {{"field", "etag"}, {"etag", response_.etag()}});
  }
  std::vector<Removal> removals;
  const auto add_others = [&](const PresentByName& all, const std::set<std::string>& kept, auto remove) {
    for (const auto& [name, present] : all) {
      if (!kept.contains(name)) removals.push_back({name, present, remove});
    }
  };
  add_others(host->attachments, wanted.attachments,
             &Remove<&HostState::attachments, &Attachments::Detach, v1::DetachDiskRequest>);
  add_others(host->controllers, wanted.controllers,
             &Remove<&HostState::controllers, &Controllers::Delete, v1::DeleteControllerRequest>);
  add_others(host->groups, wanted.groups,
             &Remove<&HostState::groups, &Groups::Delete, v1::DeleteGroupRequest>);
  add_others(host->disks, wanted.disks, &Remove<&HostState::disks, &Disks::Delete, v1::DeleteDiskRequest>);
  add_others(host->clusters, wanted.clusters,
             &Remove<&HostState::clusters, &Clusters::Delete, v1::DeleteClusterRequest>);
  add_others(host->subsystems, wanted.subsystems,
             &Remove<&HostState::subsystems, &Subsystems::Delete, v1::DeleteSubsystemRequest>);
  if (wanted.Empty() && !request.allow_empty()) {
    return Refuse(
        v1::REASON_HOST_EMPTIED,
        fmt::format("the request is EXACT and names nothing, which would remove all {} objects of the host: "
                    "set allow_empty (cleatctl apply --allow-empty) if that is meant",
                    removals.size()),
        {{"field", "allow_empty"}});
  }
  if (removals.size() > request.max_removals() && !dry_run_) {
    return Refuse(
        v1::REASON_TOO_MANY_REMOVALS,
        fmt::format(
            "{} objects of the host are not in the request, {} for one, and it allows the removal of {}: "
            "a dry run lists them; max_removals of {} allows it",
            removals.size(), removals.front().name, request.max_removals(), removals.size()),
        {{"field", "max_removals"}, {"limit", std::to_string(request.max_removals())}});
  }
  return removals;
}

void ApplyHostCall::RemoveOne(const Removal& removal) {
  if (dry_run_) {
    removed_.insert(removal.name);
  } else {
    const Status removed = RetryWhileBusy([&] { return removal.remove(state_, removal); });
    if (!removed.ok()) return ReportFailed(removal.name, removed.error());
  }
  Report(removal.name, v1::APPLY_ACTION_DELETED);
  const bool kept = ParseDiskName(removal.name).ok() && state_.disks().keeps_deleted();
  response_.mutable_results()->rbegin()->set_deletes_key(removal.present.has_key && !kept);
}

// ---- Making and changing ----

void ApplyHostCall::ApplyGroup(const v1::Group& group) {
  const std::string& name = group.name();
  const std::string id = *ParseGroupName(name);
  auto spec = CompleteGroupSpec(id, group.spec());
  if (!spec.ok()) return ReportFailed(name, spec.error());
  if (auto labels = CheckLabels(name, group.labels()); !labels.ok())
    return ReportFailed(name, labels.error());
  v1::GetGroupRequest get;
  get.set_name(name);
  const auto present = state_.groups().Get(get);
  if (!present.ok()) {
    made_.insert(name);
    if (dry_run_) return Report(name, v1::APPLY_ACTION_CREATED);
    v1::CreateGroupRequest request;
    request.set_group_id(id);
    *request.mutable_group() = group;
    const auto made = RetryWhileBusy([&] { return state_.groups().Create(request); });
    if (!made.ok()) return ReportFailed(name, made.error());
    return Report(name, v1::APPLY_ACTION_CREATED);
  }
  v1::UpdateGroupRequest update;
  *update.mutable_group() = group;
  update.mutable_group()->clear_etag();
  if (!SameSpec(present->spec().limits(), spec->limits()))
    update.mutable_update_mask()->add_paths("spec.limits");
  if (LabelsOf(group.labels()) != LabelsOf(present->labels()))
    update.mutable_update_mask()->add_paths("labels");
  if (update.update_mask().paths().empty()) return Report(name, v1::APPLY_ACTION_UNCHANGED);
  if (dry_run_) return Report(name, v1::APPLY_ACTION_UPDATED);
  const auto updated = RetryWhileBusy([&] { return state_.groups().Update(update); });
  if (!updated.ok()) return ReportFailed(name, updated.error());
  Report(name, v1::APPLY_ACTION_UPDATED);
}

void ApplyHostCall::ApplyCluster(const v1::Cluster& cluster) {
  const std::string& name = cluster.name();
  const std::string id = *ParseClusterName(name);
  auto spec = CompleteClusterSpec(id, WithoutKey(cluster.spec()));
  if (!spec.ok()) return ReportFailed(name, spec.error());
  if (auto labels = CheckLabels(name, cluster.labels()); !labels.ok())
    return ReportFailed(name, labels.error());
  v1::GetClusterRequest get;
  get.set_name(name);
  const auto present = state_.clusters().Get(get);
  if (!present.ok()) {
    made_.insert(name);
    if (dry_run_) return Report(name, v1::APPLY_ACTION_CREATED);
    v1::CreateClusterRequest request;
    request.set_cluster_id(id);
    *request.mutable_cluster() = cluster;
    const auto made = RetryWhileBusy([&] { return state_.clusters().Create(request); });
    WipePlainKey(request.mutable_cluster()->mutable_spec());
    if (!made.ok()) return ReportFailed(name, made.error());
    return Report(name, v1::APPLY_ACTION_CREATED);
  }
  const auto same_key = state_.clusters().IsSameKey(id, cluster.spec());
  if (!same_key.ok()) return ReportFailed(name, same_key.error());
  v1::UpdateClusterRequest update;
  *update.mutable_cluster() = cluster;
  update.mutable_cluster()->clear_etag();
  if (!*same_key || !SameSpec(WithoutKey(present->spec()), *spec))
    update.mutable_update_mask()->add_paths("spec");
  if (LabelsOf(cluster.labels()) != LabelsOf(present->labels()))
    update.mutable_update_mask()->add_paths("labels");
  const bool unchanged = update.update_mask().paths().empty();
  if (!unchanged && !dry_run_) {
    const auto updated = RetryWhileBusy([&] { return state_.clusters().Update(update); });
    WipePlainKey(update.mutable_cluster()->mutable_spec());
    if (!updated.ok()) return ReportFailed(name, updated.error());
  }
  WipePlainKey(update.mutable_cluster()->mutable_spec());
  Report(name, unchanged ? v1::APPLY_ACTION_UNCHANGED : v1::APPLY_ACTION_UPDATED);
}

void ApplyHostCall::ApplySubsystem(const v1::Subsystem& subsystem) {
  const std::string& name = subsystem.name();
  const std::string id = *ParseSubsystemName(name);
  const auto spec = CompleteSubsystemSpec(id, WithoutKey(subsystem.spec()));
  if (!spec.ok()) return ReportFailed(name, spec.error());
  if (auto status = CheckPskTransport(id, subsystem.spec()); !status.ok())
    return ReportFailed(name, status.error());
  if (auto labels = CheckLabels(name, subsystem.labels()); !labels.ok())
    return ReportFailed(name, labels.error());
  const auto same_secrets = state_.subsystems().AreSameSecrets(id, subsystem.spec());
  if (!same_secrets.ok()) return ReportFailed(name, same_secrets.error());
  v1::GetSubsystemRequest get;
  get.set_name(name);
  const auto present = state_.subsystems().Get(get);
  if (!present.ok()) {
    made_.insert(name);
    if (dry_run_) return Report(name, v1::APPLY_ACTION_CREATED);
    v1::CreateSubsystemRequest request;
    request.set_subsystem_id(id);
    *request.mutable_subsystem() = subsystem;
    const auto made = RetryWhileBusy([&] { return state_.subsystems().Create(request); });
    WipePlainKey(request.mutable_subsystem()->mutable_spec());
    if (!made.ok()) return ReportFailed(name, made.error());
    return Report(name, v1::APPLY_ACTION_CREATED);
  }
  v1::UpdateSubsystemRequest update;
  *update.mutable_subsystem() = subsystem;
  update.mutable_subsystem()->clear_etag();
  const v1::SubsystemSpec now = WithoutKey(present->spec());
  if (!*same_secrets || !SameSpec(now, WithHostOf(now, *spec)))
    update.mutable_update_mask()->add_paths("spec");
  if (LabelsOf(subsystem.labels()) != LabelsOf(present->labels()))
    update.mutable_update_mask()->add_paths("labels");
  const bool unchanged = update.update_mask().paths().empty();
  Status done = Ok{};
  if (!unchanged && dry_run_) {
    done = state_.subsystems().CheckUpdate(update, removed_);
    if (!done.ok() && IsBusy(done.error())) done = Ok{};  // the call itself would wait
  } else if (!unchanged) {
    const auto updated = RetryWhileBusy([&] { return state_.subsystems().Update(update); });
    if (!updated.ok()) done = updated.error();
  }
  WipePlainKey(update.mutable_subsystem()->mutable_spec());
  if (!done.ok()) return ReportFailed(name, done.error());
  Report(name, unchanged ? v1::APPLY_ACTION_UNCHANGED : v1::APPLY_ACTION_UPDATED);
}

void ApplyHostCall::ApplyDisk(const v1::Disk& disk) {
  const std::string& name = disk.name();
  const std::string id = *ParseDiskName(name);
  auto spec = CompleteDiskSpec(id, WithoutKey(disk.spec()));
  if (!spec.ok()) return ReportFailed(name, spec.error());
  if (auto labels = CheckLabels(name, disk.labels()); !labels.ok()) return ReportFailed(name, labels.error());
  v1::GetDiskRequest get;
  get.set_name(name);
  const auto present = state_.disks().Get(get);
  if (!present.ok() || present->status().state() == v1::DISK_STATE_DELETING) {
    made_.insert(name);
    if (dry_run_) return Report(name, v1::APPLY_ACTION_CREATED);
    v1::CreateDiskRequest request;
    request.set_disk_id(id);
    *request.mutable_disk() = disk;
    const auto made = RetryWhileBusy([&] { return state_.disks().Create(request); });
    WipePlainKey(request.mutable_disk()->mutable_spec());
    if (!made.ok()) return ReportFailed(name, made.error());
    return Report(name, v1::APPLY_ACTION_CREATED);
  }
  v1::UpdateDiskRequest update;
  update.mutable_disk()->set_name(name);
  *update.mutable_disk()->mutable_spec() = *spec;
  *update.mutable_disk()->mutable_labels() = disk.labels();
  const v1::DiskSpec present_spec = AsDeclared(present->spec());
  v1::DiskSpec as_present = *spec;
  as_present.set_size_bytes(present->spec().size_bytes());
  CopySettings(present->spec(), as_present);
  if (!SameSpec(present_spec, as_present))
    return ReportFailed(name, AlreadyExists(name, present_spec, *spec));
  if (auto status = state_.disk_keys().CheckSameKey(id, disk.spec()); !status.ok())
    return ReportFailed(name, status.error());
  if (spec->size_bytes() != present->spec().size_bytes())
    update.mutable_update_mask()->add_paths("spec.size_bytes");
  if (!SameSpec(spec->limits(), present->spec().limits()))
    update.mutable_update_mask()->add_paths("spec.limits");
  if (spec->on_no_space() != present->spec().on_no_space())
    update.mutable_update_mask()->add_paths("spec.on_no_space");
  if (!SameSpec(spec->in_doubt(), present->spec().in_doubt()))
    update.mutable_update_mask()->add_paths("spec.in_doubt");
  if (LabelsOf(disk.labels()) != LabelsOf(present->labels()))
    update.mutable_update_mask()->add_paths("labels");
  if (update.update_mask().paths().empty()) return Report(name, v1::APPLY_ACTION_UNCHANGED);
  if (dry_run_) return Report(name, v1::APPLY_ACTION_UPDATED);
  const auto updated = RetryWhileBusy([&] { return state_.disks().Update(update); });
  if (!updated.ok()) return ReportFailed(name, updated.error());
  Report(name, v1::APPLY_ACTION_UPDATED);
}

void ApplyHostCall::ApplyController(const v1::Controller& controller) {
  const std::string& name = controller.name();
  const std::string id = *ParseControllerName(name);
  auto spec = CompleteControllerSpec(id, WithoutKey(controller.spec()));
  if (!spec.ok()) return ReportFailed(name, spec.error());
  if (auto labels = CheckLabels(name, controller.labels()); !labels.ok())
    return ReportFailed(name, labels.error());
  const auto same_secrets = state_.controllers().AreSameSecrets(id, controller.spec());
  if (!same_secrets.ok()) return ReportFailed(name, same_secrets.error());
  v1::GetControllerRequest get;
  get.set_name(name);
  const auto present = state_.controllers().Get(get);
  if (!present.ok() || present->status().state() == v1::CONTROLLER_STATE_DELETING) {
    made_.insert(name);
    if (dry_run_) return Report(name, v1::APPLY_ACTION_CREATED);
    v1::CreateControllerRequest request;
    request.set_controller_id(id);
    *request.mutable_controller() = controller;
    const auto made = RetryWhileBusy([&] { return state_.controllers().Create(request); });
    WipePlainKey(request.mutable_controller()->mutable_spec());
    if (!made.ok()) return ReportFailed(name, made.error());
    return Report(name, v1::APPLY_ACTION_CREATED);
  }
  const v1::ControllerSpec now = WithoutKey(present->spec());
  const v1::ControllerSpec wanted = WithNqnOf(now, *spec);
  v1::ControllerSpec with_hosts = now;  // which alone may change
  if (with_hosts.has_exported()) *with_hosts.mutable_exported()->mutable_hosts() = wanted.exported().hosts();
  if (!SameSpec(with_hosts, wanted)) return ReportFailed(name, AlreadyExists(name, now, wanted));
  v1::UpdateControllerRequest update;
  *update.mutable_controller() = controller;
  update.mutable_controller()->clear_etag();
  if (!*same_secrets || !SameSpec(with_hosts, now))
    update.mutable_update_mask()->add_paths("spec.exported.hosts");
  if (LabelsOf(controller.labels()) != LabelsOf(present->labels()))
    update.mutable_update_mask()->add_paths("labels");
  const bool unchanged = update.update_mask().paths().empty();
  Status done = Ok{};
  if (!unchanged && !dry_run_) {
    const auto updated = RetryWhileBusy([&] { return state_.controllers().Update(update); });
    if (!updated.ok()) done = updated.error();
  }
  WipePlainKey(update.mutable_controller()->mutable_spec());
  if (!done.ok()) return ReportFailed(name, done.error());
  Report(name, unchanged ? v1::APPLY_ACTION_UNCHANGED : v1::APPLY_ACTION_UPDATED);
}

void ApplyHostCall::ApplyAttachment(const v1::Attachment& attachment) {
  const std::string& name = attachment.name();
  const AttachmentIds ids = *ParseAttachmentName(name);
  v1::GetAttachmentRequest get;
  get.set_name(name);
  const auto present = state_.attachments().Get(get);
  const bool there = present.ok() && present->status().state() != v1::ATTACHMENT_STATE_DETACHING;
  if (there) {
    if (IsSameAttachment(present->spec(), attachment.spec())) return Report(name, v1::APPLY_ACTION_UNCHANGED);
    return ReportFailed(name, AlreadyExists(name, present->spec(), attachment.spec()));
  }
  if (dry_run_) {
    v1::GetControllerRequest get_controller;
    get_controller.set_name(ControllerName(ids.controller));
    v1::GetDiskRequest get_disk;
    get_disk.set_name(attachment.spec().disk());
    const auto controller = state_.controllers().Get(get_controller);
    const auto disk = state_.disks().Get(get_disk);
    if (!controller.ok() && !made_.contains(get_controller.name()))
      return ReportFailed(name, controller.error());
    if (!disk.ok() && !made_.contains(get_disk.name())) return ReportFailed(name, disk.error());
    return Report(name, v1::APPLY_ACTION_CREATED);
  }
  v1::AttachDiskRequest request;
  request.set_parent(ControllerName(ids.controller));
  request.set_attachment_id(ids.id);
  *request.mutable_attachment() = attachment;
  const auto made = RetryWhileBusy([&] { return state_.attachments().Attach(request); });
  if (!made.ok()) return ReportFailed(name, made.error());
  Report(name, v1::APPLY_ACTION_CREATED);
}

}  // namespace cleat::control
