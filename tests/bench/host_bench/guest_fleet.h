// SPDX-License-Identifier: Apache-2.0
// The guests of a host: a vhost-user front end with a virtio-scsi driver for each controller, as QEMU has them (split
// rings of 128 descriptors, one request queue). One thread, except for Open, which uses some of its own meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/driver/scsi_driver.h"
#include "perf/load/load.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::bench {

class GuestFleet {
 public:
  // All sockets listen when this returns; nobody is waited for. Drivers that are waited on take the next engine's
  // connection if they may reconnect; the end of one is an error otherwise.
  enum class WhenGone { kFail, kReconnect };
  static Result<std::unique_ptr<GuestFleet>> Listen(const std::vector<std::string>& sockets,
                                                    WhenGone when_gone = WhenGone::kFail);
  // Waits for the engine at all of them and brings the drivers up.
  Status Open(const std::atomic<bool>& stop);

  size_t size() const { return guests_.size(); }
  perf::ScsiDriver& driver(size_t guest) { return *guests_[guest]->driver; }
  perf::Frontend& frontend(size_t guest) { return *guests_[guest]->frontend; }
  perf::GuestMemory& memory(size_t guest) { return *guests_[guest]->memory; }
  // For a load on one target of a guest.
  Result<perf::LoadDevice> DeviceOf(size_t guest, uint8_t target);

 private:
  struct Guest {
    std::string socket;
    std::unique_ptr<perf::GuestMemory> memory;
    std::unique_ptr<perf::Frontend> frontend;
    std::unique_ptr<perf::ScsiDriver> driver;
  };

  explicit GuestFleet(WhenGone when_gone) : when_gone_(when_gone) {}
  Status Boot(Guest& guest) const;
  Status BootSome(size_t first, size_t step, const std::atomic<bool>& stop);

  const WhenGone when_gone_;
  std::vector<std::unique_ptr<Guest>> guests_;
};

}  // namespace cleat::bench
