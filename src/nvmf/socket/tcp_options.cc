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

// IPv6 takes both, as its sockets have peers of IPv4 too ([::ffff:10.0.0.1]).
Status SetDscp(int socket_fd, uint8_t dscp) {
  const int traffic_class = dscp << 2;
  int family = 0;
  socklen_t bytes = sizeof(family);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) != 0)
    return ErrnoError(errno, "SO_DOMAIN");
  if (family == AF_INET6)
    CLEAT_TRY(SetOption(socket_fd, IPPROTO_IPV6, IPV6_TCLASS, traffic_class, "IPV6_TCLASS"));
  return SetOption(socket_fd, IPPROTO_IP, IP_TOS, traffic_class, "IP_TOS");
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
