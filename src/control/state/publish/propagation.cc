// SPDX-License-Identifier: Apache-2.0
#include "control/state/publish/propagation.h"

#include <fmt/format.h>

#include <algorithm>

#include "control/model/names.h"

namespace cleat::control {

uint64_t Propagation::KnownSize(const DiskEntry& entry) const {
  uint64_t size_bytes = entry.row.spec.size_bytes();
  for (const auto& [name, use] : entry.attachments) {
    if (use.size_bytes != 0 && !use.detaching) size_bytes = std::min(size_bytes, use.size_bytes);
  }
  return size_bytes;
}

std::string Propagation::BehindLimits(const DiskEntry& entry) const {
  for (const auto& [name, use] : entry.attachments) {
    const bool open = use.size_bytes != 0 && !use.detaching;
    if (open && use.limits_revision < entry.row.limits_revision) return name;
  }
  return {};
}

std::string Propagation::BehindLimits(const GroupEntry& entry) const {
  std::set<std::string> engines;
  for (const std::string& id : entry.controllers) {
    const ControllerEntry* const found = tables_.controllers.Find(id);
    if (found == nullptr || found->row.deleting || found->row.engine.empty()) continue;
    engines.insert(found->row.engine);
  }
  std::string behind;
  for (const std::string& engine : engines) {
    const auto report = entry.engines.find(engine);
    const bool there = report != entry.engines.end();
    if (there && report->second.limits_revision >= entry.row.limits_revision) continue;
    behind += fmt::format("{}{} does not know the present limits yet", behind.empty() ? "" : "; ",
                          EngineName(engine));
    if (there && !report->second.message.empty()) behind += fmt::format(" ({})", report->second.message);
  }
  return behind;
}

std::set<std::string> Propagation::EnginesOf(const ClusterEntry& entry, Which which) const {
  std::set<std::string> engines;
  for (const std::string& id : entry.disks) {
    const DiskEntry* const disk = tables_.disks.Find(id);
    if (disk == nullptr) continue;
    for (const auto& [name, use] : disk->attachments) {
      if (use.detaching) continue;
      const ControllerEntry* const controller =
          tables_.controllers.Find(ParseAttachmentName(name)->controller);
      if (controller == nullptr || controller->row.engine.empty()) continue;
      engines.insert(controller->row.engine);
      if (which == Which::kStandingByToo) engines.merge(roles_.PreparedOn(*controller));
    }
  }
  return engines;
}

std::string Propagation::BehindSpec(const ClusterEntry& entry) const {
  std::string behind;
  for (const std::string& engine : EnginesOf(entry, Which::kServing)) {
    const auto report = entry.engines.find(engine);
    const bool there = report != entry.engines.end();
    if (there && report->second.spec_revision >= entry.row.spec_revision) continue;
    behind += fmt::format("{}{} does not know the present spec yet", behind.empty() ? "" : "; ",
                          EngineName(engine));
    if (there && !report->second.message.empty()) behind += fmt::format(" ({})", report->second.message);
  }
  return behind;
}

}  // namespace cleat::control
