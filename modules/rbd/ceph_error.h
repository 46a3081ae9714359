// SPDX-License-Identifier: Apache-2.0
// What librados and librbd return, in the words of ours.
#pragma once

#include <string>

#include "base/result.h"
#include "block/request.h"

namespace cleat::modules {

// `result`: a negative errno. `what`: the object and what was tried, "disks/a: image rbd/a can't be opened".
Error CephError(int result, const std::string& what);

// Of an I/O. `mode_read_only`: the image was opened so.
block::IoStatus StatusOfCeph(int result, bool mode_read_only);

}  // namespace cleat::modules
