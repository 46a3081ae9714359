// SPDX-License-Identifier: Apache-2.0
// What cleatd answers over HTTP: /metrics and /healthz, on loopback.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "host.h"

namespace cleat::system_test {

struct HttpReply {
  int status = 0;
  std::string body;
};

inline HttpReply HttpGet(int port, const std::string& path, const std::string& method = "GET") {
  HttpReply reply;
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return reply;
  const std::string request =
      fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", method, path);
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return reply;
  }
  std::string text;
  std::array<char, 16384> buffer;
  for (ssize_t got = 0; (got = recv(socket.get(), buffer.data(), buffer.size(), 0)) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  const size_t head = text.find("\r\n\r\n");
  if (head == std::string::npos || std::sscanf(text.c_str(), "HTTP/1.1 %d", &reply.status) != 1) return reply;
  reply.body = text.substr(head + 4);
  return reply;
}

// From the line in which cleatd says where it is.
inline int MetricsPort(const Host& host) {
  constexpr std::string_view kBefore = "metrics: served on http://127.0.0.1:";
  const std::string log = host.cleatd_log();
  const size_t at = log.find(kBefore);
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + kBefore.size());
}

}  // namespace cleat::system_test
