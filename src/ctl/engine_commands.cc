// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <string>

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

struct ForgetArguments {
  std::string id;
  bool force = false;
};

// "2 controllers were deleted (a, b)", as lines.
std::string ForgetText(const v1::ForgetEngineRequest& request, const v1::ForgetEngineResponse& done) {
  std::string text = fmt::format("{} is forgotten\n", request.name());
  const auto line = [&text](const auto& names, const char* what) {
    if (!names.empty()) text += fmt::format("{} {}: {}\n", names.size(), what, fmt::join(names, ", "));
  };
  line(done.deleted(), "deleted, which had waited for it");
  line(done.placed_anew(), "placed on another engine, or as soon as one has room");
  line(done.waiting(),
       "wait for an engine of that name, since their specs name it: delete them, or start it");
  return text;
}

ExitCode ForgetEngine(Client& client, const ForgetArguments& arguments) {
  v1::ForgetEngineRequest request;
  request.set_name(FullName("engines/", arguments.id));
  request.set_force(arguments.force);
  v1::ForgetEngineResponse done;
  if (const ExitCode code = client.Call(&Stub::ForgetEngine, request, done); code != kOk) return code;
  client.Show(done, [&] { return ForgetText(request, done); });
  return kOk;
}

void AddForgetCommand(CLI::App& engine, Globals& globals) {
  const auto arguments = std::make_shared<ForgetArguments>();
  CLI::App* forget = AddCommand(engine, "forget",
                                "Go on without an engine that will not come: a name with a typo, a host that "
                                "was built anew. Deletions that wait "
                                "for it are done, and its other controllers are placed anew",
                                "cleatctl engine forget bleu");
  forget->add_option(kEngineArgument, arguments->id, "NAME or engines/NAME")->required();
  forget->add_flag(
      "--force", arguments->force,
      "Although its end was not seen, or a process of that name is there. Only where it is certain to have "
      "ended: what it had attached goes to other engines, and the content of memory disks is lost");
  OnRun(*forget, globals, arguments, ForgetEngine);
}

}  // namespace

void AddEngineCommands(CLI::App& app, Globals& globals) {
  CLI::App* engine = AddCommand(
      app, "engine", "The processes that do the I/O: list, get, upgrade, cancel-upgrade, forget", "");
  engine->require_subcommand(1);
  const auto arguments = std::make_shared<EngineArguments>();

  CLI::App* list = AddCommand(*engine, "list", "Show all engines", "cleatctl engine list");
  OnRun(*list, globals, arguments, ListEngines);

  CLI::App* get = AddCommand(*engine, "get", "Show an engine", "cleatctl engine get engine-0");
  get->add_option(kEngineArgument, arguments->id, "NAME or engines/NAME")->required();
  OnRun(*get, globals, arguments, GetEngine);
  AddUpgradeCommands(*engine, globals);
  AddForgetCommand(*engine, globals);
}

}  // namespace cleat::ctl
