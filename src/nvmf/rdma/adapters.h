// SPDX-License-Identifier: Apache-2.0
// The RDMA adapters of this process, which hosts come by and disks are reached by: each is opened once, as two objects of one adapter would take failures
// from each other; and the connection manager, whose events are handled here.
//
// Ownership and thread: the control reactor, which outlives it; destroyed when nobody has an adapter any more, nor a listener or connection of the manager.
// Errors of the libraries, as that there are none, come with the first use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/names.h"
#include "rdma/connection_manager.h"
#include "rdma/device.h"
#include "reactor/reactor.h"

namespace cleat::nvmf {

// The address of this host from which packets to that one go, as the kernel's routes say; nothing is sent. kUnavailable: there is no way.
Result<std::string> LocalAddressTo(const nvme::fabrics::TransportAddress& address);

// Where adapters come from: the libraries and the kernel, or a model of them in tests.
struct RdmaLibrary {
  std::function<Result<std::string>(const nvme::fabrics::TransportAddress& address)> local_address_to =
      &LocalAddressTo;
  std::function<Result<std::unique_ptr<rdma::ConnectionManager>>()> open_manager =
      &rdma::OpenConnectionManager;
  std::function<Result<std::string>(const std::string& local_address)> device_name_at = &rdma::DeviceNameAt;
  std::function<Result<std::unique_ptr<rdma::Device>>(const std::string& local_address)> open_device =
      &rdma::OpenDevice;
};

class RdmaAdapter;

// Called on the control reactor, from no call of the user's own.
class RdmaAdapterUser {
 public:
  // Once: nothing that was posted completes any more. All that was made on the adapter is to go, and the adapter to be given back.
  virtual void AdapterIsGone(RdmaAdapter& adapter, const Error& reason) = 0;

 protected:
  ~RdmaAdapterUser() = default;
};

// An adapter that was opened. Kept by those who use it; the last one closes it.
class RdmaAdapter {
 public:
  explicit RdmaAdapter(std::unique_ptr<rdma::Device> device) : device_(std::move(device)), watch_(*this) {}
  RdmaAdapter(const RdmaAdapter&) = delete;
  RdmaAdapter& operator=(const RdmaAdapter&) = delete;

  rdma::Device& device() { return *device_; }
  bool gone() const { return gone_; }
  // Each user has told of itself once, and takes itself out before it gives the adapter back.
  void Add(RdmaAdapterUser& user) { users_.push_back(&user); }
  void Remove(RdmaAdapterUser& user) { std::erase(users_, &user); }
  // A user has found that the adapter takes no work any more, though the adapter itself has not said so.
  void Fail(const Error& reason);

 private:
  friend class RdmaAdapters;
  struct Watch : FdWatch {
    explicit Watch(RdmaAdapter& a) : FdWatch(&OnEvent), adapter(a) {}
    static void OnEvent(FdWatch& watch, uint32_t events);
    RdmaAdapter& adapter;
  };
  const std::unique_ptr<rdma::Device> device_;
  Watch watch_;
  std::vector<RdmaAdapterUser*> users_;
  bool gone_ = false;
};

class RdmaAdapters {
 public:
  explicit RdmaAdapters(Reactor& control, RdmaLibrary library = {})
      : control_(control), library_(std::move(library)) {}
  ~RdmaAdapters();
  RdmaAdapters(const RdmaAdapters&) = delete;
  RdmaAdapters& operator=(const RdmaAdapters&) = delete;

  Reactor& control() { return control_; }
  Result<rdma::ConnectionManager*> Manager();
  // This host's address at which a path begins: the path's own, or the one that the kernel's routes say.
  Result<std::string> LocalAddressOf(const nvme::fabrics::PathAddress& path) const {
    return path.source ? nvme::fabrics::TextOfIp(*path.source) : library_.local_address_to(path.target);
  }
  // The adapter that has this local address. Blocks, for milliseconds where nobody has it yet.
  Result<std::shared_ptr<RdmaAdapter>> Open(const std::string& local_address);
  // The one by which a host has come.
  Result<std::shared_ptr<RdmaAdapter>> OpenFor(const rdma::ConnectRequest& request);

 private:
  struct Watch : FdWatch {
    explicit Watch(RdmaAdapters& a)
        : FdWatch([](FdWatch& watch, uint32_t) { static_cast<Watch&>(watch).adapters.HandleEvents(); }),
          adapters(a) {}
    RdmaAdapters& adapters;
  };
  struct MoreTimer : Timer {
    explicit MoreTimer(RdmaAdapters& a)
        : Timer([](Timer& timer) { static_cast<MoreTimer&>(timer).adapters.HandleEvents(); }), adapters(a) {}
    RdmaAdapters& adapters;
  };
  void HandleEvents();

  Reactor& control_;
  const RdmaLibrary library_;
  std::unique_ptr<rdma::ConnectionManager> manager_;  // nullptr: nobody has asked for it yet
  Watch watch_{*this};
  MoreTimer more_{*this};
  std::map<std::string, std::weak_ptr<RdmaAdapter>> open_;  // by the device's name
};

// An address in the form of the connection manager, and back.
rdma::Endpoint EndpointOf(const nvme::fabrics::TransportAddress& address);
nvme::fabrics::TransportAddress AddressOf(const rdma::Endpoint& endpoint);

}  // namespace cleat::nvmf
