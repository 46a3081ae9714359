// SPDX-License-Identifier: Apache-2.0
#include "settled.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "control/model/names.h"
#include "shown.h"

namespace cleat::sim {
namespace {

using Engines = std::vector<std::unique_ptr<EngineHost>>;

const EngineHost* Find(const Engines& engines, const std::string& name) {
  const auto found = std::find_if(engines.begin(), engines.end(), [&](const auto& engine) {
    return engine->running() && control::EngineName(engine->name()) == name;
  });
  return found == engines.end() ? nullptr : found->get();
}

std::string OfEngines(const Shown& shown, const Engines& engines) {
  for (const v1::Engine& engine : shown.engines.engines()) {
    if (!engine.status().connected()) return engine.name() + " is not connected";
    if (engine.status().upgrade().state() == v1::UPGRADE_STATE_RUNNING) return engine.name() + " is upgraded";
  }
  for (const auto& engine : engines) {
    if (!engine->running()) return engine->name() + " does not run";
  }
  return {};
}

std::string OfDisks(const Shown& shown) {
  for (const v1::Disk& disk : shown.disks.disks()) {
    if (disk.status().state() == v1::DISK_STATE_DELETING)
      return disk.name() + " is being deleted: " + disk.status().message();
  }
  return {};
}

// One engine serves it, the one that cleatd shows; others may stand by.
std::string OfController(const v1::Controller& shown, const Engines& engines, const HostStorage& storage) {
  const std::string& name = shown.name();
  const EngineHost* server = Find(engines, shown.status().engine());
  if (server == nullptr) return name + " has no engine: " + shown.status().message();
  if (shown.status().state() == v1::CONTROLLER_STATE_DELETING) return name + " is being deleted";
  for (const auto& engine : engines) {
    const bool serves = engine->Serves(name);
    if (serves != (engine.get() == server))
      return engine->name() + (serves ? " serves " : " does not serve ") + name + ", which is " +
             server->name() + "'s: " + shown.status().message();
  }
  if (shown.status().state() == v1::CONTROLLER_STATE_FAILED)
    return name + " failed: " + shown.status().message();
  const bool connects = server->engine().ControllerByName(name)->state != engine::ControllerState::kIdle;
  if (storage.ServerOf(name) != (connects ? server->process() : 0))
    return name + "'s guest has process " + std::to_string(storage.ServerOf(name)) + " instead of " +
           std::to_string(server->process());
  return {};
}

std::string OfAttachment(const v1::Attachment& shown, const v1::Controller& controller,
                         const Engines& engines, const v1::Disk& disk) {
  const std::string& name = shown.name();
  // Memory that cleatd and an engine had is gone when both died.
  if (disk.spec().has_memory() && shown.status().state() == v1::ATTACHMENT_STATE_FAILED) return {};
  if (shown.status().state() != v1::ATTACHMENT_STATE_READY)
    return name + " is " + v1::AttachmentState_Name(shown.status().state()) + ": " + shown.status().message();
  const EngineHost* server = Find(engines, controller.status().engine());
  const auto report = server->engine().AttachmentByKey(controller.name(), shown.spec().target());
  if (!report) return server->name() + " does not have " + name;
  if (report->state != engine::AttachmentState::kActive)
    return server->name() + " has " + name + " not active";
  if (report->spec.disk.name != shown.spec().disk()) return server->name() + " has another disk than " + name;
  if (report->spec.read_only != shown.spec().read_only()) return name + " may write there, or may not";
  if (report->spec.disk.size_bytes != disk.spec().size_bytes()) return name + " has another size";
  const uint64_t iops = report->spec.disk.limits.limits[qos::Meter::kIops].per_second;
  if (iops != disk.spec().limits().iops().per_second()) return name + " has other limits";
  return {};
}

// No engine has what was not asked for, in service or standing by.
std::string OfStrangers(const std::set<std::pair<std::string, uint32_t>>& attached,
                        const std::set<std::string>& controllers, const Engines& engines) {
  for (const auto& engine : engines) {
    for (const auto& report : engine->engine().Controllers()) {
      if (!controllers.contains(report.spec.name)) return engine->name() + " still has " + report.spec.name;
    }
    for (const auto& report : engine->engine().Attachments()) {
      if (!attached.contains({report.spec.controller, report.spec.target}))
        return engine->name() + " still has " + report.spec.disk.name + " on " + report.spec.controller;
    }
  }
  return {};
}

// An engine has the groups of its controllers, with their limits, and no others.
std::string OfGroups(const Shown& shown, const Engines& engines) {
  std::map<std::string, uint64_t> limits;
  for (const v1::Group& group : shown.groups.groups())
    limits[group.name()] = group.spec().limits().iops().per_second();
  for (const auto& engine : engines) {
    std::map<std::string, uint64_t> there;
    for (const auto& spec : engine->engine().Groups())
      there[spec.name] = spec.limits.limits[qos::Meter::kIops].per_second;
    for (const auto& [name, iops] : there) {
      if (!limits.contains(name)) return engine->name() + " still has " + name;
      if (limits.at(name) != iops) return engine->name() + " has other limits of " + name;
    }
    for (const auto& controller : engine->engine().Controllers()) {
      const std::string& group = controller.spec.group;
      if (!group.empty() && !there.contains(group)) return engine->name() + " lacks " + group;
    }
  }
  return {};
}

}  // namespace

std::string WhatIsUnsettled(control::HostState& state, const Engines& engines, const HostStorage& storage) {
  const Shown shown(state);
  if (std::string what = OfEngines(shown, engines); !what.empty()) return what;
  if (std::string what = OfDisks(shown); !what.empty()) return what;
  std::map<std::string, v1::Controller> controllers;
  std::set<std::string> names;
  for (const v1::Controller& controller : shown.controllers.controllers()) {
    if (std::string what = OfController(controller, engines, storage); !what.empty()) return what;
    controllers[controller.name()] = controller;
    names.insert(controller.name());
  }
  std::map<std::string, v1::Disk> disks;
  for (const v1::Disk& disk : shown.disks.disks()) disks[disk.name()] = disk;
  std::set<std::pair<std::string, uint32_t>> attached;
  for (const v1::Attachment& attachment : shown.attachments.attachments()) {
    const std::string controller = attachment.name().substr(0, attachment.name().find("/attachments/"));
    const std::string what =
        OfAttachment(attachment, controllers[controller], engines, disks[attachment.spec().disk()]);
    if (!what.empty()) return what;
    attached.emplace(controller, attachment.spec().target());
  }
  if (std::string what = OfStrangers(attached, names, engines); !what.empty()) return what;
  return OfGroups(shown, engines);
}

}  // namespace cleat::sim
