// SPDX-License-Identifier: Apache-2.0
#include "base/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace cleat {
namespace {

constexpr mode_t kMode = 0700;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string UserDir(const char* variable) {
  if (const std::string base = Variable(variable); base.starts_with('/')) return base + "/cleat";
  const std::string home = Variable("HOME");
  return (home.empty() ? std::string("/tmp") : home) + "/.local/state/cleat";
}

}  // namespace

std::string DefaultStateDir() {
  return geteuid() == 0 ? "/var/lib/cleat" : UserDir("XDG_STATE_HOME");
}
std::string DefaultRuntimeDir() {
  return geteuid() == 0 ? "/run/cleat" : UserDir("XDG_RUNTIME_DIR");
}

std::string DefaultApiSocket() {
  return DefaultRuntimeDir() + "/cleatd.sock";
}
std::string DefaultEngineSocket() {
  return DefaultRuntimeDir() + "/engine.sock";
}

Status MakeDirectory(const std::string& path) {
  const std::filesystem::path full(path);
  if (full.has_parent_path() && full.parent_path() != full && !std::filesystem::exists(full.parent_path())) {
    CLEAT_TRY(MakeDirectory(full.parent_path()));
  }
  if (mkdir(path.c_str(), kMode) == 0) return Ok{};
  const int error = errno;
  std::error_code ignored;
  if (error == EEXIST && std::filesystem::is_directory(full, ignored)) return Ok{};
  return ErrnoError(error, "folder '" + path + "' can't be made");
}

}  // namespace cleat
