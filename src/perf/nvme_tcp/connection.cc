// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_tcp/connection.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "perf/wire/nvme_tcp.h"

namespace cleat::perf {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Error About(const std::string& address, const Error& error) {
  return {error.code, address + ": " + error.message};
}

// The host and the port of "10.0.0.1:4420" or "[fd00::1]:4420".
std::optional<std::pair<std::string, std::string>> Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return std::nullopt;
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.empty() || host.find_first_of(":[]") != std::string::npos) {
    return std::nullopt;
  }
  return std::pair(std::move(host), address.substr(colon + 1));
}

Result<Addresses> Resolve(const std::string& address) {
  const auto parts = Split(address);
  if (!parts) {
    return Error(ErrorCode::kInvalidArgument,
                 "no address: host:port is wanted, such as 10.0.0.1:4420 or [fd00::1]:4420");
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parts->first.c_str(), parts->second.c_str(), &hints, &found);
  if (error != 0) return Error(ErrorCode::kNotFound, gai_strerror(error));
  return Addresses(found, &freeaddrinfo);
}

Result<UniqueFd> Connect(const addrinfo& to, const Deadline& deadline) {
  UniqueFd fd(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoError(errno, "a socket");
  const int on = 1;
  if (setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
    return ErrnoError(errno, "TCP_NODELAY");
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return ErrnoError(errno, "connecting");
  CLEAT_TRY(WaitForSocket(fd.get(), POLLOUT, deadline));
  int error = 0;
  socklen_t size_bytes = sizeof error;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size_bytes) != 0) error = errno;
  if (error != 0) return ErrnoError(error, "connecting");
  return fd;
}

Status CheckAnswer(const wire::PduInitialize& answer, uint8_t asked) {
  if (answer.header.type == wire::kPduTargetTermination) {
    return Error(ErrorCode::kFailedPrecondition, "the target ended the connection");
  }
  if (answer.header.type != wire::kPduIcResp || answer.header.header_bytes != sizeof answer ||
      answer.header.pdu_bytes != sizeof answer) {
    return Error(ErrorCode::kFailedPrecondition, "what answers is no NVMe/TCP target: no ICResp came");
  }
  if (answer.version != 0) {
    return Error(ErrorCode::kUnimplemented,
                 fmt::format("the target speaks version {} of NVMe/TCP's PDUs, 0 is known", answer.version));
  }
  if (answer.digests != asked) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format(
            "digests {:#x} were asked for, the target does {:#x}: leave out those that it does not do", asked,
            answer.digests));
  }
  if (answer.alignment > wire::kPduAlignmentMax || answer.limit < wire::kMaxDataToTargetMin) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format(
            "the target's ICResp has alignment {} and {} bytes a PDU, which the specification forbids",
            answer.alignment, answer.limit));
  }
  return Ok{};
}

Result<NvmeTcpConnection> Initialize(UniqueFd socket, NvmeTcpDigests digests, const Deadline& deadline) {
  wire::PduInitialize request{};
  request.header = {.type = wire::kPduIcReq,
                    .flags = 0,
                    .header_bytes = sizeof request,
                    .data_at = 0,
                    .pdu_bytes = sizeof request};
  request.digests = static_cast<uint8_t>((digests.header ? wire::kPduHeaderDigest : 0) |
                                         (digests.data ? wire::kPduDataDigest : 0));
  CLEAT_TRY(SendWhole(socket.get(), {reinterpret_cast<const uint8_t*>(&request), sizeof request}, deadline));
  wire::PduInitialize answer{};
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(&answer), sizeof answer);
  CLEAT_TRY(ReceiveWhole(socket.get(), bytes.first(sizeof answer.header), deadline));
  if (answer.header.type == wire::kPduIcResp)
    CLEAT_TRY(ReceiveWhole(socket.get(), bytes.subspan(sizeof answer.header), deadline));
  CLEAT_TRY(CheckAnswer(answer, request.digests));
  NvmeTcpConnection connection;
  connection.socket = std::move(socket);
  connection.digests = digests;
  connection.data_to_target_max = answer.limit;
  connection.data_alignment_bytes = (uint32_t{answer.alignment} + 1) * wire::kPduAlignmentUnitBytes;
  return connection;
}

}  // namespace

Result<UniqueFd> ConnectSocket(const std::string& address, const Deadline& deadline) {
  Result<Addresses> addresses = Resolve(address);
  if (!addresses) return About(address, addresses.error());
  Result<UniqueFd> socket = Error(ErrorCode::kNotFound, "the name has no address");
  for (const addrinfo* to = addresses->get(); to != nullptr && !socket; to = to->ai_next)
    socket = Connect(*to, deadline);
  if (!socket) return About(address, socket.error());
  return socket;
}

Result<NvmeTcpConnection> NvmeTcpConnection::Open(const std::string& address, NvmeTcpDigests digests,
                                                  const Deadline& deadline) {
  CLEAT_ASSIGN(auto socket, ConnectSocket(address, deadline));
  Result<NvmeTcpConnection> connection = Initialize(std::move(socket), digests, deadline);
  if (!connection) return About(address, connection.error());
  return connection;
}

Status SendWhole(int socket, std::span<const uint8_t> data, const Deadline& deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(socket, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      CLEAT_TRY(WaitForSocket(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return ErrnoError(errno, "sending");
    }
  }
  return Ok{};
}

Status ReceiveWhole(int socket, std::span<uint8_t> data, const Deadline& deadline) {
  while (!data.empty()) {
    const ssize_t got = recv(socket, data.data(), data.size(), 0);
    if (got > 0) {
      data = data.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Error(ErrorCode::kUnavailable, "the target closed the connection");
    } else if (errno == EAGAIN) {
      CLEAT_TRY(WaitForSocket(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return ErrnoError(errno, "receiving");
    }
  }
  return Ok{};
}

Status WaitForSocket(int socket, short events, const Deadline& deadline) {
  pollfd fd{.fd = socket, .events = events, .revents = 0};
  for (;;) {
    const int ready = poll(&fd, 1, deadline.LeftMs());
    if (ready > 0) return Ok{};
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll of a socket");
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "the target did not answer in time");
  }
}

std::string_view TerminationReason(uint16_t reason) {
  constexpr std::array<std::string_view, 7> kReasons = {
      "no reason given",          "a field of a PDU's header is invalid",
      "a PDU out of sequence",    "a header's digest is wrong",
      "data is out of its range", "more data than the limit of a PDU",
      "an unsupported parameter"};
  return reason < kReasons.size() ? kReasons[reason] : "a reason that has no name";
}

}  // namespace cleat::perf
