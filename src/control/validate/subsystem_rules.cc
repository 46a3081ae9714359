// SPDX-License-Identifier: Apache-2.0
// What an NVMe-oF subsystem may say.
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

Error InvalidSubsystem(std::string_view resource, std::string_view field, const std::string& why) {
  return RefuseFor(resource, v1::REASON_INVALID_FIELD, fmt::format("{}: {} {}", resource, field, why),
                   {{"field", fmt::format("spec.{}", field)}});
}

Status CheckSubsystemNqn(std::string_view name, const std::string& nqn) {
  if (nqn.empty()) return InvalidSubsystem(name, "nqn", "is missing: the subsystem's NVMe qualified name");
  if (auto status = fabrics::CheckNqn(nqn, "it"); !status.ok())
    return InvalidSubsystem(name, "nqn", "is wrong: " + status.error().message);
  if (nqn != fabrics::kDiscoveryNqn) return Ok{};
  return InvalidSubsystem(name, "nqn", "is that of discovery services, which have no namespaces");
}

// Over TCP Linux takes such an address for its own host, and specs of before RDMA may have one.
bool IsNobodys(const fabrics::TransportAddress& address) {
  return address.transport == fabrics::TransportType::kRdma && fabrics::IsUnspecified(address);
}

std::string WhyNobodys(const std::string& address) {
  return fmt::format("is {}, which is nobody's address: give that of the target's adapter", address);
}

// Digests are of PDUs, which only TCP has. Beside addresses over TCP they hold for these.
Status CheckDigests(std::string_view name, const v1::SubsystemSpec& spec) {
  if (!spec.header_digest() && !spec.data_digest()) return Ok{};
  if (!std::ranges::all_of(spec.addresses(), IsOverRdma)) return Ok{};
  return InvalidSubsystem(
      name, spec.header_digest() ? "header_digest" : "data_digest",
      "is there, and all addresses are over RDMA: digests are NVMe/TCP's, and RDMA adapters check what they "
      "carry by themselves. Leave digests out (cleatctl: --no-header-digest, --no-data-digest), or give an "
      "address over TCP as well");
}

Status CompleteAddresses(std::string_view name, v1::SubsystemSpec& spec) {
  if (spec.addresses().empty())
    return InvalidSubsystem(
        name, "addresses",
        "are missing: say where the subsystem is, as 10.0.0.1:4420 or rdma://10.0.0.1:4420");
  const auto count = static_cast<size_t>(spec.addresses_size());
  if (count > fabrics::kSubsystemAddressesMax) {
    return InvalidSubsystem(name, "addresses",
                            fmt::format("are {}: give {} at most", count, fabrics::kSubsystemAddressesMax));
  }
  std::vector<fabrics::PathAddress> addresses;
  for (std::string& text : *spec.mutable_addresses()) {
    const std::string field = fmt::format("addresses[{}]", addresses.size());
    const auto address = fabrics::ParsePathAddress(text);
    if (!address.ok()) return InvalidSubsystem(name, field, "is wrong: " + address.error().message);
    text = fabrics::TextOfPathAddress(*address);
    if (IsNobodys(address->target)) return InvalidSubsystem(name, field, WhyNobodys(text));
    const auto same = std::ranges::find(addresses, *address);
    if (same != addresses.end()) {
      return InvalidSubsystem(
          name, field,
          fmt::format("is {}, as addresses[{}] is: give each once", text, same - addresses.begin()));
    }
    addresses.push_back(*address);
  }
  return Ok{};
}

constexpr const char* kNoTls =
    "NVMe/RDMA has no TLS, but takes DH-HMAC-CHAP secrets (dhchap_secret) as NVMe/TCP does";

// A key that is there and empty is one to be removed.
template <typename Message>
bool HasPsk(const Message& message) {
  return message.tls_psk().key_case() != v1::Secret::KEY_NOT_SET;
}

// This host's identity, in a subsystem's spec or in a request to discover. `refuse` makes the error of a field and what is wrong with it.
template <typename Message, typename Refuse>
Status CompleteHost(Message& message, const Refuse& refuse) {
  if (message.host_nqn().empty() != message.host_id().empty()) {
    return refuse(message.host_nqn().empty() ? "host_nqn" : "host_id",
                  "is missing: targets know a host by both, host_nqn and host_id; or leave out both");
  }
  if (message.host_nqn().empty()) return Ok{};
  const auto id = fabrics::ParseUuid(message.host_id());
  if (!id.ok()) return refuse("host_id", "is wrong: " + id.error().message);
  if (*id == fabrics::Uuid{}) return refuse("host_id", "is all zeroes, which no host is");
  if (auto status = fabrics::CheckHostIdentity({.nqn = message.host_nqn(), .id = *id}); !status.ok())
    return refuse("host_nqn", "is wrong: " + status.error().message);
  message.set_host_id(fabrics::TextOfUuid(*id));
  return Ok{};
}

Status CompleteReservations(std::string_view name, v1::SubsystemSpec& spec) {
  if (!v1::Reservations_IsValid(spec.reservations())) {
    return InvalidSubsystem(
        name, "reservations",
        fmt::format("is {}, which this version does not know", static_cast<int>(spec.reservations())));
  }
  // One form, which is that of specs of before.
  if (spec.reservations() == v1::RESERVATIONS_OFF) spec.clear_reservations();
  return Ok{};
}

}  // namespace

Result<v1::SubsystemSpec> CompleteSubsystemSpec(std::string_view id, v1::SubsystemSpec spec) {
  const std::string name = SubsystemName(id);
  CLEAT_TRY(CheckSubsystemNqn(name, spec.nqn()));
  CLEAT_TRY(CompleteAddresses(name, spec));
  CLEAT_TRY(CheckDigests(name, spec));
  CLEAT_TRY(CompleteHost(
      spec, [&](const char* field, const std::string& why) { return InvalidSubsystem(name, field, why); }));
  CLEAT_TRY(CompleteReservations(name, spec));
  if (spec.dscp() > fabrics::kDscpMax)
    return InvalidSubsystem(name, "dscp",
                            fmt::format("is {}: it must be 0 to {}", spec.dscp(), fabrics::kDscpMax));
  if (spec.keep_alive_ms() == 0) spec.set_keep_alive_ms(kKeepAliveMsDefault);
  if (spec.keep_alive_ms() >= nvme::fabrics::kKeepAliveMsMin &&
      spec.keep_alive_ms() <= nvme::fabrics::kKeepAliveMsMax)
    return spec;
  return InvalidSubsystem(name, "keep_alive_ms",
                          fmt::format("is {}: it must be {} to {}", spec.keep_alive_ms(),
                                      nvme::fabrics::kKeepAliveMsMin, nvme::fabrics::kKeepAliveMsMax));
}

Status CheckPskTransport(std::string_view id, const v1::SubsystemSpec& spec) {
  if (!HasPsk(spec)) return Ok{};
  const auto& addresses = spec.addresses();
  const auto rdma = std::ranges::find_if(addresses, IsOverRdma);
  if (rdma == addresses.end()) return Ok{};
  return InvalidSubsystem(
      SubsystemName(id), fmt::format("addresses[{}]", rdma - addresses.begin()),
      fmt::format(
          "is {}, and the subsystem has a pre-shared key (tls_psk): {}. Give addresses over TCP alone, "
          "or remove the key (cleatctl subsystem update --no-tls-psk)",
          *rdma, kNoTls));
}

Status CompleteDiscovery(v1::DiscoverSubsystemsRequest* request) {
  const auto refuse = [](const char* field, const std::string& why) {
    return Refuse(v1::REASON_INVALID_FIELD, fmt::format("{} {}", field, why), {{"field", field}});
  };
  if (request->address().empty())
    return refuse("address",
                  "is missing: say where the discovery service is, as 10.0.0.1:8009 or rdma://10.0.0.1:8009");
  const auto address = fabrics::ParseAddressOfAnyTransport(request->address(), fabrics::kDiscoveryPort);
  if (!address.ok()) return refuse("address", "is wrong: " + address.error().message);
  request->set_address(fabrics::TextOfAddress(*address));
  if (IsNobodys(*address)) return refuse("address", WhyNobodys(request->address()));
  if (HasPsk(*request) && IsOverRdma(request->address())) {
    return refuse(
        "address",
        fmt::format("is {}, and a pre-shared key (tls_psk) is given: {}. Ask the service over TCP, or "
                    "leave the key out",
                    request->address(), kNoTls));
  }
  return CompleteHost(*request, refuse);
}

Status CheckSecretsTogether(std::string_view resource, std::string_view path, bool has_dhchap_secret,
                            bool has_dhchap_ctrl_secret) {
  if (!has_dhchap_ctrl_secret || has_dhchap_secret) return Ok{};
  return RefuseFor(
      resource, v1::REASON_KEY_INVALID,
      fmt::format("{}: {}dhchap_ctrl_secret is there without dhchap_secret: a subsystem proves itself "
                  "only to a host that does so too. Give both, or remove both",
                  resource, path),
      {{"field", fmt::format("spec.{}dhchap_ctrl_secret", path)}});
}

bool HasSource(std::string_view address) {
  const auto parsed = fabrics::ParsePathAddress(address);
  return parsed.ok() && parsed->source.has_value();
}

bool HasReservations(const v1::SubsystemSpec& spec) {
  return spec.reservations() == v1::RESERVATIONS_EXCLUSIVE || spec.reservations() == v1::RESERVATIONS_PROOF;
}

v1::SubsystemSpec WithHostOf(const v1::SubsystemSpec& present, v1::SubsystemSpec spec) {
  if (!spec.host_id().empty()) return spec;
  spec.set_host_nqn(present.host_nqn());
  spec.set_host_id(present.host_id());
  return spec;
}

}  // namespace cleat::control
