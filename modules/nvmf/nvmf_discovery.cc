// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf_discovery.h"

#include <optional>
#include <string>
#include <utility>

#include "modules/nvmf/socket/tcp_queue.h"
#include "nvme/host/discovery.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"

namespace cleat::modules {
namespace {

using nvme::fabrics::DiscoveryLog;
using nvme::host::Discovery;
using nvme::host::DiscoveryConfig;

DiscoveryConfig ConfigOf(const NvmfDiscovery& options) {
  DiscoveryConfig config;
  config.who = "the discovery service at " + nvme::fabrics::TextOfAddress(options.address);
  config.host = options.host;
  config.timeout_ns = options.timeout_ns;
  return config;
}

TcpQueueOptions QueueOptionsOf(const NvmfDiscovery& options, const DiscoveryConfig& config) {
  nvme::tcp::HostConnectionOptions connection;
  connection.name = config.who;
  connection.depth = config.admin_entries - 1;
  TcpQueueOptions queue(options.address, std::move(connection));
  queue.connect_timeout_ns = options.timeout_ns;
  return queue;
}

// The reading with its queue and its time. Destroyed outside of their callbacks, once over().
class Reading final : private nvme::host::DiscoveryOwner {
 public:
  Reading(const NvmfDiscovery& options, Reactor& reactor)
      : reactor_(reactor),
        over_(reactor),
        config_(ConfigOf(options)),
        discovery_(config_, *this),
        admin_(QueueOptionsOf(options, config_), reactor, discovery_) {}
  ~Reading() { tick_.Cancel(); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  void Start() {
    discovery_.Start(admin_, reactor_.now_ns());
    reactor_.AddTimer(tick_, reactor_.now_ns() + Discovery::kTickNs);
    admin_.Start();
  }
  void GiveUp() { discovery_.GiveUp(); }
  Event& over() { return over_; }
  Result<DiscoveryLog> TakeResult() { return *std::move(result_); }

 private:
  struct TickTimer : Timer {
    explicit TickTimer(Reading& r)
        : Timer([](Timer& timer) { static_cast<TickTimer&>(timer).reading.Tick(); }), reading(r) {}
    Reading& reading;
  };

  void Discovered(Result<DiscoveryLog> log) override {
    result_.emplace(std::move(log));
    over_.Set();
  }
  void Tick() {
    if (over_.is_set()) return;
    reactor_.AddTimer(tick_, reactor_.now_ns() + Discovery::kTickNs);
    discovery_.Tick(reactor_.now_ns());
  }

  Reactor& reactor_;
  Event over_;
  const DiscoveryConfig config_;
  std::optional<Result<DiscoveryLog>> result_;
  Discovery discovery_;  // outlives the queue, whose owner it is
  TcpQueue admin_;
  TickTimer tick_{*this};
};

}  // namespace

Task<Result<DiscoveryLog>> DiscoverNvmf(NvmfDiscovery options) {
  CLEAT_CO_TRY(nvme::fabrics::CheckHostIdentity(options.host));
  if (options.address.port == 0)
    co_return Error(ErrorCode::kInvalidArgument, "a discovery service has no port 0");
  if (options.timeout_ns == 0)
    co_return Error(ErrorCode::kInvalidArgument, "a discovery service can't answer in no time");
  Reading reading(options, *Reactor::Current());
  reading.Start();
  if (!co_await reading.over().Wait(options.cancel)) {
    reading.GiveUp();
    co_await reading.over().Wait();
  }
  co_return reading.TakeResult();
}

}  // namespace cleat::modules
