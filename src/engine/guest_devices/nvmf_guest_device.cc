// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/nvmf_guest_device.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "engine/hand_over/bundle.h"

namespace cleat::engine {
namespace {

nvmf_target::SubsystemParts PartsOf(const ControllerSpec& spec, const std::vector<Reactor*>& reactors,
                                    std::function<void()> on_change) {
  nvmf_target::SubsystemParts parts;
  parts.name = spec.name;
  parts.config.nqn = spec.exported->nqn;
  parts.config.serial = spec.exported->serial;
  parts.config.addresses = spec.exported->addresses;
  parts.config.standby_addresses = spec.exported->standby_addresses;
  parts.config.io_queues_max = spec.queues;
  parts.config.dscp = spec.exported->dscp;
  parts.reactors = reactors;
  parts.on_change = std::move(on_change);
  return parts;
}

}  // namespace

NvmfGuestDevice::NvmfGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                                 const std::vector<Reactor*>& reactors, std::function<void()> on_change)
    : context_(context),
      target_(*context.target),
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

void NvmfGuestDevice::StandBy() {
  taken_over_ = true;
  if (!added_.ok()) return;
  const Status stands_by = target_.StandBy(nqn());
  const std::string why = stands_by.ok() ? std::string() : stands_by.error().message;
  if (std::exchange(not_standing_by_, why) != why && !why.empty())
    spdlog::warn("{}: hosts have no path by this engine, which stands by: {}; tried again every {} s",
                 spec_.name, why, kStandByAgainNs / kNsPerSecond);
  if (!stands_by.ok())
    context_.control.AddTimer(stand_by_again_, context_.control.now_ns() + kStandByAgainNs);
}

Status NvmfGuestDevice::Serve(UniqueFd connections) {
  CLEAT_TRY(added_);
  using Addresses = nvmf_target::TargetService::Addresses;
  CLEAT_TRY(target_.Serve(nqn(), taken_over_ ? Addresses::kShared : Addresses::kOwn, Open(connections)));
  stand_by_again_.Cancel();
  not_standing_by_.clear();
  return Ok{};
}

std::vector<nvmf_target::SavedAssociation> NvmfGuestDevice::Open(const UniqueFd& connections) const {
  if (!connections) return {};
  auto opened =
      OpenBundle(connections, [this](uint64_t count) { return context_.Reserve(count, spec_.name); });
  if (opened) return std::move(opened).value();
  spdlog::warn("{}: connections of its hosts not taken from the engine before: {}; hosts connect again",
               spec_.name, opened.error().message);
  return {};
}

Task<Result<UniqueFd>> NvmfGuestDevice::Yield(uint64_t deadline_ns) {
  if (!added_.ok()) co_return UniqueFd();
  // The next engine believes a host that is handed over, which must not have proved a secret that is being replaced.
  co_await hosts_.Settled();
  auto associations = co_await target_.HandOver(nqn(), deadline_ns);
  if (!associations) co_return std::move(associations).error();
  if (associations->empty()) co_return UniqueFd();
  auto bundle = MakeBundle(std::move(associations).value());
  if (bundle) co_return std::move(bundle).value();
  spdlog::warn("{}: connections of its hosts not handed over: {}; hosts connect again", spec_.name,
               bundle.error().message);
  co_return UniqueFd();
}

Task<void> NvmfGuestDevice::Close() {
  stand_by_again_.Cancel();
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
  if (of_target.held_writes > 0)
    status.message +=
        fmt::format("; {} write(s) wait for older ones of paths that have ended", of_target.held_writes);
  if (of_target.reserved > 0)
    status.message += fmt::format("; {} disk(s) are reserved by hosts", of_target.reserved);
  if (of_target.shut > 0)
    status.message +=
        fmt::format("; nobody may use {} disk(s), as their reservations can't be read: see the engine's log",
                    of_target.shut);
  return status;
}

}  // namespace cleat::engine
