// SPDX-License-Identifier: Apache-2.0
// Which host this is, for labels on drives: its machine id (machine-id(5)). All zeroes where there is none. Any thread.
#pragma once

#include "pool/layout.h"

namespace cleat::control {

const pool::Uid& HostUid();

}  // namespace cleat::control
