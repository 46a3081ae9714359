// SPDX-License-Identifier: Apache-2.0
// Which disk has which file or device, by what it is (storage_identity.h), so that two names of one file are seen to be one. What is not
// known yet is looked at by a thread of this class, since storage that hangs may hold up nobody else: at cleatd's start, and each time
// that a disk is attached, since a path may lead elsewhere by then.
//
// Any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control/storage_identity.h"

namespace cleat::control {

class KnownStorages {
 public:
  // How long a caller waits for a file that hangs. All files of a host are looked at in far less.
  static constexpr std::chrono::milliseconds kPatience{2000};

  struct File {
    std::string disk;  // id
    std::string path;
  };

  KnownStorages();
  ~KnownStorages();
  KnownStorages(const KnownStorages&) = delete;
  KnownStorages& operator=(const KnownStorages&) = delete;

  // Has the thread find out what each of these files is now. A file that can't be examined is not known.
  void Look(std::vector<File> files);
  // Waits until all files were looked at, kPatience at most. Whether they were.
  bool AwaitLooks() const;

  void Keep(const File& file, const StorageIdentity& identity);
  void Forget(const std::string& disk);
  // Looks again at the files of the disks that OthersWith would name: a file may have gone, and its inode be another file's.
  void LookAtOthersWith(const std::string& disk, const StorageIdentity& identity);
  // Other disks that have any part of it: ids.
  std::vector<std::string> OthersWith(const std::string& disk, const StorageIdentity& identity) const;

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // with the thread, which may be in a call that hangs when this goes
  std::thread thread_;
};

}  // namespace cleat::control
