// SPDX-License-Identifier: Apache-2.0
#include "ctl/show.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <string_view>

namespace cleat::ctl {
namespace {

std::string Short(std::string_view name, std::string_view prefix) {
  return std::string(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
}

std::string Backend(const v1::DiskSpec& spec) {
  if (spec.has_file()) return "file:" + spec.file().path();
  if (spec.has_memory()) return "memory";
  return spec.has_null() ? "null" : "?";
}

std::string Attached(const v1::DiskStatus& status) {
  std::string text;
  for (const std::string& name : status.attachments()) {
    // controllers/C/attachments/A: the controller is what people look for.
    const std::string controller = Short(name, "controllers/");
    if (!text.empty()) text += ",";
    text += controller.substr(0, controller.find('/'));
  }
  return text;
}

}  // namespace

std::string StateOf(const v1::Disk& disk) {
  return Short(v1::DiskState_Name(disk.status().state()), "DISK_STATE_");
}
std::string StateOf(const v1::Controller& controller) {
  return Short(v1::ControllerState_Name(controller.status().state()), "CONTROLLER_STATE_");
}
std::string StateOf(const v1::Attachment& attachment) {
  return Short(v1::AttachmentState_Name(attachment.status().state()), "ATTACHMENT_STATE_");
}
std::string StateOf(const v1::Engine& engine) {
  return engine.status().connected() ? "CONNECTED" : "NOT CONNECTED";
}

Table TableOf(const google::protobuf::RepeatedPtrField<v1::Disk>& disks) {
  Table table({"DISK", "SIZE", "BLOCK", "ACCESS", "SERIAL", "BACKEND", "STATE", "ATTACHED TO", "MESSAGE"});
  for (const v1::Disk& disk : disks) {
    const v1::DiskSpec& spec = disk.spec();
    table.Add({std::string(IdOf(disk.name())), HumanSize(spec.size_bytes()),
               std::to_string(spec.logical_block_bytes()),
               Short(v1::AccessMode_Name(spec.access_mode()), "ACCESS_MODE_"), spec.serial(), Backend(spec),
               StateOf(disk), Attached(disk.status()), disk.status().message()});
  }
  return table;
}

Table TableOf(const google::protobuf::RepeatedPtrField<v1::Controller>& controllers) {
  Table table({"CONTROLLER", "TYPE", "MODE", "QUEUES", "ENGINE", "STATE", "RINGS", "SOCKET", "MESSAGE"});
  for (const v1::Controller& controller : controllers) {
    const v1::ControllerSpec& spec = controller.spec();
    const v1::ControllerStatus& status = controller.status();
    table.Add({std::string(IdOf(controller.name())),
               Short(v1::ControllerType_Name(spec.type()), "CONTROLLER_TYPE_"),
               Short(v1::SocketMode_Name(spec.socket_mode()), "SOCKET_MODE_"), std::to_string(spec.queues()),
               std::string(IdOf(status.engine())), StateOf(controller), std::to_string(status.rings_up()),
               spec.socket_path(), status.message()});
  }
  return table;
}

Table TableOf(const google::protobuf::RepeatedPtrField<v1::Attachment>& attachments) {
  Table table({"CONTROLLER", "TARGET", "ATTACHMENT", "DISK", "ACCESS", "STATE", "MESSAGE"});
  for (const v1::Attachment& attachment : attachments) {
    const std::string rest = Short(attachment.name(), "controllers/");
    table.Add({rest.substr(0, rest.find('/')), std::to_string(attachment.spec().target()),
               std::string(IdOf(attachment.name())), std::string(IdOf(attachment.spec().disk())),
               attachment.spec().read_only() ? "READ-ONLY" : "READ-WRITE", StateOf(attachment),
               attachment.status().message()});
  }
  return table;
}

Table TableOf(const google::protobuf::RepeatedPtrField<v1::Engine>& engines) {
  Table table({"ENGINE", "STATE", "VERSION", "REACTORS", "CONTROLLERS", "MESSAGE"});
  for (const v1::Engine& engine : engines) {
    const v1::EngineStatus& status = engine.status();
    table.Add({std::string(IdOf(engine.name())), StateOf(engine), status.version(),
               std::to_string(status.reactors()),
               fmt::format("{} of {}", status.controllers(), status.controllers_max()), status.message()});
  }
  return table;
}

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return "{}\n";
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

std::string Show(const Globals& globals, const v1::WatchResponse& event) {
  if (globals.json) return ToJson(event, false);
  const auto line = [&](const auto& resource) {
    return fmt::format("{:>10}  {:<40}  {:<13}  {}\n", event.revision(), resource.name(), StateOf(resource),
                       resource.status().message());
  };
  switch (event.event_case()) {
    case v1::WatchResponse::kDisk:
      return line(event.disk());
    case v1::WatchResponse::kController:
      return line(event.controller());
    case v1::WatchResponse::kAttachment:
      return line(event.attachment());
    case v1::WatchResponse::kEngine:
      return line(event.engine());
    case v1::WatchResponse::kGone:
      return fmt::format("{:>10}  {:<40}  gone\n", event.revision(), event.gone());
    case v1::WatchResponse::kSynced:
      return fmt::format("{:>10}  -- that is all there is; changes follow --\n", event.revision());
    case v1::WatchResponse::EVENT_NOT_SET:
      break;
  }
  return {};
}

}  // namespace cleat::ctl
