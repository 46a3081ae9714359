// SPDX-License-Identifier: Apache-2.0
// The files that cleatd lives by, its store and keys, which may never become a disk: a guest that wrote to one would take the host with it.
// What was opened counts, whatever name led to it. Of cleatd's state directory, disks may be below disks/ only. cleatd asks when a disk is
// made, the engine each time that it opens one.
//
// Immutable; any thread. Blocks on the file system.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat {

class OwnFiles {
 public:
  // The store, in the state directory.
  static constexpr const char* kStoreName = "cleat.db";
  // SQLite's application_id of a store's file ("Clea"), which tells it from other programs' databases.
  static constexpr uint64_t kStoreApplicationId = 0x436c6561;
  // The folder in the state directory that has the reservations of exported namespaces, which engines write.
  static constexpr const char* kReservationsName = "reservations";

  explicit OwnFiles(const std::string& state_dir);

  // kPermissionDenied for a file of this cleatd's state directory or another one's. `found` may be O_PATH; `what` begins the error.
  Status CheckNotOwn(const UniqueFd& found, const std::string& what) const;
  // The same for a file of that name that is to be made in that folder.
  Status CheckNotOwnFolder(const UniqueFd& folder, const std::string& name, const std::string& what) const;
  // For a disk that is served since before anybody looked: kPermissionDenied for a store by its own name, or by a second one of its. A disk
  // with a single other name only looks like one, which its guest can make it do.
  static Status CheckNoStore(const UniqueFd& found, const std::string& what);
  // Whether it is a Cleat store, wherever it lies.
  static bool IsStore(const UniqueFd& found);

 private:
  Status CheckName(const std::string& path, const std::string& what) const;
  Status CheckFolder(const std::string& folder, const std::string& what) const;
  Error Refusal(const std::string& what) const;
  bool IsAmongOurs(const UniqueFd& found) const;

  std::string state_dir_;  // without links
};

}  // namespace cleat
