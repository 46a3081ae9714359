// SPDX-License-Identifier: Apache-2.0
#include "control/state/discovery/discoveries.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log_request.h"
#include "control/model/errors.h"
#include "control/validate/spec_rules.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {
namespace {

Error Stopping() {
  return Refuse(v1::REASON_STOPPING, "cleatd is stopping: discover again when it is back");
}

Error CallerGone() {
  return {ErrorCode::kCancelled, "the caller has gone"};
}

v1::DiscoverSubsystemsResponse WithHost(v1::DiscoverSubsystemsResponse response,
                                        const v1::DiscoverSubsystemsRequest& request) {
  response.set_host_nqn(request.host_nqn());
  response.set_host_id(request.host_id());
  return response;
}

}  // namespace

DiscoveryQuestion::DiscoveryQuestion(v1::DiscoverSubsystemsRequest request, Kind kind,
                                     std::shared_ptr<DiscoveryCaller> caller)
    : request_(std::move(request)),
      kind_(kind),
      request_id_(log::CurrentRequest()),
      caller_(std::move(caller)) {}

DiscoveryQuestion::~DiscoveryQuestion() {
  if (is_given_.load(std::memory_order_relaxed)) return;
  caller_->Hear(
      Refuse(v1::REASON_ENGINE_NOT_CONNECTED,
             fmt::format("the discovery service at {}: the engine that asked it is not connected any more: "
                         "repeat (cleatctl engine list shows the engines)",
                         request_.address())),
      /*goes_on=*/false);
}

// A call, and what it has not read of its answers: the last log, and the end. Several logs that come before it reads are one to it.
class Discoveries::Waiting final : public DiscoveryCaller {
 public:
  void Hear(Answer answer, bool goes_on) override {
    const MutexLock lock(mutex_);
    if (is_over_) return;
    is_over_ = !goes_on;
    (goes_on ? log_ : end_).emplace(std::move(answer));
    heard_.NotifyAll();
  }
  bool has_left() const override { return has_left_.load(std::memory_order_relaxed); }
  void Leave() { has_left_.store(true, std::memory_order_relaxed); }

  // The next one. Nothing: it is too late, or the caller has gone.
  std::optional<Answer> Next(std::optional<std::chrono::steady_clock::time_point> until,
                             const HasGone& has_gone) {
    const MutexLock lock(mutex_);
    while (!log_ && !end_) {
      const auto now = std::chrono::steady_clock::now();
      if (has_gone() || (until && now >= *until)) return std::nullopt;
      heard_.WaitUntil(mutex_, until ? std::min(*until, now + kTurn) : now + kTurn);
    }
    return std::exchange(log_ ? log_ : end_, std::nullopt);
  }
  bool is_over() {
    const MutexLock lock(mutex_);
    return is_over_;
  }

 private:
  Mutex mutex_;
  CondVar heard_;
  std::optional<Answer> log_ CLEAT_GUARDED_BY(mutex_);
  std::optional<Answer> end_ CLEAT_GUARDED_BY(mutex_);
  bool is_over_ CLEAT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_left_{false};
};

// Whatever comes of it, no plain secret is left: a call may watch for days.
Status Discoveries::Complete(v1::DiscoverSubsystemsRequest* request) const {
  Status status = CompleteDiscovery(request);
  if (status.ok()) status = keys_.WrapSecrets("the discovery service at " + request->address(), request);
  WipePlainKey(request);
  if (!status.ok()) return status;
  return subsystems_.SetHost(*request);
}

Result<v1::DiscoverSubsystemsResponse> Discoveries::Discover(v1::DiscoverSubsystemsRequest* asked,
                                                             const HasGone& has_gone) {
  CLEAT_TRY(Complete(asked));
  const v1::DiscoverSubsystemsRequest& request = *asked;
  const auto waiting = std::make_shared<Waiting>();
  CLEAT_TRY(Ask(request, Kind::kOnce, waiting));
  auto answer = waiting->Next(std::chrono::steady_clock::now() + patience_, has_gone);
  Leave(Kind::kOnce, waiting);
  if (!answer) return NothingHeard(request, has_gone);
  CLEAT_TRY(*answer);
  return WithHost(std::move(*answer).value(), request);
}

Status Discoveries::Watch(v1::DiscoverSubsystemsRequest* asked, const Write& write, const HasGone& has_gone) {
  CLEAT_TRY(Complete(asked));
  const v1::DiscoverSubsystemsRequest& request = *asked;
  const auto waiting = std::make_shared<Waiting>();
  CLEAT_TRY(Ask(request, Kind::kWatch, waiting));
  std::optional until = std::chrono::steady_clock::now() + patience_;
  Error why = CallerGone();
  for (bool goes_on = true; goes_on;) {
    auto answer = waiting->Next(until, has_gone);
    until.reset();
    goes_on = answer && answer->ok() && write(WithHost(std::move(*answer).value(), request));
    if (!answer) why = NothingHeard(request, has_gone);
    if (answer && !answer->ok()) why = answer->error();
  }
  Leave(Kind::kWatch, waiting);
  return why;
}

Error Discoveries::NothingHeard(const v1::DiscoverSubsystemsRequest& request, const HasGone& has_gone) const {
  if (has_gone()) return CallerGone();
  return Refuse(
      v1::REASON_DISCOVERY_FAILED,
      fmt::format("the discovery service at {}: no engine has said in {} s what it has: see how the "
                  "engines do (cleatctl engine list), then repeat",
                  request.address(), std::chrono::duration<double>(patience_).count()));
}

Status Discoveries::Ask(v1::DiscoverSubsystemsRequest request, Kind kind,
                        const std::shared_ptr<Waiting>& waiting) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return Stopping();
    auto& calls = waiting_[kind];
    if (calls.size() >= kWaitingMax) {
      return Busy("subsystems", fmt::format("{} discoveries are {}, which is the most", kWaitingMax,
                                            kind == Kind::kWatch ? "watched" : "under way"));
    }
    calls.insert(waiting);
    asked_.push_back(std::make_shared<const DiscoveryQuestion>(std::move(request), kind, waiting));
  }
  const StateLock lock(core_.mutex);
  core_.publisher.DiscoveryAsked();
  return Ok{};
}

// An engine that asks for somebody who has gone is told.
void Discoveries::Leave(Kind kind, const std::shared_ptr<Waiting>& waiting) {
  {
    const MutexLock lock(mutex_);
    waiting_[kind].erase(waiting);
  }
  if (waiting->is_over()) return;
  waiting->Leave();
  const StateLock lock(core_.mutex);
  core_.publisher.DiscoveryAsked();
}

Discoveries::Questions Discoveries::TakeAsked() {
  const MutexLock lock(mutex_);
  return std::exchange(asked_, {});
}

void Discoveries::Stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  for (const auto& [kind, calls] : waiting_) {
    for (const auto& waiting : calls) waiting->Hear(Stopping(), /*goes_on=*/false);
  }
}

}  // namespace cleat::control
