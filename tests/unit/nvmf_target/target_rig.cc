// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvmf_target/target_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace cleat::test {
namespace {

sockaddr_in LoopbackAt(uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

}  // namespace

std::string TargetRig::FreeAddress() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = LoopbackAt(0);
  socklen_t bytes = sizeof(at);
  CLEAT_CHECK(bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), bytes) == 0);
  CLEAT_CHECK(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &bytes) == 0);
  return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}

UniqueFd TargetRig::Connect(size_t address) const {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in at = LoopbackAt(addresses[address].port);
  CLEAT_CHECK(connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0);
  return fd;
}

}  // namespace cleat::test
