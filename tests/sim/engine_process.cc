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
  engine_.SetListener(this);
}

EngineProcess::~EngineProcess() {
  CLEAT_CHECK(ended());
}

void EngineProcess::Start(Stance stance) {
  for (const CrashVm& vm : parts_.vms) Spawn(Attach(vm, stance));
}

Status EngineProcess::PutController(const CrashVm& vm, Stance stance) {
  engine::ControllerSpec controller;
  controller.name = ControllerOf(vm);
  controller.socket_path = "/sim/" + vm.name + ".sock";
  controller.queues = vm.queues;
  controller.type = vm.type;
  controller.revision = 1;
  if (parts_.identities) controller.last_disk = vm.last_disk;
  return engine_.PutController(controller, stance == Stance::kStandBy ? engine::Controller::Role::kStandBy
                                                                      : engine::Controller::Role::kServe);
}

Task<Status> EngineProcess::AttachDisk(const CrashVm& vm) {
  const CrashMedium& medium = vm.medium();
  engine::AttachmentSpec attachment;
  attachment.controller = ControllerOf(vm);
  attachment.disk.name = medium.name();
  attachment.disk.size_bytes = medium.size_bytes();
  attachment.disk.physical_block_bytes = kPhysicalBlockBytes;
  attachment.disk.serial = vm.name;
  if (parts_.identities) attachment.disk.identity = medium.identity();
  attachment.revision = 2;
  auto attach = engine_.Attach(std::move(attachment));
  co_return co_await std::move(attach);
}

Task<Status> EngineProcess::DetachDisk(const CrashVm& vm) {
  auto detach = engine_.Detach(ControllerOf(vm), 0);
  co_return co_await std::move(detach);
}

Task<void> EngineProcess::Attach(const CrashVm& vm, Stance stance) {
  ++starting_;
  Status attached = PutController(vm, stance);
  if (attached) {
    auto attach = AttachDisk(vm);
    attached = co_await std::move(attach);
  }
  if (attached && stance == Stance::kServe) attached = engine_.ServeController(ControllerOf(vm));
  if (!attached && !terminating_ && !parts_.kill.dead()) {
    parts_.world.Violation("attaching " + vm.medium().name() + ": " + attached.error().message);
  }
  --starting_;
}

void EngineProcess::ControllerChanged(const std::string& controller) {
  const auto report = engine_.ControllerByName(controller);
  if (!report || terminating_ || parts_.kill.dead()) return;
  for (const CrashVm& vm : parts_.vms) {
    if (ControllerOf(vm) == controller) parts_.on_report(vm, *report);
  }
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
  CrashMedium* medium = nullptr;
  for (const CrashVm& vm : parts_.vms) {
    for (CrashMedium* candidate : vm.media) {
      if (candidate->name() == disk.name) medium = candidate;
    }
  }
  CLEAT_CHECK(medium != nullptr);
  auto opened = medium->Open(process_, GeometryOf(disk));
  auto made = engine::MakeLimitedPipeline(opened, disk.limits.limits, std::move(group), mode);
  CLEAT_CHECK(made.ok());
  co_return made;
}

}  // namespace cleat::sim
