// SPDX-License-Identifier: Apache-2.0
// What of a request queue waits for writes in doubt, for the disk's control thread.
//
// Its writer is the queue, on its reactor, when a request begins or ends to wait and at the ticks in between; so it costs requests that do
// not wait nothing. Read by any thread at any time: each value is whole, and they are of about one moment. The disk's channel and its core
// share it; a cache line of its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace cleat::nvme::host {

struct alignas(64) DoubtWaits {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> since_ns{0};  // the oldest of them; 0: none waits, or no tick has come since
  std::atomic<uint64_t> failed{0};    // so far, as they had waited too long
};

}  // namespace cleat::nvme::host
