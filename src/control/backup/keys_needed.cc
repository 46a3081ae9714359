// SPDX-License-Identifier: Apache-2.0
#include "control/backup/keys_needed.h"

#include "control/model/names.h"

namespace cleat::control {

std::map<std::string, std::string> KeysNeeded(const Rows& rows) {
  std::map<std::string, std::string> needed;
  for (const DiskRow& disk : rows.disks) {
    if (disk.spec.has_encryption())
      needed.emplace(disk.spec.encryption().wrapped_key().key_encryption_key(), DiskName(disk.id));
  }
  for (const DeletedDiskRow& deleted : rows.deleted_disks) {
    if (deleted.disk.spec.has_encryption())
      needed.emplace(deleted.disk.spec.encryption().wrapped_key().key_encryption_key(),
                     DiskName(deleted.disk.id) + " (deleted, and kept)");
  }
  for (const ClusterRow& cluster : rows.clusters) {
    if (cluster.spec.has_wrapped_key())
      needed.emplace(cluster.spec.wrapped_key().key_encryption_key(), ClusterName(cluster.id));
  }
  return needed;
}

}  // namespace cleat::control
