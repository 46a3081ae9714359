// SPDX-License-Identifier: Apache-2.0
// Exports: controllers of the type NVMF, whose disks hosts reach over NVMe/TCP and NVMe/RDMA.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "ctl/ask.h"
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct ExportArguments {
  std::string id;
  std::vector<std::string> disks;
  std::vector<std::string> hosts;
  bool no_hosts = false;
  std::vector<std::string> addresses;
  std::vector<std::string> standby_addresses;
  std::string nqn;
  uint32_t queues = 0;
  uint32_t dscp = 0;
  std::string engine;
  std::string group;
  LabelArguments labels;
  std::string etag;
  int wait_s = -1;
  bool yes = false;
};

std::string ExportName(const ExportArguments& arguments) {
  return FullName("controllers/", arguments.id);
}

void SetHosts(const std::vector<std::string>& nqns, v1::ExportSpec& spec) {
  spec.clear_hosts();
  for (const std::string& nqn : nqns) spec.add_hosts()->set_nqn(nqn);
}

v1::CreateControllerRequest ExportFrom(const ExportArguments& arguments) {
  v1::CreateControllerRequest request;
  request.set_controller_id(std::string(IdOf(arguments.id)));
  ChangeLabels(arguments.labels, *request.mutable_controller()->mutable_labels());
  v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
  spec.set_type(v1::CONTROLLER_TYPE_NVMF);
  spec.set_queues(arguments.queues);
  if (!arguments.engine.empty()) spec.set_engine(FullName("engines/", arguments.engine));
  if (!arguments.group.empty()) spec.set_group(FullName("groups/", arguments.group));
  v1::ExportSpec& exported = *spec.mutable_exported();
  exported.set_nqn(arguments.nqn);
  exported.mutable_addresses()->Assign(arguments.addresses.begin(), arguments.addresses.end());
  exported.mutable_standby_addresses()->Assign(arguments.standby_addresses.begin(),
                                               arguments.standby_addresses.end());
  exported.set_dscp(arguments.dscp);
  SetHosts(arguments.hosts, exported);
  return request;
}

// What is there after a disk could not be attached, and how to go on.
std::string WhatIsLeft(const ExportArguments& arguments, size_t attached) {
  std::string text = fmt::format("{} is there, with {} of {} disks", ExportName(arguments), attached,
                                 arguments.disks.size());
  for (size_t i = attached; i < arguments.disks.size(); ++i) {
    text += fmt::format("{} cleatctl attach {} {} --target {}", i == attached ? "; what is left:" : ",",
                        IdOf(arguments.disks[i]), IdOf(arguments.id), i);
  }
  return text;
}

// In the order in which they were given, at the targets 0, 1, ...
ExitCode AttachDisks(Client& client, const ExportArguments& arguments,
                     std::vector<std::string>& attachments) {
  for (const std::string& disk : arguments.disks) {
    v1::AttachDiskRequest request;
    request.set_parent(ExportName(arguments));
    v1::AttachmentSpec& spec = *request.mutable_attachment()->mutable_spec();
    spec.set_disk(FullName("disks/", disk));
    spec.set_target(static_cast<uint32_t>(attachments.size()));
    v1::Attachment attachment;
    if (const ExitCode code = client.Call(&Stub::AttachDisk, request, attachment); code != kOk) {
      (void)Fail(code, WhatIsLeft(arguments, attachments.size()));
      return code;
    }
    attachments.push_back(attachment.name());
  }
  return kOk;
}

ExitCode CreateExport(Client& client, const ExportArguments& arguments) {
  v1::Controller controller;
  const auto request = ExportFrom(arguments);
  if (const ExitCode code = client.Call(&Stub::CreateController, request, controller); code != kOk)
    return code;
  std::vector<std::string> attachments;
  if (const ExitCode code = AttachDisks(client, arguments, attachments); code != kOk) return code;
  for (const std::string& attachment : attachments) {
    v1::WaitResponse ready;
    if (arguments.wait_s < 0) break;
    const WaitOptions options{.time = std::chrono::seconds(arguments.wait_s)};
    if (const ExitCode code = WaitFor(client, attachment, options, ready); code != kOk) return code;
  }
  return WaitAndShow(client, controller, arguments.wait_s, &v1::WaitResponse::controller);
}

ExitCode GetExport(Client& client, const ExportArguments& arguments) {
  v1::Controller controller;
  if (const ExitCode code = FindExport(client, ExportName(arguments), controller); code != kOk) return code;
  return ShowOne(client, controller, Detail::kAll);
}

ExitCode ListExports(Client& client, const ExportArguments&) {
  v1::ListControllersResponse all;
  if (const ExitCode code = client.CallForAll(&Stub::ListControllers, v1::ListControllersRequest(), all);
      code != kOk)
    return code;
  *all.mutable_controllers() = ExportsOf(all.controllers());
  client.Show(all, [&] { return TableOfExports(all.controllers()).Rows(); });
  return kOk;
}

ExitCode UpdateExport(Client& client, const ExportArguments& arguments) {
  v1::Controller controller;
  if (arguments.hosts.empty() && !arguments.no_hosts) {
    const ExitCode code = UpdateLabels(client, &Stub::GetController, &Stub::UpdateController,
                                       &v1::UpdateControllerRequest::mutable_controller,
                                       ExportName(arguments), arguments.etag, arguments.labels, controller);
    return code != kOk ? code : ShowOne(client, controller, Detail::kLine);
  }
  v1::UpdateControllerRequest request;
  v1::Controller& wanted = *request.mutable_controller();
  wanted.set_name(ExportName(arguments));
  wanted.set_etag(arguments.etag);
  SetHosts(arguments.hosts, *wanted.mutable_spec()->mutable_exported());
  request.mutable_update_mask()->add_paths("spec.exported.hosts");
  if (!arguments.labels.set.empty() || !arguments.labels.remove.empty()) {
    if (const ExitCode code = FindExport(client, ExportName(arguments), controller); code != kOk) return code;
    if (arguments.etag.empty()) wanted.set_etag(controller.etag());
    *wanted.mutable_labels() = controller.labels();
    ChangeLabels(arguments.labels, *wanted.mutable_labels());
    request.mutable_update_mask()->add_paths("labels");
  }
  if (const ExitCode code = client.Call(&Stub::UpdateController, request, controller); code != kOk)
    return code;
  return ShowOne(client, controller, Detail::kLine);
}

// An export that is gone is what was asked for.
ExitCode DeleteExport(Client& client, const ExportArguments& arguments) {
  v1::GetControllerRequest get;
  get.set_name(ExportName(arguments));
  v1::Controller controller;
  const grpc::Status found = client.TryCall(&Stub::GetController, get, controller);
  if (found.ok() && !controller.spec().has_exported())
    return FindExport(client, ExportName(arguments), controller);
  if (!found.ok() && found.error_code() != grpc::StatusCode::NOT_FOUND) return client.Say(found);
  v1::DeleteControllerRequest request;
  request.set_name(ExportName(arguments));
  request.set_etag(arguments.etag);
  v1::DeleteControllerResponse response;
  if (const ExitCode code = CallSparingKey(client, &Stub::DeleteController, request, response, arguments.yes);
      code != kOk)
    return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

CLI::Option* AddHosts(CLI::App& command, ExportArguments& arguments, const std::string& more) {
  return command
      .add_option(
          "--hosts", arguments.hosts,
          "NQNs of the hosts that are let in; nobody else is. Linux has its own in /etc/nvme/hostnqn. Hosts "
          "with secrets are added one by one (cleatctl export host add). " +
              more)
      ->type_name("NQN");
}

void AddCreate(CLI::App& command, Globals& globals, const std::shared_ptr<ExportArguments>& arguments) {
  CLI::App* create = AddCommand(command, "create", "Let hosts use disks over NVMe/TCP or NVMe/RDMA",
                                "cleatctl export create db --disk data --disk log --listen 10.0.0.1 "
                                "--hosts nqn.2014-08.org.example:host1 --wait\n"
                                "cleatctl export create db --listen 10.0.0.1 --standby-listen 10.0.1.1\n"
                                "cleatctl export create db --listen rdma://10.0.0.1 --listen 10.0.0.1\n"
                                "cleatctl attach more db        one more namespace");
  create
      ->add_option("ID", arguments->id,
                   "Its id, which is a controller's: small letters, digits, dashes; a letter first")
      ->required();
  create
      ->add_option(
          "--disk", arguments->disks,
          "A disk that becomes a namespace, the first that is given with the NSID 1; given again for "
          "each, 64 at most. None: attach them later")
      ->allow_extra_args(false)
      ->type_name(kDiskArgument);
  AddHosts(*create, *arguments, "None: nobody, until some are let in (cleatctl export update)");
  create
      ->add_option(
          "--listen", arguments->addresses,
          "Where hosts reach it: 10.0.0.1:4420 or [fd00::1]:4420, numbers alone; 0.0.0.0 and [::] are "
          "all of this host's addresses. Over RDMA rdma://10.0.0.1:4420, each an adapter's own: none stands "
          "for all. "
          "The port is 4420 where none is given. Given again for each")
      ->required()
      ->allow_extra_args(false)
      ->type_name("ADDRESS");
  create
      ->add_option(
          "--standby-listen", arguments->standby_addresses,
          "Where hosts reach the engine that stands by (cleat-engine --standby-for), as a second path that "
          "is inaccessible until that engine takes the export: as --listen, at another address or port. "
          "None: nowhere. Given again for each")
      ->allow_extra_args(false)
      ->type_name("ADDRESS");
  create->add_option("--nqn", arguments->nqn,
                     "The subsystem's NVMe qualified name; cleatd makes one by default");
  create->add_option("--queues", arguments->queues,
                     "I/O queues that each host gets at most, 1 to 64; 8 by default");
  create
      ->add_option("--dscp", arguments->dscp,
                   "The code point (DSCP) that packets to hosts over TCP carry: 0 to 63, 0 by default. Over "
                   "RDMA they carry what the host asks for")
      ->type_name("DSCP");
  create
      ->add_option("--engine", arguments->engine,
                   "The engine that serves it; the least loaded one by default")
      ->type_name(kEngineArgument);
  create->add_option("--group", arguments->group, "The group whose limits its disks share; none by default")
      ->type_name(kGroupArgument);
  AddLabels(*create, arguments->labels);
  AddWait(*create, arguments->wait_s, "its engine has it, and its disks are open");
  OnRun(*create, globals, arguments, CreateExport);
}

}  // namespace

ExitCode FindExport(Client& client, const std::string& name, v1::Controller& controller) {
  v1::GetControllerRequest request;
  request.set_name(name);
  if (const ExitCode code = client.Call(&Stub::GetController, request, controller); code != kOk) return code;
  if (controller.spec().has_exported()) return kOk;
  return Fail(kUsage, fmt::format("{} is no export, but a virtio device (cleatctl controller get {})",
                                  controller.name(), IdOf(controller.name())));
}

void AddExportCommands(CLI::App& app, Globals& globals) {
  CLI::App* exports = AddCommand(
      app, "export",
      "Disks that hosts reach over NVMe/TCP or NVMe/RDMA: create, list, get, host, update, delete", "");
  exports->require_subcommand(1);
  const auto arguments = std::make_shared<ExportArguments>();
  constexpr const char* kWhich = "ID or controllers/ID";
  AddCreate(*exports, globals, arguments);

  CLI::App* list = AddCommand(*exports, "list", "Show all exports", "cleatctl export list");
  OnRun(*list, globals, arguments, ListExports);

  CLI::App* get = AddCommand(*exports, "get", "Show an export", "cleatctl export get db");
  get->add_option(kExportArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetExport);

  AddExportHostCommands(*exports, globals);

  CLI::App* update = AddCommand(
      *exports, "update", "Change which hosts are let in, or labels",
      "cleatctl export update db --hosts nqn.2014-08.org.example:host1 nqn.2014-08.org.example:host2\n"
      "cleatctl export update db --no-hosts --label owner=ann");
  update->add_option(kExportArgument, arguments->id, kWhich)->required();
  CLI::Option* hosts =
      AddHosts(*update, *arguments,
               "Those that are given replace the present ones; a host that stays keeps its secrets, and the "
               "connections of who is not among them end");
  update->add_flag("--no-hosts", arguments->no_hosts, "Nobody is let in any more")->excludes(hosts);
  AddLabels(*update, arguments->labels);
  AddRemoveLabels(*update, arguments->labels);
  AddEtag(*update, arguments->etag);
  OnRun(*update, globals, arguments, UpdateExport);

  CLI::App* remove =
      AddCommand(*exports, "delete", "Delete an export without disks", "cleatctl export delete db --wait");
  remove->add_option(kExportArgument, arguments->id, kWhich)->required();
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  remove->add_flag("-y,--yes", arguments->yes,
                   "Destroy its hosts' secrets, if cleatd has any, without asking");
  OnRun(*remove, globals, arguments, DeleteExport);
}

}  // namespace cleat::ctl
