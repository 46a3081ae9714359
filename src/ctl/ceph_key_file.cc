// SPDX-License-Identifier: Apache-2.0
#include "ctl/ceph_key_file.h"

#include <fmt/format.h>

#include "ctl/secret_file.h"

namespace cleat::ctl {
namespace {

constexpr size_t kKeyringBytesMax = 64 << 10;

constexpr std::string_view kKeyringOption = "--key-file";

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
  CLEAT_ASSIGN(auto text, ReadSecretFile(kKeyringOption, file, kKeyringBytesMax));
  if (text.size() > kKeyringBytesMax) {
    WipeText(text);
    return BadSecretFile(kKeyringOption, file, "it is too large for a keyring");
  }
  const std::string_view key = FindCephKey(text, spec->user());
  if (!key.empty()) spec->set_plain_key(key.data(), key.size());
  const bool found = !key.empty();
  WipeText(text);
  if (found) return Ok{};
  return BadSecretFile(kKeyringOption, file, fmt::format("there is no key of client.{} in it", spec->user()));
}

void WipeCephKey(v1::ClusterSpec* spec) {
  if (spec->has_plain_key()) WipeText(*spec->mutable_plain_key());
}

}  // namespace cleat::ctl
