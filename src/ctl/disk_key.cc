// SPDX-License-Identifier: Apache-2.0
#include "ctl/disk_key.h"

#include <fmt/format.h>
#include <string.h>

#include <string_view>

#include "ctl/commands.h"
#include "ctl/secret_file.h"

namespace cleat::ctl {
namespace {

constexpr char kKeyFileOption[] = "--encryption-key-file";
constexpr size_t kKeyBytes256 = 64;
constexpr size_t kKeyBytes128 = 32;
constexpr size_t kKeyFileBytesMax = 2 * kKeyBytes256 + 2;  // hexadecimal, and the end of a line

Error BadKeyFile(const std::string& file, const std::string& why) {
  return BadSecretFile(kKeyFileOption, file, why);
}

int DigitOf(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const size_t digit = kDigits.find(static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c));
  return digit == std::string_view::npos ? -1 : static_cast<int>(digit);
}

// False when it is none.
bool FromHex(std::string& text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() % 2 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = DigitOf(text[i]);
    const int low = DigitOf(text[i + 1]);
    if (high < 0 || low < 0) return false;
    text[i / 2] = static_cast<char>(high * 16 + low);
  }
  explicit_bzero(text.data() + text.size() / 2, text.size() / 2);
  text.resize(text.size() / 2);
  return true;
}

}  // namespace

void AddKey(CLI::App& command, KeyArguments& arguments) {
  auto* file =
      command
          .add_option(
              kKeyFileOption, arguments.file,
              "Encrypt the disk with the key in this file: 64 bytes (AES-256-XTS) or 32 (AES-128-XTS). "
              "Takes the unix socket; cleatd keeps the key wrapped and never shows it")
          ->type_name(kFileArgument);
  command
      .add_option("--encryption-key-format", arguments.format,
                  "What is in that file: raw, the bytes themselves; hex, twice as many hexadecimal digits")
      ->check(CLI::IsMember({"raw", "hex"}))
      ->needs(file)
      ->capture_default_str();
  command
      .add_option("--cipher", arguments.cipher,
                  "The cipher; by default the one that takes a key of that length")
      ->check(CLI::IsMember({"aes-256-xts", "aes-128-xts"}))
      ->needs(file);
  command
      .add_option(
          "--data-unit", arguments.data_unit_bytes,
          "Bytes that are encrypted at a time: 512 (the default), or 4096 on a disk with blocks of 4096")
      ->needs(file);
}

Status ReadKey(const KeyArguments& arguments, v1::DiskSpec* spec) {
  if (arguments.file.empty()) return Ok{};
  CLEAT_ASSIGN(auto text, ReadSecretFile(kKeyFileOption, arguments.file, kKeyFileBytesMax));
  const bool hex = arguments.format == "hex";
  if (hex && !FromHex(text)) {
    WipeText(text);
    return BadKeyFile(arguments.file, "it is not one line of hexadecimal digits");
  }
  if (text.size() != kKeyBytes256 && text.size() != kKeyBytes128) {
    const size_t size = text.size();
    WipeText(text);
    const bool digits =
        !hex && (size == 2 * kKeyBytes256 || size == 2 * kKeyBytes256 + 1 || size == kKeyBytes256 + 1);
    return BadKeyFile(arguments.file,
                      fmt::format("a key has {} bytes or {}, this has {}{}", kKeyBytes256, kKeyBytes128,
                                  size > kKeyFileBytesMax ? "more" : std::to_string(size),
                                  digits ? "; for hexadecimal digits give --encryption-key-format hex" : ""));
  }
  v1::Encryption& encryption = *spec->mutable_encryption();
  const bool small =
      arguments.cipher.empty() ? text.size() == kKeyBytes128 : arguments.cipher == "aes-128-xts";
  encryption.set_cipher(small ? v1::CIPHER_AES_128_XTS : v1::CIPHER_AES_256_XTS);
  encryption.set_data_unit_bytes(arguments.data_unit_bytes);
  encryption.set_plain_key(text);
  WipeText(text);
  return Ok{};
}

void WipeKey(v1::DiskSpec* spec) {
  if (spec->encryption().has_plain_key()) WipeText(*spec->mutable_encryption()->mutable_plain_key());
}

}  // namespace cleat::ctl
