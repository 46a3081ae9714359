// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"
#include "ctl/limits.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct GroupArguments {
  std::string id;
  std::vector<std::string> limits;
  LabelArguments labels;
  std::string etag;
  int wait_s = -1;
};

std::string GroupName(const GroupArguments& arguments) {
  return FullName("groups/", arguments.id);
}

ExitCode CreateGroup(Client& client, const GroupArguments& arguments) {
  v1::CreateGroupRequest request;
  request.set_group_id(std::string(IdOf(arguments.id)));
  ChangeLabels(arguments.labels, *request.mutable_group()->mutable_labels());
  auto limits = ParseLimits(arguments.limits);
  if (!limits.ok()) return Fail(kUsage, limits.error().message);
  *request.mutable_group()->mutable_spec()->mutable_limits() = std::move(*limits);
  v1::Group group;
  if (const ExitCode code = client.Call(&Stub::CreateGroup, request, group); code != kOk) return code;
  return WaitAndShow(client, group, arguments.wait_s, &v1::WaitResponse::group);
}

ExitCode GetGroup(Client& client, const GroupArguments& arguments) {
  v1::GetGroupRequest request;
  request.set_name(GroupName(arguments));
  v1::Group group;
  if (const ExitCode code = client.Call(&Stub::GetGroup, request, group); code != kOk) return code;
  return ShowOne(client, group, Detail::kAll);
}

ExitCode ListGroups(Client& client, const GroupArguments&) {
  return ListAll(client, &Stub::ListGroups, v1::ListGroupsRequest(), &v1::ListGroupsResponse::groups);
}

ExitCode UpdateGroup(Client& client, const GroupArguments& arguments) {
  v1::Group group;
  const ExitCode code =
      UpdateLabels(client, &Stub::GetGroup, &Stub::UpdateGroup, &v1::UpdateGroupRequest::mutable_group,
                   GroupName(arguments), arguments.etag, arguments.labels, group);
  return code != kOk ? code : ShowOne(client, group, Detail::kLine);
}

ExitCode LimitGroup(Client& client, const GroupArguments& arguments) {
  auto limits = ParseLimits(arguments.limits);
  if (!limits.ok()) return Fail(kUsage, limits.error().message);
  v1::UpdateGroupRequest request;
  request.mutable_group()->set_name(GroupName(arguments));
  request.mutable_group()->set_etag(arguments.etag);
  *request.mutable_group()->mutable_spec()->mutable_limits() = std::move(*limits);
  request.mutable_update_mask()->add_paths("spec.limits");
  v1::Group group;
  if (const ExitCode code = client.Call(&Stub::UpdateGroup, request, group); code != kOk) return code;
  return WaitAndShow(client, group, arguments.wait_s, &v1::WaitResponse::group);
}

ExitCode DeleteGroup(Client& client, const GroupArguments& arguments) {
  v1::DeleteGroupRequest request;
  request.set_name(GroupName(arguments));
  request.set_etag(arguments.etag);
  v1::DeleteGroupResponse response;
  if (const ExitCode code = client.Call(&Stub::DeleteGroup, request, response); code != kOk) return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

}  // namespace

void AddGroupCommands(CLI::App& app, Globals& globals) {
  CLI::App* group = AddCommand(
      app, "group", "Controllers that are limited together: create, list, get, update, limit, delete", "");
  group->require_subcommand(1);
  const auto arguments = std::make_shared<GroupArguments>();
  constexpr const char* kWhich = "ID or groups/ID";

  CLI::App* create =
      AddCommand(*group, "create", "Make a group, for a VM's controllers to be made in",
                 "cleatctl group create vm1 --limit iops=6000,burst=12000/30s --limit bytes=200M\n"
                 "cleatctl controller create vm1 --group vm1 --socket /run/vms/vm1.sock");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  AddLimits(*create, arguments->limits);
  AddLabels(*create, arguments->labels);
  AddWait(*create, arguments->wait_s, "its engines know it");
  OnRun(*create, globals, arguments, CreateGroup);

  CLI::App* list = AddCommand(*group, "list", "Show all groups", "cleatctl group list");
  OnRun(*list, globals, arguments, ListGroups);

  CLI::App* get = AddCommand(*group, "get", "Show a group", "cleatctl group get vm1");
  get->add_option(kGroupArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetGroup);

  CLI::App* update = AddCommand(*group, "update", "Change a group's labels",
                                "cleatctl group update vm1 --label owner=ann --remove-label old");
  update->add_option(kGroupArgument, arguments->id, kWhich)->required();
  AddLabels(*update, arguments->labels);
  AddRemoveLabels(*update, arguments->labels);
  AddEtag(*update, arguments->etag);
  OnRun(*update, globals, arguments, UpdateGroup);

  CLI::App* limit =
      AddCommand(*group, "limit", "Give a group other limits, all of them at once, while it works",
                 "cleatctl group limit vm1 iops=12000 bytes=400M --wait\n"
                 "cleatctl group limit vm1 none");
  limit->add_option(kGroupArgument, arguments->id, kWhich)->required();
  AddAllLimits(*limit, arguments->limits);
  AddEtag(*limit, arguments->etag);
  AddWait(*limit, arguments->wait_s, "its engines know them");
  OnRun(*limit, globals, arguments, LimitGroup);

  CLI::App* remove =
      AddCommand(*group, "delete", "Delete a group without controllers", "cleatctl group delete vm1");
  remove->add_option(kGroupArgument, arguments->id, kWhich)->required();
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  OnRun(*remove, globals, arguments, DeleteGroup);
}

}  // namespace cleat::ctl
