// SPDX-License-Identifier: Apache-2.0
// Who holds the lock on a file. OFD locks belong to open files, not to processes, and F_OFD_GETLK names nobody; what
// tells is /proc/PID/fdinfo (proc_pid_fdinfo(5), "lock:"), for processes that this one may look into: those of the same
// user, or all for root.
#pragma once

#include <string>

namespace cleat::modules {

// "process 4711 (cleat-engine --name engine-1)", or "this process" when it has the file locked through another open
// file. Empty when no process that can be seen has it: then it is another user's, or nobody's any more - a killed
// process is gone before its last I/O has ended, and until then its locks stay. Walks all processes: takes
// milliseconds; on a BlockingPool's thread.
std::string DescribeLockHolder(int fd);

}  // namespace cleat::modules
