// SPDX-License-Identifier: Apache-2.0
// The file that a key-encryption key is kept in: 64 hex digits and a newline. Nobody but its owner, which is root or this
// process' own user, may read it (mode 0600 or stricter), else it is refused; systemd's credentials, which are mode 0440
// in a directory that only the service can enter, are taken as they are. Blocks on the file system: call it without locks.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "keys/key_encryption_key.h"

namespace cleat::keys {

// How a KEK is called among a service's credentials (systemd's LoadCredential=cleat-kek:...).
inline constexpr const char* kKekCredential = "cleat-kek";

//   kNotFound            no such file
//   kPermissionDenied    others may read it, it is somebody else's, or it can't be opened
//   kInvalidArgument     not the one line that it should be
Result<Kek> LoadKekFile(const std::string& path);

// The file's, after making one with a random key if there is none: complete and durable, or not there at all. Two that do
// it at once get the same.
Result<Kek> LoadOrMakeKekFile(const std::string& path);

// $CREDENTIALS_DIRECTORY/cleat-kek, if there is one.
std::optional<std::string> KekCredentialPath();

}  // namespace cleat::keys
