// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/association.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/host/association_memory.h"

namespace cleat::nvme::host {
namespace {

using fabrics::CompletionEntry;

constexpr uint64_t kMillisecondNs = 1'000'000;
constexpr uint64_t kSecondNs = 1'000 * kMillisecondNs;

// The whole set-up, beside what the controller may take to get ready. Each of its commands has a deadline of its own; a target that answers each
// one just in time would have the host go through its namespaces for hours.
constexpr uint64_t kSetupTimeoutNs = 60 * kSecondNs;
// How many events a controller may tell in a window before it has to wait for the next one.
constexpr uint32_t kEventsInWindowMax = 16;
constexpr uint64_t kEventWindowNs = kSecondNs;
// When an event request that failed, and may succeed later, is sent again.
constexpr uint64_t kEventRetryNs = 5 * kSecondNs;
// AsynchronousEventRequestLimitExceeded (base 2.0, figure 101: 1/05h).
constexpr uint8_t kCommandSpecificType = 1;
constexpr uint8_t kEventLimitExceeded = 0x05;
// The namespace and the ANA log are read again at most that often, whatever the controller tells.
constexpr uint64_t kRefreshSpacingNs = 100 * kMillisecondNs;

// What a cookie says: the kind in its low byte, the number of the step or the slot of the event above it.
enum Kind : uint8_t { kStepKind = 1, kKeepAliveKind = 2, kEventKind = 3 };
constexpr uint64_t CookieOf(Kind kind, uint64_t number) {
  return number << 8 | kind;
}

QueueLoginConfig LoginConfigOf(const AssociationConfig& config) {
  QueueLoginConfig login;
  login.who = config.who;
  login.host = config.host;
  login.subsystem_nqn = config.subsystem_nqn;
  login.chap = config.chap;
  login.entries = config.admin_entries;
  login.kato_ms = config.kato_ms;
  login.timeout_ns = config.command_timeout_ns;
  return login;
}

}  // namespace

Association::Association(AssociationConfig config, AssociationOwner& owner)
    : config_(std::move(config)),
      owner_(owner),
      login_(LoginConfigOf(config_)),
      memory_(std::make_unique<Memory>()) {
  CLEAT_CHECK(config_.kato_ms >= fabrics::kKeepAliveMsMin && config_.kato_ms <= fabrics::kKeepAliveMsMax);
  CLEAT_CHECK(config_.admin_entries >= kAdminEntriesMin && config_.io_queues >= 1);
  CLEAT_CHECK(config_.io_queues < UINT16_MAX && config_.command_timeout_ns > 0);
  CLEAT_CHECK(config_.wanted.nsid || !config_.wanted.ids.none());
}

Association::~Association() = default;

void Association::Start(fabrics::QueuePair& admin, uint64_t now_ns) {
  CLEAT_CHECK(phase_ == Phase::kIdle);
  admin_ = &admin;
  host_ns_ = now_ns_ = now_ns;
  phase_ = Phase::kConnecting;
  phase_deadline_ns_ = now_ns + config_.connect_timeout_ns;
}

void Association::Connected() {
  if (phase_ != Phase::kConnecting) return;
  phase_ = Phase::kLogin;
  login_ns_ = now_ns_;
  login_.Begin(*admin_, now_ns_);
}

// `room`: for the data that comes.
void Association::Submit(uint64_t cookie, const Command& command, std::span<uint8_t> room) {
  if (admin_->room() == 0) {
    Fail({ErrorCode::kInternal, config_.who + ": the admin queue has no room for a command"});
    return;
  }
  fabrics::QueuedCommand queued{
      .entry = fabrics::EntryOf(command), .to_target = {}, .from_target = {}, .cookie = cookie};
  if (!room.empty()) {
    const block::MemoryRegion* region = memory_->page_region.get();
    if (room.data() != region->base()) {
      memory_->log_region = block::MemoryRegion::Borrow(room.data(), room.size());
      region = memory_->log_region.get();
    }
    memory_->segment = {
        .region = region, .offset_bytes = 0, .length_bytes = static_cast<uint32_t>(room.size())};
    queued.from_target = {&memory_->segment, 1};
  }
  admin_->Submit(queued);
}

void Association::Send(Step step) {
  step_ = step;
  waiting_ = false;
  step_deadline_ns_ = now_ns_ + config_.command_timeout_ns;
  if (step == Step::kSpace || step == Step::kDescriptors) memory_->page.fill(0);
  Submit(CookieOf(kStepKind, ++step_number_), CommandOf(step), DataOf(step));
}

void Association::TakeLogin(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (phase_ != Phase::kLogin) return;
  const auto ready = login_.Take(*admin_, cookie, entry, data_bytes, now_ns_);
  if (!ready) return Fail(ready.error());
  if (!*ready) return;
  fresh_.controller_id = login_.controller_id();
  phase_ = Phase::kSetup;
  phase_deadline_ns_ = now_ns_ + kSetupTimeoutNs;
  Send(Step::kCapabilities);
}

void Association::Computed() {
  if (phase_ == Phase::kLogin) login_.Computed(*admin_, now_ns_);
}

void Association::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (phase_ == Phase::kIdle || phase_ >= Phase::kEnding) return;
  if (QueueLogin::IsOf(cookie)) return TakeLogin(cookie, entry, data_bytes);
  const uint64_t number = cookie >> 8;
  switch (static_cast<Kind>(cookie & 0xff)) {
    case kKeepAliveKind:
      TakeKeepAlive(entry);
      return;
    case kEventKind:
      if (number < events_.size()) TakeEvent(number, entry);
      return;
    case kStepKind:
      break;
  }
  if (number != step_number_ || step_ == Step::kNone || waiting_) return;
  const Step step = std::exchange(step_, Step::kNone);
  if (auto took = Took(step, entry, data_bytes); !took) Fail(took.error());
}

// ---- Time

void Association::Tick(uint64_t now_ns) {
  const uint64_t passed_ns = now_ns - std::min(now_ns, host_ns_);
  const uint64_t counts_ns = std::min(passed_ns, kTickCountsNs);
  host_ns_ += passed_ns;
  now_ns_ += counts_ns;
  if (phase_ == Phase::kIdle || phase_ >= Phase::kEnding) return;
  // The controller's own clock for the host went on meanwhile.
  if (keep_alive_at_ns_ > now_ns_)
    keep_alive_at_ns_ -= std::min(keep_alive_at_ns_ - now_ns_, passed_ns - counts_ns);
  if (phase_ == Phase::kLogin) {
    if (const auto overdue = login_.Overdue(now_ns_)) Fail(*overdue);
    return;
  }
  if (phase_ != Phase::kLive && now_ns_ >= phase_deadline_ns_) {
    const char* what = ": the target takes too long to set up a controller";
    if (phase_ == Phase::kConnecting) what = ": the transport has not connected in time";
    if (phase_ == Phase::kShutdown) what = ": the controller takes too long to shut down";
    Fail({ErrorCode::kDeadlineExceeded, config_.who + what});
    return;
  }
  if (phase_ == Phase::kConnecting) return;
  TickStep();
  if (phase_ >= Phase::kShutdown) return;
  TickKeepAlive();
  if (phase_ >= Phase::kShutdown) return;
  ArmEvents();
  BeginRefresh();
}

void Association::TickStep() {
  if (step_ == Step::kNone) return;
  if (waiting_) {
    if (now_ns_ >= send_at_ns_) Send(step_);
    return;
  }
  if (now_ns_ < step_deadline_ns_) return;
  Fail({ErrorCode::kDeadlineExceeded,
        fmt::format("{}: the target has not answered {} in {} ms", config_.who, NameOfStep(step_),
                    config_.command_timeout_ns / kMillisecondNs)});
}

// Half of the time that the target grants goes by between two of them, and the other half is there for the answer.
void Association::TickKeepAlive() {
  const uint64_t half_ns = config_.kato_ms * kMillisecondNs / 2;
  if (keep_alive_at_ns_ == 0) return;
  if (keep_alive_out_) {
    if (now_ns_ < keep_alive_sent_ns_ + half_ns) return;
    Fail({ErrorCode::kDeadlineExceeded,
          fmt::format("{}: the target has not answered Keep Alive in {} ms, and nothing is known of it since",
                      config_.who, half_ns / kMillisecondNs)});
    return;
  }
  if (now_ns_ < keep_alive_at_ns_) return;
  keep_alive_out_ = true;
  keep_alive_sent_ns_ = now_ns_;
  keep_alive_at_ns_ = now_ns_ + half_ns;
  Submit(CookieOf(kKeepAliveKind, 0), KeepAlive(), {});
}

void Association::TakeKeepAlive(const CompletionEntry& entry) {
  if (!keep_alive_out_) return;
  keep_alive_out_ = false;
  if (!entry.status().ok()) {
    Fail({ErrorCode::kUnavailable,
          fmt::format("{}: Keep Alive: {}", config_.who, nvme::NameOf(entry.status()))});
    return;
  }
  ++keep_alives_answered_;
}

// ---- Events

void Association::ArmEvents() {
  if (now_ns_ >= window_end_ns_) {
    window_end_ns_ = now_ns_ + kEventWindowNs;
    events_in_window_ = 0;
  }
  for (size_t slot = 0; slot < events_armed_max_; ++slot) {
    if (events_in_window_ >= kEventsInWindowMax || phase_ >= Phase::kShutdown) return;
    if (events_[slot].outstanding || now_ns_ < events_[slot].again_ns) continue;
    events_[slot].outstanding = true;
    Submit(CookieOf(kEventKind, slot), AsyncEventRequest(), {});
  }
}

void Association::TakeEvent(size_t slot, const CompletionEntry& entry) {
  if (!events_[slot].outstanding) return;
  events_[slot].outstanding = false;
  const nvme::Status status = entry.status();
  events_[slot].failed = !status.ok();
  if (events_[slot].failed) {
    const bool too_many = status.type() == kCommandSpecificType && status.code() == kEventLimitExceeded;
    events_[slot].again_ns = too_many || status.do_not_retry() ? UINT64_MAX : now_ns_ + kEventRetryNs;
    if (!ToldOfChanges()) RecheckBy(now_ns_ + kUntoldRecheckNs);
    return;
  }
  ++events_seen_;
  ++events_in_window_;
  switch (fabrics::ParseEvent(static_cast<uint32_t>(entry.result)).kind) {
    case fabrics::EventKind::kNamespaceChanged:
      changed_list_wanted_ = true;
      refresh_wanted_ = true;
      break;
    case fabrics::EventKind::kAnaChanged:
      refresh_wanted_ = true;
      break;
    // The controller tells no more of their types until it is asked for their logs: nobody here does.
    case fabrics::EventKind::kDiscoveryChanged:
    case fabrics::EventKind::kError:
    case fabrics::EventKind::kSmart:
    case fabrics::EventKind::kShuttingDown:
    case fabrics::EventKind::kOther:
      break;
  }
  // The request is renewed at the next Tick: an answer may come from within Submit, and the next one from within that.
}

// Whether the controller has a request to tell of a change with, or will soon have one.
bool Association::ToldOfChanges() const {
  return std::any_of(events_.begin(), events_.begin() + events_armed_max_,
                     [](const EventSlot& slot) { return slot.outstanding || !slot.failed; });
}

void Association::RecheckBy(uint64_t at_ns) {
  recheck_at_ns_ = recheck_at_ns_ == 0 ? at_ns : std::min(recheck_at_ns_, at_ns);
}

void Association::Wish(uint64_t after_ns) {
  refresh_at_ns_ = std::max(refresh_at_ns_, now_ns_ + after_ns);
  refresh_wanted_ = true;
}

void Association::Recheck() {
  if (phase_ == Phase::kLive) refresh_wanted_ = recheck_asked_ = true;
}

void Association::BeginRefresh() {
  if (recheck_at_ns_ != 0 && now_ns_ >= recheck_at_ns_) refresh_wanted_ = true;
  if (phase_ != Phase::kLive || step_ != Step::kNone || !refresh_wanted_ || now_ns_ < refresh_at_ns_) return;
  refresh_wanted_ = false;
  recheck_at_ns_ = 0;
  refresh_at_ns_ = now_ns_ + kRefreshSpacingNs;
  ana_tries_ = 0;
  fresh_ = info_;
  rechecks_ |= std::exchange(recheck_asked_, false);
  Send(std::exchange(changed_list_wanted_, false) ? Step::kChangedList : Step::kDescriptors);
}

// ---- Ends

void Association::Fail(const Error& reason) {
  if (phase_ >= Phase::kEnding) return;
  if (phase_ != Phase::kShutdown) {
    phase_ = Phase::kEnding;
    owner_.Lost(config_.life, reason);
  }
  phase_ = Phase::kEnding;
  admin_->Abort(reason);
}

void Association::Break(const Error& reason) {
  if (phase_ != Phase::kIdle) Fail(reason);
}

void Association::Finish() {
  phase_ = Phase::kEnding;
  admin_->Abort({ErrorCode::kCancelled, config_.who + ": the association has been ended"});
}

void Association::End(bool shutdown) {
  if (phase_ == Phase::kIdle || phase_ >= Phase::kShutdown) return;
  if (!shutdown || !enabled_) {
    Finish();
    return;
  }
  phase_ = Phase::kShutdown;
  phase_deadline_ns_ = now_ns_ + kShutdownTimeoutNs;
  Send(Step::kShutdownSet);
}

void Association::Unanswered(uint64_t cookie, fabrics::Reached) {
  if (!QueueLogin::IsOf(cookie) && static_cast<Kind>(cookie & 0xff) == kEventKind &&
      cookie >> 8 < events_.size())
    events_[cookie >> 8].outstanding = false;
}

void Association::Ended(const Error& reason) {
  if (phase_ == Phase::kIdle || phase_ == Phase::kGone) return;
  const bool broken = phase_ < Phase::kShutdown;
  phase_ = Phase::kGone;
  if (broken) owner_.Lost(config_.life, login_.WhyEnded(reason));
  owner_.Gone(config_.life);
}

}  // namespace cleat::nvme::host
