// SPDX-License-Identifier: Apache-2.0
#include "control/state/settings/remote_storage.h"

namespace cleat::control {

Status RemoteStorage::Fill(const DiskRow& row) {
  CLEAT_TRY(clusters_.Fill(row));
  return subsystems_.Fill(row);
}

Status RemoteStorage::Check(const std::string& disk_id, const v1::DiskSpec& spec) {
  CLEAT_TRY(clusters_.CheckClusterOf(disk_id, spec));
  return subsystems_.CheckSubsystemOf(disk_id, spec);
}

void RemoteStorage::Join(const DiskRow& row) {
  clusters_.Join(row);
  subsystems_.Join(row);
}

void RemoteStorage::Leave(const DiskRow& row) {
  clusters_.Leave(row);
  subsystems_.Leave(row);
}

}  // namespace cleat::control
