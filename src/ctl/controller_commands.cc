// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

struct ControllerArguments {
  std::string id;
  std::string type = "blk";
  std::string socket;
  bool server = false;
  uint32_t queues = 0;
  std::string engine;
  int wait_s = -1;
};

v1::CreateControllerRequest RequestFrom(const ControllerArguments& arguments) {
  v1::CreateControllerRequest request;
  request.set_controller_id(std::string(IdOf(arguments.id)));
  v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
  spec.set_type(v1::CONTROLLER_TYPE_BLK);
  spec.set_socket_path(arguments.socket);
  spec.set_socket_mode(arguments.server ? v1::SOCKET_MODE_SERVER : v1::SOCKET_MODE_CLIENT);
  spec.set_queues(arguments.queues);
  if (!arguments.engine.empty()) spec.set_engine(FullName("engines/", arguments.engine));
  return request;
}

void Create(Globals& globals, const ControllerArguments& arguments) {
  Client client(globals);
  v1::Controller controller;
  {
    grpc::ClientContext context;
    const auto request = RequestFrom(arguments);
    if (!client.Dial() || !client.Check(client.stub().CreateController(&context, request, &controller)))
      return;
  }
  if (arguments.wait_s >= 0) {
    if (!WaitFor(client, controller.name(), Goal::kReady, arguments.wait_s)) return;
    grpc::ClientContext context;
    v1::GetControllerRequest request;
    request.set_name(controller.name());
    if (!client.Check(client.stub().GetController(&context, request, &controller))) return;
  }
  Print(Show(globals, controller, false));
}

void Get(Globals& globals, const ControllerArguments& arguments) {
  Client client(globals);
  grpc::ClientContext context;
  v1::GetControllerRequest request;
  request.set_name(FullName("controllers/", arguments.id));
  v1::Controller controller;
  if (!client.Dial() || !client.Check(client.stub().GetController(&context, request, &controller))) return;
  Print(Show(globals, controller, true));
}

void List(Globals& globals) {
  Client client(globals);
  if (!client.Dial()) return;
  v1::ListControllersResponse all;
  const auto field = [](v1::ListControllersResponse& page) { return page.mutable_controllers(); };
  const auto call = [&](auto... arguments) { return client.stub().ListControllers(arguments...); };
  if (ListAll(client, v1::ListControllersRequest(), all, call, field)) PrintAll(globals, all, field);
}

void Delete(Globals& globals, const ControllerArguments& arguments) {
  Client client(globals);
  grpc::ClientContext context;
  v1::DeleteControllerRequest request;
  request.set_name(FullName("controllers/", arguments.id));
  v1::DeleteControllerResponse response;
  if (!client.Dial() || !client.Check(client.stub().DeleteController(&context, request, &response))) return;
  if (arguments.wait_s >= 0 && !WaitFor(client, request.name(), Goal::kGone, arguments.wait_s)) return;
  if (globals.json) Print(ToJson(response, true));
}

}  // namespace

void AddControllerCommands(CLI::App& app, Globals& globals) {
  CLI::App* controller = app.add_subcommand("controller", "Controllers: create, get, list, delete");
  controller->require_subcommand(1);
  const auto arguments = std::make_shared<ControllerArguments>();

  CLI::App* create = controller->add_subcommand("create", "Make a virtio device for a guest");
  create->footer(
      "Examples:\n"
      "  cleatctl controller create vm1 --socket /run/vms/vm1.sock --queues 4\n"
      "  cleatctl controller create vm2 --socket /run/vms/vm2.sock --server --wait");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  create->add_option("--socket", arguments->socket, "Path of the vhost-user socket")->required();
  create->add_flag("--server", arguments->server, "The engine listens on the socket (else QEMU does)");
  create->add_option("--type", arguments->type, "blk")->check(CLI::IsMember({"blk"}))->capture_default_str();
  create->add_option("--queues", arguments->queues, "Virtqueues, 1 to 64; 1 by default");
  create->add_option("--engine", arguments->engine,
                     "The engine that serves it; the least loaded one by default");
  AddWait(*create, arguments->wait_s, "its engine has it");
  create->callback([&globals, arguments] { Create(globals, *arguments); });

  CLI::App* get = controller->add_subcommand("get", "Show a controller");
  get->add_option("CONTROLLER", arguments->id, "ID or controllers/ID")->required();
  get->callback([&globals, arguments] { Get(globals, *arguments); });

  controller->add_subcommand("list", "Show all controllers")->callback([&globals] { List(globals); });

  CLI::App* remove = controller->add_subcommand("delete", "Delete a controller without disks");
  remove->add_option("CONTROLLER", arguments->id, "ID or controllers/ID")->required();
  AddWait(*remove, arguments->wait_s, "it is gone");
  remove->callback([&globals, arguments] { Delete(globals, *arguments); });
}

}  // namespace cleat::ctl
