// SPDX-License-Identifier: Apache-2.0
#include "product.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tests/support/paths.h"

namespace cleat::system_test {
namespace {

constexpr size_t kHelpBytesMax = 64 * 1024;

Result<std::string> HelpOf(const std::string& program) {
  FILE* const pipe = popen(fmt::format("'{}' --help", program).c_str(), "r");  // NOLINT(cert-env33-c)
  if (pipe == nullptr) return ErrnoError(errno, program);
  std::string help(kHelpBytesMax, '\0');
  help.resize(fread(help.data(), 1, help.size(), pipe));
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return help;
  return Error(ErrorCode::kFailedPrecondition,
               fmt::format("'{} --help' does not work (wait status {}): CLEAT_BASE_BIN names a folder with "
                           "cleatd and cleat-engine of an older version",
                           program, status));
}

}  // namespace

std::string Product::Program(const std::string& name) const {
  return bin_dir.empty() ? test::Program(name) : bin_dir + "/" + name;
}

Result<Product> OlderProduct() {
  const char* bin_dir =
      std::getenv("CLEAT_BASE_BIN");  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
  if (bin_dir == nullptr || *bin_dir == '\0')
    return Error(ErrorCode::kNotFound,
                 "CLEAT_BASE_BIN names no older version: make test-upgrade BASE=COMMIT");
  Product product{.bin_dir = bin_dir};
  for (const char* name : {"cleatd", "cleat-engine"}) {
    const auto help = HelpOf(product.Program(name));
    if (!help.ok()) return help.error();
    product.has_path_lists = product.has_path_lists && help->find("--paths") != std::string::npos;
  }
  return product;
}

}  // namespace cleat::system_test
