// SPDX-License-Identifier: Apache-2.0
// Keys and secrets from the command line: files, never the secrets themselves, which other users could see there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::ctl {

inline constexpr std::string_view kStandardInput = "-";

// kInvalidArgument: what is wrong with the file that was given for `option` ("--key-file").
Error BadSecretFile(std::string_view option, const std::string& file, const std::string& why);

// What is in the file, or comes from standard input: `bytes_max` and one more at most, so that the caller sees that it is too long. Says on
// standard error when other users can read the file. Errors name the option and the file, and nothing of what is in it.
Result<std::string> ReadSecretFile(std::string_view option, const std::string& file, size_t bytes_max);

// Without the white space around it.
std::string_view Trimmed(std::string_view text);

// Overwrites and empties it.
void WipeText(std::string& text);

// The plain secrets of a subsystem's spec, of a request to discover, or of a host of an export.
template <typename Message>
void WipeSecrets(Message& message) {
  const auto wipe = [](auto* secret) {
    if (secret->has_plain_key()) WipeText(*secret->mutable_plain_key());
  };
  if (message.has_dhchap_secret()) wipe(message.mutable_dhchap_secret());
  if (message.has_dhchap_ctrl_secret()) wipe(message.mutable_dhchap_ctrl_secret());
  if (message.has_tls_psk()) wipe(message.mutable_tls_psk());
}

}  // namespace cleat::ctl
