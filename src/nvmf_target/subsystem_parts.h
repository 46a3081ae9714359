// SPDX-License-Identifier: Apache-2.0
// What a subsystem and its namespaces are made of, and what becomes of them: given to a TargetService, and told by it. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "block/pipeline.h"
#include "nvme/target/namespace_shape.h"
#include "nvme/target/subsystem.h"
#include "observe/reactor_counters.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// How a namespace is reached on one reactor.
struct NamespaceChannel {
  block::PipelineChannel* channel = nullptr;  // nullptr: not at all
  observe::DiskCounters* counters = nullptr;
  observe::ReactorCounters* reactor_counters = nullptr;
};

struct NamespaceParts {
  nvme::target::NamespaceShape shape;
  // Asked on each reactor of the subsystem; what it gives outlives RemoveNamespace. By Serve once more, on the control reactor, for the counters alone,
  // which a disk that stands by has not.
  std::function<NamespaceChannel(Reactor&)> channel_on;
};

struct SubsystemParts {
  std::string name;  // "controllers/ID": what messages call it
  nvme::target::SubsystemConfig config;
  std::vector<Reactor*> reactors;   // that its I/O queues run on, in turn; they outlive the service
  std::function<void()> on_change;  // of its status
};

struct SubsystemStatus {
  uint32_t controllers = 0;
  uint32_t io_queues = 0;
  uint64_t connections = 0;        // associations, since it is there
  std::vector<std::string> hosts;  // that are connected, each once
  uint32_t held_writes = 0;        // that wait for older ones of paths that have ended, or that take long
  uint32_t reserved = 0;           // namespaces that a host holds a reservation of
  uint32_t shut = 0;               // namespaces that nobody may use, as their reservations can't be read
};

}  // namespace cleat::nvmf_target
