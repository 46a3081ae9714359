// SPDX-License-Identifier: Apache-2.0
#include "ctl/ask.h"
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct ControllerArguments {
  std::string id;
  std::string type = "blk";
  std::string socket;
  bool server = false;
  uint32_t queues = 0;
  std::string engine;
  std::string group;
  bool memory_pinned = false;
  LabelArguments labels;
  std::string etag;
  int wait_s = -1;
  bool yes = false;
};

v1::CreateControllerRequest ControllerFrom(const ControllerArguments& arguments) {
  v1::CreateControllerRequest request;
  request.set_controller_id(std::string(IdOf(arguments.id)));
  ChangeLabels(arguments.labels, *request.mutable_controller()->mutable_labels());
  v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
  spec.set_type(arguments.type == "scsi" ? v1::CONTROLLER_TYPE_SCSI : v1::CONTROLLER_TYPE_BLK);
  spec.set_socket_path(arguments.socket);
  spec.set_socket_mode(arguments.server ? v1::SOCKET_MODE_SERVER : v1::SOCKET_MODE_CLIENT);
  spec.set_queues(arguments.queues);
  if (!arguments.engine.empty()) spec.set_engine(FullName("engines/", arguments.engine));
  if (!arguments.group.empty()) spec.set_group(FullName("groups/", arguments.group));
  spec.set_memory_pinned(arguments.memory_pinned);
  return request;
}

std::string ControllerName(const ControllerArguments& arguments) {
  return FullName("controllers/", arguments.id);
}

ExitCode CreateController(Client& client, const ControllerArguments& arguments) {
  v1::Controller controller;
  const auto request = ControllerFrom(arguments);
  if (const ExitCode code = client.Call(&Stub::CreateController, request, controller); code != kOk)
    return code;
  return WaitAndShow(client, controller, arguments.wait_s, &v1::WaitResponse::controller);
}

ExitCode GetController(Client& client, const ControllerArguments& arguments) {
  v1::GetControllerRequest request;
  request.set_name(ControllerName(arguments));
  v1::Controller controller;
  if (const ExitCode code = client.Call(&Stub::GetController, request, controller); code != kOk) return code;
  return ShowOne(client, controller, Detail::kAll);
}

ExitCode ListControllers(Client& client, const ControllerArguments&) {
  return ListAll(client, &Stub::ListControllers, v1::ListControllersRequest(),
                 &v1::ListControllersResponse::controllers);
}

ExitCode UpdateController(Client& client, const ControllerArguments& arguments) {
  v1::Controller controller;
  const ExitCode code = UpdateLabels(client, &Stub::GetController, &Stub::UpdateController,
                                     &v1::UpdateControllerRequest::mutable_controller,
                                     ControllerName(arguments), arguments.etag, arguments.labels, controller);
  return code != kOk ? code : ShowOne(client, controller, Detail::kLine);
}

ExitCode DeleteController(Client& client, const ControllerArguments& arguments) {
  v1::DeleteControllerRequest request;
  request.set_name(ControllerName(arguments));
  request.set_etag(arguments.etag);
  v1::DeleteControllerResponse response;
  if (const ExitCode code = CallSparingKey(client, &Stub::DeleteController, request, response, arguments.yes);
      code != kOk)
    return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

void AddCreateController(CLI::App& controller, Globals& globals,
                         const std::shared_ptr<ControllerArguments>& arguments) {
  CLI::App* create =
      AddCommand(controller, "create", "Make a virtio device for a guest",
                 "cleatctl controller create vm1 --type scsi --socket /run/vms/vm1.sock --queues 4\n"
                 "cleatctl controller create vm2 --socket /run/vms/vm2.sock --server --wait");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  create->add_option("--socket", arguments->socket, "Path of the vhost-user socket")
      ->required()
      ->type_name(kFileArgument);
  create->add_flag("--server", arguments->server, "The engine listens on the socket (else QEMU does)");
  create->add_option("--type", arguments->type, "blk: one disk; scsi: up to 8, which may come and go")
      ->check(CLI::IsMember({"blk", "scsi"}))
      ->capture_default_str();
  create->add_option("--queues", arguments->queues, "Virtqueues, 1 to 64; 1 by default");
  create
      ->add_option("--engine", arguments->engine,
                   "The engine that serves it; the least loaded one by default")
      ->type_name(kEngineArgument);
  create->add_option("--group", arguments->group, "The group whose limits its disks share; none by default")
      ->type_name(kGroupArgument);
  create->add_flag("--memory-pinned", arguments->memory_pinned,
                   "The VM never gives memory back (no balloon, no free page reporting): Cleat may lock it "
                   "and register it, which makes NVMe cheaper, local or over RDMA");
  AddLabels(*create, arguments->labels);
  AddWait(*create, arguments->wait_s, "its engine has it");
  OnRun(*create, globals, arguments, CreateController);
}

}  // namespace

void AddControllerCommands(CLI::App& app, Globals& globals) {
  CLI::App* controller = AddCommand(
      app, "controller", "The guests' virtio devices, and exports: create, list, get, update, delete", "");
  controller->require_subcommand(1);
  const auto arguments = std::make_shared<ControllerArguments>();
  constexpr const char* kWhich = "ID or controllers/ID";
  AddCreateController(*controller, globals, arguments);

  CLI::App* list =
      AddCommand(*controller, "list", "Show all controllers",
                 "cleatctl controller list\n"
                 "cleatctl controller list --output json | jq -r '.controllers[].spec.socket_path'");
  OnRun(*list, globals, arguments, ListControllers);

  CLI::App* get = AddCommand(*controller, "get", "Show a controller", "cleatctl controller get vm1");
  get->add_option(kControllerArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetController);

  CLI::App* update = AddCommand(*controller, "update", "Change a controller's labels",
                                "cleatctl controller update vm1 --label owner=ann --remove-label old");
  update->add_option(kControllerArgument, arguments->id, kWhich)->required();
  AddLabels(*update, arguments->labels);
  AddRemoveLabels(*update, arguments->labels);
  AddEtag(*update, arguments->etag);
  OnRun(*update, globals, arguments, UpdateController);

  CLI::App* remove = AddCommand(*controller, "delete", "Delete a controller without disks",
                                "cleatctl controller delete vm1 --wait");
  remove->add_option(kControllerArgument, arguments->id, kWhich)->required();
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  remove->add_flag("-y,--yes", arguments->yes,
                   "Destroy the secrets of an export's hosts, if cleatd has any, without asking");
  OnRun(*remove, globals, arguments, DeleteController);
}

}  // namespace cleat::ctl
