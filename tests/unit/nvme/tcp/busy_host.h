// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "nvme/tcp_host/host_connection.h"
#include "tests/unit/nvme/tcp/peer.h"

namespace cleat::nvme::tcp::test {

inline constexpr uint32_t kReadBytes = 8192;
inline constexpr uint32_t kWriteBytes = 20'000;

// A connection with a read (CID 0), a write that waits for an R2T (1) and one with its data in its capsule (2), all sent.
struct Busy {
  explicit Busy(Digests digests = {})
      : controller{digests}, host(HostConnectionOptions{.name = {}, .depth = 4, .digests = digests}) {
    host.Connect(controller.IcResp());
    host.Read(1, read);
    host.Write(2, write);
    host.Write(3, small);
    capsules = host.Send();
  }
  TestMemory read{{1000, kReadBytes - 1000}, 1};
  TestMemory write{{kWriteBytes}, 2};
  TestMemory small{{100, 28}, 3};
  Controller controller;
  Host host;
  Bytes capsules;
};

}  // namespace cleat::nvme::tcp::test
