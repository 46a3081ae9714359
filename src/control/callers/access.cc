// SPDX-License-Identifier: Apache-2.0
#include "control/callers/access.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace cleat::control {
namespace {

std::optional<uint32_t> ParseNumber(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

std::optional<uint32_t> SystemUserId(const std::string& user) {
  if (auto number = ParseNumber(user)) return number;
  const passwd* entry = getpwnam(user.c_str());  // NOLINT(concurrency-mt-unsafe): before the first thread
  return entry == nullptr ? std::nullopt : std::optional<uint32_t>(entry->pw_uid);
}

std::optional<uint32_t> SystemGroupId(const std::string& group) {
  if (auto number = ParseNumber(group)) return number;
  const struct group* entry = getgrnam(group.c_str());  // NOLINT(concurrency-mt-unsafe): as above
  return entry == nullptr ? std::nullopt : std::optional<uint32_t>(entry->gr_gid);
}

std::optional<Role> ParseRole(std::string_view name) {
  for (const Role role : {Role::kRead, Role::kAttach, Role::kAdmin}) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kNone:
      return "none";
    case Role::kRead:
      return "read";
    case Role::kAttach:
      return "attach";
    case Role::kAdmin:
      return "admin";
  }
  return "none";
}

std::string Caller::ToString() const {
  switch (kind) {
    case Kind::kLocal:
      return fmt::format("uid {}, pid {}", uid, pid);
    case Kind::kCertificate:
      return fmt::format("certificate {}", names.empty() ? "without a name" : names.front());
    case Kind::kUnknown:
      break;
  }
  return "unknown";
}

Grants::Grants() {
  grants_.push_back({.role = Role::kAdmin, .to = Grant::To::kUser, .id = 0, .name = {}});
  grants_.push_back({.role = Role::kAdmin, .to = Grant::To::kUser, .id = geteuid(), .name = {}});
}

Status Grants::Add(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("--grant '{}': {} (give read|attach|admin=uid:USER, =gid:GROUP or =cert:NAME)",
                             text, why));
  };
  const size_t equals = text.find('=');
  const size_t colon = text.find(':');
  if (equals == std::string_view::npos || colon == std::string_view::npos || colon < equals) {
    return wrong("it is not ROLE=KIND:NAME");
  }
  const auto role = ParseRole(text.substr(0, equals));
  if (!role) return wrong("there is no such role");
  const std::string_view kind = text.substr(equals + 1, colon - equals - 1);
  const std::string name(text.substr(colon + 1));
  if (name.empty()) return wrong("the name is empty");
  Grant grant{.role = *role, .to = Grant::To::kCertificate, .id = 0, .name = name};
  if (kind == "uid" || kind == "gid") {
    const auto id = kind == "uid" ? SystemUserId(name) : SystemGroupId(name);
    if (!id) return wrong(kind == "uid" ? "there is no such user" : "there is no such group");
    grant.to = kind == "uid" ? Grant::To::kUser : Grant::To::kGroup;
    grant.id = *id;
  } else if (kind != "cert") {
    return wrong("the kind is none of uid, gid, cert");
  }
  grants_.push_back(std::move(grant));
  return Ok{};
}

Role Grants::RoleOf(const Caller& caller) const {
  const auto matches = [&](const Grant& grant) {
    switch (grant.to) {
      case Grant::To::kUser:
        return caller.kind == Caller::Kind::kLocal && caller.uid == grant.id;
      case Grant::To::kGroup:
        return caller.kind == Caller::Kind::kLocal && caller.gids.contains(grant.id);
      case Grant::To::kCertificate:
        return caller.kind == Caller::Kind::kCertificate &&
               std::find(caller.names.begin(), caller.names.end(), grant.name) != caller.names.end();
    }
    return false;
  };
  Role role = Role::kNone;
  for (const Grant& grant : grants_) {
    if (matches(grant)) role = std::max(role, grant.role);
  }
  return role;
}

}  // namespace cleat::control
