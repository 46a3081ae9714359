// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

void Get(Globals& globals, const std::string& id) {
  Client client(globals);
  grpc::ClientContext context;
  v1::GetEngineRequest request;
  request.set_name(FullName("engines/", id));
  v1::Engine engine;
  if (!client.Dial() || !client.Check(client.stub().GetEngine(&context, request, &engine))) return;
  Print(Show(globals, engine, true));
}

void List(Globals& globals) {
  Client client(globals);
  if (!client.Dial()) return;
  v1::ListEnginesResponse all;
  const auto field = [](v1::ListEnginesResponse& page) { return page.mutable_engines(); };
  const auto call = [&](auto... arguments) { return client.stub().ListEngines(arguments...); };
  if (ListAll(client, v1::ListEnginesRequest(), all, call, field)) PrintAll(globals, all, field);
}

void Watch(Globals& globals) {
  Client client(globals);
  if (!client.Dial()) return;
  grpc::ClientContext context;
  const auto reader = client.stub().Watch(&context, {});
  v1::WatchResponse event;
  while (reader->Read(&event)) {
    Print(Show(globals, event));
    std::fflush(stdout);
  }
  client.Check(reader->Finish());
}

}  // namespace

void AddEngineCommands(CLI::App& app, Globals& globals) {
  CLI::App* engine = app.add_subcommand("engine", "Engines: get, list");
  engine->require_subcommand(1);
  const auto id = std::make_shared<std::string>();
  CLI::App* get = engine->add_subcommand("get", "Show an engine");
  get->add_option("ENGINE", *id, "NAME or engines/NAME")->required();
  get->callback([&globals, id] { Get(globals, *id); });
  engine->add_subcommand("list", "Show all engines")->callback([&globals] { List(globals); });

  app.add_subcommand("watch", "Show everything, then each change as it happens, until interrupted")
      ->callback([&globals] { Watch(globals); });
}

}  // namespace cleat::ctl
