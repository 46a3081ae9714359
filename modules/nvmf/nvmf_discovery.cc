// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf_discovery.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "modules/nvmf/connect/make_queue.h"
#include "modules/nvmf/login/login_arithmetic.h"
#include "nvme/host/discovery.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"

namespace cleat::modules {
namespace {

using nvme::fabrics::DiscoveryLog;
using nvme::host::Discovery;
using nvme::host::DiscoveryConfig;

DiscoveryConfig ConfigOf(const NvmfDiscovery& options, uint64_t first_timeout_ns) {
  DiscoveryConfig config;
  config.who = "the discovery service at " + nvme::fabrics::TextOfAddress(options.address);
  config.host = options.host;
  config.timeout_ns = options.timeout_ns;
  config.first_timeout_ns = first_timeout_ns;
  if (options.seen) config.kato_ms = options.kato_ms;
  return config;
}

TransportQueueOptions QueueOptionsOf(const NvmfDiscovery& options, const DiscoveryConfig& config) {
  TransportQueueOptions queue;
  queue.name = config.who;
  queue.entries = config.admin_entries;
  queue.connect_timeout_ns = config.first_timeout_ns;
  queue.transport.address = options.address;
  queue.transport.tls = {.psk = options.psk,
                         .host_nqn = options.host.nqn,
                         .subsystem_nqn = std::string(nvme::fabrics::kDiscoveryNqn)};
  queue.transport.rdma = options.rdma;
  return queue;
}

// The reading with its queue and its time. Destroyed outside of their callbacks, once over().
class Reading final : private nvme::host::DiscoveryOwner {
 public:
  Reading(const NvmfDiscovery& options, uint64_t first_timeout_ns, Reactor& reactor)
      : reactor_(reactor),
        options_(options),
        over_(reactor),
        config_(ConfigOf(options, first_timeout_ns)),
        arithmetic_(options.arithmetic, {std::string(nvme::fabrics::kDiscoveryNqn), config_.who}, reactor,
                    [this] { discovery_.Computed(); }),
        discovery_(WithChap(), *this),
        admin_(MakeQueue(QueueOptionsOf(options, config_), reactor, discovery_)) {}
  ~Reading() {
    tick_.Cancel();
    if (options_.arithmetic != nullptr) options_.arithmetic->Forget(config_.who);
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  void Start() {
    discovery_.Start(*admin_, reactor_.now_ns());
    reactor_.AddTimer(tick_, reactor_.now_ns() + Discovery::kTickNs);
    admin_->Start();
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

  DiscoveryConfig WithChap() {
    DiscoveryConfig config = config_;
    config.chap = arithmetic_.ChapWith(options_.chap);
    return config;
  }
  void Seen(const DiscoveryLog& log) override { options_.seen(log); }
  void Discovered(Result<DiscoveryLog> log) override {
    arithmetic_.Cancel();
    result_.emplace(std::move(log));
    over_.Set();
  }
  void Tick() {
    if (over_.is_set()) return;
    reactor_.AddTimer(tick_, reactor_.now_ns() + Discovery::kTickNs);
    discovery_.Tick(reactor_.now_ns());
  }

  Reactor& reactor_;
  const NvmfDiscovery& options_;
  Event over_;
  const DiscoveryConfig config_;
  LoginArithmetic arithmetic_;
  std::optional<Result<DiscoveryLog>> result_;
  Discovery discovery_;  // outlives the queue, whose owner it is
  const std::unique_ptr<TransportQueue> admin_;
  TickTimer tick_{*this};
};

Status Check(const NvmfDiscovery& options) {
  CLEAT_TRY(nvme::fabrics::CheckHostIdentity(options.host));
  if (options.address.port == 0)
    return Error(ErrorCode::kInvalidArgument, "a discovery service has no port 0");
  if (options.timeout_ns == 0)
    return Error(ErrorCode::kInvalidArgument, "a discovery service can't answer in no time");
  return Ok{};
}

// One connection does all. `first_timeout_ns`: what is left for the log as it is; those after a change have the whole time again.
Task<Result<DiscoveryLog>> ReadOrWatch(const NvmfDiscovery& options, uint64_t first_timeout_ns) {
  Reading reading(options, first_timeout_ns, *Reactor::Current());
  reading.Start();
  if (!co_await reading.over().Wait(options.cancel)) {
    reading.GiveUp();
    co_await reading.over().Wait();
  }
  co_return reading.TakeResult();
}

// Which of the key's two identities the next connection offers.
std::optional<nvme::tls::IdentityVersion> NextIdentity(const NvmfDiscovery& options) {
  if (options.psk == nullptr) return std::nullopt;
  return options.psk->choice(nvme::fabrics::TextOfAddress(options.address)).next();
}

}  // namespace

// A target that does not know the key by one identity may know it by the other, which takes a connection more.
Task<Result<DiscoveryLog>> DiscoverNvmf(NvmfDiscovery options) {
  CLEAT_CO_TRY(Check(options));
  const Reactor& reactor = *Reactor::Current();
  const uint64_t deadline_ns = reactor.now_ns() + options.timeout_ns;
  const auto identity = NextIdentity(options);
  auto log = co_await ReadOrWatch(options, options.timeout_ns);
  if (log || NextIdentity(options) == identity || reactor.now_ns() >= deadline_ns) co_return log;
  co_return co_await ReadOrWatch(options, deadline_ns - reactor.now_ns());
}

}  // namespace cleat::modules
