// SPDX-License-Identifier: Apache-2.0
#include "control/check_configuration.h"

#include <fmt/format.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "control/callers/tls_credentials.h"
#include "control/store/store.h"
#include "keys/kek_file.h"

namespace cleat::control {
namespace {

Status CheckWritableFolder(const std::string& folder, const std::string& what) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) {
    // The folder is made at the start, if its parent lets.
    return errno == ENOENT ? Status(Ok{}) : Status(ErrnoError(errno, fmt::format("{}: '{}'", what, folder)));
  }
  if (!S_ISDIR(info.st_mode)) return ErrnoError(ENOTDIR, fmt::format("{}: '{}'", what, folder));
  if (access(folder.c_str(), W_OK | X_OK) == 0 || errno == EROFS) return Ok{};
  return ErrnoError(errno, fmt::format("{}: '{}' can't be written", what, folder));
}

Status CheckKeys(const DaemonOptions& options) {
  std::vector<std::string> files = options.kek_files;
  if (files.empty()) {
    if (const auto credential = keys::KekCredentialPath()) files.push_back(*credential);
  }
  if (files.empty()) {
    const auto own = keys::LoadKekFile(options.state_dir + "/kek");
    // The key may be made at the start.
    return own.ok() || own.error().code == ErrorCode::kNotFound ? Status(Ok{}) : Status(own.error());
  }
  for (const std::string& file : files) CLEAT_TRY(keys::LoadKekFile(file));
  return Ok{};
}

Status CheckGroup(const std::string& group) {
  if (group.empty() || getgrnam(group.c_str()) != nullptr) return Ok{};  // NOLINT(concurrency-mt-unsafe)
  return Error(ErrorCode::kInvalidArgument, fmt::format("API socket: there is no group '{}'", group));
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

Status CheckConfiguration(const DaemonOptions& options) {
  CLEAT_TRY(PathPolicy::Read(options.paths_file, options.state_dir, options.runtime_dir));
  CLEAT_TRY(CheckGroup(options.api_group));
  if (!options.tls_address.empty()) CLEAT_TRY(TlsCertificates::Load(options.tls));
  CLEAT_TRY(CheckKeys(options));
  CLEAT_TRY(CheckWritableFolder(options.state_dir, "store"));
  CLEAT_TRY(CheckWritableFolder(FolderOf(options.api_socket), "API socket"));
  CLEAT_TRY(CheckWritableFolder(FolderOf(options.engine_socket), "engine socket"));
  if (!options.audit_log.empty()) CLEAT_TRY(CheckWritableFolder(FolderOf(options.audit_log), "audit log"));
  return Store::CheckFile(options.state_dir);
}

}  // namespace cleat::control
