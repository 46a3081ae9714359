// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sqlite3.h>
#include <sys/types.h>

#include <cerrno>

namespace cleat::control {

// SQLite's writes, all of this process, fail as they do on a full file system, for as long as this lives.
class FullDisk {
 public:
  FullDisk() { Set(&Refuse); }
  ~FullDisk() { Set(nullptr); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  static ssize_t Refuse() {
    errno = ENOSPC;
    return -1;
  }
  // Which of them it uses depends on how it was built. None: its own again.
  static void Set(ssize_t (*call)()) {
    sqlite3_vfs* vfs = sqlite3_vfs_find(nullptr);
    for (const char* name : {"write", "pwrite", "pwrite64"}) {
      vfs->xSetSystemCall(vfs, name, reinterpret_cast<sqlite3_syscall_ptr>(call));
    }
  }
};

}  // namespace cleat::control
