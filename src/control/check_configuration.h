// SPDX-License-Identifier: Apache-2.0
// What `cleatd --check` looks at: all that a start reads, without making or locking anything, so that it can be asked beside a cleatd that
// serves. main's thread, before any other.
#pragma once

#include "base/result.h"
#include "control/daemon.h"

namespace cleat::control {

// The first thing that a start would refuse: paths that callers may name, TLS, the API's group, key-encryption keys, the folders of sockets
// and of the audit log, the store's version.
Status CheckConfiguration(const DaemonOptions& options);

}  // namespace cleat::control
