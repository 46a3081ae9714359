// SPDX-License-Identifier: Apache-2.0
// Resource names ("disks/ID", "clusters/ID", "subsystems/ID", "pools/ID", "groups/ID", "controllers/ID/attachments/ID", "engines/NAME") and the ids in
// them. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cleat::control {

std::string DiskName(std::string_view id);
std::string ClusterName(std::string_view id);
std::string SubsystemName(std::string_view id);
std::string PoolName(std::string_view id);
std::string GroupName(std::string_view id);
std::string ControllerName(std::string_view id);
std::string AttachmentName(std::string_view controller_id, std::string_view id);
std::string EngineName(std::string_view id);

// [a-z]([-a-z0-9]{0,61}[a-z0-9])?
bool IsId(std::string_view text);
// kInvalidArgument unless it is one; `what` says whose ("disk_id").
Status CheckId(std::string_view what, std::string_view id);

// The id in a name; kInvalidArgument, with the form that is expected, when the name has another one.
Result<std::string> ParseDiskName(std::string_view name);
Result<std::string> ParseClusterName(std::string_view name);
Result<std::string> ParseSubsystemName(std::string_view name);
Result<std::string> ParsePoolName(std::string_view name);
Result<std::string> ParseGroupName(std::string_view name);
Result<std::string> ParseControllerName(std::string_view name);
Result<std::string> ParseEngineName(std::string_view name);

// "disk", "cluster", "subsystem", "pool", "group", "controller", "attachment" or "engine"; empty for a name of no such form.
std::string_view KindOfName(std::string_view name);

struct AttachmentIds {
  std::string controller;
  std::string id;
};
Result<AttachmentIds> ParseAttachmentName(std::string_view name);

// For "it is in use by ...": the names of these attachments, and the commands that detach them; a few, if there are many.
struct AttachmentsShown {
  std::string names;
  std::string commands;
};
AttachmentsShown ShowAttachments(const std::vector<std::string>& names);

}  // namespace cleat::control
