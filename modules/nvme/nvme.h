// SPDX-License-Identifier: Apache-2.0
// A disk in a file or on a block device, as OpenUring, but on an NVMe namespace by the drive's own commands (io_uring passthrough,
// /dev/ngXnY) where kernel and drive take them: no block layer stands between. Else through the block device. device.io_path() says which.
#pragma once

#include <memory>

#include "base/result.h"
#include "block/device.h"
#include "modules/uring/uring.h"
#include "modules/uring/uring_hub.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::modules {

// As OpenUring, with its errors. `options.path` names the file or the block device: Acquire locks both of a namespace's nodes, so that it
// keeps out those who use either.
Task<Result<std::unique_ptr<block::Device>>> OpenFileDisk(UringOptions options, UringHub& hub,
                                                          BlockingPool& blocking);

}  // namespace cleat::modules
