// SPDX-License-Identifier: Apache-2.0
// What a controller of the type NVMF may say: an export, which hosts reach over NVMe/TCP.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"
#include "nvme/fabrics/names.h"

namespace cleat::control {
namespace {

namespace fabrics = nvme::fabrics;

Error InvalidExport(std::string_view controller, std::string_view field, const std::string& why) {
  return RefuseFor(controller, v1::REASON_INVALID_FIELD, fmt::format("{}: {} {}", controller, field, why),
                   {{"field", fmt::format("spec.{}", field)}});
}

Status CheckExportNqn(std::string_view controller, std::string_view field, const std::string& nqn) {
  if (auto status = fabrics::CheckNqn(nqn, "it"); !status.ok())
    return InvalidExport(controller, field, "is wrong: " + status.error().message);
  if (nqn != fabrics::kDiscoveryNqn) return Ok{};
  return InvalidExport(controller, field,
                       "is that of discovery services, which no other subsystem or host has");
}

// The engine can't listen at both.
bool Overlap(const fabrics::TransportAddress& one, const fabrics::TransportAddress& other) {
  const auto is_any = [](const fabrics::TransportAddress& address) {
    return std::ranges::all_of(address.address, [](uint8_t byte) { return byte == 0; });
  };
  return one.family == other.family && one.port == other.port &&
         (one.address == other.address || is_any(one) || is_any(other));
}

Status CompleteExportAddresses(std::string_view controller, v1::ExportSpec& spec) {
  constexpr const char* kField = "exported.addresses";
  if (spec.addresses().empty())
    return InvalidExport(controller, kField, "are missing: say where the engine listens, as 10.0.0.1:4420");
  const auto count = static_cast<size_t>(spec.addresses_size());
  if (count > kExportAddressesMax)
    return InvalidExport(controller, kField,
                         fmt::format("are {}: give {} at most", count, kExportAddressesMax));
  std::vector<fabrics::TransportAddress> addresses;
  for (std::string& text : *spec.mutable_addresses()) {
    const std::string field = fmt::format("{}[{}]", kField, addresses.size());
    const auto address = fabrics::ParseTransportAddress(text);
    if (!address.ok()) return InvalidExport(controller, field, "is wrong: " + address.error().message);
    text = fabrics::TextOfAddress(*address);
    for (size_t i = 0; i < addresses.size(); ++i) {
      if (!Overlap(addresses[i], *address)) continue;
      return InvalidExport(controller, field,
                           fmt::format("is {}, which is among those of {}[{}], {}: give each once", text,
                                       kField, i, fabrics::TextOfAddress(addresses[i])));
    }
    addresses.push_back(*address);
  }
  return Ok{};
}

// What belongs to a vhost-user socket.
Status CheckNoSocket(std::string_view controller, const v1::ControllerSpec& spec) {
  constexpr const char* kWhy = "is there: an NVMF controller has no socket and no guest";
  if (!spec.socket_path().empty()) return InvalidExport(controller, "socket_path", kWhy);
  if (spec.socket_mode() != v1::SOCKET_MODE_UNSPECIFIED)
    return InvalidExport(controller, "socket_mode", kWhy);
  if (spec.memory_pinned()) return InvalidExport(controller, "memory_pinned", kWhy);
  return Ok{};
}

}  // namespace

Status CompleteExportHosts(std::string_view controller, v1::ExportSpec* spec) {
  constexpr const char* kField = "exported.hosts";
  auto& hosts = *spec->mutable_hosts();
  const auto count = static_cast<size_t>(hosts.size());
  if (count > kExportHostsMax)
    return InvalidExport(controller, kField, fmt::format("are {}: give {} at most", count, kExportHostsMax));
  for (int i = 0; i < hosts.size(); ++i) {
    CLEAT_TRY(CheckExportNqn(controller, fmt::format("{}[{}].nqn", kField, i), hosts[i].nqn()));
  }
  std::ranges::sort(hosts, {}, [](const v1::ExportHost& host) -> const std::string& { return host.nqn(); });
  const auto twice = std::ranges::adjacent_find(
      hosts, [](const v1::ExportHost& a, const v1::ExportHost& b) { return a.nqn() == b.nqn(); });
  if (twice == hosts.end()) return Ok{};
  return InvalidExport(controller, kField, fmt::format("have '{}' twice: give each once", twice->nqn()));
}

Status CompleteExportSpec(std::string_view controller, v1::ControllerSpec* spec) {
  CLEAT_TRY(CheckNoSocket(controller, *spec));
  if (!spec->has_exported()) {
    return InvalidExport(controller, "exported",
                         "is missing: an NVMF controller has addresses where hosts reach it, and hosts");
  }
  v1::ExportSpec& exported = *spec->mutable_exported();
  if (!exported.nqn().empty()) {
    CLEAT_TRY(CheckExportNqn(controller, "exported.nqn", exported.nqn()));
  }
  CLEAT_TRY(CompleteExportAddresses(controller, exported));
  return CompleteExportHosts(controller, &exported);
}

v1::ControllerSpec WithNqnOf(const v1::ControllerSpec& present, v1::ControllerSpec spec) {
  if (spec.has_exported() && spec.exported().nqn().empty())
    spec.mutable_exported()->set_nqn(present.exported().nqn());
  return spec;
}

}  // namespace cleat::control
