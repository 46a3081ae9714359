// SPDX-License-Identifier: Apache-2.0
// A VM: QEMU's end of one vhost-user socket and a guest with a driver, for virtio-blk (Peer) or virtio-scsi
// (ScsiPeer). Moved to a thread of its own if need be, used by one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "perf/driver/blk_driver.h"
#include "perf/driver/scsi_driver.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::system_test {

inline constexpr uint64_t kGuestBytes = uint64_t{32} << 20;

template <typename Driver>
class PeerWith {
 public:
  using Options = typename Driver::Options;

  // The socket's server, as QEMU is; the engine connects.
  static Result<std::unique_ptr<PeerWith>> Listen(const std::string& path,
                                                  const perf::FrontendOptions& options = {});
  // The engine is the server. It refuses a second peer until it has seen the first one go: tried again until then.
  static Result<std::unique_ptr<PeerWith>> Connect(const std::string& path,
                                                   const perf::FrontendOptions& options = {});
  // Listen and Boot in one.
  static Result<std::unique_ptr<PeerWith>> Start(const std::string& path, const Options& options = {});
  ~PeerWith();

  // A guest boots: new memory, a new driver; on a new connection unless one is open on which nothing was
  // started.
  Status Boot(const Options& options = {});
  // Power off without a word: the connection is cut, what was in flight is abandoned. Boot may follow.
  void Cut();
  // The guest's shutdown: rings are stopped, then the connection ends.
  Status ShutDown();
  // Waits for the engine to end the connection, then lets go.
  Status WaitCut(uint64_t timeout_ns = 120 * kNsPerSecond);

  bool booted() const { return driver_ != nullptr; }
  Driver& driver() { return *driver_; }
  perf::Frontend& frontend() { return *frontend_; }
  perf::GuestMemory& memory() { return *memory_; }

 private:
  explicit PeerWith(std::unique_ptr<perf::Frontend> frontend) : frontend_(std::move(frontend)) {}

  std::unique_ptr<perf::Frontend> frontend_;
  std::unique_ptr<perf::GuestMemory> memory_;
  std::unique_ptr<Driver> driver_;
};

using Peer = PeerWith<perf::BlkDriver>;
using ScsiPeer = PeerWith<perf::ScsiDriver>;

}  // namespace cleat::system_test
