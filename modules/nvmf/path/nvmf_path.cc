// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/path/nvmf_path.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/host/reservation/reservation.h"

namespace cleat::modules {

using nvme::host::Association;
using nvme::host::AssociationInfo;

nvme::host::LifeId DrawLife() {
  nvme::host::LifeId life = 0;
  while (life == 0) CLEAT_CHECK(getrandom(&life, sizeof(life), 0) == sizeof(life));
  return life;
}

NvmfPath::NvmfPath(NvmfPathConfig config, Reactor& reactor, NvmfPathOwner& owner)
    : config_(std::move(config)),
      reactor_(reactor),
      owner_(owner),
      arithmetic_(config_.arithmetic, {config_.association.subsystem_nqn, config_.association.who}, reactor,
                  [this] { association_->Computed(); }) {}

// The owner is going: nobody is told any more.
NvmfPath::~NvmfPath() {
  over_ = ending_ = true;
  if (admin_ != nullptr && !admin_->ended())
    admin_->Abort({ErrorCode::kCancelled, config_.association.who + ": the disk is not used any more"});
  if (config_.arithmetic != nullptr) config_.arithmetic->Forget(config_.association.who);
}

void NvmfPath::Start() {
  CLEAT_CHECK(association_ == nullptr && !ending_);
  Try();
}

void NvmfPath::Try() {
  gone_ = false;
  live_since_ns_ = 0;
  ended_in_line_ = false;
  break_reason_.reset();
  nvme::host::AssociationConfig association = config_.association;
  association.life = DrawLife();
  if (config_.reservation_family != 0)
    association.host.id = nvme::host::HostIdOf(config_.reservation_family, association.life);
  association.chap = arithmetic_.ChapWith(config_.chap);
  association.connect_timeout_ns = kConnectTimeoutNs;
  TransportQueueOptions options;
  options.transport = config_.transport;
  options.name = association.who + ", admin queue";
  options.entries = association.admin_entries;
  options.connect_timeout_ns = kConnectTimeoutNs;
  nvme::host::AssociationOwner& self = *this;
  association_ = std::make_unique<Association>(std::move(association), self);
  admin_ = MakeQueue(std::move(options), reactor_, *association_);
  association_->Start(*admin_, reactor_.now_ns());
  reactor_.AddTimer(tick_, reactor_.now_ns() + Association::kTickNs);
  admin_->Start();
}

void NvmfPath::Tick() {
  if (gone_) return;
  reactor_.AddTimer(tick_, reactor_.now_ns() + Association::kTickNs);
  association_->Tick(reactor_.now_ns());
}

void NvmfPath::StepAt(uint64_t at_ns) {
  if (step_.pending() && step_.deadline_ns() <= at_ns) return;
  step_.Cancel();
  reactor_.AddTimer(step_, at_ns);
}

void NvmfPath::Step() {
  if (break_reason_ && association_ != nullptr) {
    const Error reason = *std::exchange(break_reason_, std::nullopt);
    association_->Break(reason);
  }
  if (gone_ && association_ != nullptr) {
    tick_.Cancel();
    admin_.reset();
    association_.reset();
    if (!io_in_use_) PlanNextTry();
  }
  if (association_ != nullptr || over_) return;
  if (ending_) {
    over_ = true;
    return owner_.PathOver();
  }
  if (io_in_use_) return;
  if (reactor_.now_ns() < try_at_ns_) return StepAt(try_at_ns_);
  Try();
}

void NvmfPath::PlanNextTry() {
  uint64_t most_ns = arithmetic_.PauseNs();
  if (failures_ > 0) {
    constexpr uint32_t kDoublingsMax = 10;
    most_ns = std::max(most_ns, std::min(kPauseMinNs << std::min(failures_ - 1, kDoublingsMax), kPauseMaxNs));
  }
  if (ended_in_line_) {
    most_ns = std::max(most_ns, nvmf::LoginLine::kTurnPauseNs);
  } else {
    ++failures_;
  }
  try_at_ns_ = reactor_.now_ns() + reactor_.random().Between(most_ns / 2, most_ns);
  StepAt(try_at_ns_);
}

// ---- For the owner

void NvmfPath::Break(uint64_t life, const Error& reason) {
  if (association_ == nullptr || association_->life() != life || gone_ || break_reason_) return;
  break_reason_ = reason;
  StepAt(reactor_.now_ns());
}

void NvmfPath::Recheck(uint64_t life) {
  if (association_ != nullptr && association_->life() == life) association_->Recheck();
}

void NvmfPath::IoEnded(uint64_t /*life*/) {
  CLEAT_CHECK(io_in_use_);
  io_in_use_ = false;
  if (association_ == nullptr && !ending_) PlanNextTry();
}

void NvmfPath::End(bool shutdown) {
  CLEAT_CHECK(!ending_);
  ending_ = true;
  break_reason_.reset();
  if (association_ != nullptr && !gone_) {
    association_->End(shutdown);
  } else {
    StepAt(reactor_.now_ns());
  }
}

// ---- What the association says

void NvmfPath::Live(uint64_t life, const AssociationInfo& info) {
  if (ending_) return;
  arithmetic_.Succeed();
  live_since_ns_ = std::max<uint64_t>(reactor_.now_ns(), 1);
  io_in_use_ = true;
  owner_.PathLive(life, info);
}

void NvmfPath::Changed(uint64_t life, uint32_t changed, const AssociationInfo& info) {
  if (!ending_) owner_.PathChanged(life, changed, info);
}

void NvmfPath::Lost(uint64_t life, const Error& reason) {
  if (ending_) return;
  if (live_since_ns_ == 0) return LoginLost(reason);
  if (reactor_.now_ns() - live_since_ns_ >= kSteadyNs) failures_ = 0;
  owner_.PathLost(life, reason);
}

// A target that has closed the connection meanwhile says nothing of why.
void NvmfPath::LoginLost(const Error& reason) {
  arithmetic_.Lose(reason);
  ended_in_line_ = arithmetic_.ended_in_line();
  if (!ended_in_line_) {
    failures_ = std::max(failures_, 1U);
    return owner_.TryFailed(reason);
  }
  owner_.TryFailed(
      {ErrorCode::kUnavailable,
       reason.message +
           "; this host has more queues to authenticate than it can compute answers for at once, "
           "and this one waits for its turn: it is tried again"});
}

void NvmfPath::Gone(uint64_t /*life*/) {
  gone_ = true;
  arithmetic_.Cancel();
  if (!over_) StepAt(reactor_.now_ns());
}

}  // namespace cleat::modules
