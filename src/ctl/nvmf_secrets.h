// SPDX-License-Identifier: Apache-2.0
// What the command line says of the secrets of NVMe over Fabrics: of a subsystem or a discovery service and this host, of an export and a host
// that it lets in.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

struct SecretArgument {
  std::string option;  // "--dhchap-secret-file" and "--no-dhchap-secret" for "dhchap-secret"
  std::string description;
  std::string file = {};
  bool remove = false;
};
// dhchap_secret, dhchap_ctrl_secret, tls_psk.
using SecretArguments = std::array<SecretArgument, 3>;
// Of a subsystem, or a discovery service.
SecretArguments SecretsOfSubsystem();
// Of a host of an export.
SecretArguments SecretsOfHost();

void AddSecrets(CLI::App& command, SecretArguments& secrets);
// After AddSecrets.
void AddRemoveSecrets(CLI::App& command, SecretArguments& secrets);

bool AnyGiven(const SecretArguments& secrets);
bool ChangesAny(const SecretArguments& secrets);  // given, or to be removed

// Reads what is given into what `secret` returns, which is not called when the argument says nothing. Errors name the option and the file.
Status ReadSecret(const SecretArgument& argument, const std::function<v1::Secret*()>& secret);
// All of them, into a SubsystemSpec, a DiscoverSubsystemsRequest or an ExportHost. The caller wipes them (WipeSecrets), also after an error.
template <typename Message>
Status ReadSecrets(const SecretArguments& arguments, Message& message) {
  CLEAT_TRY(ReadSecret(arguments[0], [&] { return message.mutable_dhchap_secret(); }));
  CLEAT_TRY(ReadSecret(arguments[1], [&] { return message.mutable_dhchap_ctrl_secret(); }));
  return ReadSecret(arguments[2], [&] { return message.mutable_tls_psk(); });
}

}  // namespace cleat::ctl
