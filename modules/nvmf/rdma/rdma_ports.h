// SPDX-License-Identifier: Apache-2.0
// By which adapters this process reaches targets over RDMA: for each adapter and reactor a HostPort, made when the first queue needs it and kept until the
// adapter is gone or all is closed; and for each adapter the guests' memory that it reaches directly.
//
// Ownership and thread: the control reactor. Limits: HostPort's, for each.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/rdma/guest_memory.h"
#include "modules/nvmf/rdma/host_port.h"
#include "nvme/fabrics/names.h"
#include "nvmf/rdma/adapters.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::modules {

class HostLink;

class RdmaPorts final : private nvmf::RdmaAdapterUser {
 public:
  // A port that could not be made is not tried again before so long: that takes a while.
  static constexpr uint64_t kFailureNs = 5 * kNsPerSecond;

  // `adapters` outlives it. 0 threads: memory is pinned on the control reactor, for tests that go step by step.
  explicit RdmaPorts(nvmf::RdmaAdapters& adapters, uint32_t pinning_threads = 1)
      : adapters_(adapters),
        making_(pinning_threads),
        guests_(pinning_threads),
        changed_(adapters.control()) {}
  ~RdmaPorts();  // closed
  RdmaPorts(const RdmaPorts&) = delete;
  RdmaPorts& operator=(const RdmaPorts&) = delete;

  Reactor& control() { return adapters_.control(); }
  // Queues that use it have ended; waits until their queue pairs are destroyed. The reactors run meanwhile.
  Task<void> Close();

  // ---- For links
  struct Way {
    rdma::ConnectionManager* manager = nullptr;
    HostPort* port = nullptr;
    std::string from;  // this host's address, which is the adapter's
  };
  // How `link`, whose queue is polled by `reactor`, reaches that target: by the adapter that has the source, where there is one, else by the one that
  // the kernel's routes lead to. The port stays until Over(link), on an error too.
  Task<Result<Way>> Find(nvme::fabrics::PathAddress address, Reactor& reactor, HostLink& link);
  // Nothing of the link uses its port any more, where it has found one.
  void Over(HostLink& link);

 private:
  struct Port {
    std::unique_ptr<HostPort> port;
    bool being_made = false;
    Error failure{ErrorCode::kUnavailable, ""};
    uint64_t not_before_ns = 0;
  };
  struct Adapter {
    std::shared_ptr<nvmf::RdmaAdapter> adapter;
    std::shared_ptr<GuestMemory> guests;  // nullptr: there are too many adapters, and all data is copied
    std::map<Reactor*, Port> ports;
    std::set<HostLink*> links;
  };
  // nvmf::RdmaAdapterUser
  void AdapterIsGone(nvmf::RdmaAdapter& adapter, const Error& reason) override;

  std::shared_ptr<GuestMemory> MakeGuestMemory(nvmf::RdmaAdapter& adapter);
  Task<Result<HostPort*>> PortOn(Adapter& adapter, Reactor& reactor);
  Task<Status> MakePort(Adapter& adapter, Port& port, Reactor& reactor);
  void CloseGone();
  Task<void> CloseAdapter(nvmf::RdmaAdapter* key);

  nvmf::RdmaAdapters& adapters_;
  // Threads that pin memory: the ports' do not wait for those of guests.
  BlockingPool making_;
  BlockingPool guests_;
  std::set<uint32_t> numbers_;  // of GuestMemory, that are taken
  std::map<nvmf::RdmaAdapter*, Adapter> in_use_;
  uint32_t adapters_closing_ = 0;
  Event changed_;
};

}  // namespace cleat::modules
