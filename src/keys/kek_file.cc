// SPDX-License-Identifier: Apache-2.0
#include "keys/kek_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/unique_fd.h"
#include "keys/traces.h"

namespace cleat::keys {
namespace {

constexpr size_t kDigits = 2 * kKekBytes;
constexpr size_t kFileBytes = kDigits + 1;  // the newline

std::string Named(const std::string& path) {
  return "key-encryption key file " + path;
}

int DigitValue(uint8_t digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

// A credential is in a directory of the service's own, and an access list that gives its user the right to read shows as
// the group's.
bool IsCredential(const std::string& path) {
  const char* directory = std::getenv("CREDENTIALS_DIRECTORY");
  return directory != nullptr &&
         std::filesystem::path(path).parent_path() == std::filesystem::path(directory);
}

Status CheckOwner(const struct stat& found, const std::string& path) {
  if (!S_ISREG(found.st_mode))
    return Error(ErrorCode::kPermissionDenied, Named(path) + ": is no regular file");
  if (found.st_uid != 0 && found.st_uid != geteuid()) {
    return Error(ErrorCode::kPermissionDenied,
                 Named(path) + ": belongs to user " + std::to_string(found.st_uid) +
                     ", who could change it: make root or the user of this service its owner");
  }
  const mode_t forbidden = IsCredential(path) ? 0037 : 0077;
  if ((found.st_mode & forbidden) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", static_cast<unsigned>(found.st_mode & 07777));
    return Error(ErrorCode::kPermissionDenied, Named(path) + ": its mode is " + mode.data() +
                                                   ", so others may read it: chmod 600 it, and take a new " +
                                                   "key if others have");
  }
  return Ok{};
}

Result<Secret> ReadAll(int fd, const std::string& path) {
  Secret text = Secret::Zeroes(kFileBytes + 1);  // one more would be too long
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd, text.mutable_bytes().data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, Named(path) + " can't be read");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  return Secret::Copy(text.bytes().first(size));
}

Result<Kek> Parse(const Secret& text, const std::string& path) {
  const Error bad(ErrorCode::kInvalidArgument,
                  Named(path) + ": is not " + std::to_string(kDigits) +
                      " hex digits and a newline (make one with: openssl rand -hex 32)");
  if (text.size() != kFileBytes || text.bytes()[kDigits] != '\n') return bad;
  Secret bytes = Secret::Zeroes(kKekBytes);
  for (size_t i = 0; i < kKekBytes; ++i) {
    const int high = DigitValue(text.bytes()[2 * i]);
    const int low = DigitValue(text.bytes()[2 * i + 1]);
    if (high < 0 || low < 0) return bad;
    bytes.mutable_bytes()[i] = static_cast<uint8_t>(high << 4 | low);
  }
  WipeTraces();
  return Kek::Make(std::move(bytes));
}

Secret TextOf(const Kek& kek) {
  constexpr std::string_view kHex = "0123456789abcdef";
  Secret text = Secret::Zeroes(kFileBytes);
  for (size_t i = 0; i < kKekBytes; ++i) {
    text.mutable_bytes()[2 * i] = static_cast<uint8_t>(kHex[kek.bytes().bytes()[i] >> 4]);
    text.mutable_bytes()[2 * i + 1] = static_cast<uint8_t>(kHex[kek.bytes().bytes()[i] & 15]);
  }
  text.mutable_bytes()[kDigits] = '\n';
  return text;
}

Status SyncDirectory(const std::string& path) {
  std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty()) directory = ".";
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0)
    return ErrnoError(errno, Named(path) + ": its directory can't be made durable");
  return Ok{};
}

// 0, or the error's number.
int WriteDurably(int fd, const Secret& text) {
  const ssize_t written = write(fd, text.bytes().data(), text.size());
  if (written < 0) return errno;
  if (static_cast<size_t>(written) < text.size()) return ENOSPC;
  return fsync(fd) == 0 ? 0 : errno;
}

// Writes a whole file beside `path`, then gives it the name unless that is taken. What a process leaves there that dies
// meanwhile is in nobody's way.
Status Write(const Kek& kek, const std::string& path) {
  std::string fresh = path + ".new-XXXXXX";
  UniqueFd fd(mkostemp(fresh.data(), O_CLOEXEC));  // mode 0600
  if (!fd) return ErrnoError(errno, Named(path) + " can't be made");
  int error_number = WriteDurably(fd.get(), TextOf(kek));
  fd.Reset();
  if (error_number == 0 && link(fresh.c_str(), path.c_str()) != 0 && errno != EEXIST) error_number = errno;
  unlink(fresh.c_str());
  if (error_number != 0) return ErrnoError(error_number, Named(path) + " can't be written");
  return SyncDirectory(path);
}

}  // namespace

Result<Kek> LoadKekFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) {
    Error error = ErrnoError(errno, Named(path) + " can't be opened");
    error.message +=
        ": give one that this service's user may read; (umask 077; openssl rand -hex 32 > FILE) makes one";
    return error;
  }
  struct stat found {};
  if (fstat(fd.get(), &found) != 0) return ErrnoError(errno, Named(path));
  CLEAT_TRY(CheckOwner(found, path));
  CLEAT_ASSIGN(auto text, ReadAll(fd.get(), path));
  return Parse(text, path);
}

Result<Kek> LoadOrMakeKekFile(const std::string& path) {
  auto there = LoadKekFile(path);
  if (there || there.error().code != ErrorCode::kNotFound) return there;
  CLEAT_TRY(Write(Kek::Random(), path));
  return LoadKekFile(path);  // whoever's it is
}

std::optional<std::string> KekCredentialPath() {
  const char* directory = std::getenv("CREDENTIALS_DIRECTORY");
  if (directory == nullptr || *directory == '\0') return std::nullopt;
  std::string path = std::string(directory) + "/" + kKekCredential;
  if (access(path.c_str(), F_OK) != 0) return std::nullopt;
  return path;
}

}  // namespace cleat::keys
