// SPDX-License-Identifier: Apache-2.0
// A pool's drive as cleatd has it: what is read, written and zeroed (pool/drive.h), with what keeps others away from it. Calls may block for
// as long as the drive takes. One thread at a time. Implemented by block_drive.h, and in tests by drives that hang, fail or lose power.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "pool/drive.h"

namespace cleat::control {

class HostDrive : public pool::Drive {
 public:
  // The drive's open file, to look at which storage it is.
  virtual const UniqueFd& file() const = 0;

  // Locks that range, as an engine that has a disk there does; false: somebody has it, or its last I/O has not ended.
  virtual bool TryLock(uint64_t offset_bytes, uint64_t length_bytes) = 0;
  virtual void Unlock(uint64_t offset_bytes, uint64_t length_bytes) = 0;

  // kFailedPrecondition, and what it is, when the drive has a file system, a partition table, or anything else that libblkid knows; kIo. Of a
  // pool's label ask pool::ReadLabel.
  virtual Status CheckEmpty() const = 0;
};

// `found`: the drive, opened by the policy of paths (O_PATH); `path` is its name in errors, which begin with it. Errors: BlockDrive::Open's.
using OpenHostDrive =
    std::function<Result<std::unique_ptr<HostDrive>>(const UniqueFd& found, const std::string& path)>;

}  // namespace cleat::control
