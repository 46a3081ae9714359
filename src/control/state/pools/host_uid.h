// SPDX-License-Identifier: Apache-2.0
// Which host this is, for labels on drives: made of its machine id, which itself is not to leave the host (machine-id(5)). All zeroes where
// there is none. Any thread.
#pragma once

#include "pool/layout.h"

namespace cleat::control {

const pool::Uid& HostUid();
// Whether that is known, and this host's.
bool IsThisHost(const pool::Uid& uid);
// False also where this host's number is not known.
bool IsAnotherHosts(const pool::Uid& uid);

}  // namespace cleat::control
