// SPDX-License-Identifier: Apache-2.0
#include "nvmf/login/login_line.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::nvmf {

LoginLine::LoginLine(uint32_t threads_max) : threads_(std::make_unique<BlockingPool>(threads_max)) {
  post_ = [pool = threads_.get()](std::function<void()> turn) { pool->Post(std::move(turn)); };
}

LoginLine::LoginLine(Post post) : post_(std::move(post)) {}

LoginLine::~LoginLine() = default;

LoginPlace LoginLine::Enter(const std::string& peer, LoginPlace place, std::function<void()> compute) {
  bool is_first = false;
  {
    const MutexLock lock(mutex_);
    if (place == 0) place = ++last_place_;
    const auto [waiting, is_new] = peers_.try_emplace(peer);
    CLEAT_CHECK(waiting->second.emplace(place, std::move(compute)).second);
    is_first = is_new;
  }
  if (is_first) PostTurn(peer);
  return place;
}

bool LoginLine::Leave(const std::string& peer, LoginPlace place) {
  const MutexLock lock(mutex_);
  const auto waiting = peers_.find(peer);
  return waiting != peers_.end() && waiting->second.erase(place) > 0;
}

// A peer has one turn at most among what is posted, behind those of the others: so they take turns.
void LoginLine::PostTurn(const std::string& peer) {
  post_([this, peer] { TakeTurn(peer); });
}

void LoginLine::TakeTurn(const std::string& peer) {
  {
    const MutexLock lock(mutex_);
    const auto waiting = peers_.find(peer);
    CLEAT_CHECK(waiting != peers_.end());
    if (!waiting->second.empty()) {
      const auto login = waiting->second.extract(waiting->second.begin());
      const MutexUnlock unlocked(mutex_);
      login.mapped()();
    }
    // Others' turns have left it where it was: no other one takes it out.
    if (waiting->second.empty()) {
      peers_.erase(waiting);
      return;
    }
  }
  PostTurn(peer);
}

// ---- Paths

void LoginLine::Failed(const std::string& path) {
  const MutexLock lock(mutex_);
  uint32_t& failures = failures_[path];
  failures = std::min(failures + 1, kFailuresMax);
}

// A target may let one queue in each time, only to have the others compute for nothing: so not all is forgiven at once.
void LoginLine::Succeeded(const std::string& path) {
  const MutexLock lock(mutex_);
  const auto failures = failures_.find(path);
  if (failures == failures_.end()) return;
  failures->second /= 2;
  if (failures->second == 0) failures_.erase(failures);
}

void LoginLine::Forget(const std::string& path) {
  const MutexLock lock(mutex_);
  failures_.erase(path);
}

uint64_t LoginLine::PauseNs(const std::string& path) const {
  const MutexLock lock(mutex_);
  const auto failures = failures_.find(path);
  if (failures == failures_.end()) return 0;
  return std::min(kPauseMinNs << (failures->second - 1), kPauseMaxNs);
}

}  // namespace cleat::nvmf
