// SPDX-License-Identifier: Apache-2.0
#include "ctl/app.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/paths.h"
#include "base/version.h"
#include "ctl/commands.h"
#include "ctl/complete.h"
#include "ctl/nearest.h"

namespace cleat::ctl {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  cleatctl disk create root --size 10G --file /var/lib/vms/root.img --create\n"
    "  cleatctl controller create vm1 --type scsi --socket /run/vms/vm1.sock\n"
    "  cleatctl attach root vm1 --wait\n"
    "  cleatctl disk resize root 20G --wait\n"
    "  cleatctl detach vm1 root --wait\n"
    "\n"
    "Exit codes: 0 ok; 1 cleatd refused, or what was waited for failed; 2 wrong command line or file;\n"
    "3 cleatd can't be reached; 4 what was waited for has not come true in time.";

void AddGlobalOptions(CLI::App& app, Globals& globals) {
  ConnectionOptions& connection = globals.connection;
  connection.address = "unix:" + DefaultApiSocket();
  app.add_option("--address", connection.address,
                 "Where cleatd listens: unix:PATH, or HOST:PORT with the next three")
      ->envname("CLEAT_ADDRESS")
      ->take_last()
      ->capture_default_str()
      ->type_name("ADDRESS");
  const struct {
    const char* name;
    std::string& path;
    const char* variable;
    const char* description;
  } files[] = {{"--ca", connection.ca, "CLEAT_CA", "Who signed cleatd's certificate (PEM file)"},
               {"--cert", connection.cert, "CLEAT_CERT", "The caller's certificate (PEM file)"},
               {"--key", connection.key, "CLEAT_KEY", "Its private key (PEM file)"}};
  for (const auto& file : files) {
    app.add_option(file.name, file.path, file.description)
        ->envname(file.variable)
        ->take_last()
        ->type_name(kFileArgument);
  }
  app.add_option_function<std::string>(
         "-o,--output",
         [&globals](const std::string& value) {
           globals.format = value == "json"   ? Format::kJson
                            : value == "yaml" ? Format::kYaml
                                              : Format::kTable;
         },
         "table for people (the default), json or yaml for programs")
      ->take_last()
      ->check(CLI::IsMember({"table", "json", "yaml"}))
      ->type_name("");
  app.set_version_flag("--version", std::string("cleatctl ") + kVersion, "Print the version");
}

// The innermost command that was given, and the way to it ("cleatctl disk create").
std::pair<const CLI::App*, std::string> GivenCommand(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string path = "cleatctl";
  for (;;) {
    const CLI::App* next = nullptr;
    for (const CLI::App* given : command->get_subcommands()) {
      if (!given->get_name().empty()) next = given;
    }
    if (next == nullptr) return {command, path};
    command = next;
    path += " " + command->get_name();
  }
}

// Wrong command line: what is wrong, what may have been meant, where to read on.
ExitCode SayUsage(const CLI::App& app, const CLI::ParseError& error) {
  const auto [command, path] = GivenCommand(app);
  const std::vector<std::string> commands = CommandNames(*command);
  const std::vector<std::string> rest = app.remaining(true);
  std::string what = error.what();
  if (!commands.empty()) {
    what = rest.empty() || rest.front().starts_with('-')
               ? "a command is missing"
               : fmt::format("there is no command '{} {}'{}", path, rest.front(),
                             DidYouMean(rest.front(), commands));
  }
  return Fail(kUsage, fmt::format("{}\nSee {} --help", what, path));
}

ExitCode CompleteAndPrint(const std::vector<std::string>& words) {
  Globals globals;
  CLI::App app;
  BuildApp(app, globals);
  const auto find_ids = [&globals](std::string_view kind, const std::string& parent) {
    return FindIdsOfCleatd(globals, kind, parent);
  };
  std::string text;
  for (const std::string& line : Complete(app, words, globals, find_ids)) text += line + "\n";
  Print(text);
  return kOk;
}

}  // namespace

void BuildApp(CLI::App& app, Globals& globals) {
  app.name("cleatctl");
  app.description("cleatctl: attaches cloud disks to virtual machines.");
  app.footer(kFooter);
  app.fallthrough();
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  AddGlobalOptions(app, globals);
  AddDiskCommands(app, globals);
  AddClusterCommands(app, globals);
  AddSubsystemCommands(app, globals);
  AddPoolCommands(app, globals);
  AddGroupCommands(app, globals);
  AddControllerCommands(app, globals);
  AddExportCommands(app, globals);
  AddAttachmentCommands(app, globals);
  AddEngineCommands(app, globals);
  AddWatchCommands(app, globals);
  AddStatsCommands(app, globals);
  AddApplyCommand(app, globals);
  AddStoreCommands(app, globals);
  AddSupportCommand(app, globals);
  AddHelpCommands(app, globals);
}

int Run(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "__complete") {
    return CompleteAndPrint(std::vector<std::string>(argv + 2, argv + argc));
  }
  Globals globals;
  CLI::App app;
  BuildApp(app, globals);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted) == 0 ? kOk : kUsage;
  } catch (const CLI::ParseError& error) {
    return SayUsage(app, error);
  }
  return globals.action();
}

}  // namespace cleat::ctl
