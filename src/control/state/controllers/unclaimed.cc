// SPDX-License-Identifier: Apache-2.0
#include "control/state/controllers/unclaimed.h"

#include <algorithm>
#include <utility>

namespace cleat::control {

void Unclaimed::ReportHeld(const std::string& engine, HeldByEngine held) {
  const StateLock lock(core_.mutex);
  held.newest_revision = std::max(held.newest_revision, held_[engine].newest_revision);
  held_[engine] = std::move(held);
}

void Unclaimed::Report(const std::string& engine, std::map<std::string, v1::ControllerSpec> unknown) {
  const StateLock lock(core_.mutex);
  unknown_[engine] = std::move(unknown);
}

std::string Unclaimed::EngineThatServes(const std::string& controller) const {
  for (const auto& [engine, unknown] : unknown_) {
    if (unknown.contains(controller)) return engine;
  }
  return {};
}

}  // namespace cleat::control
