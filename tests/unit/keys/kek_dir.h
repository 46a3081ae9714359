// SPDX-License-Identifier: Apache-2.0
// A directory for key-encryption key files, gone with the test.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace cleat::test {

// So many of that digit, and a newline. (GCC 12 warns of a string of that length with something added.)
inline std::string Line(size_t digits, char digit) {
  std::string text(digits, digit);
  text.push_back('\n');
  return text;
}

class KekDir {
 public:
  KekDir() {
    std::string name = (std::filesystem::temp_directory_path() / "cleat-kek-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~KekDir() { std::filesystem::remove_all(path_); }
  KekDir(const KekDir&) = delete;
  KekDir& operator=(const KekDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    std::string path = File(name);
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  // A key of 64 times that digit.
  std::string WriteKek(const std::string& name, char digit) const { return Write(name, Line(64, digit)); }

 private:
  std::string path_;
};

}  // namespace cleat::test
