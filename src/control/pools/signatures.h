// SPDX-License-Identifier: Apache-2.0
// What else a drive has: a file system, a partition table, a part of a RAID or of LVM, as libblkid knows them. A function; any thread; blocks
// as long as the drive does.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::control {

// "a file system (ext4, label backup)"; nullopt: nothing that anybody knows. `opened` is open for reading, without O_DIRECT; `what` begins
// errors, which are kIo.
Result<std::optional<std::string>> FindSignature(const UniqueFd& opened, const std::string& what);

}  // namespace cleat::control
