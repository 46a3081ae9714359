// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

struct WatchArguments {
  uint64_t since = 0;
};

struct WaitArguments {
  std::string name;
  std::string condition = "ready";
  int timeout_s = 30;
  bool fail_fast = false;
};

ExitCode Watch(Client& client, const WatchArguments& arguments) {
  if (const ExitCode code = client.Dial(); code != kOk) return code;
  EndWithReader();
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_start_revision(arguments.since);
  const auto reader = client.stub().Watch(&context, request);
  v1::WatchResponse event;
  while (reader->Read(&event)) {
    switch (client.format()) {
      case Format::kTable:
        Print(LineOf(event));
        break;
      case Format::kJson:  // a line each
        Print(ToJson(event, false));
        break;
      case Format::kYaml:  // a document each
        Print("---\n" + ToYaml(event));
        break;
    }
  }
  const ExitCode code = client.Say(reader->Finish());
  return code != kOk ? code : Fail(kUnreachable, "cleatd has ended the watch");
}

ExitCode Wait(Client& client, const WaitArguments& arguments) {
  if (arguments.name.find('/') == std::string::npos) {
    return Fail(kUsage, fmt::format("'{}' is not a full name, such as disks/root, controllers/vm1, "
                                    "controllers/vm1/attachments/root or engines/engine-0",
                                    arguments.name));
  }
  v1::WaitCondition condition = v1::WAIT_CONDITION_READY;
  if (arguments.condition == "gone") condition = v1::WAIT_CONDITION_GONE;
  if (arguments.condition == "in-use") condition = v1::WAIT_CONDITION_IN_USE;
  v1::WaitResponse response;
  const WaitOptions options{.condition = condition,
                            .time = std::chrono::seconds(arguments.timeout_s),
                            .fail_fast = arguments.fail_fast};
  if (const ExitCode code = WaitFor(client, arguments.name, options, response); code != kOk) return code;
  switch (response.resource_case()) {
    case v1::WaitResponse::kDisk:
      return ShowOne(client, response.disk(), Detail::kLine);
    case v1::WaitResponse::kCluster:
      return ShowOne(client, response.cluster(), Detail::kLine);
    case v1::WaitResponse::kSubsystem:
      return ShowOne(client, response.subsystem(), Detail::kLine);
    case v1::WaitResponse::kPool:
      return ShowOne(client, response.pool(), Detail::kLine);
    case v1::WaitResponse::kGroup:
      return ShowOne(client, response.group(), Detail::kLine);
    case v1::WaitResponse::kController:
      return ShowOne(client, response.controller(), Detail::kLine);
    case v1::WaitResponse::kAttachment:
      return ShowOne(client, response.attachment(), Detail::kLine);
    case v1::WaitResponse::kEngine:
      return ShowOne(client, response.engine(), Detail::kLine);
    case v1::WaitResponse::kGone:
    case v1::WaitResponse::RESOURCE_NOT_SET:
      break;
  }
  client.Show(response, [&] { return fmt::format("{} is gone\n", arguments.name); });
  return kOk;
}

}  // namespace

void AddWatchCommands(CLI::App& app, Globals& globals) {
  const auto watch_arguments = std::make_shared<WatchArguments>();
  CLI::App* watch =
      AddCommand(app, "watch", "Show everything, then each change as it happens, until interrupted",
                 "cleatctl watch\n"
                 "cleatctl watch --since 1000042    what changed since the line with that revision\n"
                 "cleatctl watch --output json | jq -r 'select(.disk) | .disk.name'");
  watch
      ->add_option("--since", watch_arguments->since,
                   "Revision of the last line seen, at or after the one that says 'that is all'")
      ->type_name("REVISION");
  OnRun(*watch, globals, watch_arguments, Watch);

  const auto wait_arguments = std::make_shared<WaitArguments>();
  CLI::App* wait =
      AddCommand(app, "wait", "Wait until a resource is ready, in use, or gone",
                 "cleatctl wait disks/root\n"
                 "cleatctl wait controllers/vm1 --for in-use --timeout 5m    the guest's driver is there\n"
                 "cleatctl wait controllers/vm1/attachments/root --for gone");
  wait->add_option(kNameArgument, wait_arguments->name, "Full name: disks/root, controllers/vm1 ...")
      ->required();
  wait->add_option("--for", wait_arguments->condition,
                   "ready: all is done that can be without the guest; in-use: its driver is there, too; gone")
      ->check(CLI::IsMember({"ready", "in-use", "gone"}))
      ->capture_default_str();
  AddTime(*wait, "--timeout", wait_arguments->timeout_s, "How long at most: 30 (seconds), 5m, 1h")
      ->capture_default_str();
  wait->add_flag("--fail-fast", wait_arguments->fail_fast,
                 "Also end at a failed attempt, and not only when trying again makes no sense");
  OnRun(*wait, globals, wait_arguments, Wait);
}

}  // namespace cleat::ctl
