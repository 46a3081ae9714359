// SPDX-License-Identifier: Apache-2.0
#include "engine/secrets/export_hosts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace cleat::engine {

ExportHosts::ExportHosts(std::string name, Reactor& control, keys::Keyring* keyring, BlockingPool* blocking,
                         std::function<void(Hosts)> changed)
    : name_(std::move(name)),
      control_(control),
      keyring_(keyring),
      blocking_(blocking),
      changed_(std::move(changed)),
      settled_(control),
      set_again_(control),
      work_(control) {
  settled_.Set();
}

ExportHosts::~ExportHosts() = default;

void ExportHosts::Set(std::vector<ExportHost> hosts) {
  if (work_.closed()) return;
  hosts_ = std::move(hosts);
  ++generation_;
  // A host that has gone, or has nothing to prove any more, leaves nothing behind.
  const auto is_over = [this](const auto& entry) {
    const auto found = std::ranges::find(hosts_, entry.first, &ExportHost::nqn);
    return found == hosts_.end() || !found->secrets.any();
  };
  std::erase_if(known_, is_over);
  std::erase_if(failed_, is_over);
  Tell();
  set_again_.Pulse();
  if (Missing().empty()) return settled_.Set();
  settled_.Reset();
  if (!std::exchange(working_, true)) Spawn(Work());
}

Task<void> ExportHosts::Settled() {
  (void)co_await settled_.Wait();
}

std::string ExportHosts::WhyLeftOut() const {
  if (failed_.empty()) return {};
  std::string text = fmt::format("not let in: {}", failed_.begin()->second);
  if (failed_.size() > 1) text += fmt::format("; nor are {} other host(s)", failed_.size() - 1);
  return text;
}

Task<void> ExportHosts::Close() {
  closing_.Cancel();
  settled_.Set();
  co_await work_.Close();
}

bool ExportHosts::Has(const ExportHost& host) const {
  const auto known = known_.find(host.nqn);
  return known != known_.end() && known->second.secrets == host.secrets;
}

std::vector<ExportHost> ExportHosts::Missing() const {
  std::vector<ExportHost> missing;
  for (const ExportHost& host : hosts_) {
    if (host.secrets.any() && !Has(host)) missing.push_back(host);
  }
  return missing;
}

void ExportHosts::Tell() {
  Hosts let_in;
  for (const ExportHost& host : hosts_) {
    if (!host.secrets.any()) {
      let_in.push_back(nvme::target::HostAccess::Named(host.nqn));
    } else if (const auto known = known_.find(host.nqn); known != known_.end()) {
      let_in.push_back({.nqn = host.nqn, .chap = known->second.keys.chap, .psk = known->second.keys.psk});
    }
  }
  changed_(std::move(let_in));
}

Task<void> ExportHosts::Work() {
  const Gate::Holder holder(work_);
  co_await control_.Yield();  // whoever sets hosts is told of nothing but those within the call
  uint64_t wait_ns = kRetryNsMin;
  while (!closing_.cancelled() && !Missing().empty()) {
    const uint64_t generation = generation_;
    co_await UnwrapMissing();
    if (closing_.cancelled()) break;
    Tell();
    if (generation != generation_) {
      wait_ns = kRetryNsMin;
      continue;
    }
    settled_.Set();
    if (failed_.empty()) break;
    const Deadline deadline(control_, set_again_, control_.now_ns() + wait_ns);
    (void)co_await set_again_.Wait(&closing_);
    wait_ns = generation == generation_ ? std::min(2 * wait_ns, kRetryNsMax) : kRetryNsMin;
  }
  working_ = false;
  if (!closing_.cancelled()) settled_.Set();
}

Task<void> ExportHosts::UnwrapMissing() {
  const std::vector<ExportHost> missing = Missing();
  for (const ExportHost& host : missing) {
    Result<NvmfKeys> keys = Error(ErrorCode::kFailedPrecondition,
                                  "host " + host.nqn + ": this engine has no key-encryption keys");
    if (keyring_ != nullptr && blocking_ != nullptr)
      keys = co_await Unwrap(host.secrets, "host " + host.nqn, *keyring_, *blocking_);
    if (closing_.cancelled()) co_return;
    if (std::ranges::find(hosts_, host) == hosts_.end())
      continue;  // another secret was set meanwhile, or it has gone
    if (!keys.ok()) {
      Fail(host.nqn, keys.error().message);
      continue;
    }
    known_[host.nqn] = {host.secrets, std::move(keys).value()};
    if (failed_.erase(host.nqn) != 0) spdlog::info("{}: host {}: let in after all", name_, host.nqn);
  }
}

void ExportHosts::Fail(const std::string& nqn, const std::string& why) {
  known_.erase(nqn);
  std::string& before = failed_[nqn];
  if (before == why) return;
  before = why;
  spdlog::warn("{}: host not let in: {}", name_, why);
}

}  // namespace cleat::engine
