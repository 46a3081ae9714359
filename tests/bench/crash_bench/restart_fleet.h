// SPDX-License-Identifier: Apache-2.0
// The guests of a host whose engine is killed: a virtio-blk front end each, which waits for the next engine as QEMU does,
// and a request in the ring that only the next engine can answer. One thread, except for Recover, which uses some of its
// own meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/driver/blk_driver.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::bench {

class RestartFleet {
 public:
  // All sockets listen when this returns; nobody is waited for.
  static Result<std::unique_ptr<RestartFleet>> Listen(const std::vector<std::string>& sockets);
  // Waits for the engine at all of them and brings the drivers up.
  Status Open(const std::atomic<bool>& stop);

  // With the engine dead: a read into each ring.
  Status Submit();
  // Takes the next engine's connections, until all the reads are answered; when the last one was (CLOCK_MONOTONIC).
  Result<uint64_t> Recover(const std::atomic<bool>& stop);

  size_t size() const { return guests_.size(); }
  perf::BlkDriver& driver(size_t guest) { return *guests_[guest]->driver; }

 private:
  struct Guest {
    std::string socket;
    std::unique_ptr<perf::GuestMemory> memory;
    std::unique_ptr<perf::Frontend> frontend;
    std::unique_ptr<perf::BlkDriver> driver;
    uint64_t buffer_gpa = 0;
    bool served = true;
  };
  // Of the guests `first`, `first + step`...
  Status RecoverSome(size_t first, size_t step, const std::atomic<bool>& stop);
  static Status Connect(Guest& guest);
  static Status TakeAnswer(Guest& guest);

  std::vector<std::unique_ptr<Guest>> guests_;
};

}  // namespace cleat::bench
