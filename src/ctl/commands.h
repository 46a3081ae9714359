// SPDX-License-Identifier: Apache-2.0
// The commands, a file a group, and what they have in common. Each group adds its own to the parser; a command that
// was given leaves in Globals::action what it will do.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ctl/client.h"
#include "ctl/show.h"
#include "ctl/wait.h"

namespace cleat::ctl {

void AddDiskCommands(CLI::App& app, Globals& globals);
void AddClusterCommands(CLI::App& app, Globals& globals);
void AddSubsystemCommands(CLI::App& app, Globals& globals);
void AddPoolCommands(CLI::App& app, Globals& globals);
void AddGroupCommands(CLI::App& app, Globals& globals);
void AddControllerCommands(CLI::App& app, Globals& globals);
void AddExportCommands(CLI::App& app, Globals& globals);
void AddExportHostCommands(CLI::App& exports, Globals& globals);  // below those
void AddAttachmentCommands(CLI::App& app, Globals& globals);
void AddEngineCommands(CLI::App& app, Globals& globals);
void AddUpgradeCommands(CLI::App& engine, Globals& globals);  // of `engine`: upgrade, cancel-upgrade
void AddWatchCommands(CLI::App& app, Globals& globals);       // watch, wait
void AddStatsCommands(CLI::App& app, Globals& globals);       // stats, top, slow
void AddStoreCommands(CLI::App& app, Globals& globals);
void AddApplyCommand(CLI::App& app, Globals& globals);
void AddSupportCommand(CLI::App& app, Globals& globals);  // support-bundle
void AddHelpCommands(CLI::App& app, Globals& globals);    // explain, completion, version, help

// ---- A command and its options

// Names of positional arguments, and kinds of option values. Completion goes by them.
inline constexpr const char* kDiskArgument = "DISK";
inline constexpr const char* kDeletedDiskArgument = "DELETED";
inline constexpr const char* kClusterArgument = "CLUSTER";
inline constexpr const char* kSubsystemArgument = "SUBSYSTEM";
inline constexpr const char* kPoolArgument = "POOL";
inline constexpr const char* kGroupArgument = "GROUP";
inline constexpr const char* kControllerArgument = "CONTROLLER";
inline constexpr const char* kExportArgument = "EXPORT";
inline constexpr const char* kWhichArgument = "WHICH";  // of the attachments of a controller
inline constexpr const char* kEngineArgument = "ENGINE";
inline constexpr const char* kNameArgument = "NAME";  // "disks/root"
inline constexpr const char* kReasonArgument = "REASON";
inline constexpr const char* kFileArgument = "FILE";
inline constexpr const char* kCommandArgument = "COMMAND";

// `examples`: lines without indentation. For a group, whose commands have examples of their own: empty.
CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& description,
                     const std::string& examples);

// The subcommands of a command, without CLI11's option groups; and the one of that name, or null.
std::vector<const CLI::App*> CommandsOf(const CLI::App& command);
const CLI::App* FindCommand(const CLI::App& command, std::string_view name);
std::vector<std::string> CommandNames(const CLI::App& command);

// What the command does, with a client and its arguments.
template <typename Arguments>
void OnRun(CLI::App& command, Globals& globals, const std::shared_ptr<Arguments>& arguments,
           ExitCode (*run)(Client&, const Arguments&)) {
  command.callback([&globals, arguments, run] {
    globals.action = [&globals, arguments, run] {
      Client client(globals);
      return run(client, *arguments);
    };
  });
}

// --wait[=SECONDS]. Negative: don't wait.
void AddWait(CLI::App& command, int& seconds, const std::string& what);
// A size with a unit, in bytes.
CLI::Option* AddSize(CLI::App& command, const std::string& name, uint64_t& bytes,
                     const std::string& description);
// A time with a unit.
CLI::Option* AddTime(CLI::App& command, const std::string& name, int& seconds,
                     const std::string& description);
void AddEtag(CLI::App& command, std::string& etag);
// --limit, as often as one likes; and all of them as arguments, "none" for none. Read by ParseLimits.
void AddLimits(CLI::App& command, std::vector<std::string>& limits);
void AddAllLimits(CLI::App& command, std::vector<std::string>& limits);

// ---- Labels

struct LabelArguments {
  std::vector<std::string> set;  // "KEY=VALUE"
  std::vector<std::string> remove;
};

void AddLabels(CLI::App& command, LabelArguments& labels);
void AddRemoveLabels(CLI::App& command, LabelArguments& labels);
void ChangeLabels(const LabelArguments& change, google::protobuf::Map<std::string, std::string>& labels);

// Reads the resource, changes its labels, and writes them back; again when somebody else changed it meanwhile, unless
// an etag was given. `update` is an Update...Request with the resource that `field` finds in it.
template <typename Resource, typename GetRequest, typename UpdateRequest>
[[nodiscard]] ExitCode UpdateLabels(
    Client& client, grpc::Status (v1::Cleat::Stub::*get)(grpc::ClientContext*, const GetRequest&, Resource*),
    grpc::Status (v1::Cleat::Stub::*update)(grpc::ClientContext*, const UpdateRequest&, Resource*),
    Resource* (UpdateRequest::*field)(), const std::string& name, const std::string& etag,
    const LabelArguments& change, Resource& resource) {
  constexpr int kAttempts = 5;
  if (change.set.empty() && change.remove.empty()) {
    return Fail(kUsage, name + ": nothing to change; give --label KEY=VALUE or --remove-label KEY");
  }
  for (int attempt = 1;; ++attempt) {
    GetRequest get_request;
    get_request.set_name(name);
    if (const ExitCode code = client.Call(get, get_request, resource); code != kOk) return code;
    UpdateRequest request;
    Resource& wanted = *(request.*field)();
    wanted.set_name(name);
    wanted.set_etag(etag.empty() ? resource.etag() : etag);
    *wanted.mutable_labels() = resource.labels();
    ChangeLabels(change, *wanted.mutable_labels());
    request.mutable_update_mask()->add_paths("labels");
    const grpc::Status status = client.TryCall(update, request, resource);
    const bool raced = status.error_code() == grpc::StatusCode::ABORTED && etag.empty();
    if (!raced || attempt == kAttempts) return client.Say(status);
  }
}

// After a call that made or changed a resource: waits for READY, if that was asked for, and shows it. `field` finds the
// resource in what Wait answers.
template <typename Resource>
[[nodiscard]] ExitCode WaitAndShow(Client& client, Resource& resource, int wait_s,
                                   const Resource& (v1::WaitResponse::*field)() const) {
  if (wait_s >= 0) {
    v1::WaitResponse response;
    const WaitOptions options{.time = std::chrono::seconds(wait_s)};
    if (const ExitCode code = WaitFor(client, resource.name(), options, response); code != kOk) return code;
    resource = (response.*field)();
  }
  return ShowOne(client, resource, Detail::kLine);
}

// After a call that removed one: waits until it is gone, if that was asked for. Programs get the empty response.
[[nodiscard]] ExitCode WaitAndShowGone(Client& client, const std::string& name, int wait_s,
                                       const google::protobuf::Message& response);

// kUsage, and said, when the controller is there and no export.
[[nodiscard]] ExitCode FindExport(Client& client, const std::string& name, v1::Controller& controller);

// All of a kind: `field` finds the list in the response.
template <typename Request, typename Response, typename Resource>
[[nodiscard]] ExitCode ListAll(Client& client,
                               grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                       Response*),
                               const Request& request, const Repeated<Resource>& (Response::*field)() const) {
  Response all;
  if (const ExitCode code = client.CallForAll(method, request, all); code != kOk) return code;
  client.Show(all, [&] { return TableOf((all.*field)()).Rows(); });
  return kOk;
}

}  // namespace cleat::ctl
