// SPDX-License-Identifier: Apache-2.0
// Requests to the engine, what each must answer, and what must hold when everything is quiet.
#include <algorithm>
#include <utility>

#include "operations.h"

namespace cleat::sim {
namespace {

std::string Words(const Status& status) {
  return status.ok() ? "OK"
                     : std::string(ErrorCodeName(status.error().code)) + " (" + status.error().message + ")";
}

std::string UserOf(const std::string& controller) {
  return "@" + controller.substr(controller.find('/') + 1) + ".";
}

bool Same(const engine::AttachmentSpec& a, const engine::AttachmentSpec& b) {
  return a.SameAs(b) && a.revision == b.revision;
}

}  // namespace

// ---- Requests

Operations::ModelController* Operations::Model(const std::string& name, uint64_t generation) {
  const auto found = model_.find(name);
  return found != model_.end() && found->second.generation == generation ? &found->second : nullptr;
}

uint64_t Operations::GenerationOf(const std::string& name) const {
  const auto found = model_.find(name);
  return found == model_.end() ? 0 : found->second.generation;
}

void Operations::Expect(const std::string& request, const Status& status, std::optional<ErrorCode> expected) {
  world_.Note(request + " -> " + Words(status));
  if (status.ok()) ++requests_ok_;
  const bool right = expected ? !status.ok() && status.error().code == *expected : status.ok();
  if (right) return;
  world_.Violation(request + " answered " + Words(status) + " instead of " +
                   (expected ? std::string(ErrorCodeName(*expected)) : "OK"));
}

void Operations::CheckNothingLeft(const std::string& request, const std::string& controller) {
  const size_t open = disks_.OpenFor(UserOf(controller));
  if (open > 0) world_.Violation(request + " left " + std::to_string(open) + " disks open");
  if (network_.HasEndpoint(controller)) world_.Violation(request + " left an endpoint");
  if (engine_.AttachmentByKey(controller, 0))
    world_.Violation(request + " left an attachment in the reports");
}

void Operations::Put() {
  const engine::ControllerSpec spec = DrawController();
  const std::string request = "put " + spec.name;
  std::optional<ErrorCode> expected;
  const auto existing = model_.find(spec.name);
  const bool path_taken = std::any_of(model_.begin(), model_.end(), [&](const auto& entry) {
    return entry.second.spec.socket_path == spec.socket_path;
  });
  if (spec.queues < 1 || spec.queues > engine::kQueuesMax || spec.socket_path.front() != '/' ||
      spec.socket_path.size() > engine::kSocketPathBytesMax) {
    expected = ErrorCode::kInvalidArgument;
  } else if (existing != model_.end()) {
    if (!existing->second.spec.SameAs(spec)) expected = ErrorCode::kFailedPrecondition;
  } else if (!spec.group.empty() && !model_groups_.contains(spec.group)) {
    expected = ErrorCode::kNotFound;
  } else if (path_taken) {
    expected = ErrorCode::kAlreadyExists;
  }
  if (shutting_down_) expected = ErrorCode::kUnavailable;
  const Status status = engine_.PutController(spec);
  Expect(request, status, expected);
  if (!status) return;
  if (existing != model_.end()) {
    existing->second.spec.revision = spec.revision;
  } else {
    model_[spec.name] = {spec, next_generation_++, std::nullopt};
  }
}

void Operations::PutGroup() {
  engine::GroupSpec spec;
  const uint64_t index = random_.Below(kGroups);
  spec.name = "groups/g" + std::to_string(index);
  spec.slot = static_cast<uint32_t>(index);
  if (random_.Chance(1, 15)) spec.slot = static_cast<uint32_t>(random_.Below(kGroups));
  if (random_.Chance(1, 40)) spec.slot = qos::kGroupsMax;
  spec.limits = DrawLimits();
  std::optional<ErrorCode> expected;
  if (!qos::CheckLimits(spec.limits.limits, spec.name) || spec.slot >= qos::kGroupsMax) {
    expected = ErrorCode::kInvalidArgument;
  } else {
    for (const auto& [name, other] : model_groups_) {
      if ((name == spec.name) != (other.slot == spec.slot)) expected = ErrorCode::kFailedPrecondition;
    }
  }
  if (shutting_down_) expected = ErrorCode::kUnavailable;
  const Status status = engine_.PutGroup(spec);
  Expect("put " + spec.name, status, expected);
  if (status) model_groups_[spec.name] = spec;
}

void Operations::DropGroup() {
  const std::string name = "groups/g" + std::to_string(random_.Below(kGroups));
  std::optional<ErrorCode> expected;
  // Also of one whose deletion is under way.
  for (const auto& report : engine_.Controllers()) {
    if (report.spec.group == name) expected = ErrorCode::kFailedPrecondition;
  }
  const Status status = engine_.DropGroup(name);
  // A request that waits for a controller which is gone meanwhile still holds that, and so its group.
  const bool held = !status.ok() && status.error().code == ErrorCode::kFailedPrecondition;
  if (held && running_ > 0) expected = ErrorCode::kFailedPrecondition;
  Expect("drop " + name, status, expected);
  if (status) model_groups_.erase(name);
}

// As cleatd does it: with every change, wherever the disk may be attached.
Task<void> Operations::LimitDisk() {
  ++running_;
  co_await world_.control().Enter();
  engine::LimitSpec spec;
  spec.disk = "disks/d" + std::to_string(random_.Below(kDisks));
  spec.limits = DrawLimits();
  std::optional<ErrorCode> expected;
  if (!qos::CheckLimits(spec.limits.limits, spec.disk)) expected = ErrorCode::kInvalidArgument;
  if (shutting_down_) expected = ErrorCode::kUnavailable;
  const Status status = engine_.LimitDisk(spec);
  Expect("limit " + spec.disk, status, expected);
  if (status) limits_[spec.disk] = spec.limits;
  --running_;
}

// An attach that was asked for before the limits changed may have brought the old ones: they are changed then.
void Operations::CheckLimits(const std::string& what, const std::string& controller) {
  const auto report = engine_.AttachmentByKey(controller, 0);
  if (!report) return;
  const auto limits = limits_.find(report->spec.disk.name);
  if (limits == limits_.end() || report->spec.disk.limits.revision == limits->second.revision) return;
  const Status status = engine_.LimitDisk({report->spec.disk.name, limits->second});
  const auto after = engine_.AttachmentByKey(controller, 0);
  if (!status || !after || after->spec.disk.limits != limits->second) {
    world_.Violation(what + ": its limits can't be changed");
  }
}

Task<void> Operations::Delete(std::string name) {
  ++running_;
  const uint64_t generation = GenerationOf(name);
  const bool refused = shutting_down_;
  auto request = engine_.DeleteController(name);
  const Status status = co_await std::move(request);
  ModelController* model = Model(name, generation);
  std::optional<ErrorCode> expected;
  if (refused) {
    expected = ErrorCode::kUnavailable;
  } else if (model != nullptr && model->attached && !shutting_down_) {
    expected = ErrorCode::kFailedPrecondition;
  }
  if (!shutting_down_ || refused) Expect("delete " + name, status, expected);
  if (status.ok() && model != nullptr) {
    model_.erase(name);
    CheckNothingLeft("delete " + name, name);
    if (engine_.ControllerByName(name)) world_.Violation("delete " + name + " left it in the reports");
  }
  --running_;
}

Task<void> Operations::Attach(engine::AttachmentSpec spec) {
  ++running_;
  co_await world_.control().Enter();
  const uint64_t generation = GenerationOf(spec.controller);
  const bool refused = shutting_down_;
  auto request = engine_.Attach(spec);
  const Status status = co_await std::move(request);
  const std::string what = "attach " + spec.disk.name + " to " + spec.controller;
  ModelController* model = Model(spec.controller, generation);
  std::optional<ErrorCode> expected;
  if (refused) {
    expected = ErrorCode::kUnavailable;
  } else if (spec.disk.serial.size() > engine::kSerialBytesMax || (model != nullptr && spec.target != 0)) {
    expected = ErrorCode::kInvalidArgument;
  } else if (model == nullptr) {
    expected = ErrorCode::kNotFound;
  } else if (model->attached && !model->attached->SameAs(spec)) {
    expected = ErrorCode::kAlreadyExists;
  } else if (!model->attached && !status.ok() && world_.injections().Take(status.error().message)) {
    expected = status.error().code;
    CheckNothingLeft(what, spec.controller);
  }
  // A request that was waiting when the shutdown began finds its controller closed.
  const bool overtaken =
      shutting_down_ && !refused && !status.ok() && status.error().code == ErrorCode::kNotFound;
  if (!overtaken) Expect(what, status, expected);
  if (status.ok() && model != nullptr) model->attached = spec;
  if (status.ok()) {
    const auto report = engine_.AttachmentByKey(spec.controller, 0);
    if (!report || report->state != engine::AttachmentState::kActive || !Same(report->spec, spec)) {
      world_.Violation(what + " is done, but the engine's report does not say so");
    }
    if (!shutting_down_) CheckLimits(what, spec.controller);
  }
  --running_;
}

Task<void> Operations::Detach(std::string name, uint32_t target) {
  ++running_;
  const uint64_t generation = GenerationOf(name);
  const bool refused = shutting_down_;
  auto request = engine_.Detach(name, target);
  const Status status = co_await std::move(request);
  const std::string what = "detach target " + std::to_string(target) + " of " + name;
  Expect(what, status, refused ? std::optional(ErrorCode::kUnavailable) : std::nullopt);
  if (ModelController* model = Model(name, generation); model != nullptr && target == 0 && status.ok()) {
    model->attached.reset();
    CheckNothingLeft(what, name);
  }
  --running_;
}

Task<void> Operations::Shutdown() {
  ++running_;
  shutting_down_ = true;
  auto shutdown = engine_.Shutdown();
  co_await std::move(shutdown);
  Spawn(Attach(DrawAttachment()));
  Spawn(Detach(DrawName(), 0));
  Spawn(Delete(DrawName()));
  if (!engine_.Controllers().empty()) world_.Violation("shutdown left controllers");
  if (disks_.OpenAll() > 0)
    world_.Violation("shutdown left " + std::to_string(disks_.OpenAll()) + " disks open");
  if (network_.endpoints() > 0) world_.Violation("shutdown left endpoints");
  --running_;
}

// ---- When everything is quiet

void Operations::Quiet() {
  const auto settled = [this] {
    return running_ == 0 && std::all_of(guests_.begin(), guests_.end(), [](const auto& guest) {
             return guest->Settled() || guest->misbehaved();
           });
  };
  disks_.LetGoAll();
  for (const auto& guest : guests_) {
    guest->StopLoad();
    guest->Do(SimGuest::Action::kResume);
  }
  if (!world_.RunUntil(settled, kQuietLimitNs, "waiting for quiet")) return;
  world_.RunFor(100 * kNsPerMs);
  CheckReports();
  CheckGuests();
  SettleMisbehaved();
  if (!world_.RunUntil(settled, kQuietLimitNs, "waiting for quiet after broken rings")) return;
  disks_.CheckContent();
}

void Operations::SettleMisbehaved() {
  for (const auto& guest : guests_) {
    if (!guest->misbehaved() || !guest->powered()) continue;
    if (guest->up() && random_.Chance(1, 2)) {
      guest->Do(SimGuest::Action::kReset);
    } else {
      guest->Kill();
    }
  }
  const auto whole = [this] {
    return std::none_of(guests_.begin(), guests_.end(),
                        [](const auto& guest) { return guest->misbehaved(); });
  };
  world_.RunUntil(whole, kQuietLimitNs, "making broken rings whole again");
}

void Operations::CheckReports() {
  size_t attached = 0;
  for (const auto& [name, model] : model_) {
    const auto report = engine_.ControllerByName(name);
    if (!report || !report->spec.SameAs(model.spec) || report->spec.revision != model.spec.revision) {
      world_.Violation(name + ": the engine's report is not what was asked for");
    }
    const auto attachment = engine_.AttachmentByKey(name, 0);
    if (attachment.has_value() != model.attached.has_value()) {
      world_.Violation(name + (attachment ? " has a disk that was not attached" : " has lost its disk"));
    } else if (attachment && !(Same(attachment->spec, *model.attached) &&
                               attachment->state == engine::AttachmentState::kActive)) {
      world_.Violation(name + ": the attachment's report is not what was asked for: " + attachment->message);
    }
    if (attachment) {
      const auto limits = limits_.find(attachment->spec.disk.name);
      if (limits != limits_.end() && attachment->spec.disk.limits != limits->second)
        world_.Violation(name + ": the attachment's limits are not those that were asked for last");
    }
    attached += model.attached ? 1 : 0;
  }
  if (engine_.Groups().size() != model_groups_.size()) world_.Violation("the engine reports other groups");
  if (engine_.Controllers().size() != model_.size()) world_.Violation("the engine reports other controllers");
  if (engine_.Attachments().size() != attached) world_.Violation("the engine reports other attachments");
  if (disks_.OpenAll() != attached) {
    world_.Violation(std::to_string(disks_.OpenAll()) + " disks are open for " + std::to_string(attached) +
                     " attachments");
  }
  if (network_.endpoints() != attached) world_.Violation("there are other endpoints than attachments");
  if (world_.injections().swallowed() > 0)
    world_.Violation("an injected error did not come out of its request");
  // Whoever follows the changes knows as much as whoever asks.
  if (told_controllers_.size() != model_.size() || told_attachments_.size() != attached) {
    world_.Violation("a follower of the changes knows of other objects than there are");
  }
  for (const engine::ControllerReport& report : engine_.Controllers()) {
    const engine::ControllerReport& told = told_controllers_[report.spec.name];
    if (told.state != report.state || told.rings_up != report.rings_up ||
        told.connections != report.connections || told.message != report.message) {
      world_.Violation(report.spec.name + ": a follower of the changes was not told of its present state");
    }
  }
}

void Operations::CheckGuests() {
  for (const auto& [name, model] : model_) {
    const auto report = engine_.ControllerByName(name);
    if (!report || !model.attached) continue;
    const std::string& path = model.spec.socket_path;
    const auto guest = std::find_if(guests_.begin(), guests_.end(), [&path](const auto& candidate) {
      return "/sim/" + candidate->name() + ".sock" == path;
    });
    if (guest == guests_.end() || !(*guest)->powered()) continue;
    const auto expected =
        (*guest)->misbehaved() ? engine::ControllerState::kBroken : engine::ControllerState::kReady;
    if (report->state != expected ||
        (expected == engine::ControllerState::kBroken && report->message.empty())) {
      world_.Violation(name + " is in state " + std::to_string(static_cast<int>(report->state)) +
                       " instead of " + std::to_string(static_cast<int>(expected)) + ": " + report->message);
    }
  }
}

// ---- Changes

void Operations::ControllerChanged(const std::string& controller) {
  const auto report = engine_.ControllerByName(controller);
  if (report) {
    told_controllers_[controller] = *report;
  } else {
    told_controllers_.erase(controller);
  }
}

void Operations::AttachmentChanged(const std::string& controller, uint32_t target) {
  const auto report = engine_.AttachmentByKey(controller, target);
  if (report) {
    told_attachments_[controller] = *report;
  } else {
    told_attachments_.erase(controller);
  }
}

}  // namespace cleat::sim
