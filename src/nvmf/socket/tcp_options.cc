// SPDX-License-Identifier: Apache-2.0
#include "nvmf/socket/tcp_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace cleat::nvmf {

Status SetOption(int socket_fd, int level, int option, int value, const char* name) {
  if (setsockopt(socket_fd, level, option, &value, sizeof(value)) != 0) return ErrnoError(errno, name);
  return Ok{};
}

Status SetTcpOptions(int socket_fd) {
  CLEAT_TRY(SetOption(socket_fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  CLEAT_TRY(SetOption(socket_fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  CLEAT_TRY(SetOption(socket_fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS, "TCP_KEEPIDLE"));
  CLEAT_TRY(SetOption(socket_fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS, "TCP_KEEPINTVL"));
  CLEAT_TRY(SetOption(socket_fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes, "TCP_KEEPCNT"));
  return SetOption(socket_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs, "TCP_USER_TIMEOUT");
}

}  // namespace cleat::nvmf
