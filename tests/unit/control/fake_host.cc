// SPDX-License-Identifier: Apache-2.0
#include "fake_host.h"

#include <fmt/format.h>

namespace cleat::control {

bool FakeHost::Serve(const std::string& controller, const std::string& engine, const std::string& why) {
  const std::lock_guard lock(mutex_);
  std::string& server = servers_[controller];
  if (!server.empty() && server != engine) {
    violations_.push_back(fmt::format("{} on {}, while {} serves it", why, engine, server));
    return false;
  }
  server = engine;
  return true;
}

void FakeHost::Release(const std::string& controller, const std::string& engine) {
  const std::lock_guard lock(mutex_);
  if (servers_[controller] == engine) servers_[controller].clear();
}

void FakeHost::ReleaseAll(const std::string& engine) {
  const std::lock_guard lock(mutex_);
  for (auto& [controller, server] : servers_) {
    if (server == engine) server.clear();
  }
}

std::string FakeHost::ServerOf(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  return servers_[controller];
}

std::vector<std::string> FakeHost::Violations() {
  const std::lock_guard lock(mutex_);
  return violations_;
}

}  // namespace cleat::control
