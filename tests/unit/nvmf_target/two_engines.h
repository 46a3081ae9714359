// SPDX-License-Identifier: Apache-2.0
// Two engines' targets with one disk, and one host's connections that go from one to the other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test {

using Associations = std::vector<nvmf_target::SavedAssociation>;

// The rig's target, and that of an engine which stands by for it, with the same disk.
struct TwoEngines {
  explicit TwoEngines(const nvmf_target::PortLimits& limits = {},
                      const nvmf_target::StreamTuning& tuning = {})
      : rig(limits, 1, tuning),
        next(std::make_unique<nvmf_target::TargetService>(*rig.adapters, nullptr, tuning, limits,
                                                          &rig.reservations)) {
    nvmf_target::SubsystemParts parts;
    parts.name = "controllers/e";
    parts.config.nqn = TargetRig::kNqn;
    parts.config.serial = "S1";
    parts.config.hosts = {nvme::target::HostAccess::Named(TargetRig::HostNqn())};
    parts.config.addresses = rig.addresses;
    for (const auto& reactor : rig.io) parts.reactors.push_back(reactor.get());
    CLEAT_CHECK(next->AddSubsystem(std::move(parts)).ok());
    const Status added = rig.Await<Status>([this](TargetRig& r) -> Task<Status> {
      nvmf_target::NamespaceParts space;
      space.shape = r.ShapeOf(1);
      space.channel_on = [&r](Reactor& reactor) {
        return nvmf_target::NamespaceChannel{r.channels[&reactor == r.io[0].get() ? 0 : 1].get()};
      };
      co_return co_await next->AddNamespace(TargetRig::kNqn, 1, std::move(space));
    });
    CLEAT_CHECK(added.ok());
  }
  ~TwoEngines() {
    rig.storage->fails = block::IoStatus::kOk;
    rig.storage->LetGo();
    rig.Await<bool>([this](TargetRig&) -> Task<bool> {
      (void)co_await next->Withdraw(TargetRig::kNqn);
      co_await next->RemoveNamespace(TargetRig::kNqn, 1);
      next->RemoveSubsystem(TargetRig::kNqn);
      co_await next->Close();
      co_return true;
    });
    next.reset();
  }
  TwoEngines(const TwoEngines&) = delete;
  TwoEngines& operator=(const TwoEngines&) = delete;

  Result<Associations> HandOver(uint64_t for_ns = 60 * kNsPerSecond) {
    return rig.Await<Result<Associations>>([for_ns](TargetRig& r) {
      return r.service->HandOver(TargetRig::kNqn, r.control->now_ns() + for_ns);
    });
  }
  void Serve(Associations associations) {
    const Status served = rig.Await<Status>([&](TargetRig&) -> Task<Status> {
      co_await next->LoadReservations(TargetRig::kNqn);
      co_return next->Serve(TargetRig::kNqn, nvmf_target::TargetService::Addresses::kOwn,
                            std::move(associations));
    });
    ASSERT_TRUE(served.ok()) << served.error().message;
  }
  void MoveOn() {
    auto associations = HandOver();
    ASSERT_TRUE(associations.ok()) << associations.error().message;
    Serve(std::move(*associations));
  }
  // Another disk comes behind the namespace's identifier.
  void Exchange(nvmf_target::TargetService& service) {
    const Status added = rig.Await<Status>([&service](TargetRig& r) -> Task<Status> {
      co_await service.RemoveNamespace(TargetRig::kNqn, 1);
      nvmf_target::NamespaceParts space;
      space.shape = r.ShapeOf(1);
      space.channel_on = [&r](Reactor& reactor) {
        return nvmf_target::NamespaceChannel{r.channels[&reactor == r.io[0].get() ? 0 : 1].get()};
      };
      co_return co_await service.AddNamespace(TargetRig::kNqn, 1, std::move(space));
    });
    ASSERT_TRUE(added.ok());
  }
  uint32_t controllers() const { return next->StatusOf(TargetRig::kNqn).controllers; }
  void Turns(int turns = 300) {
    for (int turn = 0; turn < turns; ++turn) rig.Turn();
  }

  TargetRig rig;
  std::unique_ptr<nvmf_target::TargetService> next;
};

}  // namespace cleat::test
