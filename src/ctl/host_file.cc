// SPDX-License-Identifier: Apache-2.0
#include "ctl/host_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"
#include "ctl/yaml.h"

namespace cleat::ctl {
namespace {

constexpr size_t kFileBytesMax = 16 << 20;

Error BadHostFile(std::string_view path, std::string_view cause) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, cause));
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  constexpr size_t kChunkBytes = 64 << 10;
  std::string text;
  for (;;) {
    const size_t have = text.size();
    text.resize(have + kChunkBytes);
    const ssize_t count = read(fd, text.data() + have, kChunkBytes);
    if (count < 0 && errno != EINTR) return BadHostFile(path, std::strerror(errno));
    text.resize(have + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count == 0) return text;
    if (text.size() > kFileBytesMax) return BadHostFile(path, "larger than 16 MiB");
  }
}

}  // namespace

Result<v1::ApplyHostRequest> ParseHostFile(const std::string& text, std::string_view source) {
  v1::ApplyHostRequest request;
  CLEAT_TRY(MergeYaml(text, source, "next_page_token", request));
  if (request.mode() != v1::APPLY_MODE_UNSPECIFIED || request.dry_run() || request.has_timeout()) {
    return BadHostFile(source,
                       "mode, dry_run and timeout are options of the command (--mode, --dry-run, --timeout)");
  }
  return request;
}

Result<v1::ApplyHostRequest> ReadHostFile(const std::string& path) {
  if (path == "-") {
    CLEAT_ASSIGN(auto text, ReadAll(STDIN_FILENO, "standard input"));
    return ParseHostFile(text, "standard input");
  }
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return BadHostFile(path, std::strerror(errno));
  CLEAT_ASSIGN(auto text, ReadAll(fd.get(), path));
  return ParseHostFile(text, path);
}

}  // namespace cleat::ctl
