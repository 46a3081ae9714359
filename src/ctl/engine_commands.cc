// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct EngineArguments {
  std::string id;
};

ExitCode GetEngine(Client& client, const EngineArguments& arguments) {
  v1::GetEngineRequest request;
  request.set_name(FullName("engines/", arguments.id));
  v1::Engine engine;
  if (const ExitCode code = client.Call(&Stub::GetEngine, request, engine); code != kOk) return code;
  return ShowOne(client, engine, Detail::kAll);
}

ExitCode ListEngines(Client& client, const EngineArguments&) {
  return ListAll(client, &Stub::ListEngines, v1::ListEnginesRequest(), &v1::ListEnginesResponse::engines);
}

}  // namespace

void AddEngineCommands(CLI::App& app, Globals& globals) {
  CLI::App* engine =
      AddCommand(app, "engine", "The processes that do the I/O: list, get, upgrade, cancel-upgrade", "");
  engine->require_subcommand(1);
  const auto arguments = std::make_shared<EngineArguments>();

  CLI::App* list = AddCommand(*engine, "list", "Show all engines", "cleatctl engine list");
  OnRun(*list, globals, arguments, ListEngines);

  CLI::App* get = AddCommand(*engine, "get", "Show an engine", "cleatctl engine get engine-0");
  get->add_option(kEngineArgument, arguments->id, "NAME or engines/NAME")->required();
  OnRun(*get, globals, arguments, GetEngine);
  AddUpgradeCommands(*engine, globals);
}

}  // namespace cleat::ctl
