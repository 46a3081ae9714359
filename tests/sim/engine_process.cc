// SPDX-License-Identifier: Apache-2.0
#include "engine_process.h"

#include <algorithm>
#include <utility>

namespace cleat::sim {
namespace {

constexpr uint32_t kPhysicalBlockBytes = 4096;

block::Geometry GeometryOf(const engine::DiskSpec& disk) {
  block::DiskShape shape(disk.name, disk.size_bytes, disk.logical_block_bytes, disk.physical_block_bytes);
  block::Geometry geometry = shape.ToGeometry();
  geometry.discard = geometry.write_zeroes = true;
  geometry.discard_granularity_bytes = disk.logical_block_bytes;
  geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = disk.size_bytes;
  geometry.write_cache = true;
  return geometry;
}

}  // namespace

EngineProcess::EngineProcess(const Parts& parts, uint64_t number, uint64_t seed)
    : parts_(parts),
      number_(number),
      disks_(parts_, number, seed),
      network_(parts.world, {}),
      groups_(parts.world.control()),
      engine_({parts.world.control(), parts.world.io_reactors(), disks_, network_, memories_, groups_,
               clusters_, nullptr}) {
  for (const CrashVm& vm : parts_.vms) network_.AddPeer("/sim/" + vm.name + ".sock", *vm.peer);
}

EngineProcess::~EngineProcess() {
  CLEAT_CHECK(ended());
}

void EngineProcess::Start(Stance stance) {
  for (const CrashVm& vm : parts_.vms) Spawn(Attach(vm, stance));
}

Task<void> EngineProcess::Attach(const CrashVm& vm, Stance stance) {
  ++starting_;
  engine::ControllerSpec controller;
  controller.name = ControllerOf(vm);
  controller.socket_path = "/sim/" + vm.name + ".sock";
  controller.queues = vm.queues;
  controller.type = vm.type;
  controller.revision = 1;
  engine::AttachmentSpec attachment;
  attachment.controller = controller.name;
  attachment.disk.name = vm.medium->name();
  attachment.disk.size_bytes = vm.medium->size_bytes();
  attachment.disk.physical_block_bytes = kPhysicalBlockBytes;
  attachment.disk.serial = vm.name;
  attachment.revision = 2;
  const bool stands_by = stance == Stance::kStandBy;
  Status attached = engine_.PutController(
      controller, stands_by ? engine::Controller::Role::kStandBy : engine::Controller::Role::kServe);
  if (attached) {
    auto attach = engine_.Attach(std::move(attachment));
    attached = co_await std::move(attach);
  }
  if (attached && !stands_by) attached = engine_.ServeController(controller.name);
  if (!attached && !terminating_ && !parts_.kill.dead()) {
    parts_.world.Violation("attaching " + vm.medium->name() + ": " + attached.error().message);
  }
  --starting_;
}

void EngineProcess::Terminate() {
  if (std::exchange(terminating_, true)) return;
  Spawn(Shutdown());
}

Task<void> EngineProcess::Shutdown() {
  auto shutdown = engine_.Shutdown();
  co_await std::move(shutdown);
  ended_ = true;
}

Task<Result<engine::OpenDisk>> EngineProcess::Disks::Open(const engine::DiskSpec& disk,
                                                          block::AccessMode mode,
                                                          std::shared_ptr<qos::Group> group,
                                                          engine::DiskEvents /*events*/) {
  const uint64_t delay_ns = random_.Below(parts_.open_ns_max + 1);
  co_await parts_.world.control().SleepFor(delay_ns);
  const auto vm = std::find_if(parts_.vms.begin(), parts_.vms.end(), [&](const CrashVm& candidate) {
    return candidate.medium->name() == disk.name;
  });
  CLEAT_CHECK(vm != parts_.vms.end());
  auto opened = vm->medium->Open(process_, GeometryOf(disk));
  auto made = engine::MakeLimitedPipeline(opened, disk.limits.limits, std::move(group), mode);
  CLEAT_CHECK(made.ok());
  co_return made;
}

}  // namespace cleat::sim
