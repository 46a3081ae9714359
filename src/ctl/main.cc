// SPDX-License-Identifier: Apache-2.0
// cleatctl: Cleat's API on the command line.
#include <CLI/CLI.hpp>
#include <csignal>
#include <string>

#include "base/paths.h"
#include "base/version.h"
#include "ctl/commands.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  cleat::ctl::Globals globals;
  globals.address = "unix:" + cleat::DefaultApiSocket();
  std::string output = "table";

  CLI::App app("cleatctl: attaches cloud disks to virtual machines.");
  app.footer(
      "Examples:\n"
      "  cleatctl disk create root --size 10G --file /var/lib/vms/root.img --create\n"
      "  cleatctl controller create vm1 --socket /run/vms/vm1.sock\n"
      "  cleatctl attach root vm1 --wait\n"
      "  cleatctl detach vm1 --wait\n"
      "Exit codes: 0 ok, 1 the request failed, 2 wrong command line, 3 cleatd can't be reached.");
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--address", globals.address, "Where cleatd listens, unix:PATH")
      ->envname("CLEAT_ADDRESS")
      ->capture_default_str();
  app.add_option("--output", output, "table for people, json for programs")
      ->check(CLI::IsMember({"table", "json"}))
      ->each([&globals](const std::string& value) { globals.json = value == "json"; })
      ->capture_default_str();
  app.set_version_flag("--version", std::string("cleatctl ") + cleat::kVersion);
  cleat::ctl::AddDiskCommands(app, globals);
  cleat::ctl::AddControllerCommands(app, globals);
  cleat::ctl::AddAttachmentCommands(app, globals);
  cleat::ctl::AddEngineCommands(app, globals);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? cleat::ctl::kOk : cleat::ctl::kUsage;
  }
  return globals.exit_code;
}
