// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct AttachmentArguments {
  std::string disk;
  std::string controller;
  std::string which;
  std::string id;
  std::optional<uint32_t> target;
  bool read_only = false;
  bool incoming = false;
  std::string etag;
  int wait_s = -1;
};

ExitCode Attach(Client& client, const AttachmentArguments& arguments) {
  v1::AttachDiskRequest request;
  request.set_parent(FullName("controllers/", arguments.controller));
  request.set_attachment_id(arguments.id);
  v1::AttachmentSpec& spec = *request.mutable_attachment()->mutable_spec();
  spec.set_disk(FullName("disks/", arguments.disk));
  if (arguments.target) spec.set_target(*arguments.target);
  spec.set_read_only(arguments.read_only);
  if (arguments.incoming) spec.set_mode(v1::ATTACHMENT_MODE_INCOMING);
  v1::Attachment attachment;
  if (const ExitCode code = client.Call(&Stub::AttachDisk, request, attachment); code != kOk) return code;
  return WaitAndShow(client, attachment, arguments.wait_s, &v1::WaitResponse::attachment);
}

bool Matches(const v1::Attachment& attachment, const std::string& which) {
  if (which.empty()) return true;
  const bool number =
      std::all_of(which.begin(), which.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (number) return std::to_string(attachment.spec().target()) == which;
  return attachment.spec().disk() == FullName("disks/", which) || IdOf(attachment.name()) == which;
}

// The name of the attachment that is meant; empty when the controller has no such disk.
ExitCode FindName(Client& client, const AttachmentArguments& arguments, std::string& name) {
  const std::string parent = FullName("controllers/", arguments.controller);
  if (parent.find("/attachments/") != std::string::npos) {
    name = parent;  // is one already
    return kOk;
  }
  v1::ListAttachmentsRequest request;
  request.set_parent(parent);
  v1::ListAttachmentsResponse all;
  if (const ExitCode code = client.CallForAll(&Stub::ListAttachments, request, all); code != kOk) return code;
  for (const v1::Attachment& attachment : all.attachments()) {
    if (!Matches(attachment, arguments.which)) continue;
    if (!name.empty()) {
      return Fail(kUsage,
                  fmt::format("{} has several disks: say which, by target or disk (cleatctl attachment "
                              "list {})",
                              parent, IdOf(parent)));
    }
    name = attachment.name();
  }
  return kOk;
}

ExitCode Detach(Client& client, const AttachmentArguments& arguments) {
  v1::DetachDiskRequest request;
  request.set_etag(arguments.etag);
  if (const ExitCode code = FindName(client, arguments, *request.mutable_name()); code != kOk) return code;
  v1::DetachDiskResponse response;
  if (request.name().empty()) {  // gone is what was asked for
    client.Show(response, [&] {
      return fmt::format("{} has no such disk: nothing to do\n",
                         FullName("controllers/", arguments.controller));
    });
    return kOk;
  }
  if (const ExitCode code = client.Call(&Stub::DetachDisk, request, response); code != kOk) return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

ExitCode GetAttachment(Client& client, const AttachmentArguments& arguments) {
  v1::GetAttachmentRequest request;
  if (const ExitCode code = FindName(client, arguments, *request.mutable_name()); code != kOk) return code;
  if (request.name().empty()) {
    return Fail(kFailed, fmt::format("{} has no such disk (cleatctl attachment list)",
                                     FullName("controllers/", arguments.controller)));
  }
  v1::Attachment attachment;
  if (const ExitCode code = client.Call(&Stub::GetAttachment, request, attachment); code != kOk) return code;
  return ShowOne(client, attachment, Detail::kAll);
}

ExitCode ListAttachments(Client& client, const AttachmentArguments& arguments) {
  v1::ListAttachmentsRequest request;
  request.set_parent(arguments.controller.empty() ? "controllers/-"
                                                  : FullName("controllers/", arguments.controller));
  return ListAll(client, &Stub::ListAttachments, request, &v1::ListAttachmentsResponse::attachments);
}

void AddWhich(CLI::App& command, AttachmentArguments& arguments) {
  command.add_option(kControllerArgument, arguments.controller, "ID, or the attachment's full name")
      ->required();
  command.add_option(kWhichArgument, arguments.which,
                     "Target, disk, or attachment id; not needed if there is one disk");
}

}  // namespace

void AddAttachmentCommands(CLI::App& app, Globals& globals) {
  const auto arguments = std::make_shared<AttachmentArguments>();

  CLI::App* attach = AddCommand(app, "attach", "Put a disk behind a controller",
                                "cleatctl attach root vm1 --wait\n"
                                "cleatctl attach dvd vm1 --target 3 --read-only\n"
                                "cleatctl attach root vm1 --incoming --wait     for a VM that migrates here");
  attach->add_option(kDiskArgument, arguments->disk, "ID or disks/ID")->required();
  attach->add_option(kControllerArgument, arguments->controller, "ID or controllers/ID")->required();
  attach->add_flag("--read-only", arguments->read_only, "The guest can't write to it");
  attach->add_flag("--incoming", arguments->incoming,
                   "For a VM that migrates here: owned when its rings start, and until then by who has it");
  attach
      ->add_option(
          "--target", arguments->target,
          "Place behind the controller: 0 for blk, 0 to 7 for scsi, 0 to 63 for an export, whose namespace "
          "it is with the NSID one higher; the lowest that is free by default")
      ->type_name("N");
  attach->add_option("--id", arguments->id, "The attachment's id; the disk's by default");
  AddWait(*attach, arguments->wait_s, "the engine has opened the disk");
  OnRun(*attach, globals, arguments, Attach);

  CLI::App* detach = AddCommand(app, "detach", "Take a disk away from a controller",
                                "cleatctl detach vm1 --wait      the only disk of vm1\n"
                                "cleatctl detach vm1 root        by disk; a number is a target");
  AddWhich(*detach, *arguments);
  AddEtag(*detach, arguments->etag);
  AddWait(*detach, arguments->wait_s, "it is gone");
  OnRun(*detach, globals, arguments, Detach);

  CLI::App* attachment = AddCommand(app, "attachment", "Disks behind controllers: list, get", "");
  attachment->require_subcommand(1);
  CLI::App* list = AddCommand(*attachment, "list", "Show the attachments of a controller, or all",
                              "cleatctl attachment list\n"
                              "cleatctl attachment list vm1");
  list->add_option(kControllerArgument, arguments->controller, "ID or controllers/ID; all if not given");
  OnRun(*list, globals, arguments, ListAttachments);

  CLI::App* get = AddCommand(*attachment, "get", "Show an attachment",
                             "cleatctl attachment get vm1 root\n"
                             "cleatctl attachment get controllers/vm1/attachments/root");
  AddWhich(*get, *arguments);
  OnRun(*get, globals, arguments, GetAttachment);
}

}  // namespace cleat::ctl
