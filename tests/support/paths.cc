// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace cleat::test {
namespace {

const std::filesystem::path& TestDirectory() {
  static const std::filesystem::path directory =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return directory;
}

}  // namespace

std::string Program(const std::string& name) {
  return TestDirectory().parent_path() / "bin" / name;
}

std::string BuiltForTests(const std::string& name) {
  return TestDirectory() / name;
}

std::string SourceFile(const std::string& path) {
  std::ifstream file(TestDirectory() / "source_dir.txt");
  std::string source_dir;
  CLEAT_CHECK(std::getline(file, source_dir));
  return source_dir + "/" + path;
}

}  // namespace cleat::test
