// SPDX-License-Identifier: Apache-2.0
// A disk as a device's queues on one I/O reactor reach it: where requests go, and where they are counted. What it points
// to outlives the queues.
#pragma once

#include "base/disk_identity.h"

namespace cleat::block {
class PipelineChannel;
}
namespace cleat::observe {
class Cell;
class ReactorSight;
}  // namespace cleat::observe

namespace cleat::virtio {

struct DiskChannelRef {
  // nullptr: the disk has no channel here.
  DiskChannelRef(
      block::PipelineChannel* pipeline_channel,  // NOLINT(google-explicit-constructor): often all there is
      observe::Cell* counters = nullptr, observe::ReactorSight* reactor_sight = nullptr,
      DiskIdentity identity = {})
      : channel(pipeline_channel), cell(counters), sight(reactor_sight), disk(identity) {}

  block::PipelineChannel* channel;
  observe::Cell* cell;           // nullptr: nobody counts
  observe::ReactorSight* sight;  // likewise
  DiskIdentity disk;             // for in-flight logs
};

}  // namespace cleat::virtio
