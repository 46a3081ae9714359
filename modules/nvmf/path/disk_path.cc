// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/path/disk_path.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "modules/nvmf/path/nvmf_namespace.h"
#include "nvme/host/reservation/reservation.h"

namespace cleat::modules {

using nvme::host::AssociationInfo;
using nvme::host::LifeId;
using nvme::host::PathState;

namespace {

std::string WhereOf(const NvmfOptions& options, uint32_t index) {
  return options.subsystem->name + " at " +
         nvme::fabrics::TextOfPathAddress(options.subsystem->addresses.at(index));
}

NvmfPathConfig ConfigOf(const NvmfOptions& options, uint32_t index) {
  NvmfPathConfig config;
  config.association.who = WhereOf(options, index);
  config.association.host = options.subsystem->host;
  config.association.subsystem_nqn = options.subsystem->nqn;
  config.association.wanted.ids.uuid = options.name_space;
  config.association.kato_ms = options.subsystem->kato_ms;
  config.association.io_queues = DiskPath::kQueuesMax;
  // Queues over RDMA share places for commands, and each request has one all the time. Events wait at the controller for the next.
  if (options.subsystem->addresses.at(index).target.transport == nvme::fabrics::TransportType::kRdma)
    config.association.event_requests = 1;
  // An admin queue is fast enough as it is.
  config.transport = TransportOf(options, index);
  config.transport.tuning = {.kernel_tls = options.subsystem->tuning.kernel_tls};
  config.reservation_family = options.reservation_family;
  config.chap = options.subsystem->chap;
  config.arithmetic = options.arithmetic;
  return config;
}

// Whether the target may do better the next time.
bool MayPass(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded;
}

uint32_t QueueEntries(const AssociationInfo& info) {
  uint32_t depth = std::min(NvmfChannel::kDepthMax, info.queue_entries_max - 1);
  if (info.fabrics.commands_max != 0) depth = std::min(depth, info.fabrics.commands_max);
  return depth + 1;
}

}  // namespace

TransportOptions TransportOf(const NvmfOptions& options, uint32_t index) {
  const NvmfSubsystem& subsystem = *options.subsystem;
  TransportOptions transport;
  transport.address = subsystem.addresses.at(index).target;
  transport.source = subsystem.addresses.at(index).source;
  transport.dscp = subsystem.dscp;
  transport.digests = {.header = subsystem.header_digest, .data = subsystem.data_digest};
  transport.tuning = subsystem.tuning;
  transport.tls = {.psk = subsystem.psk, .host_nqn = subsystem.host.nqn, .subsystem_nqn = subsystem.nqn};
  transport.tls.by_kernel = subsystem.tuning.kernel_tls;
  transport.rdma = options.rdma;
  return transport;
}

DiskPath::DiskPath(const NvmfOptions& options, uint32_t index, Reactor& control, DiskPathOwner& owner)
    : disk_(options.shape.name),
      index_(index),
      where_(WhereOf(options, index)),
      transport_(options.subsystem->addresses.at(index).target.transport),
      host_id_(options.subsystem->host.id),
      family_(options.reservation_family),
      control_(control),
      owner_(owner),
      path_(ConfigOf(options, index), control, *this) {}

void DiskPath::Start() {
  path_.Start();
}

void DiskPath::End(bool shutdown) {
  tells_ = false;
  log_later_.Cancel();
  path_.End(shutdown);
}

// A path that is not connected yet has a moment to come up before anybody hears of it.
void DiskPath::SetOpened() {
  tells_ = true;
  log_after_ns_ = control_.now_ns() + kLogSpacingNs;
  LogState();
  LogTls();
}

uint16_t DiskPath::TakeQueue() {
  if (free_queues_.empty()) return 0;
  const uint16_t queue = free_queues_.front();
  free_queues_.pop_front();
  return queue;
}

IoQueueId DiskPath::IdFor(uint16_t queue) const {
  return {.path = index_,
          .life = life_,
          .host_id = family_ == 0 ? host_id_ : nvme::host::HostIdOf(family_, life_),
          .controller_id = info_->controller_id,
          .queue_id = queue,
          .entries = QueueEntries(*info_),
          .in_capsule_bytes = info_->fabrics.in_capsule_bytes,
          .kato_ms = info_->kato_ms};
}

nvme::host::PathFormat DiskPath::format() const {
  return FormatOf(*info_, transport_);
}

IoQueuePlan DiskPath::PlanFor(uint16_t queue) const {
  IoQueuePlan plan;
  plan.id = IdFor(queue);
  plan.state = state_;
  plan.format = format();
  return plan;
}

void DiskPath::Admit() {
  admitted_ = true;
  is_refused_ = refusal_told_ = false;
  SetState();
  owner_.LifeAdmitted(*this);
  LogState();
  LogTls();
}

void DiskPath::Refuse(const Error& why) {
  TryFailed(why);
  path_.Break(life_, why);
}

void DiskPath::Break(LifeId life, const Error& reason) {
  if (life == life_) path_.Break(life, reason);
}

void DiskPath::Recheck(LifeId life) {
  if (life == life_) path_.Recheck(life);
}

void DiskPath::GoOnWhenReported(const nvme::host::DoubtLedger& ledger) {
  if (ended_life_ == 0 || !ledger.IsReported(ended_life_)) return;
  path_.IoEnded(std::exchange(ended_life_, 0));
}

// ---- What the association says

void DiskPath::PathLive(uint64_t life, const AssociationInfo& info) {
  if (const Status fits = owner_.MayBegin(*this, info); !fits) {
    TryFailed(fits.error());
    return path_.Break(life, fits.error());
  }
  life_ = life;
  info_ = info;
  free_queues_.clear();
  for (uint32_t id = 1; id <= info.io_queues; ++id) free_queues_.push_back(static_cast<uint16_t>(id));
  admitted_ = false;
  if (owner_.AdmitsAtOnce()) return Admit();
  owner_.LifeBegan(*this);
}

void DiskPath::PathChanged(uint64_t life, uint32_t changed, const AssociationInfo& info) {
  if (life != life_) return;
  info_ = info;
  const PathState before = state_;
  SetState();
  owner_.LifeChanged(*this, changed, state_ != before);
  LogState();
}

void DiskPath::PathLost(uint64_t life, const Error& reason) {
  // A life that was not fit for use: no channel has heard of it.
  if (life != life_) return path_.IoEnded(life);
  life_ = 0;
  info_.reset();
  state_ = PathState::kUnusable;
  ended_life_ = life;
  why_down_ = reason;
  owner_.LifeEnded(*this, life, reason);
  LogState();
}

// What does not pass by itself is told, once: somebody has to see to it.
void DiskPath::TryFailed(const Error& reason) {
  why_down_ = reason;
  is_refused_ = !MayPass(reason);
  const bool is_news = is_refused_ && tells_ && !std::exchange(refusal_told_, true);
  if (is_news) {
    spdlog::warn("{}: path not connected again: {}; {}, and it is tried again", disk_, reason.message,
                 Meanwhile());
  }
  owner_.TryFailed(*this, reason, is_news);
}

void DiskPath::PathOver() {
  owner_.PathOver();
}

void DiskPath::SetState() {
  if (!admitted_) return;
  state_ = StateOf(*info_);
  if (is_usable()) {
    why_down_.reset();
  } else {
    why_down_ = WhyUnusable(where_, *info_);
  }
}

// ---- What people hear

const char* DiskPath::Meanwhile() const {
  return owner_.HasUsablePath() ? "requests go by others" : "requests wait";
}

// Once, and each time that it has changed.
void DiskPath::LogTls() {
  if (!tells_ || !admitted_ || life_ == 0) return;
  std::string maker = path_.tls_maker();
  if (maker.empty() || maker == logged_tls_) return;
  logged_tls_ = std::move(maker);
  spdlog::info("{}: path to {}: TLS by {}", disk_, where_, logged_tls_);
}

// A path that comes and goes quickly is logged as it is a little later.
void DiskPath::LogState() {
  if (!tells_ || logged_usable_ == is_usable()) return;
  if (control_.now_ns() < log_after_ns_) {
    if (!log_later_.pending()) control_.AddTimer(log_later_, log_after_ns_);
    return;
  }
  log_after_ns_ = control_.now_ns() + kLogSpacingNs;
  logged_usable_ = is_usable();
  if (logged_usable_) {
    spdlog::info("{}: path to {} is up again", disk_, where_);
  } else {
    spdlog::warn("{}: path broken: {}; {}, and it is tried again", disk_,
                 why_down_ ? why_down_->message : where_ + ": no answer yet", Meanwhile());
  }
}

}  // namespace cleat::modules
