// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/client_pool.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "modules/rbd/ceph_error.h"

namespace cleat::modules {
namespace {

// How long it is remembered that an owner was shut out: well below kBlocklistSeconds, after which it no longer is.
constexpr uint64_t kShutOutMemoryNs = uint64_t{kBlocklistSeconds} / 2 * kNsPerSecond;
constexpr uint64_t kEndPollNs = 5 * kNsPerMs;

}  // namespace

ClientPool::ClientPool(Reactor& control, const std::string& engine)
    : control_(control), link_(std::make_shared<ControlLink>(control)), self_(RecordOfThisProcess(engine)) {}

ClientPool::~ClientPool() {
  link_->Cut();
}

std::shared_ptr<RadosClient> ClientPool::Take(const std::shared_ptr<const ClusterOptions>& cluster) {
  for (Member& member : members_) {
    const RadosClient& client = *member.client;
    if (client.blocklisted() || client.failed() || member.images >= cluster->images_per_client) continue;
    if (client.cluster() != *cluster) continue;  // also the same one with another key
    ++member.images;
    return member.client;
  }
  members_.push_back({std::make_shared<RadosClient>(cluster, link_, next_number_++), 1});
  return members_.back().client;
}

void ClientPool::Return(const std::shared_ptr<RadosClient>& client) {
  const auto member =
      std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.client == client; });
  CLEAT_CHECK(member != members_.end() && member->images > 0);
  if (--member->images == 0) members_.erase(member);
}

void ClientPool::Blocklisted(RadosClient& client) {
  if (client.blocklisted()) return;
  client.SetBlocklisted();
  blocklisted_ids_.insert(client.id());
  spdlog::error(
      "{}: client blocklisted: {} of this engine; its disks fail until they are detached and attached again",
      client.cluster().name, client.id());
}

Task<Status> ClientPool::ShutOut(std::shared_ptr<RadosClient> by, std::string address) {
  ForgetOld();
  const std::string key = by->cluster().name + " " + address;
  const auto found = shut_out_.find(key);
  if (found != shut_out_.end()) {
    const std::shared_ptr<ShuttingOut> held = found->second;
    co_await held->done.Wait();
    co_return held->status;
  }
  const auto made = std::make_shared<ShuttingOut>(control_);
  shut_out_.emplace(key, made);
  const RadosClient::Work<void> add = [address,
                                       name = by->cluster().name](const RadosConnection& at) -> Status {
    std::string text = address;  // librados wants to write it
    const int added = rados_blocklist_add(at.cluster, text.data(), kBlocklistSeconds);
    if (added < 0) {
      return CephError(added, name + ": the dead owner " + address +
                                  " can't be blocklisted (the user needs the capability mon 'profile rbd')");
    }
    return Ok{};
  };
  made->status = co_await by->Run(add);
  made->done_ns = control_.now_ns();
  if (made->status) {
    ++shut_out_count_;
    spdlog::info("{}: dead owner blocklisted: {}", by->cluster().name, address);
  } else {
    shut_out_.erase(key);  // tried again by who comes next
  }
  made->done.Set();
  co_return made->status;
}

void ClientPool::ForgetOld() {
  const uint64_t now_ns = control_.now_ns();
  std::erase_if(shut_out_, [now_ns](const auto& entry) {
    const ShuttingOut& one = *entry.second;
    return one.done.is_set() && now_ns - one.done_ns > kShutOutMemoryNs;
  });
}

Task<bool> ClientPool::End(uint64_t wait_ns) {
  const uint64_t deadline_ns = control_.now_ns() + wait_ns;
  members_.clear();
  while (link_->threads.load() > 0 && control_.now_ns() < deadline_ns) co_await control_.SleepFor(kEndPollNs);
  co_return link_->threads.load() == 0;
}

std::shared_ptr<RadosClient> ClientPool::FindConnected(const std::string& cluster) const {
  for (const Member& member : members_) {
    const RadosClient& client = *member.client;
    const bool good = client.cluster().name == cluster && !client.blocklisted() && !client.id().empty();
    if (good) return member.client;
  }
  return nullptr;
}

std::vector<RadosClientStatus> ClientPool::status() const {
  std::vector<RadosClientStatus> all;
  for (const Member& member : members_) {
    const RadosClient& client = *member.client;
    all.push_back({client.cluster().name, client.id(), member.images, client.busy_ns(), client.blocklisted(),
                   client.failed(), client.pools()});
  }
  return all;
}

}  // namespace cleat::modules
