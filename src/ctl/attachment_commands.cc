// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

struct AttachmentArguments {
  std::string disk;
  std::string controller;
  std::string which;
  uint32_t target = 0;
  bool read_only = false;
  int wait_s = -1;
};

void Attach(Globals& globals, const AttachmentArguments& arguments) {
  Client client(globals);
  v1::AttachDiskRequest request;
  request.set_parent(FullName("controllers/", arguments.controller));
  v1::AttachmentSpec& spec = *request.mutable_attachment()->mutable_spec();
  spec.set_disk(FullName("disks/", arguments.disk));
  spec.set_target(arguments.target);
  spec.set_read_only(arguments.read_only);
  v1::Attachment attachment;
  {
    grpc::ClientContext context;
    if (!client.Dial() || !client.Check(client.stub().AttachDisk(&context, request, &attachment))) return;
  }
  if (arguments.wait_s >= 0) {
    if (!WaitFor(client, attachment.name(), Goal::kReady, arguments.wait_s)) return;
    grpc::ClientContext context;
    v1::GetAttachmentRequest get;
    get.set_name(attachment.name());
    if (!client.Check(client.stub().GetAttachment(&context, get, &attachment))) return;
  }
  Print(Show(globals, attachment, false));
}

bool ListOf(Client& client, const std::string& parent, v1::ListAttachmentsResponse& all) {
  v1::ListAttachmentsRequest request;
  request.set_parent(parent);
  const auto field = [](v1::ListAttachmentsResponse& page) { return page.mutable_attachments(); };
  const auto call = [&](auto... arguments) { return client.stub().ListAttachments(arguments...); };
  return ListAll(client, request, all, call, field);
}

bool Matches(const v1::Attachment& attachment, const std::string& which) {
  if (which.empty()) return true;
  const bool number =
      std::all_of(which.begin(), which.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (number) return std::to_string(attachment.spec().target()) == which;
  return attachment.spec().disk() == FullName("disks/", which) || IdOf(attachment.name()) == which;
}

void Detach(Globals& globals, const AttachmentArguments& arguments) {
  Client client(globals);
  const std::string parent = FullName("controllers/", arguments.controller);
  v1::ListAttachmentsResponse all;
  if (!client.Dial() || !ListOf(client, parent, all)) return;
  const v1::Attachment* found = nullptr;
  for (const v1::Attachment& attachment : all.attachments()) {
    if (!Matches(attachment, arguments.which)) continue;
    if (found != nullptr) {
      return client.Fail(kUsage, fmt::format("{} has several disks: say which, by target or disk", parent));
    }
    found = &attachment;
  }
  // Gone is what was asked for.
  if (found != nullptr) {
    grpc::ClientContext context;
    v1::DetachDiskRequest request;
    request.set_name(found->name());
    v1::DetachDiskResponse response;
    if (!client.Check(client.stub().DetachDisk(&context, request, &response))) return;
    if (arguments.wait_s >= 0 && !WaitFor(client, found->name(), Goal::kGone, arguments.wait_s)) return;
  } else if (!globals.json) {
    Print(fmt::format("{} has no such disk: nothing to do\n", parent));
  }
  if (globals.json) Print(ToJson(v1::DetachDiskResponse(), true));
}

void List(Globals& globals, const AttachmentArguments& arguments) {
  Client client(globals);
  const std::string parent =
      arguments.controller.empty() ? "controllers/-" : FullName("controllers/", arguments.controller);
  v1::ListAttachmentsResponse all;
  if (!client.Dial() || !ListOf(client, parent, all)) return;
  PrintAll(globals, all, [](v1::ListAttachmentsResponse& page) { return page.mutable_attachments(); });
}

}  // namespace

void AddAttachmentCommands(CLI::App& app, Globals& globals) {
  const auto arguments = std::make_shared<AttachmentArguments>();

  CLI::App* attach = app.add_subcommand("attach", "Put a disk behind a controller");
  attach->footer(
      "Examples:\n"
      "  cleatctl attach root vm1 --wait\n"
      "  cleatctl attach dvd vm1 --read-only");
  attach->add_option("DISK", arguments->disk, "ID or disks/ID")->required();
  attach->add_option("CONTROLLER", arguments->controller, "ID or controllers/ID")->required();
  attach->add_flag("--read-only", arguments->read_only, "The guest can't write to it");
  attach->add_option("--target", arguments->target, "Place behind the controller; 0 for blk");
  AddWait(*attach, arguments->wait_s, "the engine has opened the disk");
  attach->callback([&globals, arguments] { Attach(globals, *arguments); });

  CLI::App* detach = app.add_subcommand("detach", "Take a disk away from a controller");
  detach->footer(
      "Examples:\n"
      "  cleatctl detach vm1 --wait      the only disk of vm1\n"
      "  cleatctl detach vm1 root        by disk; a number is a target");
  detach->add_option("CONTROLLER", arguments->controller, "ID or controllers/ID")->required();
  detach->add_option("WHICH", arguments->which,
                     "Target, disk, or attachment id; not needed if there is one disk");
  AddWait(*detach, arguments->wait_s, "it is gone");
  detach->callback([&globals, arguments] { Detach(globals, *arguments); });

  CLI::App* attachment = app.add_subcommand("attachment", "Attachments: list");
  attachment->require_subcommand(1);
  CLI::App* list = attachment->add_subcommand("list", "Show the attachments of a controller, or all");
  list->add_option("CONTROLLER", arguments->controller, "ID or controllers/ID; all if not given");
  list->callback([&globals, arguments] { List(globals, *arguments); });
}

}  // namespace cleat::ctl
