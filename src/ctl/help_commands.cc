// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <google/protobuf/wrappers.pb.h>

#include "base/version.h"
#include "ctl/commands.h"
#include "ctl/completion_scripts.h"
#include "ctl/nearest.h"
#include "ctl/reasons.h"
#include "ctl/yaml.h"

namespace cleat::ctl {
namespace {

// Text as a JSON string.
std::string Quoted(const std::string& text) {
  google::protobuf::StringValue value;
  value.set_value(text);
  std::string json = ToJson(value, false);
  json.pop_back();  // the end of the line
  return json;
}

std::string JsonOf(const ExplainedReason& reason) {
  return fmt::format(R"({{"reason": {}, "code": {}, "meaning": {}, "action": {}}})", Quoted(reason.name),
                     Quoted(reason.info.code()), Quoted(reason.info.meaning()), Quoted(reason.info.action()));
}

void PrintAs(Format format, const std::string& json, const std::string& table) {
  Print(format == Format::kTable ? table : format == Format::kJson ? json + "\n" : JsonToYaml(json));
}

ExitCode ExplainAll(Format format) {
  Table table({{"REASON"}, {"CODE"}, {"MEANING"}});
  std::string json;
  for (const ExplainedReason& reason : AllReasons()) {
    table.Add({reason.name, reason.info.code(), reason.info.meaning()});
    json += (json.empty() ? "\n" : ",\n") + JsonOf(reason);
  }
  PrintAs(format, "{\"reasons\": [" + json + "\n]}", table.Rows());
  return kOk;
}

ExitCode Explain(Format format, const std::string& name) {
  if (name.empty()) return ExplainAll(format);
  const std::vector<ExplainedReason> found = FindReason(name);
  if (found.empty()) {
    std::vector<std::string> names;
    for (const ExplainedReason& reason : AllReasons()) names.push_back(reason.name);
    std::string upper = name;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return Fail(kUsage, fmt::format("there is no reason '{}'{} All: cleatctl explain", name,
                                    DidYouMean(upper, names)));
  }
  const v1::ReasonInfo& info = found.front().info;
  Table table({{"REASON"}, {"CODE"}, {"MEANING"}, {"ACTION"}});
  table.Add({found.front().name, info.code(), info.meaning(), info.action()});
  PrintAs(format, JsonOf(found.front()), table.Details());
  return kOk;
}

ExitCode Help(const CLI::App& app, const std::vector<std::string>& path) {
  const CLI::App* command = &app;
  for (const std::string& word : path) {
    const CLI::App* next = FindCommand(*command, word);
    if (next == nullptr)
      return Fail(kUsage,
                  fmt::format("there is no command '{}'{}", word, DidYouMean(word, CommandNames(*command))));
    command = next;
  }
  std::string before = "cleatctl";
  for (size_t i = 0; i + 1 < path.size(); ++i) before += " " + path[i];
  Print(path.empty() ? command->help() : command->help(before));
  return kOk;
}

}  // namespace

void AddHelpCommands(CLI::App& app, Globals& globals) {
  const auto reason = std::make_shared<std::string>();
  CLI::App* explain = AddCommand(app, "explain", "What an error's reason means, and what to do about it",
                                 "cleatctl explain DISK_IN_USE\n"
                                 "cleatctl explain                all reasons");
  explain->add_option(kReasonArgument, *reason, "As in 'reason: ...' after an error; all if not given");
  explain->callback([&globals, reason] {
    globals.action = [&globals, reason] { return Explain(globals.format, *reason); };
  });

  const auto shell = std::make_shared<std::string>();
  CLI::App* completion = AddCommand(app, "completion", "Print the completion script of a shell",
                                    "source <(cleatctl completion bash)      in ~/.bashrc\n"
                                    "source <(cleatctl completion zsh)       in ~/.zshrc, after compinit");
  completion->add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([&globals, shell] {
    globals.action = [shell] {
      Print(*shell == "bash" ? kBashCompletion : kZshCompletion);
      return kOk;
    };
  });

  AddCommand(app, "version", "Print cleatctl's version", "cleatctl version")->callback([&globals] {
    globals.action = [&globals] {
      PrintAs(globals.format, fmt::format(R"({{"version": "{}"}})", kVersion),
              fmt::format("cleatctl {}\n", kVersion));
      return kOk;
    };
  });

  const auto path = std::make_shared<std::vector<std::string>>();
  CLI::App* help = AddCommand(app, "help", "Explain a command", "cleatctl help disk create");
  help->add_option(kCommandArgument, *path, "The command");
  help->callback([&app, &globals, path] { globals.action = [&app, path] { return Help(app, *path); }; });
}

}  // namespace cleat::ctl
