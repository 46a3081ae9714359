// SPDX-License-Identifier: Apache-2.0
#include "ctl/client.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"

namespace cleat::ctl {
namespace {

constexpr std::chrono::seconds kConnectWait{5};
constexpr std::string_view kUnixPrefix = "unix:";

// 0, or the errno of a trial connection: gRPC tells no reason, and would try for as long as it is given.
int ProbeUnixSocket(std::string_view path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::copy(path.begin(), path.end(), address.sun_path);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

}  // namespace

bool Client::Dial() {
  const std::string& address = globals_.address;
  if (!address.starts_with(kUnixPrefix)) {
    Fail(kUsage, fmt::format("--address '{}': give unix:PATH", address));
    return false;
  }
  std::string reason;
  if (const int error = ProbeUnixSocket(std::string_view(address).substr(kUnixPrefix.size())); error != 0) {
    reason = std::strerror(error);
  } else {
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    if (channel->WaitForConnected(std::chrono::system_clock::now() + kConnectWait)) {
      stub_ = v1::Cleat::NewStub(channel);
      return true;
    }
    reason = "it does not answer";
  }
  Fail(kUnreachable,
       fmt::format("cleatd can't be reached at {}: {}. Start cleatd, or say where it listens with "
                   "--address unix:PATH (or CLEAT_ADDRESS)",
                   address, reason));
  return false;
}

bool Client::Check(const grpc::Status& status) {
  if (status.ok()) return true;
  constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto code = static_cast<size_t>(status.error_code());
  Fail(kFailed,
       fmt::format("{} ({})", status.error_message(), code < std::size(kNames) ? kNames[code] : "?"));
  return false;
}

void Client::Fail(ExitCode code, std::string_view message) {
  std::fprintf(stderr, "cleatctl: %.*s\n", static_cast<int>(message.size()), message.data());
  globals_.exit_code = code;
}

std::string FullName(std::string_view collection, std::string_view argument) {
  return argument.starts_with(collection) ? std::string(argument) : fmt::format("{}{}", collection, argument);
}

std::string_view IdOf(std::string_view name) {
  return name.substr(name.rfind('/') + 1);
}

}  // namespace cleat::ctl
