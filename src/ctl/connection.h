// SPDX-License-Identifier: Apache-2.0
// The way to cleatd: a unix socket, or TCP with mutual TLS.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"

namespace cleat::ctl {

struct ConnectionOptions {
  std::string address;  // "unix:PATH", "/PATH", "HOST:PORT" or "[IPV6]:PORT"
  // PEM files, for TCP: who may have signed cleatd's certificate; the caller's certificate and its key.
  std::string ca;
  std::string cert;
  std::string key;
};

// A channel to what listens there, which was tried first, since gRPC does not tell why it can't connect. At most about
// `patience` long. Errors, with what to check:
//   kInvalidArgument  address or files are wrong
//   kUnavailable      nobody there, or no permission
Result<std::shared_ptr<grpc::Channel>> Connect(const ConnectionOptions& options,
                                               std::chrono::milliseconds patience);

// What to check when the channel that Connect made fails: "HOST:PORT: CAUSE. ..."
std::string Unreachable(const ConnectionOptions& options, std::string_view cause);

}  // namespace cleat::ctl
