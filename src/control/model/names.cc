// SPDX-License-Identifier: Apache-2.0
#include "control/model/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "control/model/reasons.h"

namespace cleat::control {
namespace {

constexpr std::string_view kDisks = "disks/";
constexpr std::string_view kClusters = "clusters/";
constexpr std::string_view kSubsystems = "subsystems/";
constexpr std::string_view kPools = "pools/";
constexpr std::string_view kGroups = "groups/";
constexpr std::string_view kControllers = "controllers/";
constexpr std::string_view kAttachments = "/attachments/";
constexpr std::string_view kEngines = "engines/";
constexpr size_t kIdBytesMax = 63;
constexpr size_t kNameShownMax = 100;  // of a name that is wrong, in an error

Error BadName(std::string_view name, std::string_view form) {
  return Refuse(
      v1::REASON_INVALID_NAME,
      fmt::format(
          "the name '{}' is not of the form {}, where an id matches [a-z]([-a-z0-9]{{0,61}}[a-z0-9])?",
          name.substr(0, kNameShownMax), form));
}

Result<std::string> ParseSimple(std::string_view name, std::string_view prefix, std::string_view form) {
  if (!name.starts_with(prefix) || !IsId(name.substr(prefix.size()))) return BadName(name, form);
  return std::string(name.substr(prefix.size()));
}

}  // namespace

std::string DiskName(std::string_view id) {
  return fmt::format("{}{}", kDisks, id);
}
std::string ClusterName(std::string_view id) {
  return fmt::format("{}{}", kClusters, id);
}
std::string SubsystemName(std::string_view id) {
  return fmt::format("{}{}", kSubsystems, id);
}
std::string PoolName(std::string_view id) {
  return fmt::format("{}{}", kPools, id);
}
std::string GroupName(std::string_view id) {
  return fmt::format("{}{}", kGroups, id);
}
std::string ControllerName(std::string_view id) {
  return fmt::format("{}{}", kControllers, id);
}
std::string EngineName(std::string_view id) {
  return fmt::format("{}{}", kEngines, id);
}
std::string AttachmentName(std::string_view controller_id, std::string_view id) {
  return fmt::format("{}{}{}{}", kControllers, controller_id, kAttachments, id);
}

bool IsId(std::string_view text) {
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || text.size() > kIdBytesMax || !lower(text.front()) || text.back() == '-') return false;
  return std::all_of(text.begin(), text.end(), [&](char c) { return lower(c) || digit(c) || c == '-'; });
}

Status CheckId(std::string_view what, std::string_view id) {
  if (IsId(id)) return Ok{};
  return Refuse(
      v1::REASON_INVALID_NAME,
      fmt::format("{} '{}' must match [a-z]([-a-z0-9]{{0,61}}[a-z0-9])?: small letters, digits and dashes, "
                  "63 at most, a letter first",
                  what, id.substr(0, kNameShownMax)));
}

Result<std::string> ParseDiskName(std::string_view name) {
  return ParseSimple(name, kDisks, "disks/ID");
}
Result<std::string> ParseClusterName(std::string_view name) {
  return ParseSimple(name, kClusters, "clusters/ID");
}
Result<std::string> ParseSubsystemName(std::string_view name) {
  return ParseSimple(name, kSubsystems, "subsystems/ID");
}
Result<std::string> ParsePoolName(std::string_view name) {
  return ParseSimple(name, kPools, "pools/ID");
}
Result<std::string> ParseGroupName(std::string_view name) {
  return ParseSimple(name, kGroups, "groups/ID");
}
Result<std::string> ParseControllerName(std::string_view name) {
  return ParseSimple(name, kControllers, "controllers/ID");
}
Result<std::string> ParseEngineName(std::string_view name) {
  return ParseSimple(name, kEngines, "engines/NAME");
}

Result<AttachmentIds> ParseAttachmentName(std::string_view name) {
  constexpr std::string_view kForm = "controllers/ID/attachments/ID";
  const size_t middle = name.find(kAttachments);
  if (middle == std::string_view::npos) return BadName(name, kForm);
  auto controller = ParseSimple(name.substr(0, middle), kControllers, kForm);
  const std::string_view id = name.substr(middle + kAttachments.size());
  if (!controller.ok() || !IsId(id)) return BadName(name, kForm);
  return AttachmentIds{.controller = *controller, .id = std::string(id)};
}

std::string_view KindOfName(std::string_view name) {
  if (name.starts_with(kDisks)) return "disk";
  if (name.starts_with(kClusters)) return "cluster";
  if (name.starts_with(kSubsystems)) return "subsystem";
  if (name.starts_with(kPools)) return "pool";
  if (name.starts_with(kGroups)) return "group";
  if (name.starts_with(kEngines)) return "engine";
  if (!name.starts_with(kControllers)) return "";
  return name.find(kAttachments) == std::string_view::npos ? "controller" : "attachment";
}

AttachmentsShown ShowAttachments(const std::vector<std::string>& names) {
  constexpr size_t kShownMax = 4;
  AttachmentsShown shown;
  for (size_t i = 0; i < names.size() && i < kShownMax; ++i) {
    const auto ids = ParseAttachmentName(names[i]);
    if (!ids.ok()) continue;
    shown.names += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
    shown.commands += fmt::format("{}cleatctl detach {} {}", i == 0 ? "" : "; ", ids->controller, ids->id);
  }
  if (names.size() > kShownMax) {
    shown.names += fmt::format(" and {} more", names.size() - kShownMax);
    shown.commands += "; ...";
  }
  return shown;
}

}  // namespace cleat::control
