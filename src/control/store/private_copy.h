// SPDX-License-Identifier: Apache-2.0
// A store's file as it is now, in memory of this process' own: for a file system on which SQLite can't open it, since even to read a
// database with a write-ahead log it wants to write beside it. What is in the log alone counts as what is in the file: to leave it out
// (SQLite's "immutable") would serve an older intent, with disks that have been given to another guest since.
//
// The caller holds the store's lock, so that nobody writes meanwhile. Any thread; blocks on the file system.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace cleat::control {

// Of the file and its log together: a store of all the disks and controllers that there may be takes some 20 MiB.
inline constexpr uint64_t kPrivateCopyBytesMax = uint64_t{256} << 20;

// A connection to a copy, which takes no writes; the caller closes it. Nothing of it has a name when this returns. kUnavailable when there
// is no memory for it (/dev/shm), or the file can't be read.
Result<sqlite3*> OpenPrivateCopy(const std::string& path);

// Which file is there and as of when, the database and its log: the same while nobody has written to it or put another one in its place.
struct FileStamp {
  struct Part {
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t size_bytes = 0;
    uint64_t changed_ns = 0;
    bool operator==(const Part&) const = default;
  };
  Part database;
  Part log;
  bool operator==(const FileStamp&) const = default;
};
FileStamp StampOf(const std::string& path);

}  // namespace cleat::control
