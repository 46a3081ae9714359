// SPDX-License-Identifier: Apache-2.0
// A Ceph user's key as librados takes it with the fewest copies: in a file ("keyfile"), which it reads when it connects and
// never again. Given as an option ("key") its text would stay in librados' configuration, and in the copy of that which
// librbd makes for each image.
//
// The file has no name and lives in memory: locked as far as RLIMIT_MEMLOCK allows, and left out of core dumps. It stays
// open, empty, for as long as the client: librados can't be told to forget a path, which must not lead to another file, or to
// none (it would then do without authentication).
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "keys/secret.h"

namespace cleat::modules {

class KeyFile {
 public:
  KeyFile() = default;
  ~KeyFile() { Empty(); }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;

  // `key`: as keys::DecodeCephKey gives it. Once.
  Status Fill(const keys::Secret& key);
  // Wipes what is in it. Idempotent.
  void Empty();
  // Of this process; stays valid until the end.
  std::string path() const;

 private:
  UniqueFd fd_;
  void* page_ = nullptr;  // of the file, mapped while something is in it
};

}  // namespace cleat::modules
