// SPDX-License-Identifier: Apache-2.0
// The options that the socket of every NVMe/TCP connection has, at either end. Any thread that has the socket.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace cleat::nvmf {

// A peer that has vanished without a word is noticed on an idle connection (keepalive) and on one with unacknowledged bytes (user timeout)
// alike. On an admin queue NVMe's own keep alive notices more, and ends the I/O queues with it.
inline constexpr int kKeepAliveIdleS = 10;
inline constexpr int kKeepAliveIntervalS = 5;
inline constexpr int kKeepAliveProbes = 4;
inline constexpr int kUserTimeoutMs = 30'000;

// Small sends leave at once, and the times above hold. Sockets that a listening one accepts inherit all of it. An error names the option.
Status SetTcpOptions(int socket_fd);

// Packets that leave by the socket carry that code point from now on (RFC 2474), of 0 to nvme::fabrics::kDscpMax. Congestion notification stays the
// kernel's. Sockets that a listening one accepts inherit it. An error names the option.
Status SetDscp(int socket_fd, uint8_t dscp);

// `name`: the option's, for errors.
Status SetOption(int socket_fd, int level, int option, int value, const char* name);

}  // namespace cleat::nvmf
