// SPDX-License-Identifier: Apache-2.0
#include "ctl/connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/unique_fd.h"

namespace cleat::ctl {
namespace {

constexpr int kReconnectMs = 100;  // before the second attempt
constexpr std::string_view kUnixPrefix = "unix:";
// A page of resources with many labels each is more than gRPC's 4 MiB.
constexpr int kReceiveBytesMax = 64 << 20;
constexpr size_t kPemBytesMax = 1 << 20;

bool IsUnix(const ConnectionOptions& options) {
  return options.address.starts_with(kUnixPrefix) || options.address.starts_with('/');
}

// Absolute, or as it was given after "unix:".
std::string UnixPath(const ConnectionOptions& options) {
  if (!options.address.starts_with(kUnixPrefix)) return options.address;
  std::string path = options.address.substr(kUnixPrefix.size());
  if (path.starts_with("//")) path.erase(0, path.find_first_not_of('/') - 1);  // unix:///run/x
  return path;
}

// 0, or the errno of a connection that is tried and closed again.
int TryConnect(int family, const sockaddr* address, socklen_t length, std::chrono::milliseconds patience) {
  const UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), address, length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd done{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  if (poll(&done, 1, static_cast<int>(patience.count())) == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t error_length = sizeof(error);
  return getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &error_length) == 0 ? error : errno;
}

int TryUnix(std::string_view path, std::chrono::milliseconds patience) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::copy(path.begin(), path.end(), address.sun_path);
  return TryConnect(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address), patience);
}

struct HostAndPort {
  std::string host;
  std::string port;
};

// Empty parts: not HOST:PORT.
HostAndPort Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {};
  HostAndPort result{.host = address.substr(0, colon), .port = address.substr(colon + 1)};
  if (result.host.size() > 2 && result.host.starts_with('[') && result.host.ends_with(']')) {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return {};
  }
  const bool number =
      !result.port.empty() && result.port.find_first_not_of("0123456789") == std::string::npos;
  return number ? result : HostAndPort{};
}

// Empty: somebody listens there. Otherwise the cause.
std::string TryTcp(const HostAndPort& where, std::chrono::milliseconds patience) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &found); error != 0) {
    return gai_strerror(error);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    error = TryConnect(address->ai_family, address->ai_addr, address->ai_addrlen, patience);
    if (error == 0) return {};
  }
  return std::strerror(error);
}

// The content of a PEM file.
Result<std::string> ReadPem(const std::string& option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoError(errno, fmt::format("{} '{}' can't be read", option, path));
  std::string text(kPemBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.find("-----BEGIN ") == std::string::npos) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} '{}' is not a PEM file", option, path));
  }
  return text;
}

Result<std::shared_ptr<grpc::ChannelCredentials>> TlsCredentials(const ConnectionOptions& options) {
  grpc::SslCredentialsOptions ssl;
  const struct {
    const char* option;
    const std::string& path;
    std::string& content;
  } files[] = {{"--ca", options.ca, ssl.pem_root_certs},
               {"--cert", options.cert, ssl.pem_cert_chain},
               {"--key", options.key, ssl.pem_private_key}};
  for (const auto& file : files) {
    if (file.path.empty()) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} is missing: over TCP both sides show a certificate; give --ca, --cert and "
                               "--key (or CLEAT_CA, CLEAT_CERT, CLEAT_KEY)",
                               file.option));
    }
    auto content = ReadPem(file.option, file.path);
    if (!content.ok()) return Error(ErrorCode::kInvalidArgument, content.error().message);
    file.content = std::move(*content);
  }
  return grpc::SslCredentials(ssl);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                           std::chrono::milliseconds patience) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  // A proxy for the web is not the way to a host's daemon.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Also how long an attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(patience.count()));
  // cleatd may be back in a moment, after a restart or a restore of its store.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace

std::string Unreachable(const ConnectionOptions& options, std::string_view cause) {
  const std::string check =
      IsUnix(options)
          ? "Is cleatd running, may this user use its socket, and is it there that it listens? "
            "(--address unix:PATH, or CLEAT_ADDRESS)"
          : "Does cleatd listen there, and do --ca, --cert and --key belong to it? cleatd's log has its "
            "view";
  return fmt::format("cleatd can't be reached at {}: {}. {}", options.address, cause, check);
}

Result<std::shared_ptr<grpc::Channel>> Connect(const ConnectionOptions& options,
                                               std::chrono::milliseconds patience) {
  if (IsUnix(options)) {
    const std::string path = UnixPath(options);
    if (const int error = TryUnix(path, patience); error != 0) {
      return Error(ErrorCode::kUnavailable, Unreachable(options, std::strerror(error)));
    }
    return MakeChannel(std::string(kUnixPrefix) + path, grpc::InsecureChannelCredentials(), patience);
  }
  const HostAndPort where = Split(options.address);
  if (where.host.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("--address '{}': give unix:PATH, or HOST:PORT with --ca, --cert and --key",
                             options.address));
  }
  CLEAT_ASSIGN(auto credentials, TlsCredentials(options));
  if (const std::string cause = TryTcp(where, patience); !cause.empty()) {
    return Error(ErrorCode::kUnavailable, Unreachable(options, cause));
  }
  return MakeChannel(options.address, credentials, patience);
}

}  // namespace cleat::ctl
