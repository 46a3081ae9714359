// SPDX-License-Identifier: Apache-2.0
#include "tests/support/free_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/unique_fd.h"

namespace cleat::test {

std::string FreeAddress() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), bytes) != 0) return {};
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return {};
  return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}

}  // namespace cleat::test
