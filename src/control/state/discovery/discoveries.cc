// SPDX-License-Identifier: Apache-2.0
#include "control/state/discovery/discoveries.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/log_request.h"
#include "control/model/errors.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

Error Stopping() {
  return Refuse(v1::REASON_STOPPING, "cleatd is stopping: discover again when it is back");
}

}  // namespace

DiscoveryQuestion::DiscoveryQuestion(v1::DiscoverSubsystemsRequest request, Deliver deliver)
    : request_(std::move(request)), request_id_(log::CurrentRequest()), deliver_(std::move(deliver)) {}

DiscoveryQuestion::~DiscoveryQuestion() {
  if (is_given_.load(std::memory_order_relaxed)) return;
  deliver_(
      Refuse(v1::REASON_ENGINE_NOT_CONNECTED,
             fmt::format("the discovery service at {}: the engine that asked it is not connected any more: "
                         "repeat (cleatctl engine list shows the engines)",
                         request_.address())));
}

// A call, and what it is answered.
struct Discoveries::Waiting {
  void Deliver(DiscoveryQuestion::Answer given) {
    const MutexLock lock(mutex);
    if (!answer) answer.emplace(std::move(given));
    answered.NotifyAll();
  }
  // Nothing: the time is over.
  std::optional<DiscoveryQuestion::Answer> AwaitAnswer(std::chrono::milliseconds patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    const MutexLock lock(mutex);
    while (!answer && answered.WaitUntil(mutex, until)) {
    }
    return std::move(answer);
  }

  Mutex mutex;
  CondVar answered;
  std::optional<DiscoveryQuestion::Answer> answer CLEAT_GUARDED_BY(mutex);
};

Result<v1::DiscoverSubsystemsResponse> Discoveries::Discover(const v1::DiscoverSubsystemsRequest& asked) {
  CLEAT_ASSIGN(auto request, CompleteDiscovery(asked));
  CLEAT_TRY(subsystems_.SetHost(request));
  const auto waiting = std::make_shared<Waiting>();
  CLEAT_TRY(Ask(request, waiting));
  auto answer = waiting->AwaitAnswer(patience_);
  {
    const MutexLock lock(mutex_);
    waiting_.erase(waiting);
  }
  if (!answer) {
    return Refuse(
        v1::REASON_DISCOVERY_FAILED,
        fmt::format("the discovery service at {}: no engine has said in {} s what it has: see how the "
                    "engines do (cleatctl engine list), then repeat",
                    request.address(), std::chrono::duration<double>(patience_).count()));
  }
  CLEAT_TRY(*answer);
  v1::DiscoverSubsystemsResponse response = std::move(*answer).value();
  response.set_host_nqn(request.host_nqn());
  response.set_host_id(request.host_id());
  return response;
}

Status Discoveries::Ask(v1::DiscoverSubsystemsRequest request, const std::shared_ptr<Waiting>& waiting) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return Stopping();
    if (waiting_.size() >= kWaitingMax)
      return Busy("subsystems", fmt::format("{} discoveries are under way, which is the most", kWaitingMax));
    waiting_.insert(waiting);
    asked_.push_back(std::make_shared<const DiscoveryQuestion>(
        std::move(request),
        [waiting](DiscoveryQuestion::Answer answer) { waiting->Deliver(std::move(answer)); }));
  }
  const StateLock lock(core_.mutex);
  core_.publisher.DiscoveryAsked();
  return Ok{};
}

Discoveries::Questions Discoveries::TakeAsked() {
  const MutexLock lock(mutex_);
  return std::exchange(asked_, {});
}

void Discoveries::Stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  for (const auto& waiting : waiting_) waiting->Deliver(Stopping());
}

}  // namespace cleat::control
