// SPDX-License-Identifier: Apache-2.0
// Access rights: callers, the roles that are granted to them, and the role that each method takes. Plain values; set
// up before the API serves, then read by any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cleat::control {

enum class Role : uint8_t {
  kNone,
  kRead,    // Get, List, Watch, Wait
  kAttach,  // and every change but the next
  kAdmin,  // and ApplyHost with EXACT, which removes what it does not name, upgrades of engines, purging deleted disks, and pools
};
std::string_view RoleName(Role role);

// As the socket or the certificate says; never what the caller says of itself.
struct Caller {
  enum class Kind : uint8_t { kUnknown, kLocal, kCertificate } kind = Kind::kUnknown;
  // Local: of the process that connected, at that moment.
  uid_t uid = 0;
  std::set<gid_t> gids;
  pid_t pid = 0;
  // Certificate: its common name and the DNS, URI and e-mail names of its subjectAltName.
  std::vector<std::string> names;

  std::string ToString() const;  // "uid 0, pid 12", "certificate cp-1.example"
};

class Grants {
 public:
  // Root and the user that cleatd runs as are admin.
  Grants();
  // "ROLE=uid:USER", "ROLE=gid:GROUP", "ROLE=cert:NAME"; users and groups by name or number.
  Status Add(std::string_view text);
  // The highest of those granted.
  Role RoleOf(const Caller& caller) const;

 private:
  struct Grant {
    Role role;
    enum class To : uint8_t { kUser, kGroup, kCertificate } to;
    uint32_t id = 0;
    std::string name;
  };
  std::vector<Grant> grants_;
};

}  // namespace cleat::control
