// SPDX-License-Identifier: Apache-2.0
// What must not leave the host, taken out of texts and messages that go into a support bundle. Pure functions. A text is redacted by what
// looks like a secret, so that something harmless may go as well; what does not look like one can't be known, which is why the operator
// is told to look through the bundle.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

namespace cleat::ctl {

inline constexpr std::string_view kRedacted = "REDACTED";
// A longer line is cut: what is searched for secrets has an end.
inline constexpr size_t kRedactedLineMax = 2048;

// Values of what is called a key, secret, password, passphrase, token or credential: a quoted one to its closing quote, that of a setting
// (`NAME: VALUE`, `NAME=VALUE` at the beginning of a line) to the end of the line, others to the next blank. A path stays where the name says
// that it is one (-file, -path, -cert). Long hexadecimal numbers; base64 and base64url of 28 bytes or more, without padding when it looks
// random; PEM blocks; passwords in addresses.
std::string Redact(std::string_view text);

// Clears each field of bytes, and each that carries a plain key, however deep.
void ClearSecrets(google::protobuf::Message& message);

}  // namespace cleat::ctl
