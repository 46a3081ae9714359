// SPDX-License-Identifier: Apache-2.0
// Looks at the file behind a disk before the disk is made, so that most mistakes are told at once and not by
// a guest. The engine opens the file itself, at attach, and has the last word. Blocks on the file system:
// call it without locks.
#pragma once

#include <string_view>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/paths/path_policy.h"
#include "control/paths/storage_identity.h"

namespace cleat::control {

// A file that is there, large enough, and can be read and (unless the disk is read-only) written; makes it
// first, when it is missing and the spec says so. Returns what the file is. Errors name disk, file, sizes and the next
// step:
//   kFailedPrecondition  missing, too small, neither a regular file nor a block device
//   kPermissionDenied    can't be opened, or may not be a disk
Result<StorageIdentity> PrepareDiskFile(std::string_view disk_name, const v1::DiskSpec& spec,
                                        const PathPolicy& paths);

// The same for a disk that is undeleted. Its file has content, so a missing file is not made.
Result<StorageIdentity> CheckDiskFile(std::string_view disk_name, const v1::DiskSpec& spec,
                                      const PathPolicy& paths);

// Sees to it that the file has the spec's size: makes a regular file larger if the disk was made with `create`, and
// checks the size of any other. The file of a stored disk may lie outside of the lists.
Status GrowDiskFile(std::string_view disk_name, const v1::DiskSpec& spec, const PathPolicy& paths);

}  // namespace cleat::control
