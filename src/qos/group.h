// SPDX-License-Identifier: Apache-2.0
// The groups of this engine: disks (a VM's) that share limits, on all reactors and, through the memory of a GroupTable,
// over all engines of the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "qos/group_port.h"
#include "qos/group_table.h"
#include "qos/limit_source.h"
#include "qos/limits.h"
#include "reactor/reactor.h"

namespace cleat::qos {

struct GroupSpec {
  std::string name;   // "groups/ID"
  uint32_t slot = 0;  // in the table
  Limits limits;
  bool operator==(const GroupSpec&) const = default;
};

class Group {
 public:
  Group(GroupSpec spec, std::shared_ptr<Accounts> accounts, uint64_t now_ns);
  ~Group();  // no port
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return spec_.name; }

  // On `reactor`, which is asking. All channels there share it; gone with the last of them.
  std::shared_ptr<GroupPort> PortOn(Reactor& reactor);

 private:
  friend class Groups;
  GroupSpec spec_;  // control
  LimitSource limit_source_;
  Mutex mutex_;  // channels are opened on I/O reactors
  std::map<Reactor*, std::weak_ptr<GroupPort>> ports_ CLEAT_GUARDED_BY(mutex_);
};

// On the control reactor. It outlives whoever holds one of its groups.
class Groups {
 public:
  explicit Groups(Reactor& control) : control_(control) {}
  ~Groups();

  // From now on the groups' use is kept there; what was used before goes along unless another engine has told already.
  // Without it: in memory of its own.
  Status UseTable(UniqueFd fd);

  // Makes the group, or changes its limits: what waits goes on by the new ones at once.
  //   kInvalidArgument     limits, slot or name are not good
  //   kFailedPrecondition  it is there in another slot, or the slot is another group's
  Status Put(const GroupSpec& spec);
  // kFailedPrecondition while anybody holds it (a controller, a disk). OK when there is none.
  Status Drop(const std::string& name);

  std::shared_ptr<Group> Find(const std::string& name) const;  // nullptr: there is none
  std::vector<GroupSpec> Report() const;

 private:
  Result<std::shared_ptr<Accounts>> SlotOf(const GroupSpec& spec);

  Reactor& control_;
  std::shared_ptr<GroupTable> table_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
};

}  // namespace cleat::qos
