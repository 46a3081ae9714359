// SPDX-License-Identifier: Apache-2.0
// A disk as a device's queues on one I/O reactor reach it: where requests go, and where they are counted. What it points
// to outlives the queues.
#pragma once

#include "base/disk_identity.h"

namespace cleat::block {
class PipelineChannel;
}
namespace cleat::observe {
class DiskCounters;
class ReactorCounters;
}  // namespace cleat::observe

namespace cleat::virtio {

struct DiskChannelRef {
  // nullptr: the disk has no channel here.
  DiskChannelRef(
      block::PipelineChannel* pipeline_channel,  // NOLINT(google-explicit-constructor): often all there is
      observe::DiskCounters* disk_counters = nullptr, observe::ReactorCounters* those_of_reactor = nullptr,
      DiskIdentity identity = {})
      : channel(pipeline_channel),
        counters(disk_counters),
        reactor_counters(those_of_reactor),
        disk(identity) {}

  block::PipelineChannel* channel;
  observe::DiskCounters* counters;             // nullptr: nobody counts
  observe::ReactorCounters* reactor_counters;  // likewise
  DiskIdentity disk;                           // for in-flight logs
};

}  // namespace cleat::virtio
