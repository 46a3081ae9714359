// SPDX-License-Identifier: Apache-2.0
// librte_vhost as the protocol engine behind the relays. One a process, made before any reactor
// thread, and it outlives every endpoint.
//
// The library is the *server* on the private sockets, one for each distinct offer (not for each device): it
// can serve any number of connections on one, so that attach and detach are a connect and a close and never a
// call into the library - none that blocks, none that must be undone. Sockets lie in a private directory
// (mode 0700).
//
// The library never touches a ring: the relay keeps kick, call and in-flight descriptors from it, nothing of its data
// path is called, and what it maps of the guest's memory is a mapping of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "vhost/protocol_library.h"

namespace cleat::vhost {

class VhostLibrary final : public ProtocolLibrary {
 public:
  // librte_vhost polls at most 1,024 descriptors: a pipe of its own, our wake-up connection, a listener an
  // offer, and the devices.
  static constexpr uint32_t kOffersMax = 22;
  static constexpr uint32_t kDevicesMax = 1000;

  static constexpr size_t kRuntimeDirectoryBytesMax = 70;

  // Starts DPDK's environment (about 150 ms): without hugepages, privileges, PCI or files. Leaves the calling
  // thread's CPU affinity as it was. Once in a process: there is no second start, not even after the library
  // is destroyed. `name` is the engine's, for DPDK's own messages; the private directory is made in
  // `runtime_directory`, which exists and whose path has at most kRuntimeDirectoryBytesMax bytes.
  static Result<std::unique_ptr<VhostLibrary>> Start(const std::string& name,
                                                     const std::string& runtime_directory);
  ~VhostLibrary() override;

  uint32_t devices_max() const override { return kDevicesMax; }
  Result<UniqueFd> Connect(const Offer& offer) override;

 private:
  struct Listener {
    Offer offer;
    std::string path;
  };
  explicit VhostLibrary(std::string directory) : directory_(std::move(directory)) {}
  Status OpenWakeUp();
  void WakeUp();
  Result<const Listener*> ListenerFor(const Offer& offer);

  const std::string directory_;
  UniqueFd wake_up_;  // a connection whose traffic makes the library's thread look at its listeners anew
  std::vector<std::unique_ptr<Listener>> listeners_;
};

}  // namespace cleat::vhost
