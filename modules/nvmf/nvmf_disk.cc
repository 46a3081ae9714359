// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cleat::modules {
namespace {

using nvme::fabrics::AnaState;
using nvme::host::AssociationInfo;
using nvme::host::LifeId;

constexpr uint32_t kOriginShift = 48;
constexpr uint32_t kKatoMinMs = 1000;
constexpr uint32_t kKatoMaxMs = 600'000;

NvmfPathConfig PathConfigOf(const NvmfOptions& options, const std::string& where) {
  NvmfPathConfig config;
  config.association.who = where;
  config.association.host = options.subsystem->host;
  config.association.subsystem_nqn = options.subsystem->nqn;
  config.association.wanted.ids.uuid = options.name_space;
  config.association.kato_ms = options.subsystem->kato_ms;
  config.association.io_queues = NvmfDisk::kQueuesMax;
  config.address = options.subsystem->addresses.front();
  config.digests = {.header = options.subsystem->header_digest, .data = options.subsystem->data_digest};
  return config;
}

std::string WhereOf(const NvmfOptions& options) {
  return options.subsystem->name + " at " +
         nvme::fabrics::TextOfAddress(options.subsystem->addresses.front());
}

nvme::Limits LimitsOf(const AssociationInfo& info) {
  nvme::TransportLimits transport;
  transport.memory_align = 1;  // TCP copies from wherever the bytes are
  return {info.controller, info.space, info.command_set, transport};
}

nvme::host::PathFormat FormatOf(const AssociationInfo& info) {
  nvme::host::PathFormat format;
  format.nsid = info.nsid;
  format.limits = LimitsOf(info);
  format.write_zeroes_deallocates = info.space.write_zeroes_deallocates && info.space.deallocated_reads_zero;
  return format;
}

// NSZE comes from the target: a product that would overflow is as large as it can be.
uint64_t BytesOf(const nvme::NamespaceInfo& space) {
  const uint64_t blocks_max = UINT64_MAX / space.block_bytes;
  return std::min(space.blocks, blocks_max) * space.block_bytes;
}

bool IsUsable(const AssociationInfo& info) {
  const bool has_way = info.ana == AnaState::kOptimized || info.ana == AnaState::kNonOptimized;
  return info.present && has_way && info.ana_problem.empty();
}

// Whether the target may do better the next time.
bool MayPass(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded;
}

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

Status CheckNvmfOptions(const NvmfOptions& options) {
  const std::string& disk = options.shape.name;
  const auto refuse = [&disk](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, disk + ": " + why);
  };
  if (options.subsystem == nullptr) return refuse("no subsystem is given");
  const NvmfSubsystem& subsystem = *options.subsystem;
  if (subsystem.addresses.size() != 1)
    return refuse(fmt::format("{} has {} addresses: give one", subsystem.name, subsystem.addresses.size()));
  if (subsystem.addresses.front().port == 0) return refuse(subsystem.name + ": port 0 is nobody's");
  if (const Status nqn = nvme::fabrics::CheckNqn(subsystem.nqn, "its NQN"); !nqn)
    return refuse(subsystem.name + ": " + nqn.error().message);
  if (const Status host = nvme::fabrics::CheckHostIdentity(subsystem.host); !host)
    return refuse(subsystem.name + ": " + host.error().message);
  if (subsystem.kato_ms < kKatoMinMs || subsystem.kato_ms > kKatoMaxMs) {
    return refuse(fmt::format("{}: a keep alive timeout of {} ms: give {} to {}", subsystem.name,
                              subsystem.kato_ms, kKatoMinMs, kKatoMaxMs));
  }
  if (options.name_space == nvme::fabrics::Uuid{}) return refuse("the namespace's UUID is zero");
  return block::CheckGeometry(options.shape.ToGeometry(), disk);
}

NvmfDisk::NvmfDisk(NvmfOptions options, Reactor& control)
    : options_(std::move(options)),
      control_(control),
      where_(WhereOf(options_)),
      path_(PathConfigOf(options_, where_), control, *this),
      ledger_(options_.subsystem->proofs),
      changed_(control) {}

// ---- Opening and closing

Task<Status> NvmfDisk::Open() {
  if (const UniqueFd file = std::move(options_.doubt_log);
      file.valid() && options_.access == block::AccessMode::kReadWrite) {
    auto log = KeptDoubtLog::Map(file, options_.shape.name);
    is_over_ = !log.ok();  // no path has begun that Close would have to end
    CLEAT_CO_ASSIGN(doubt_log_, std::move(log));
  }
  path_.Start();
  {
    const Deadline deadline(control_, changed_, control_.now_ns() + options_.open_timeout_ns);
    while (!up_ && !refused_ && !deadline.passed()) co_await changed_.Wait();
  }
  const std::string& disk = options_.shape.name;
  if (refused_) co_return Error(CodeOfRefusal(refused_->code), disk + ": " + refused_->message);
  if (!up_) {
    const std::string why = why_down_ ? why_down_->message : where_ + ": no answer";
    co_return Error(ErrorCode::kUnavailable, fmt::format("{}: not reached within {} ms: {}", disk,
                                                         options_.open_timeout_ns / kNsPerMs, why));
  }
  is_open_ = true;
  co_return Ok{};
}

// Channels may be here already, with an I/O queue each; until they have a table they write nothing.
Task<Status> NvmfDisk::Acquire() {
  if (MayPublish()) co_return Ok{};
  LogFound(doubt_log_->Take(ledger_, DrawLife()));
  for (const Link& link : links_) doubt_log_->OpenRow(link.number);
  published_version_ = 0;
  Publish();
  while (!ledger_.IsObeyed()) co_await changed_.Wait();
  co_return Ok{};
}

// No request is left, so that no reactor writes to the log any more (RequestQueue::Config).
void NvmfDisk::Release() {
  if (doubt_log_ != nullptr) doubt_log_->Yield();
}

Task<void> NvmfDisk::Close(bool shutdown) {
  if (is_over_) co_return;
  is_open_ = false;
  closing_ = true;
  log_later_.Cancel();
  word_later_.Cancel();
  while (!links_.empty()) co_await changed_.Wait();  // channels that were closed just now
  path_.End(shutdown);
  while (!is_over_) co_await changed_.Wait();
}

Result<std::unique_ptr<block::Channel>> NvmfDisk::OpenChannel(Reactor& reactor) {
  const uint32_t granted = queues_granted_.load(std::memory_order_relaxed);
  if (shared_->open.fetch_add(1, std::memory_order_relaxed) >= granted) {
    shared_->open.fetch_sub(1, std::memory_order_relaxed);
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: {} grants {} I/O queues to this host, which are in use: allow more there, "
                             "or use fewer reactors",
                             options_.shape.name, where_, granted));
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
  if (space_bytes_ < size_bytes && life_ != 0) path_.Recheck(life_);
  while (space_bytes_ < size_bytes && life_ != 0 && !deadline.passed()) co_await changed_.Wait();
  if (space_bytes_ >= size_bytes) co_return Ok{};
  co_return Error(
      ErrorCode::kFailedPrecondition,
      fmt::format("{}: its namespace has {} bytes, {} are asked for{}: make it larger at the target",
                  options_.shape.name, space_bytes_, size_bytes,
                  life_ == 0 ? " (as last seen: the path is broken)" : ""));
}

Status NvmfDisk::ConfirmDead() {
  Status all;
  for (const LifeId life : ledger_.lives()) {
    if (life == life_) continue;
    const Status proved = ledger_.Proved(life, nvme::host::Proof::kOperatorConfirmed);
    if (!proved) all = Error(proved.error().code, options_.shape.name + ": " + proved.error().message);
  }
  Publish();
  return all;
}

// ---- The namespace

// What the disk needs when it is opened.
Status NvmfDisk::CheckFirst(const AssociationInfo& info) const {
  const std::string space = fmt::format("{}: namespace {}", where_, info.nsid);
  const block::DiskShape& shape = options_.shape;
  if (info.space.block_bytes != shape.logical_block_bytes) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{} has blocks of {} bytes, the disk of {}: give the disk those of the namespace", space,
                    info.space.block_bytes, shape.logical_block_bytes));
  }
  if (BytesOf(info.space) < shape.size_bytes) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} has {} bytes, the disk {}: make the namespace larger", space,
                             BytesOf(info.space), shape.size_bytes));
  }
  if (info.space.write_protected && options_.access == block::AccessMode::kReadWrite) {
    return Error(ErrorCode::kFailedPrecondition,
                 space + " is write-protected: lift that at the target, or use the disk read-only");
  }
  return Ok{};
}

// What a guest was promised and can't be told anew.
Status NvmfDisk::CheckAgain(const AssociationInfo& info) const {
  const std::string space = fmt::format("{}: namespace {}", where_, info.nsid);
  if (info.space.block_bytes != geometry_.logical_block_bytes) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} has blocks of {} bytes now, and had {}: it has been formatted anew", space,
                             info.space.block_bytes, geometry_.logical_block_bytes));
  }
  if (info.controller.write_cache && !geometry_.write_cache) {
    return Error(ErrorCode::kFailedPrecondition,
                 space +
                     " has a volatile write cache now, and guests believe that it has none: detach the "
                     "disk, then attach it again");
  }
  if (const uint32_t channels = shared_->open.load(std::memory_order_relaxed); info.io_queues < channels) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: {} I/O queues are granted now, {} are in use: allow more at the target",
                             where_, info.io_queues, channels));
  }
  return Ok{};
}

block::Geometry NvmfDisk::GeometryOf(const AssociationInfo& info) const {
  constexpr uint64_t kGranularityMaxBytes = 1 << 20;
  block::Geometry geometry = options_.shape.ToGeometry();
  const nvme::Limits limits = LimitsOf(info);
  const bool writes = options_.access == block::AccessMode::kReadWrite;
  const uint64_t boundary = uint64_t{info.space.boundary_blocks} * limits.block_bytes();
  if (boundary <= UINT32_MAX && boundary % geometry.physical_block_bytes == 0)
    geometry.optimal_io_bytes = static_cast<uint32_t>(boundary);
  geometry.discard = writes && limits.discard_bytes_max() > 0;
  const uint64_t granularity = uint64_t{info.space.discard_granularity_blocks} * limits.block_bytes();
  geometry.discard_granularity_bytes = static_cast<uint32_t>(
      std::clamp<uint64_t>(granularity, geometry.logical_block_bytes, kGranularityMaxBytes));
  geometry.discard_max_bytes = kDiscardBytesMax;
  geometry.write_zeroes = writes && limits.write_zeroes_bytes_max() > 0;
  geometry.write_zeroes_max_bytes = kDiscardBytesMax;
  geometry.write_cache = info.controller.write_cache;
  return geometry;
}

void NvmfDisk::SeeSize() {
  const uint64_t bytes = BytesOf(info_->space);
  if (std::exchange(space_bytes_, bytes) == bytes || !is_open_) return;
  if (const auto& tell = options_.events.resized) tell(bytes);
}

Error NvmfDisk::WhyUnusable() const {
  if (!info_->present) {
    return {ErrorCode::kUnavailable,
            fmt::format("{}: namespace {} was detached or deleted there: attach it to this host again",
                        where_, info_->nsid)};
  }
  const std::string why = info_->ana_problem.empty() ? nvme::fabrics::NameOf(info_->ana) : info_->ana_problem;
  return {ErrorCode::kUnavailable,
          fmt::format("{}: namespace {} can't be used by this path (ANA: {}): look into the target's state",
                      where_, info_->nsid, why)};
}

void NvmfDisk::SeeUsable() {
  if (usable_) return SetUp();
  SetDown(WhyUnusable());
}

// ---- What the path says

void NvmfDisk::PathLive(uint64_t life, const AssociationInfo& info) {
  const bool is_first = shared_ == nullptr;
  const Status fits = is_first ? CheckFirst(info) : CheckAgain(info);
  if (!fits) {
    TryFailed(fits.error());
    return path_.Break(life, fits.error());
  }
  if (is_first) {
    geometry_ = GeometryOf(info);
    shared_ = std::make_shared<NvmfChannelShared>();
    shared_->who = where_;
    shared_->address = options_.subsystem->addresses.front();
    shared_->digests = {.header = options_.subsystem->header_digest, .data = options_.subsystem->data_digest};
    shared_->host = options_.subsystem->host;
    shared_->subsystem_nqn = options_.subsystem->nqn;
    shared_->write_cache = geometry_.write_cache;
    shared_->doubt_log = doubt_log_;
  }
  queues_granted_.store(info.io_queues, std::memory_order_relaxed);
  life_ = life;
  info_ = info;
  usable_ = IsUsable(info);
  free_queues_.clear();
  for (uint32_t id = 1; id <= info.io_queues; ++id) free_queues_.push_back(static_cast<uint16_t>(id));
  for (Link& link : links_) BeginLife(link);
  SeeSize();
  SeeUsable();
  changed_.Pulse();
}

void NvmfDisk::PathChanged(uint64_t life, uint32_t changed, const AssociationInfo& info) {
  if (life != life_) return;
  info_ = info;
  if ((changed & nvme::host::kChangedSize) != 0) {
    TellAll([life, format = FormatOf(info)](NvmfChannel& channel) { channel.SetFormat(life, format); });
    SeeSize();
  }
  const bool usable = IsUsable(info);
  if (std::exchange(usable_, usable) != usable) {
    TellAll([life, usable](NvmfChannel& channel) { channel.SetUsable(life, usable); });
    SeeUsable();
  }
  changed_.Pulse();
}

void NvmfDisk::PathLost(uint64_t life, const Error& reason) {
  // A life that was not fit for use: no channel has heard of it.
  if (life != life_) return path_.IoEnded(life);
  life_ = 0;
  info_.reset();
  usable_ = false;
  ended_life_ = life;
  ledger_.Over(life);
  for (Link& link : links_) link.queue_id = 0;
  TellAll([life, reason](NvmfChannel& channel) { channel.EndLife(life, reason); });
  SetDown(reason);
  changed_.Pulse();
  GoOnWhenReported();
}

// What does not pass by itself is told as well, once: somebody has to see to it.
void NvmfDisk::TryFailed(const Error& reason) {
  why_down_ = reason;
  if (!is_open_ && !MayPass(reason)) refused_ = reason;
  changed_.Pulse();
  if (!is_open_ || MayPass(reason) || std::exchange(refusal_told_, true)) return;
  spdlog::warn("{}: path not connected again: {}; requests wait, and it is tried again", options_.shape.name,
               reason.message);
  if (const auto& tell = options_.events.broken) tell(reason);
}

void NvmfDisk::PathOver() {
  is_over_ = true;
  changed_.Pulse();
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

uint32_t NvmfDisk::QueueEntries() const {
  uint32_t depth = std::min(NvmfChannel::kDepthMax, info_->queue_entries_max - 1);
  if (info_->fabrics.commands_max != 0) depth = std::min(depth, info_->fabrics.commands_max);
  return depth + 1;
}

void NvmfDisk::BeginLife(Link& link) {
  if (free_queues_.empty()) return;
  link.queue_id = free_queues_.front();
  free_queues_.pop_front();
  IoQueuePlan plan;
  plan.life = life_;
  plan.controller_id = info_->controller_id;
  plan.queue_id = link.queue_id;
  plan.entries = QueueEntries();
  plan.in_capsule_bytes = info_->fabrics.in_capsule_bytes;
  plan.usable = usable_;
  plan.format = FormatOf(*info_);
  Tell(link, [plan](NvmfChannel& channel) { channel.BeginLife(plan); });
}

void NvmfDisk::Joined(std::shared_ptr<NvmfChannelPort> port) {
  Link link;
  link.port = std::move(port);
  link.number = ledger_.Joined();
  Tell(link, [number = link.number](NvmfChannel& channel) { channel.Welcome(number); });
  if (MayPublish()) {
    if (doubt_log_ != nullptr) doubt_log_->OpenRow(link.number);
    SendTable(link);
  }
  links_.push_back(std::move(link));
  if (life_ != 0) BeginLife(links_.back());
  Publish();
}

void NvmfDisk::Left(const NvmfChannelPort* port) {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [port](const Link& link) { return link.port.get() == port; });
  CLEAT_CHECK(found != links_.end());
  ledger_.Left(found->number);
  numbers_.fetch_sub(1, std::memory_order_relaxed);
  if (found->queue_id != 0) free_queues_.push_back(found->queue_id);
  links_.erase(found);
  changed_.Pulse();
  if (life_ != 0) {
    const auto waits =
        std::find_if(links_.begin(), links_.end(), [](const Link& link) { return link.queue_id == 0; });
    if (waits != links_.end()) BeginLife(*waits);
  }
  Publish();
  GoOnWhenReported();
}

void NvmfDisk::QueueBroken(LifeId life, const Error& reason) {
  if (life == life_) path_.Break(life, reason);
}

void NvmfDisk::PathRefused(LifeId life) {
  if (life == life_) path_.Recheck(life);
}

void NvmfDisk::Take(const nvme::host::LifeReport& report) {
  ledger_.Take(report);
  Publish();
  GoOnWhenReported();
}

void NvmfDisk::Take(const nvme::host::DoubtAck& ack) {
  ledger_.Take(ack);
  Publish();
  changed_.Pulse();
}

void NvmfDisk::Take(const nvme::host::BarrierEnded& ended) {
  ledger_.Take(ended);
  Publish();
}

void NvmfDisk::GivenUp(nvme::host::OriginId origin) {
  ledger_.Disown(origin);
  Publish();
}

// Changes that come while another engine has the log are published by Acquire.
void NvmfDisk::Publish() {
  if (!MayPublish()) return;
  if (std::exchange(published_version_, ledger_.version()) == ledger_.version()) return;
  if (doubt_log_ != nullptr) doubt_log_->Store(ledger_);
  for (const Link& link : links_) SendTable(link);
  AwaitWord();
}

void NvmfDisk::AwaitWord() {
  if (doubt_log_ == nullptr || ledger_.ghosts() == 0 || closing_ || word_later_.pending()) return;
  control_.AddTimer(word_later_, control_.now_ns() + kWordNs);
}

// The word is another process', in the log, and of no effect once more is in doubt than it was about (DoubtLog::Confirm).
void NvmfDisk::LookForWord() {
  if (!doubt_log_->is_taken()) return;  // who takes it looks
  if (doubt_log_->log().IsConfirmed()) {
    // What a reactor has not reported yet is tried again as long as it has the same number.
    const Status confirmed = ConfirmDead();
    if (confirmed) {
      LogConfirmed();
    } else if (!doubt_log_->log().IsConfirmed()) {
      spdlog::warn("{}: the operator's word for what is in doubt holds in part: {}", options_.shape.name,
                   confirmed.error().message);
    }
  }
  AwaitWord();
}

void NvmfDisk::SendTable(const Link& link) const {
  Tell(link, [table = ledger_.TableFor(link.number)](NvmfChannel& channel) { channel.Adopt(table); });
}

void NvmfDisk::GoOnWhenReported() {
  if (ended_life_ == 0 || !ledger_.IsReported(ended_life_)) return;
  path_.IoEnded(std::exchange(ended_life_, 0));
}

// ---- What people hear

void NvmfDisk::SetUp() {
  why_down_.reset();
  refusal_told_ = false;
  if (std::exchange(up_, true) || !is_open_) return;
  LogState();
  if (const auto& tell = options_.events.connected) tell();
}

void NvmfDisk::SetDown(const Error& why) {
  why_down_ = why;
  if (!std::exchange(up_, false) || !is_open_) return;
  LogState();
  if (const auto& tell = options_.events.broken) tell(why);
}

void NvmfDisk::LogConfirmed() const {
  spdlog::warn("{}: what was in doubt is dead, as an operator says: writes over it go on",
               options_.shape.name);
}

void NvmfDisk::LogFound(const KeptDoubtLog::Found& found) const {
  const std::string& disk = options_.shape.name;
  if (found.was_confirmed) LogConfirmed();
  if (found.unreadable) {
    spdlog::warn("{}: {}; writes wait until then, reads do not", disk, found.unreadable->message);
  } else if (found.ranges > 0) {
    spdlog::warn(
        "{}: {} bytes are in doubt since an engine before (ranges: {}); writes over them wait until somebody "
        "confirms that its targets have dropped what that engine sent, reads do not",
        disk, std::min(found.bytes, geometry_.size_bytes), found.ranges);
  }
}

// A path that comes and goes quickly is logged as it is a little later.
void NvmfDisk::LogState() {
  if (logged_up_ == up_ || closing_) return;
  if (control_.now_ns() < log_after_ns_) {
    if (!log_later_.pending()) control_.AddTimer(log_later_, log_after_ns_);
    return;
  }
  log_after_ns_ = control_.now_ns() + kLogSpacingNs;
  logged_up_ = up_;
  if (up_) {
    spdlog::info("{}: path to {} is up again", options_.shape.name, where_);
  } else {
    spdlog::warn("{}: path broken: {}; requests wait, and it is tried again", options_.shape.name,
                 why_down_->message);
  }
}

}  // namespace cleat::modules
