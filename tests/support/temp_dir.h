// SPDX-License-Identifier: Apache-2.0
// A folder that goes with its owner. Short, since socket paths are.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace cleat::test {

// Where files are made and removed in no time, if there is such a place.
inline std::filesystem::path FolderInMemory() {
  const std::filesystem::path memory = "/dev/shm";
  return access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string path = parent / "cleat-XXXXXX";
    CLEAT_CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace cleat::test
