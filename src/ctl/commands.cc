// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"

#include <fmt/format.h>

#include <charconv>

#include "ctl/limits.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

// Checks an argument and puts a plain number in its place, for CLI11 to read.
template <typename Parse>
CLI::Validator Number(Parse parse) {
  return CLI::Validator(
      [parse](std::string& text) {
        const auto value = parse(text);
        if (!value.ok()) return value.error().message;
        text = value.value();
        return std::string();
      },
      "");
}

}  // namespace

CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& description,
                     const std::string& examples) {
  CLI::App* command = parent.add_subcommand(name, description);
  std::string footer;
  if (!examples.empty()) {
    footer = "Examples:\n  ";
    for (const char c : examples) footer += c == '\n' ? "\n  " : std::string(1, c);
    footer += "\n\n";
  }
  command->footer(footer + "Options of every command (--address, --output, ...): cleatctl --help");
  return command;
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& command) {
  std::vector<const CLI::App*> commands = command.get_subcommands([](const CLI::App*) { return true; });
  std::erase_if(commands, [](const CLI::App* next) { return next->get_name().empty(); });
  return commands;
}

const CLI::App* FindCommand(const CLI::App& command, std::string_view name) {
  for (const CLI::App* next : CommandsOf(command)) {
    if (next->get_name() == name) return next;
  }
  return nullptr;
}

std::vector<std::string> CommandNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* next : CommandsOf(command)) names.push_back(next->get_name());
  return names;
}

// Without a variable of CLI11's, whose later versions check the 0 of a flag that is not given.
void AddWait(CLI::App& command, int& seconds, const std::string& what) {
  const std::string description = "Wait until " + what + "; --wait=SECONDS, 30 if not given";
  seconds = -1;
  command.add_flag("--wait{30}", description)
      ->check(CLI::Range(1, static_cast<int>(kWaitTimeMax.count())))
      ->each([&seconds](const std::string& text) {
        const char* const end = text.data() + text.size();
        if (std::from_chars(text.data(), end, seconds).ptr != end)
          throw CLI::ValidationError("'" + text + "' is no number of seconds");
      });
}

CLI::Option* AddSize(CLI::App& command, const std::string& name, uint64_t& bytes,
                     const std::string& description) {
  return command.add_option(name, bytes, description)
      ->transform(Number([](std::string_view text) -> Result<std::string> {
        CLEAT_ASSIGN(const auto size, ParseSize(text));
        return std::to_string(size);
      }))
      ->type_name("SIZE");
}

CLI::Option* AddTime(CLI::App& command, const std::string& name, int& seconds,
                     const std::string& description) {
  return command.add_option(name, seconds, description)
      ->transform(Number([](std::string_view text) -> Result<std::string> {
        CLEAT_ASSIGN(const auto time, ParseSeconds(text));
        if (time.count() < 1 || time > kWaitTimeMax) {
          return Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is not from 1 s to 1 h", text));
        }
        return std::to_string(time.count());
      }))
      ->type_name("TIME");
}

void AddEtag(CLI::App& command, std::string& etag) {
  command.add_option("--etag", etag, "Do it only if the resource's etag is still this one");
}

namespace {

std::string CheckLimit(const std::string& text) {
  v1::Limits limits;
  const Status status = ParseLimit(text, &limits);
  return status.ok() ? std::string() : status.error().message;
}

}  // namespace

void AddLimits(CLI::App& command, std::vector<std::string>& limits) {
  command
      .add_option("--limit", limits,
                  "What it may use a second: iops, read_iops, write_iops, bytes, read_bytes, write_bytes; "
                  "with a burst, "
                  "the rate that it may have for a time after idling. May be given again")
      ->allow_extra_args(false)
      ->check(CLI::Validator(CheckLimit, ""))
      ->type_name(kLimitForm);
}

void AddAllLimits(CLI::App& command, std::vector<std::string>& limits) {
  const auto check = [](const std::string& text) {
    return text == "none" ? std::string() : CheckLimit(text);
  };
  command
      .add_option("LIMIT", limits,
                  "All limits from now on: iops=6000, bytes=100M,burst=200M/30s ...; or none")
      ->required()
      ->check(CLI::Validator(check, ""))
      ->type_name(kLimitForm);
}

void AddLabels(CLI::App& command, LabelArguments& labels) {
  const auto check = [](const std::string& text) {
    const size_t equals = text.find('=');
    return equals == 0 || equals == std::string::npos ? "'" + text + "' is not KEY=VALUE" : std::string();
  };
  command.add_option("--label", labels.set, "A note of yours, KEY=VALUE; may be given again")
      ->allow_extra_args(false)
      ->check(CLI::Validator(check, ""))
      ->type_name("KEY=VALUE");
}

void AddRemoveLabels(CLI::App& command, LabelArguments& labels) {
  command.add_option("--remove-label", labels.remove, "Takes a label away; may be given again")
      ->allow_extra_args(false)
      ->type_name("KEY");
}

void ChangeLabels(const LabelArguments& change, google::protobuf::Map<std::string, std::string>& labels) {
  for (const std::string& key : change.remove) labels.erase(key);
  for (const std::string& label : change.set) {
    const size_t equals = label.find('=');
    labels[label.substr(0, equals)] = label.substr(equals + 1);
  }
}

ExitCode WaitAndShowGone(Client& client, const std::string& name, int wait_s,
                         const google::protobuf::Message& response) {
  if (wait_s >= 0) {
    if (const ExitCode code = WaitUntilGone(client, name, wait_s); code != kOk) return code;
  }
  client.Show(response, [] { return std::string(); });
  return kOk;
}

}  // namespace cleat::ctl
