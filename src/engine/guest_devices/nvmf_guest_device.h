// SPDX-License-Identifier: Apache-2.0
// The guest device of an export, whose guests are hosts that reach it over NVMe/TCP: a subsystem of the engine's target. It is there as long
// as its controller, and listens from Serve on; disks come and go as its namespaces, the one at target t with the NSID t + 1. While it stands by, it
// listens at its standby addresses, if it has any, and its namespaces are inaccessible.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/guest_devices/guest_device.h"
#include "engine/secrets/export_hosts.h"
#include "nvmf_target/hand_over/saved_association.h"
#include "nvmf_target/target_service.h"
#include "reactor/reactor.h"

namespace cleat::engine {

class NvmfGuestDevice final : public GuestDevice {
 public:
  // `spec` is of an export; the context has a target.
  NvmfGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                  const std::vector<Reactor*>& reactors, std::function<void()> on_change);
  ~NvmfGuestDevice() override;

  uint32_t targets() const override { return kNamespacesMax; }
  // Where it can't listen yet, it tries again.
  void StandBy() override;
  Task<void> Acquired() override { return target_.LoadReservations(nqn()); }
  Status Serve(UniqueFd connections) override;
  // Hosts whose connections can't be handed over lose them, and come back to who serves it then.
  Task<Result<UniqueFd>> Yield(uint64_t deadline_ns) override;
  Task<void> Close() override;
  Task<Status> Add(AttachedDisk& disk) override;
  Task<void> Remove(AttachedDisk& disk, bool tell) override;
  Task<void> Resized(AttachedDisk& disk) override;
  void HostsChanged() override;
  Task<void> AwaitHosts() override { return hosts_.Settled(); }
  std::optional<vhost::EndpointStatus> status() const override;
  const char* idle_reason() const override { return "its disks are attached first"; }

 private:
  static constexpr uint64_t kStandByAgainNs = kNsPerSecond;
  struct StandByTimer : Timer {
    explicit StandByTimer(NvmfGuestDevice& d) : Timer(&Fire), device(d) {}
    static void Fire(Timer& timer) { static_cast<StandByTimer&>(timer).device.StandBy(); }
    NvmfGuestDevice& device;
  };

  std::vector<nvmf_target::SavedAssociation> Open(const UniqueFd& connections) const;
  const std::string& nqn() const { return spec_.exported->nqn; }
  nvme::target::NamespaceShape ShapeOf(const AttachedDisk& disk) const;
  void LetIn(ExportHosts::Hosts hosts);

  const ControllerContext& context_;
  nvmf_target::TargetService& target_;
  const ControllerSpec& spec_;
  const std::function<void()> on_change_;
  const Status added_;           // to the target
  bool taken_over_ = false;      // another engine serves, or has served, it
  std::string left_out_;         // ExportHosts::WhyLeftOut
  std::string not_standing_by_;  // why it does not listen where it should while it stands by
  StandByTimer stand_by_again_{*this};
  ExportHosts hosts_;
};

}  // namespace cleat::engine
