// SPDX-License-Identifier: Apache-2.0
// The hosts that an export lets in, one by one, and their secrets.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "ctl/commands.h"
#include "ctl/nvmf_secrets.h"
#include "ctl/secret_file.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct HostArguments {
  std::string id;
  std::string nqn;
  SecretArguments secrets = SecretsOfHost();
  std::string etag;
};

std::string ExportOf(const HostArguments& arguments) {
  return FullName("controllers/", arguments.id);
}

auto FindHost(v1::ExportSpec& spec, const std::string& nqn) {
  return std::ranges::find(*spec.mutable_hosts(), nqn, [](const auto& host) { return host.nqn(); });
}

// Reads the export, changes its hosts, and writes them back; again when somebody else changed it meanwhile, unless an etag was given. `change`
// says why it does nothing. What the other hosts have stays as it is: answers say that it is there.
ExitCode ChangeHosts(Client& client, const HostArguments& arguments,
                     const std::function<ExitCode(v1::ExportSpec&)>& change) {
  constexpr int kAttempts = 5;
  for (int attempt = 1;; ++attempt) {
    v1::Controller controller;
    if (const ExitCode code = FindExport(client, ExportOf(arguments), controller); code != kOk) return code;
    v1::UpdateControllerRequest request;
    v1::Controller& wanted = *request.mutable_controller();
    wanted.set_name(controller.name());
    wanted.set_etag(arguments.etag.empty() ? controller.etag() : arguments.etag);
    v1::ExportSpec& spec = *wanted.mutable_spec()->mutable_exported();
    *spec.mutable_hosts() = controller.spec().exported().hosts();
    request.mutable_update_mask()->add_paths("spec.exported.hosts");
    const ExitCode changed = change(spec);
    const grpc::Status status =
        changed == kOk ? client.TryCall(&Stub::UpdateController, request, controller) : grpc::Status::OK;
    for (v1::ExportHost& host : *spec.mutable_hosts()) WipeSecrets(host);
    if (changed != kOk) return changed;
    const bool raced = status.error_code() == grpc::StatusCode::ABORTED && arguments.etag.empty();
    if (raced && attempt < kAttempts) continue;
    if (const ExitCode code = client.Say(status); code != kOk) return code;
    return ShowOne(client, controller, Detail::kLine);
  }
}

// With the secrets that are given, which are read once and wiped afterwards.
ExitCode WithSecrets(const HostArguments& arguments,
                     const std::function<ExitCode(const v1::ExportHost& given)>& run) {
  v1::ExportHost given;
  given.set_nqn(arguments.nqn);
  const Status read = ReadSecrets(arguments.secrets, given);
  const ExitCode code = read.ok() ? run(given) : Fail(kUsage, read.error().message);
  WipeSecrets(given);
  return code;
}

ExitCode LetHostIn(Client& client, const HostArguments& arguments) {
  return WithSecrets(arguments, [&](const v1::ExportHost& given) {
    return ChangeHosts(client, arguments, [&](v1::ExportSpec& spec) {
      if (FindHost(spec, arguments.nqn) != spec.mutable_hosts()->end()) {
        return Fail(kFailed,
                    fmt::format("{} lets in {} already: change its secrets (cleatctl export host update)",
                                ExportOf(arguments), arguments.nqn));
      }
      *spec.add_hosts() = given;
      return kOk;
    });
  });
}

ExitCode UpdateHost(Client& client, const HostArguments& arguments) {
  if (!ChangesAny(arguments.secrets)) {
    return Fail(kUsage, fmt::format("{}: nothing to change; give a secret's file, or which one to remove",
                                    ExportOf(arguments)));
  }
  return WithSecrets(arguments, [&](const v1::ExportHost& given) {
    return ChangeHosts(client, arguments, [&](v1::ExportSpec& spec) {
      const auto host = FindHost(spec, arguments.nqn);
      if (host == spec.mutable_hosts()->end()) {
        return Fail(kFailed, fmt::format("{} does not let in {}: add it (cleatctl export host add)",
                                         ExportOf(arguments), arguments.nqn));
      }
      if (given.has_dhchap_secret()) *host->mutable_dhchap_secret() = given.dhchap_secret();
      if (given.has_dhchap_ctrl_secret()) *host->mutable_dhchap_ctrl_secret() = given.dhchap_ctrl_secret();
      if (given.has_tls_psk()) *host->mutable_tls_psk() = given.tls_psk();
      return kOk;
    });
  });
}

// A host that is not let in is what was asked for.
ExitCode RemoveHost(Client& client, const HostArguments& arguments) {
  return ChangeHosts(client, arguments, [&](v1::ExportSpec& spec) {
    if (const auto host = FindHost(spec, arguments.nqn); host != spec.mutable_hosts()->end())
      spec.mutable_hosts()->erase(host);
    return kOk;
  });
}

ExitCode ListHosts(Client& client, const HostArguments& arguments) {
  v1::Controller controller;
  if (const ExitCode code = FindExport(client, ExportOf(arguments), controller); code != kOk) return code;
  const v1::ExportSpec& spec = controller.spec().exported();
  client.Show(spec, [&] { return TableOfHosts(spec).Rows(); });
  return kOk;
}

void AddWhichHost(CLI::App& command, HostArguments& arguments) {
  command.add_option(kExportArgument, arguments.id, "ID or controllers/ID")->required();
  command
      .add_option("NQN", arguments.nqn, "The host's NVMe qualified name; Linux has it in /etc/nvme/hostnqn")
      ->required();
  AddEtag(command, arguments.etag);
}

}  // namespace

void AddExportHostCommands(CLI::App& exports, Globals& globals) {
  CLI::App* host =
      AddCommand(exports, "host", "Which hosts an export lets in: add, update, remove, list", "");
  host->require_subcommand(1);
  const auto arguments = std::make_shared<HostArguments>();

  CLI::App* add = AddCommand(
      *host, "add", "Let a host in, with the secrets that it has to prove",
      "cleatctl export host add db nqn.2014-08.org.example:host1 --dhchap-secret-file host1.key\n"
      "nvme gen-tls-key | cleatctl export host add db nqn.2014-08.org.example:host2 --tls-psk-file -");
  AddWhichHost(*add, *arguments);
  AddSecrets(*add, arguments->secrets);
  OnRun(*add, globals, arguments, LetHostIn);

  CLI::App* update = AddCommand(
      *host, "update", "Change a host's secrets; its connections end, and it comes back with the new ones",
      "cleatctl export host update db nqn.2014-08.org.example:host1 --dhchap-secret-file new.key\n"
      "cleatctl export host update db nqn.2014-08.org.example:host1 --no-tls-psk");
  AddWhichHost(*update, *arguments);
  AddSecrets(*update, arguments->secrets);
  AddRemoveSecrets(*update, arguments->secrets);
  OnRun(*update, globals, arguments, UpdateHost);

  CLI::App* remove =
      AddCommand(*host, "remove", "Let a host in no more: its connections end, and its secrets are destroyed",
                 "cleatctl export host remove db nqn.2014-08.org.example:host1");
  AddWhichHost(*remove, *arguments);
  OnRun(*remove, globals, arguments, RemoveHost);

  CLI::App* list = AddCommand(*host, "list", "Show the hosts of an export, and which secrets they have",
                              "cleatctl export host list db");
  list->add_option(kExportArgument, arguments->id, "ID or controllers/ID")->required();
  OnRun(*list, globals, arguments, ListHosts);
}

}  // namespace cleat::ctl
