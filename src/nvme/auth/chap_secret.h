// SPDX-License-Identifier: Apache-2.0
// The secrets of DH-HMAC-CHAP as people hand them on: "DHHC-1:HH:BASE64:", where HH says by which hash the secret is transformed before use
// (00: not at all) and BASE64 stands for the secret and its CRC-32.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.5.8 and 8.13.5.7; `nvme gen-dhchap-key` makes them. Move-only values; any
// thread, but no I/O reactor: OpenSSL allocates.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::auth {

// The longest form: of a secret of 64 bytes.
inline constexpr size_t kSecretTextBytesMax = 10 + 92 + 1;

class ChapSecret {
 public:
  // kInvalidArgument; the error begins with `what` ("the host's secret") and says nothing of what was given.
  static Result<ChapSecret> Parse(std::string_view text, std::string_view what);

  // Whether it is the same one. In a time that says nothing of the secrets but their sizes.
  bool operator==(const ChapSecret& other) const;

  // The key that responses are made with: of the host or the subsystem that is called `nqn`. kResourceExhausted: no memory for keys.
  Result<keys::Secret> KeyFor(std::string_view nqn) const;

 private:
  ChapSecret(keys::Secret bytes, std::optional<Hash> transformation)
      : bytes_(std::move(bytes)), transformation_(transformation) {}
  keys::Secret bytes_;
  std::optional<Hash> transformation_;
};

// What a host has for one subsystem, and the subsystem for the host. Shared by the queues of its associations and never changed.
struct ChapSecrets {
  ChapSecret host;                       // proves the host to the subsystem
  std::optional<ChapSecret> controller;  // the subsystem has to prove that it has this
  bool operator==(const ChapSecrets& other) const = default;
};

}  // namespace cleat::nvme::auth
