// SPDX-License-Identifier: Apache-2.0
// What one operation changes in the store: rows that are put in place of those of the same name, or go. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "control/model/model.h"

namespace cleat::control {

struct EraseDiskRow {
  std::string id;
};
struct EraseDeletedDiskRow {
  uint64_t revision = 0;
};
struct EraseGroupRow {
  std::string id;
};
struct EraseClusterRow {
  std::string id;
};
struct EraseSubsystemRow {
  std::string id;
};
struct ErasePoolRow {
  std::string id;
};
struct EraseControllerRow {
  std::string id;
};
struct EraseUpgradeRow {
  std::string engine;
};
struct EraseAttachmentRow {
  std::string controller;
  std::string id;
};

using RowChange =
    std::variant<DiskRow, DeletedDiskRow, GroupRow, ClusterRow, SubsystemRow, PoolRow, ControllerRow,
                 AttachmentRow, UpgradeRow, EraseDiskRow, EraseDeletedDiskRow, EraseGroupRow, EraseClusterRow,
                 EraseSubsystemRow, ErasePoolRow, EraseControllerRow, EraseAttachmentRow, EraseUpgradeRow>;

// All of it is durable, or nothing. To erase what is not there is no error.
using StoreChange = std::vector<RowChange>;

}  // namespace cleat::control
