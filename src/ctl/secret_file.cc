// SPDX-License-Identifier: Apache-2.0
#include "ctl/secret_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace cleat::ctl {
namespace {

void WarnIfOthersRead(std::string_view option, const std::string& file, int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & (S_IRGRP | S_IROTH)) == 0) return;
  fmt::print(stderr, "{} {}: other users can read it: chmod 600 {}\n", option, file, file);
}

}  // namespace

Error BadSecretFile(std::string_view option, const std::string& file, const std::string& why) {
  return {ErrorCode::kInvalidArgument, fmt::format("{} {}: {}", option, file, why)};
}

Result<std::string> ReadSecretFile(std::string_view option, const std::string& file, size_t bytes_max) {
  UniqueFd opened;
  int fd = STDIN_FILENO;
  if (file != kStandardInput) {
    opened = UniqueFd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.valid()) return BadSecretFile(option, file, ErrnoError(errno, "it can't be opened").message);
    fd = opened.get();
    WarnIfOthersRead(option, file, fd);
  }
  std::string text(bytes_max + 1, '\0');  // one that never moves, for copies of it would stay
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t count = read(fd, text.data() + have, text.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int why = errno;
      WipeText(text);
      return BadSecretFile(option, file, ErrnoError(why, "it can't be read").message);
    }
    if (count == 0) break;
    have += static_cast<size_t>(count);
  }
  text.resize(have);
  return text;
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void WipeText(std::string& text) {
  explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace cleat::ctl
