// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/nvmf_guest_device.h"

#include <fmt/format.h>

#include <utility>

namespace cleat::engine {
namespace {

nvmf_target::SubsystemParts PartsOf(const ControllerSpec& spec, const std::vector<Reactor*>& reactors,
                                    std::function<void()> on_change) {
  nvmf_target::SubsystemParts parts;
  parts.name = spec.name;
  parts.config.nqn = spec.exported->nqn;
  parts.config.serial = spec.exported->serial;
  parts.config.addresses = spec.exported->addresses;
  parts.config.io_queues_max = spec.queues;
  parts.reactors = reactors;
  parts.on_change = std::move(on_change);
  return parts;
}

}  // namespace

NvmfGuestDevice::NvmfGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                                 const std::vector<Reactor*>& reactors, std::function<void()> on_change)
    : target_(*context.target),
      spec_(spec),
      on_change_(std::move(on_change)),
      added_(target_.AddSubsystem(PartsOf(spec, reactors, on_change_))),
      hosts_(spec.name, context.control, context.keyring, context.unwrapping,
             [this](ExportHosts::Hosts hosts) { LetIn(std::move(hosts)); }) {
  if (added_.ok()) hosts_.Set(spec_.exported->hosts);
}

NvmfGuestDevice::~NvmfGuestDevice() {
  if (added_.ok()) target_.RemoveSubsystem(nqn());
}

Status NvmfGuestDevice::Serve() {
  CLEAT_TRY(added_);
  using Addresses = nvmf_target::TargetService::Addresses;
  return target_.Serve(nqn(), taken_over_ ? Addresses::kShared : Addresses::kOwn);
}

Task<Status> NvmfGuestDevice::Yield(uint64_t deadline_ns) {
  if (!added_.ok()) co_return Ok{};
  co_return co_await target_.Withdraw(nqn(), deadline_ns);
}

Task<void> NvmfGuestDevice::Close() {
  co_await hosts_.Close();
  if (added_.ok()) (void)co_await target_.Withdraw(nqn());
}

nvme::target::NamespaceShape NvmfGuestDevice::ShapeOf(const AttachedDisk& disk) const {
  nvme::fabrics::NamespaceIds ids;
  ids.uuid = ids.nguid = nvme::fabrics::NamespaceUuidOf(nqn(), disk.spec.disk.identity.value());
  return nvme::target::ShapeOf(disk.geometry(), disk.mode() == block::AccessMode::kReadOnly, ids);
}

Task<Status> NvmfGuestDevice::Add(AttachedDisk& disk) {
  CLEAT_CO_TRY(added_);
  nvmf_target::NamespaceParts parts;
  parts.shape = ShapeOf(disk);
  parts.channel_on = [&disk](Reactor& io) {
    const virtio::DiskChannelRef on = disk.ChannelOn(io);
    return nvmf_target::NamespaceChannel{on.channel, on.counters, on.reactor_counters};
  };
  co_return co_await target_.AddNamespace(nqn(), disk.spec.target + 1, std::move(parts));
}

Task<void> NvmfGuestDevice::Remove(AttachedDisk& disk, bool /*tell*/) {
  if (added_.ok()) co_await target_.RemoveNamespace(nqn(), disk.spec.target + 1);
}

Task<void> NvmfGuestDevice::Resized(AttachedDisk& disk) {
  (void)target_.ChangeNamespace(nqn(), disk.spec.target + 1, ShapeOf(disk));
  co_return;
}

void NvmfGuestDevice::HostsChanged() {
  if (added_.ok()) hosts_.Set(spec_.exported->hosts);
}

void NvmfGuestDevice::LetIn(ExportHosts::Hosts hosts) {
  (void)target_.SetHosts(nqn(), std::move(hosts));
  const std::string left_out = hosts_.WhyLeftOut();
  if (std::exchange(left_out_, left_out) != left_out) on_change_();
}

std::optional<vhost::EndpointStatus> NvmfGuestDevice::status() const {
  if (!added_.ok() || !target_.serves(nqn())) return std::nullopt;
  const nvmf_target::SubsystemStatus of_target = target_.StatusOf(nqn());
  vhost::EndpointStatus status;
  status.rings_up = of_target.io_queues;
  status.connections = of_target.connections;
  status.state = vhost::EndpointState::kConnecting;
  if (of_target.controllers > 0) status.state = vhost::EndpointState::kHandshake;
  if (of_target.io_queues > 0) status.state = vhost::EndpointState::kReady;
  status.message = of_target.hosts.empty() ? "no host is connected"
                                           : fmt::format("{} host(s) over {} path(s)", of_target.hosts.size(),
                                                         of_target.controllers);
  if (!left_out_.empty()) status.message += "; " + left_out_;
  return status;
}

}  // namespace cleat::engine
