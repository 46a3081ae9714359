// SPDX-License-Identifier: Apache-2.0
#include "control/backup/keys_needed.h"

#include "control/model/names.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {

std::map<std::string, std::string> KeysNeeded(const Rows& rows) {
  std::map<std::string, std::string> needed;
  const auto add = [&needed](const auto& spec, const std::string& name) {
    for (const v1::WrappedKey* const key : WrappedKeysIn(spec))
      needed.emplace(key->key_encryption_key(), name);
  };
  for (const DiskRow& disk : rows.disks) add(disk.spec, DiskName(disk.id));
  for (const DeletedDiskRow& deleted : rows.deleted_disks)
    add(deleted.disk.spec, DiskName(deleted.disk.id) + " (deleted, and kept)");
  for (const ClusterRow& cluster : rows.clusters) add(cluster.spec, ClusterName(cluster.id));
  for (const SubsystemRow& subsystem : rows.subsystems) add(subsystem.spec, SubsystemName(subsystem.id));
  for (const ControllerRow& controller : rows.controllers)
    add(controller.spec, ControllerName(controller.id));
  return needed;
}

}  // namespace cleat::control
