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

}  // namespace

std::string HostsOf(const v1::ControllerSpec& spec) {
  if (!spec.has_exported()) return {};
  std::string hosts;
  for (const v1::ExportHost& host : spec.exported().hosts())
    hosts += fmt::format("{}{}", hosts.empty() ? "" : ",", host.nqn());
  return hosts.empty() ? "nobody" : hosts;
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

}  // namespace cleat::ctl
