// SPDX-License-Identifier: Apache-2.0
// What the controllers of an engine share. Everything in it outlives them.
#pragma once

#include <functional>
#include <string>

#include "base/descriptor_budget.h"
#include "engine/attached/placement.h"
#include "engine/disks/disk_factory.h"
#include "observe/engine_counters.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "vhost/endpoint.h"
#include "virtio/earlier_io.h"

namespace cleat::keys {
class Keyring;
}
namespace cleat::nvmf_target {
class TargetService;
}

namespace cleat::engine {

struct ControllerContext {
  // Where nobody counts descriptors, the reservation is of none.
  Result<DescriptorBudget::Reservation> Reserve(uint64_t count, const std::string& who) const {
    return descriptors == nullptr ? DescriptorBudget::Reservation() : descriptors->Reserve(count, who);
  }

  Reactor& control;
  Placement& placement;
  DiskFactory& disks;
  vhost::EndpointFactory& endpoints;
  observe::EngineCounters* counters;  // nullptr: nobody looks
  // After each change of a report. An attachment that is gone is one that is no longer reported.
  std::function<void(const std::string& controller)> on_controller_changed;
  std::function<void(const std::string& controller, uint32_t target)> on_attachment_changed;
  // Its storage is larger now, by somebody else's doing: its guest is still to be told.
  std::function<void(const std::string& controller, const std::string& disk, uint64_t size_bytes)>
      on_disk_grew;
  // What controllers and disks reserve before they are served; nullptr: nobody counts.
  DescriptorBudget* descriptors = nullptr;
  BlockingPool* reading = nullptr;               // for other engines' counters; nullptr: they are read inline
  virtio::EarlierIo* earlier_io = nullptr;       // nullptr: no engine was before this one
  nvmf_target::TargetService* target = nullptr;  // nullptr: this engine has no exports
  // For the secrets of exports' hosts, and where they are unwrapped; nullptr: hosts that have any are not let in.
  keys::Keyring* keyring = nullptr;
  BlockingPool* unwrapping = nullptr;
};

}  // namespace cleat::engine
