// SPDX-License-Identifier: Apache-2.0
// Which disk has which file or device, by what it is (storage_identity.h), so that two names of one file are seen to be one. What is not
// known yet is looked at by a thread of its own, for storage that hangs may hold up nobody: at cleatd's start, and each time that a
// disk is attached, since a path may lead elsewhere by then.
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
  // For a file that hangs; others are looked at in far less.
  static constexpr std::chrono::milliseconds kPatience{2000};

  struct File {
    std::string disk;  // id
    std::string path;
  };

  KnownStorages();
  ~KnownStorages();
  KnownStorages(const KnownStorages&) = delete;
  KnownStorages& operator=(const KnownStorages&) = delete;

  // What each is now. One that can't be examined is not known.
  void Look(std::vector<File> files);
  // Whether all of that was done within kPatience.
  bool AwaitLooks() const;

  void Keep(const File& file, const StorageIdentity& identity);
  void Forget(const std::string& disk);
  // Other disks that have any part of it: ids.
  // Looks at those again: their files may have gone since, and their numbers may be others'.
  void LookAtOthersWith(const std::string& disk, const StorageIdentity& identity);
  std::vector<std::string> OthersWith(const std::string& disk, const StorageIdentity& identity) const;

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // with the thread, which may be in a call that hangs when this goes
  std::thread thread_;
};

}  // namespace cleat::control
