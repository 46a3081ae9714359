// SPDX-License-Identifier: Apache-2.0
// Reservations of a service's namespaces: each has a keeper, which commands of hosts are brought to.
#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "nvmf_target/target_service.h"

namespace cleat::nvmf_target {

std::unique_ptr<ReservationKeeper> TargetService::MakeKeeper(const Shown& shown, uint32_t nsid,
                                                             const nvme::target::NamespaceShape& shape) {
  if (reservation_store_ == nullptr) return nullptr;
  CLEAT_CHECK(shape.ids.uuid.has_value());
  ReservationKeeper::Parts parts{
      .control = control_,
      .target = target_,
      .store = *reservation_store_,
      .nqn = shown.config.nqn,
      .name = fmt::format("{}, namespace {}", shown.name, nsid),
      .nsid = nsid,
      .uuid = *shape.ids.uuid,
      .places = {},
      .on_change =
          [this, nqn = shown.config.nqn] {
            if (const Shown* const changed = Find(nqn); changed != nullptr) ShowShut(*changed);
            TellLater(nqn);
          },
      .may_log = [this] { return MayLog(refusals_, "are refused"); },
  };
  for (const auto& [reactor, port] : shown.ports) parts.places.push_back({&PortOf(*reactor), port});
  return std::make_unique<ReservationKeeper>(std::move(parts));
}

Task<void> TargetService::LoadReservations(std::string nqn) {
  const Shown* const shown = Find(nqn);
  if (shown == nullptr) co_return;
  CLEAT_CHECK(!shown->served);
  for (const auto& [nsid, space] : shown->namespaces) {
    if (space.reservation != nullptr) co_await space.reservation->LoadOrShut();
  }
}

void TargetService::ShowShut(const Shown& shown) {
  if (!shown.served) return;
  using nvme::fabrics::AnaState;
  for (const auto& [nsid, space] : shown.namespaces) {
    const bool shut = space.reservation != nullptr && space.reservation->shut();
    (void)target_.SetAna(shown.config.nqn, nsid, shut ? AnaState::kInaccessible : AnaState::kOptimized);
  }
}

void TargetService::Execute(const nvme::target::TargetController& controller, ReservationCall call) {
  const Shown* const shown = ShownOf(controller);
  const auto refuse = [&call] { call.answer({.status = kInvalidNamespace.field(), .data = {}}); };
  if (shown == nullptr) return refuse();
  const auto space = shown->namespaces.find(call.nsid);
  if (space == shown->namespaces.end()) return refuse();
  space->second.reservation->Execute(std::move(call));
}

}  // namespace cleat::nvmf_target
