// SPDX-License-Identifier: Apache-2.0
#include "ctl/nvmf_secrets.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "ctl/commands.h"
#include "ctl/secret_file.h"

namespace cleat::ctl {
namespace {

// The longest of all forms has 103 characters; some white space may be around it.
constexpr size_t kSecretFileBytesMax = 256;

constexpr const char* kHowGiven =
    "A file, or - for standard input. Takes the unix socket; cleatd keeps the secret wrapped and never shows "
    "it";

}  // namespace

SecretArguments SecretsOfSubsystem() {
  return {
      {{"dhchap-secret",
        fmt::format("What this host proves itself with: what nvme gen-dhchap-key prints (DHHC-1:...). {}",
                    kHowGiven)},
       {"dhchap-ctrl-secret",
        "What the subsystem has to prove that it has, likewise; only together with the host's"},
       {"tls-psk",
        "The pre-shared key of TLS, likewise: what nvme gen-tls-key prints (NVMeTLSkey-1:...). With it all "
        "connections to the subsystem are TLS, which NVMe/RDMA does not have"}}};
}

SecretArguments SecretsOfHost() {
  return {
      {{"dhchap-secret",
        fmt::format(
            "What the host has to prove that it has: what nvme gen-dhchap-key prints (DHHC-1:...). {}",
            kHowGiven)},
       {"dhchap-ctrl-secret",
        "What the export proves itself with to the host, if that asks, likewise; only together with the "
        "host's"},
       {"tls-psk",
        "The pre-shared key of TLS, likewise: what nvme gen-tls-key prints (NVMeTLSkey-1:...). With it the "
        "host is let in over TLS alone"}}};
}

void AddSecrets(CLI::App& command, SecretArguments& secrets) {
  for (SecretArgument& secret : secrets) {
    command.add_option(fmt::format("--{}-file", secret.option), secret.file, secret.description)
        ->type_name(kFileArgument);
  }
}

void AddRemoveSecrets(CLI::App& command, SecretArguments& secrets) {
  for (SecretArgument& secret : secrets) {
    command.add_flag(fmt::format("--no-{}", secret.option), secret.remove, "Remove the present one")
        ->excludes(command.get_option(fmt::format("--{}-file", secret.option)));
  }
}

bool AnyGiven(const SecretArguments& secrets) {
  return std::ranges::any_of(secrets, [](const SecretArgument& secret) { return !secret.file.empty(); });
}

bool ChangesAny(const SecretArguments& secrets) {
  return AnyGiven(secrets) ||
         std::ranges::any_of(secrets, [](const SecretArgument& secret) { return secret.remove; });
}

Status ReadSecret(const SecretArgument& argument, const std::function<v1::Secret*()>& secret) {
  if (argument.remove) secret()->clear_key();
  if (argument.file.empty()) return Ok{};
  const std::string option = fmt::format("--{}-file", argument.option);
  CLEAT_ASSIGN(auto text, ReadSecretFile(option, argument.file, kSecretFileBytesMax));
  const std::string_view trimmed = Trimmed(text);
  const bool too_long = text.size() > kSecretFileBytesMax;
  const bool empty = trimmed.empty();
  if (!empty && !too_long) secret()->set_plain_key(trimmed.data(), trimmed.size());
  WipeText(text);
  if (too_long) return BadSecretFile(option, argument.file, "it is too large for such a secret");
  return empty ? Status(BadSecretFile(option, argument.file, "there is nothing in it")) : Status(Ok{});
}

}  // namespace cleat::ctl
