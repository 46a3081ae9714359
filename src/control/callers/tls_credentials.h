// SPDX-License-Identifier: Apache-2.0
// Mutual TLS for the API over TCP: cleatd shows a certificate, the caller must show one that the CA signed. The files
// are read again by Reload(); each new connection gets the newest set that was good, connections that exist keep theirs.
// Any thread.
#pragma once

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace cleat::control {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // cleatd's, with what stands between it and the CA
  std::string key;
  std::string client_ca;  // one or more certificates
};

// Reads and checks the files, and passes what is good on to gRPC.
class TlsCertificates {
 public:
  // kInvalidArgument, naming the file: missing, not PEM, another key, expired.
  static Result<std::shared_ptr<TlsCertificates>> Load(const TlsFiles& files);
  ~TlsCertificates();
  TlsCertificates(const TlsCertificates&) = delete;
  TlsCertificates& operator=(const TlsCertificates&) = delete;

  // An error leaves the present ones in use.
  Status Reload();

  // For a ServerBuilder; keeps this alive.
  static std::shared_ptr<grpc::ServerCredentials> CredentialsOf(
      std::shared_ptr<TlsCertificates> certificates);

 private:
  struct State;
  explicit TlsCertificates(TlsFiles files);

  const TlsFiles files_;
  std::unique_ptr<State> state_;
  friend class ReloadingCredentials;
};

}  // namespace cleat::control
