// SPDX-License-Identifier: Apache-2.0
#include "ctl/ceph_key_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace cleat::ctl {
namespace {

constexpr size_t kKeyringBytesMax = 64 << 10;

Error BadCephKeyFile(const std::string& file, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("--key-file {}: {}", file, why));
}

void WipeText(std::string& text) {
  explicit_bzero(text.data(), text.size());
  text.clear();
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Result<std::string> ReadKeyring(const std::string& file) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return BadCephKeyFile(file, ErrnoError(errno, "it can't be opened").message);
  std::string text(kKeyringBytesMax + 1, '\0');  // one that never moves, for copies of it would stay
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t count = read(fd.get(), text.data() + have, text.size() - have);
    if (count < 0) return BadCephKeyFile(file, ErrnoError(errno, "it can't be read").message);
    if (count == 0) break;
    have += static_cast<size_t>(count);
  }
  if (have > kKeyringBytesMax) return BadCephKeyFile(file, "it is too large for a keyring");
  text.resize(have);
  return text;
}

}  // namespace

std::string_view FindCephKey(std::string_view text, std::string_view user) {
  if (text.find('[') == std::string_view::npos) return Trimmed(text);
  const std::string section = fmt::format("[client.{}]", user);
  bool inside = false;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = Trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.starts_with('[')) inside = line == section;
    const size_t equals = line.find('=');
    if (inside && equals != std::string_view::npos && Trimmed(line.substr(0, equals)) == "key")
      return Trimmed(line.substr(equals + 1));
  }
  return {};
}

Status ReadCephKey(const std::string& file, v1::ClusterSpec* spec) {
  CLEAT_ASSIGN(auto text, ReadKeyring(file));
  const std::string_view key = FindCephKey(text, spec->user());
  if (!key.empty()) spec->set_plain_key(key.data(), key.size());
  const bool found = !key.empty();
  WipeText(text);
  if (found) return Ok{};
  return BadCephKeyFile(file, fmt::format("there is no key of client.{} in it", spec->user()));
}

void WipeCephKey(v1::ClusterSpec* spec) {
  if (spec->has_plain_key()) WipeText(*spec->mutable_plain_key());
}

}  // namespace cleat::ctl
