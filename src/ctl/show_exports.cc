// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ctl/show.h"

namespace cleat::ctl {
namespace {

std::string Kept(const v1::Secret& secret) {
  return secret.has_wrapped_key() ? "kept under " + secret.wrapped_key().key_encryption_key() : "none";
}

std::string ShowReservations(v1::Reservations reservations) {
  switch (reservations) {
    case v1::RESERVATIONS_EXCLUSIVE:
      return "exclusive";
    case v1::RESERVATIONS_PROOF:
      return "proof";
    default:
      return "off";
  }
}

}  // namespace

std::string HostsOf(const v1::ControllerSpec& spec) {
  if (!spec.has_exported()) return {};
  std::string hosts;
  for (const v1::ExportHost& host : spec.exported().hosts())
    hosts += fmt::format("{}{}", hosts.empty() ? "" : ",", host.nqn());
  return hosts.empty() ? "nobody" : hosts;
}

std::string DscpOf(const v1::ControllerSpec& spec) {
  return spec.has_exported() ? std::to_string(spec.exported().dscp()) : std::string();
}

Repeated<v1::Controller> ExportsOf(const Repeated<v1::Controller>& controllers) {
  Repeated<v1::Controller> exports;
  for (const v1::Controller& controller : controllers) {
    if (controller.spec().has_exported()) *exports.Add() = controller;
  }
  return exports;
}

Table TableOfHosts(const v1::ExportSpec& spec) {
  Table table({{"HOST"}, {"DHCHAP SECRET"}, {"DHCHAP CTRL SECRET"}, {"TLS PSK"}});
  for (const v1::ExportHost& host : spec.hosts())
    table.Add(
        {host.nqn(), Kept(host.dhchap_secret()), Kept(host.dhchap_ctrl_secret()), Kept(host.tls_psk())});
  return table;
}

Table TableOfExports(const Repeated<v1::Controller>& controllers) {
  const auto state_of = [](const v1::Controller& controller) {
    constexpr std::string_view kStatePrefix = "CONTROLLER_STATE_";
    const std::string& name = v1::ControllerState_Name(controller.status().state());
    return name.starts_with(kStatePrefix) ? name.substr(kStatePrefix.size()) : name;
  };
  Table table({{"EXPORT"},
               {"STATE"},
               {"LISTEN"},
               {"STANDBY LISTEN"},
               {"HOSTS"},
               {"QUEUES UP"},
               {"ENGINE"},
               {"GROUP"},
               {"NQN"},
               {"LABELS"},
               {"MESSAGE"}});
  for (const v1::Controller& controller : controllers) {
    const v1::ExportSpec& spec = controller.spec().exported();
    const v1::ControllerStatus& status = controller.status();
    table.Add({std::string(IdOf(controller.name())), state_of(controller),
               fmt::format("{}", fmt::join(spec.addresses(), ",")),
               fmt::format("{}", fmt::join(spec.standby_addresses(), ",")), std::to_string(spec.hosts_size()),
               std::to_string(status.rings_up()), std::string(IdOf(status.engine())),
               std::string(IdOf(controller.spec().group())), spec.nqn(), Labels(controller.labels()),
               status.message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Subsystem>& subsystems) {
  Table table({{"SUBSYSTEM"},
               {"NQN"},
               {"ADDRESSES"},
               {"HOST NQN", kDetailsOnly},
               {"HOST ID", kDetailsOnly},
               {"HEADER DIGEST", kDetailsOnly},
               {"DATA DIGEST", kDetailsOnly},
               {"KEEP ALIVE", kDetailsOnly},
               {"DSCP", kDetailsOnly},
               {"DHCHAP SECRET", kDetailsOnly},
               {"DHCHAP CTRL SECRET", kDetailsOnly},
               {"TLS PSK", kDetailsOnly},
               {"RESERVATIONS", kDetailsOnly},
               {"RESERVATION FAMILY", kDetailsOnly},
               {"QUIESCE TIME PROVES", kDetailsOnly},
               {"DISKS"},
               {"LABELS"},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly}});
  const auto yes_or_no = [](bool set) { return std::string(set ? "yes" : "no"); };
  for (const v1::Subsystem& subsystem : subsystems) {
    const v1::SubsystemSpec& spec = subsystem.spec();
    table.Add({std::string(IdOf(subsystem.name())), spec.nqn(),
               fmt::format("{}", fmt::join(spec.addresses(), ", ")), spec.host_nqn(), spec.host_id(),
               yes_or_no(spec.header_digest()), yes_or_no(spec.data_digest()),
               fmt::format("{} ms", spec.keep_alive_ms()), std::to_string(spec.dscp()),
               Kept(spec.dhchap_secret()), Kept(spec.dhchap_ctrl_secret()), Kept(spec.tls_psk()),
               ShowReservations(spec.reservations()), subsystem.status().reservation_family(),
               yes_or_no(spec.quiesce_time_proves()), std::to_string(subsystem.status().disks()),
               Labels(subsystem.labels()), std::to_string(subsystem.revision()), subsystem.etag()});
  }
  return table;
}

}  // namespace cleat::ctl
