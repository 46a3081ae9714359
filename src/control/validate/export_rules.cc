// SPDX-License-Identifier: Apache-2.0
// What a controller of the type NVMF may say: an export, which hosts reach over NVMe/TCP and NVMe/RDMA.
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

// An engine can't listen at both, nor can two engines of a host listen at one each. TCP and RDMA have ports of their own.
bool Overlap(const fabrics::TransportAddress& one, const fabrics::TransportAddress& other) {
  return one.transport == other.transport && one.family == other.family && one.port == other.port &&
         (one.address == other.address || fabrics::IsUnspecified(one) || fabrics::IsUnspecified(other));
}

// An engine makes what a listener over RDMA needs on one adapter, the one whose address it is: 0.0.0.0 and [::] name none.
Status CheckAdapter(std::string_view controller, std::string_view place,
                    const fabrics::TransportAddress& address) {
  if (address.transport != fabrics::TransportType::kRdma || !fabrics::IsUnspecified(address)) return Ok{};
  return InvalidExport(controller, place,
                       fmt::format("is {}, which stands for all: over RDMA each address is one adapter's: "
                                   "name them one by one",
                                   fabrics::TextOfAddress(address)));
}

struct KnownAddress {
  std::string field;
  fabrics::TransportAddress address;
};

// Adds those of a field to the ones that are known already, with which none may overlap.
Status AddAddresses(std::string_view controller, const std::string& field,
                    google::protobuf::RepeatedPtrField<std::string>& texts,
                    std::vector<KnownAddress>& known) {
  const auto count = static_cast<size_t>(texts.size());
  if (count > kExportAddressesMax)
    return InvalidExport(controller, field,
                         fmt::format("are {}: give {} at most", count, kExportAddressesMax));
  for (int i = 0; i < texts.size(); ++i) {
    std::string& text = texts[i];
    const std::string place = fmt::format("{}[{}]", field, i);
    const auto address = fabrics::ParseAddressOfAnyTransport(text);
    if (!address.ok()) return InvalidExport(controller, place, "is wrong: " + address.error().message);
    text = fabrics::TextOfAddress(*address);
    CLEAT_TRY(CheckAdapter(controller, place, *address));
    for (const KnownAddress& other : known) {
      if (!Overlap(other.address, *address)) continue;
      return InvalidExport(controller, place,
                           fmt::format("is {}, which is among those of {}, {}: give each once", text,
                                       other.field, fabrics::TextOfAddress(other.address)));
    }
    known.push_back({place, *address});
  }
  return Ok{};
}

// Also those of an engine that stands by are compared with all others: it listens while another engine serves.
Status CompleteExportAddresses(std::string_view controller, v1::ExportSpec& spec) {
  constexpr const char* kField = "exported.addresses";
  if (spec.addresses().empty())
    return InvalidExport(
        controller, kField,
        "are missing: say where the engine listens, as 10.0.0.1:4420 or rdma://10.0.0.1:4420");
  std::vector<KnownAddress> known;
  CLEAT_TRY(AddAddresses(controller, kField, *spec.mutable_addresses(), known));
  return AddAddresses(controller, "exported.standby_addresses", *spec.mutable_standby_addresses(), known);
}

// Behind the addresses, which are complete.
Status CheckDscp(std::string_view controller, const v1::ExportSpec& spec) {
  constexpr const char* kField = "exported.dscp";
  if (spec.dscp() > fabrics::kDscpMax)
    return InvalidExport(controller, kField,
                         fmt::format("is {}: it must be 0 to {}", spec.dscp(), fabrics::kDscpMax));
  const bool over_tcp = !std::ranges::all_of(spec.addresses(), IsOverRdma) ||
                        !std::ranges::all_of(spec.standby_addresses(), IsOverRdma);
  if (spec.dscp() == 0 || over_tcp) return Ok{};
  return InvalidExport(controller, kField,
                       fmt::format("is {}, and all addresses are over RDMA, where the DSCP that a host asks "
                                   "for holds for both ways: leave it out, and set it at the hosts",
                                   spec.dscp()));
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

// The first of these that overlaps one of those.
std::string OverlapOf(const google::protobuf::RepeatedPtrField<std::string>& these,
                      const google::protobuf::RepeatedPtrField<std::string>& those) {
  for (const std::string& text : these) {
    for (const std::string& other : those) {
      const auto one = fabrics::ParseAddressOfAnyTransport(text),
                 two = fabrics::ParseAddressOfAnyTransport(other);
      if (one.ok() && two.ok() && Overlap(*one, *two)) return text;
    }
  }
  return {};
}

}  // namespace

bool IsOverRdma(std::string_view address) {
  const auto parsed = fabrics::ParsePathAddress(address);
  return parsed.ok() && parsed->target.transport == fabrics::TransportType::kRdma;
}

std::string StandbyConflictOf(const v1::ExportSpec& one, const v1::ExportSpec& other) {
  std::string address = OverlapOf(one.standby_addresses(), other.addresses());
  return address.empty() ? OverlapOf(one.addresses(), other.standby_addresses()) : address;
}

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
  CLEAT_TRY(CheckDscp(controller, exported));
  return CompleteExportHosts(controller, &exported);
}

v1::ControllerSpec WithNqnOf(const v1::ControllerSpec& present, v1::ControllerSpec spec) {
  if (spec.has_exported() && spec.exported().nqn().empty())
    spec.mutable_exported()->set_nqn(present.exported().nqn());
  return spec;
}

}  // namespace cleat::control
