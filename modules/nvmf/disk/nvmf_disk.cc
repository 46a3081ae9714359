// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/disk/nvmf_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "modules/nvmf/path/nvmf_namespace.h"
#include "nvme/host/reservation/reservation_commands.h"

namespace cleat::modules {
namespace {

using nvme::host::AssociationInfo;
using nvme::host::LifeId;

constexpr uint32_t kOriginShift = 48;
// OpenNvmf's own codes stay as they are; whatever else a target does wrong is as if it were not there.
ErrorCode CodeOfRefusal(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kUnimplemented:
    case ErrorCode::kResourceExhausted:
      return code;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

NvmfDisk::NvmfDisk(NvmfOptions options, Reactor& control)
    : options_(std::move(options)),
      control_(control),
      doubt_(options_.shape.name, options_.subsystem->proofs, control, *this),
      losses_(options_.shape.name, doubt_.ledger()),
      changed_(control) {
  DiskPathOwner& self = *this;
  for (uint32_t index = 0; index < options_.subsystem->addresses.size(); ++index)
    paths_.push_back(std::make_unique<DiskPath>(options_, index, control, self));
  if (options_.subsystem->proofs.time_elapsed) quiesced_.emplace(paths_.size());
}

// ---- Opening and closing

Task<Status> NvmfDisk::Open() {
  if (const UniqueFd file = std::move(options_.doubt_log);
      file.valid() && options_.access == block::AccessMode::kReadWrite) {
    CLEAT_CO_TRY(doubt_.MapLog(file));
  }
  paths_begun_ = paths_.size();
  for (const auto& path : paths_) path->Start();
  {
    const Deadline deadline(control_, changed_, control_.now_ns() + options_.open_timeout_ns);
    while (!up_ && !IsRefused() && !deadline.passed()) co_await changed_.Wait();
  }
  if (!up_) co_return WhyNotOpened();
  is_open_ = true;
  for (const auto& path : paths_) path->SetOpened();
  co_return Ok{};
}

bool NvmfDisk::IsRefused() const {
  return std::all_of(paths_.begin(), paths_.end(), [](const auto& path) { return path->is_refused(); });
}

// Where all refuse, each for reasons of its own, the first one's code stands for them.
Error NvmfDisk::WhyNotOpened() const {
  const std::string& disk = options_.shape.name;
  std::string why;
  for (const auto& path : paths_) {
    if (!why.empty()) why += "; ";
    why += path->why_down() ? path->why_down()->message : path->where() + ": no answer";
  }
  if (IsRefused()) return Error(CodeOfRefusal(paths_.front()->why_down()->code), disk + ": " + why);
  return Error(ErrorCode::kUnavailable, fmt::format("{}: not reached within {} ms: {}", disk,
                                                    options_.open_timeout_ns / kNsPerMs, why));
}

Task<void> NvmfDisk::Close(bool shutdown) {
  if (paths_begun_ == 0) co_return;
  is_open_ = false;
  closing_ = true;
  doubt_.Stop();
  quiesce_timer_.Cancel();
  while (!links_.empty()) co_await changed_.Wait();  // channels that were closed just now
  for (const auto& path : paths_) path->End(shutdown);
  while (paths_begun_ > 0) co_await changed_.Wait();
}

Result<std::unique_ptr<block::Channel>> NvmfDisk::OpenChannel(Reactor& reactor) {
  const uint32_t granted = queues_granted_.load(std::memory_order_relaxed);
  if (shared_->open.fetch_add(1, std::memory_order_relaxed) >= granted) {
    shared_->open.fetch_sub(1, std::memory_order_relaxed);
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: {} grants {} I/O queues to this host, which are in use: allow more there, "
                             "or use fewer reactors",
                             options_.shape.name, options_.subsystem->name, granted));
  }
  const uint64_t number = channels_ever_.fetch_add(1, std::memory_order_relaxed);
  if (number >= kChannelsEverMax) {
    shared_->open.fetch_sub(1, std::memory_order_relaxed);
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: it has been opened {} times on a reactor: detach it everywhere, then "
                             "attach it again",
                             options_.shape.name, kChannelsEverMax));
  }
  if (numbers_.fetch_add(1, std::memory_order_relaxed) >= kNumbersMax) {
    numbers_.fetch_sub(1, std::memory_order_relaxed);
    shared_->open.fetch_sub(1, std::memory_order_relaxed);
    return Error(ErrorCode::kResourceExhausted,
                 options_.shape.name + ": too many of its channels are just being closed: try again");
  }
  auto port = std::make_shared<NvmfChannelPort>(reactor, (number + 1) << kOriginShift);
  NvmfControlLink link{.control = &control_, .owner = weak_from_this()};
  return NvmfChannel::Lend(std::make_unique<NvmfChannel>(shared_, std::move(port), std::move(link)));
}

Task<Status> NvmfDisk::WaitForSize(uint64_t size_bytes) {
  const Deadline deadline(control_, changed_, control_.now_ns() + kResizeWaitNs);
  const auto is_live = [](const auto& path) { return path->life() != 0; };
  if (space_bytes_ < size_bytes) {
    for (const auto& path : paths_) path->Recheck(path->life());
  }
  while (space_bytes_ < size_bytes && std::any_of(paths_.begin(), paths_.end(), is_live) &&
         !deadline.passed())
    co_await changed_.Wait();
  if (space_bytes_ >= size_bytes) co_return Ok{};
  const bool is_seen = std::any_of(paths_.begin(), paths_.end(), is_live);
  co_return Error(
      ErrorCode::kFailedPrecondition,
      fmt::format("{}: its namespace has {} bytes, {} are asked for{}: make it larger at the target",
                  options_.shape.name, space_bytes_, size_bytes,
                  is_seen ? "" : " (as last seen: no path is connected)"));
}

// ---- Paths

Status NvmfDisk::MayBegin(const DiskPath& path, const AssociationInfo& info) const {
  if (UsesReservation()) {
    const std::string who = fmt::format("{}, namespace {}", path.where(), info.nsid);
    CLEAT_TRY(nvme::host::CheckReservations(info.controller, info.fabrics, info.space, who));
  }
  if (shared_ == nullptr) return CheckFirst(options_, path.where(), info);
  return CheckAgain({.size_bytes = told_bytes_,
                     .block_bytes = geometry_.logical_block_bytes,
                     .write_cache = geometry_.write_cache,
                     .writes = options_.access == block::AccessMode::kReadWrite,
                     .queues = shared_->open.load(std::memory_order_relaxed) + (UsesReservation() ? 1 : 0)},
                    path.where(), info);
}

// Of a disk that is this engine's: nothing is sent to the namespace before the life is joined.
void NvmfDisk::LifeBegan(DiskPath& path) {
  CountQueues();
  doubt_.StoreLives();
  reservation_->Begin(path, path.TakeQueue());
}

// Of a disk that was opened before it became this engine's the life is in use already, for reads.
void NvmfDisk::LifeJoined(LifeId life) {
  if (DiskPath* const path = PathOf(life); !path->is_admitted()) path->Admit();
}

void NvmfDisk::LifeShutOut(LifeId life, const Error& why) {
  if (DiskPath* const path = PathOf(life)) path->Refuse(why);
}

void NvmfDisk::ProvedDead(LifeId life) {
  const Status proved = doubt_.ledger().Proved(life, nvme::host::Proof::kPreempted);
  if (!proved) return;
  spdlog::info(
      "{}: the target has proved that nothing is executed any more of what a dead path left: writes "
      "over it go on",
      options_.shape.name);
  doubt_.HoldReservationUntil(control_.now_ns() + options_.proof_needs_ns);
  doubt_.Publish();
}

DiskPath* NvmfDisk::PathOf(LifeId life) const {
  const auto found =
      std::find_if(paths_.begin(), paths_.end(), [life](const auto& path) { return path->life() == life; });
  return found == paths_.end() ? nullptr : found->get();
}

void NvmfDisk::LifeAdmitted(DiskPath& path) {
  if (shared_ == nullptr) TakeShape(path);
  CountQueues();
  if (quiesced_) quiesced_->Began(path.index(), path.life(), path.info());
  doubt_.StoreLives();
  if (reservation_ && !reservation_->Has(path.life())) reservation_->Begin(path, path.TakeQueue());
  for (Link& link : links_) BeginLife(link, path);
  SeeSize();
  SeeUsable(path);
  changed_.Pulse();
  TellPathsChanged();
}

// The first controller's namespace is what the guest is told of.
void NvmfDisk::TakeShape(const DiskPath& path) {
  const NvmfSubsystem& subsystem = *options_.subsystem;
  geometry_ = GeometryOf(options_, path.info());
  told_bytes_ = geometry_.size_bytes;
  shared_ = std::make_shared<NvmfChannelShared>();
  IoQueueTarget& target = shared_->target;
  for (const auto& each : paths_)
    target.paths.push_back({.who = each->where(), .transport = TransportOf(options_, each->index())});
  target.host_nqn = subsystem.host.nqn;
  target.subsystem_nqn = subsystem.nqn;
  target.chap = subsystem.chap;
  target.arithmetic = options_.arithmetic;
  shared_->write_cache = geometry_.write_cache;
  shared_->doubt_log = doubt_.log();
  DiskReservationOwner& self = *this;
  if (UsesReservation())
    reservation_.emplace(options_.reservation_family, options_.shape.name, target, control_, self);
}

// Without a path as it was: one that comes back has to have what was promised meanwhile.
void NvmfDisk::CountQueues() {
  uint32_t granted = DiskPath::kQueuesMax;
  bool any = false;
  for (const auto& path : paths_) {
    if (path->life() == 0) continue;
    any = true;
    granted = std::min(granted, path->info().io_queues);
  }
  if (!any) return;
  if (UsesReservation()) --granted;
  queues_granted_.store(granted, std::memory_order_relaxed);
}

void NvmfDisk::LifeChanged(DiskPath& path, uint32_t changed, bool is_new_state) {
  const LifeId life = path.life();
  if ((changed & nvme::host::kChangedSize) != 0) {
    TellAll([life, format = path.format()](NvmfChannel& channel) { channel.SetFormat(life, format); });
    if (const Status fits = MayBegin(path, path.info()); !fits) return path.Refuse(fits.error());
    SeeSize();
  }
  if (is_new_state) {
    TellAll([life, state = path.state()](NvmfChannel& channel) { channel.SetState(life, state); });
    SeeUsable(path);
    TellPathsChanged();
  }
  // A namespace that was away may be back without the registrations that it had.
  if (reservation_ && path.is_usable()) reservation_->Look(life);
  // Last: requests that go on then know the rest.
  if ((changed & nvme::host::kLookedAgain) != 0)
    TellAll([life](NvmfChannel& channel) { channel.PathLooked(life); });
  changed_.Pulse();
}

void NvmfDisk::LifeEnded(DiskPath& path, LifeId life, const Error& reason) {
  doubt_.ledger().Over(life);
  if (reservation_) reservation_->End(life);
  SeeWhatIsToBeProved();
  CountQueues();
  if (!closing_) losses_.Note(path.where(), life, reason, HasUsablePath());
  SeeSize();  // another path may have more, that waits for this one
  for (Link& link : links_) link.queues[path.index()] = 0;
  TellAll([life, reason](NvmfChannel& channel) { channel.EndLife(life, reason); });
  SeeUsable(path);
  changed_.Pulse();
  path.GoOnWhenReported(doubt_.ledger());
}

void NvmfDisk::TryFailed(DiskPath& /*path*/, const Error& reason, bool is_refusal) {
  changed_.Pulse();
  if (!is_refusal || up_) return;
  if (const auto& tell = options_.events.broken) tell(reason);
}

void NvmfDisk::PathOver() {
  --paths_begun_;
  changed_.Pulse();
}

bool NvmfDisk::HasUsablePath() const {
  return std::any_of(paths_.begin(), paths_.end(), [](const auto& path) { return path->is_usable(); });
}

// The least that any path has, as targets hear of a new size one after the other.
void NvmfDisk::SeeSize() {
  uint64_t bytes = UINT64_MAX;
  for (const auto& path : paths_) {
    if (path->is_admitted()) bytes = std::min(bytes, NamespaceBytes(path->info()));
  }
  if (bytes == UINT64_MAX || std::exchange(space_bytes_, bytes) == bytes || !is_open_) return;
  told_bytes_ = bytes;
  if (const auto& tell = options_.events.resized) tell(bytes);
}

void NvmfDisk::SeeUsable(const DiskPath& path) {
  const bool up = HasUsablePath();
  if (std::exchange(up_, up) == up || !is_open_) return;
  if (up) {
    if (const auto& tell = options_.events.connected) tell();
  } else {
    if (const auto& tell = options_.events.broken) tell(*path.why_down());
  }
}

// ---- Channels

// Mail for a channel that may be gone by then.
template <typename Call>
void NvmfDisk::Tell(const Link& link, Call call) {
  link.port->reactor.PostCall([port = link.port, call = std::move(call)] {
    if (port->channel != nullptr) call(*port->channel);
  });
}

template <typename Call>
void NvmfDisk::TellAll(const Call& call) const {
  for (const Link& link : links_) Tell(link, call);
}

// A channel without a number has one as soon as another channel has given its own back.
void NvmfDisk::BeginLife(Link& link, DiskPath& path) {
  uint16_t& queue = link.queues[path.index()];
  queue = path.TakeQueue();
  if (queue == 0) return;
  Tell(link, [plan = path.PlanFor(queue)](NvmfChannel& channel) { channel.BeginLife(plan); });
}

void NvmfDisk::Joined(std::shared_ptr<NvmfChannelPort> port) {
  Link link;
  link.port = std::move(port);
  link.number = doubt_.ledger().Joined();
  Tell(link,
       [number = link.number, rule = in_doubt_](NvmfChannel& channel) { channel.Welcome(number, rule); });
  doubt_.Publish();
  if (doubt_.MayPublish()) {
    doubt_.OpenRow(link.number);
    SendTable(link);
  }
  links_.push_back(std::move(link));
  for (const auto& path : paths_) {
    if (path->is_admitted()) BeginLife(links_.back(), *path);
  }
}

void NvmfDisk::Left(const NvmfChannelPort* port) {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [port](const Link& link) { return link.port.get() == port; });
  CLEAT_CHECK(found != links_.end());
  doubt_.ledger().Left(found->number);
  failed_by_those_that_left_ += port->waits.failed.load(std::memory_order_relaxed);
  numbers_.fetch_sub(1, std::memory_order_relaxed);
  const std::array<uint16_t, kPathsMax> given_back = found->queues;
  links_.erase(found);
  changed_.Pulse();
  for (const auto& path : paths_) {
    const uint32_t index = path->index();
    if (given_back[index] == 0) continue;
    path->GiveQueue(given_back[index]);
    const auto waits = std::find_if(links_.begin(), links_.end(),
                                    [index](const Link& link) { return link.queues[index] == 0; });
    if (waits != links_.end()) BeginLife(*waits, *path);
  }
  doubt_.PublishSoon();
  SeeWhatIsToBeProved();
  GoOnWhenReported();
}

void NvmfDisk::QueueBroken(LifeId life, const Error& reason) {
  for (const auto& path : paths_) path->Break(life, reason);
}

void NvmfDisk::PathRefused(LifeId life) {
  for (const auto& path : paths_) path->Recheck(life);
}

void NvmfDisk::Conflicted(LifeId life) {
  if (reservation_) reservation_->Look(life);
}

void NvmfDisk::Take(const nvme::host::LifeReport& report) {
  doubt_.ledger().Take(report);
  doubt_.PublishSoon();
  GoOnWhenReported();
}

void NvmfDisk::Take(const nvme::host::DoubtAck& ack) {
  doubt_.ledger().Take(ack);
  doubt_.PublishSoon();
  changed_.Pulse();
}

void NvmfDisk::Take(const nvme::host::BarrierEnded& ended) {
  doubt_.ledger().Take(ended);
  doubt_.PublishSoon();
}

void NvmfDisk::GivenUp(nvme::host::OriginId origin) {
  doubt_.ledger().Disown(origin);
  doubt_.PublishSoon();
}

void NvmfDisk::DoubtPublished() {
  for (const Link& link : links_) SendTable(link);
  SeeWhatIsToBeProved();
  LogAccepted();
  TellPathsChanged();
}

// A life that a reactor may still send for is no dead one yet. What changes that need not change the table: the reactors may obey it already.
void NvmfDisk::SeeWhatIsToBeProved() {
  if ((!reservation_ && !quiesced_) || !doubt_.MayPublish()) return;
  std::vector<LifeId> lives = doubt_.ledger().lives();
  std::erase_if(lives, [this](LifeId life) { return !doubt_.ledger().IsReported(life); });
  if (quiesced_ && !closing_) {
    quiesced_->SetInDoubt(lives, control_.now_ns());
    quiesce_timer_.Cancel();
    if (const auto next_ns = quiesced_->next_ns()) control_.AddTimer(quiesce_timer_, *next_ns);
  }
  if (!options_.subsystem->proofs.preempted) lives.clear();
  if (reservation_) reservation_->SetInDoubt(lives);
}

void NvmfDisk::ProveByTime() {
  bool any = false;
  for (const LifeId life : quiesced_->Due(control_.now_ns()))
    any = doubt_.ledger().Proved(life, nvme::host::Proof::kTimeElapsed).ok() || any;
  if (!any) return;
  spdlog::info(
      "{}: the time is over after which its target executes nothing any more of what a dead path left: "
      "writes over it go on",
      options_.shape.name);
  doubt_.Publish();
}

std::vector<LifeId> NvmfDisk::LivingLives() const {
  std::vector<LifeId> lives;
  for (const auto& path : paths_) {
    if (path->life() != 0) lives.push_back(path->life());
  }
  return lives;
}

void NvmfDisk::SendTable(const Link& link) const {
  Tell(link, [table = doubt_.ledger().TableFor(link.number)](NvmfChannel& channel) { channel.Adopt(table); });
}

void NvmfDisk::GoOnWhenReported() {
  for (const auto& path : paths_) path->GoOnWhenReported(doubt_.ledger());
}

// ---- What people hear

void NvmfDisk::SetInDoubt(const block::InDoubt& rule) {
  if (std::exchange(in_doubt_, rule) == rule) return;
  TellAll([rule](NvmfChannel& channel) { channel.SetInDoubt(rule); });
  LogAccepted();
  TellPathsChanged();
}

void NvmfDisk::TellPathsChanged() {
  if (!is_open_) return;
  if (const auto& tell = options_.events.paths_changed) tell();
}

void NvmfDisk::LogAccepted() {
  if (Accepts()) losses_.LogAccepted();
}

block::PathsReport NvmfDisk::paths() const {
  block::PathsReport report;
  CountPaths(report);
  CountDoubt(report);
  CountWaits(report);
  return report;
}

void NvmfDisk::CountPaths(block::PathsReport& report) const {
  for (const auto& path : paths_) {
    switch (path->state()) {
      case nvme::host::PathState::kOptimized:
        ++report.optimized;
        break;
      case nvme::host::PathState::kNonOptimized:
        ++report.non_optimized;
        break;
      case nvme::host::PathState::kUnusable:
        ++report.unusable;
        break;
    }
  }
  losses_.Count(report);
}

// As far as the disk reaches: the ghost of a log that was lost has no end.
void NvmfDisk::CountDoubt(block::PathsReport& report) const {
  const uint64_t blocks_max = geometry_.size_bytes / nvme::host::kDoubtBlockBytes;
  for (const nvme::host::BlockRange& range : doubt_.ledger().ranges()) {
    ++report.doubt_ranges;
    const uint64_t behind = range.first < blocks_max ? blocks_max - range.first : 0;
    report.doubt_bytes += std::min(range.blocks, behind) * nvme::host::kDoubtBlockBytes;
  }
  report.accepts = Accepts();
  report.doubt_left_by = losses_.DoubtLeftBy();
  const std::string why_not = WhyNotProved();
  if (!why_not.empty() && !report.doubt_left_by.empty()) report.doubt_left_by += ", not proved: " + why_not;
}

std::string NvmfDisk::WhyNotProved() const {
  std::string by_target = reservation_ ? reservation_->WhyNotProved() : std::string();
  if (!by_target.empty() || !quiesced_) return by_target;
  return quiesced_->WhyNotProved();
}

void NvmfDisk::CountWaits(block::PathsReport& report) const {
  report.failed = failed_by_those_that_left_;
  for (const Link& link : links_) {
    const nvme::host::DoubtWaits& waits = link.port->waits;
    report.waiting += waits.requests.load(std::memory_order_relaxed);
    report.failed += waits.failed.load(std::memory_order_relaxed);
    const uint64_t since_ns = waits.since_ns.load(std::memory_order_relaxed);
    if (since_ns != 0 && (report.waiting_since_ns == 0 || since_ns < report.waiting_since_ns))
      report.waiting_since_ns = since_ns;
  }
}

}  // namespace cleat::modules
