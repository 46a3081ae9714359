// SPDX-License-Identifier: Apache-2.0
// Which disk has which file or device, by what it is (storage_identity.h), so that two names of one file are seen to be one. What is not
// known yet is looked at by threads of this class, since storage that hangs may hold up nobody else: at cleatd's start, and each time
// that a disk is attached, since a path may lead elsewhere by then.
//
// One file is looked at after another, until a look lasts longer than kPatience: it hangs, nobody waits for it any more, and another
// thread goes on with the rest. A disk whose look hangs from the start is not known, and a second disk of its storage, made under
// another name, can't be noticed until the look is answered: only the engines' locks keep the two apart. One that was known before stays
// known as what it was.
//
// Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "control/paths/storage_identity.h"

namespace cleat::control {

class KnownStorages {
 public:
  // How long a caller waits for a file that hangs. All files of a host are looked at in far less.
  static constexpr std::chrono::milliseconds kPatience{2000};
  // At once: all but one of them hang.
  static constexpr size_t kLooksMax = 4;
  // A dead mount with many disks does not take them all: in a folder where so many hang, no other file is looked at.
  static constexpr size_t kHangingInFolderMax = 2;

  struct File {
    std::string disk;  // id
    std::string path;
  };
  // What a file is. May hang.
  using Identify = std::function<Result<StorageIdentity>(const File& file)>;
  using Say = std::function<void(spdlog::level::level_enum level, const std::string& line)>;
  static Result<StorageIdentity> IdentifyFile(const File& file);

  // `say`: cleatd's log, if it is empty. `identify` may be under way when this has gone already.
  explicit KnownStorages(std::chrono::milliseconds patience = kPatience, Identify identify = IdentifyFile,
                         Say say = {});
  ~KnownStorages();  // waits for a look that is under way, `patience` at most
  KnownStorages(const KnownStorages&) = delete;
  KnownStorages& operator=(const KnownStorages&) = delete;

  // Has it found out what each of these files is now. A file that can't be examined is not known.
  void Look(std::vector<File> files);
  // Waits until all files were looked at but those that hang and those that wait for them, `patience` at most. Whether all were.
  bool AwaitLooks() const;

  void Keep(const File& file, const StorageIdentity& identity);
  void Forget(const std::string& disk);
  // Looks again at the files of the disks that OthersWith would name: a file may have gone, and its inode be another file's.
  void LookAtOthersWith(const std::string& disk, const StorageIdentity& identity);
  // Other disks that have any part of it: ids.
  std::vector<std::string> OthersWith(const std::string& disk, const StorageIdentity& identity) const;

 private:
  // One more than looks, so that one is there to notice when the last look hangs.
  static constexpr size_t kThreads = kLooksMax + 1;
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared, size_t thread);

  const std::shared_ptr<Shared>
      shared_;  // with the threads, which may be in a call that hangs when this goes
  std::vector<std::thread> threads_;
};

}  // namespace cleat::control
