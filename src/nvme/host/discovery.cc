// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/discovery.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "nvme/fabrics/events.h"
#include "nvme/fabrics/identify.h"

namespace cleat::nvme::host {
namespace {

using fabrics::CompletionEntry;
using fabrics::DiscoveryLog;
using fabrics::LogReader;
using fabrics::Property;

constexpr uint64_t kMillisecondNs = 1'000'000;
constexpr uint64_t kPollNs = 100 * kMillisecondNs;  // of CSTS
// Of commands that may be under way side by side.
enum Cookie : uint64_t { kStepCookie = 1, kKeepAliveCookie = 2, kEventCookie = 3 };
// AsynchronousEventRequestLimitExceeded (base 2.0, figure 101: 1/05h).
constexpr uint8_t kCommandSpecificType = 1;
constexpr uint8_t kEventLimitExceeded = 0x05;

uint64_t FirstTimeoutNs(const DiscoveryConfig& config) {
  return config.first_timeout_ns != 0 ? config.first_timeout_ns : config.timeout_ns;
}

QueueLoginConfig LoginConfigOf(const DiscoveryConfig& config) {
  QueueLoginConfig login;
  login.who = config.who;
  login.host = config.host;
  login.subsystem_nqn = std::string(fabrics::kDiscoveryNqn);
  login.chap = config.chap;
  login.entries = config.admin_entries;
  login.kato_ms = config.kato_ms;
  login.timeout_ns = FirstTimeoutNs(config);
  return login;
}

}  // namespace

Discovery::Discovery(DiscoveryConfig config, DiscoveryOwner& owner)
    : config_(std::move(config)),
      owner_(owner),
      login_(LoginConfigOf(config_)),
      reader_(LogReader::Discovery(kDiscoveryPieceBytes, config_.who,
                                   IsWatching() ? LogReader::Events::kFollowed : LogReader::Events::kNone)) {
  CLEAT_CHECK(config_.admin_entries >= 4 && config_.timeout_ns > 0);
  CLEAT_CHECK(!IsWatching() ||
              (config_.kato_ms >= fabrics::kKeepAliveMsMin && config_.kato_ms <= fabrics::kKeepAliveMsMax));
  if (IsWatching()) controller_.resize(kIdentifyBytes);
}

void Discovery::Start(fabrics::QueuePair& admin, uint64_t now_ns) {
  CLEAT_CHECK(admin_ == nullptr);
  admin_ = &admin;
  now_ns_ = now_ns;
  deadline_ns_ = now_ns + FirstTimeoutNs(config_);
}

void Discovery::Connected() {
  if (step_ != Step::kConnecting) return;
  step_ = Step::kLogin;
  login_.Begin(*admin_, now_ns_);
}

const char* Discovery::NameOfStep(Step step) {
  switch (step) {
    case Step::kConnecting:
      return "the connection";
    case Step::kLogin:
      return "Connect, and authentication where it is due";
    case Step::kCapabilities:
      return "Property Get of CAP";
    case Step::kEnable:
    case Step::kShutdown:
      return "Property Set of CC";
    case Step::kReady:
    case Step::kReadyAgain:
      return "Property Get of CSTS";
    case Step::kIdentify:
      return "Identify Controller";
    case Step::kEvents:
      return "Set Features (Asynchronous Event Configuration)";
    case Step::kLog:
      return "Get Log Page (Discovery)";
    case Step::kWatching:
    case Step::kEnding:
    case Step::kOver:
      break;
  }
  return "a command";
}

// ---- One command after the other

void Discovery::Send(Step step) {
  step_ = step;
  const uint32_t configuration = fabrics::EnabledConfiguration(capabilities_);
  Command command;
  std::span<uint8_t> room;
  switch (step) {
    case Step::kCapabilities:
      command = fabrics::PropertyGet(Property::kCapabilities);
      break;
    case Step::kEnable:
      command = fabrics::PropertySet(Property::kConfiguration, configuration);
      break;
    case Step::kShutdown:
      command = fabrics::PropertySet(Property::kConfiguration, fabrics::ShutdownConfiguration(configuration));
      break;
    case Step::kReady:
      command = fabrics::PropertyGet(Property::kStatus);
      break;
    case Step::kIdentify:
      command = Identify(IdentifyCns::kController, 0);
      room = controller_;
      break;
    case Step::kEvents:
      command = SetFeature(Feature::kAsyncEvents, fabrics::kEventDiscovery);
      break;
    case Step::kLog:
      command = reader_.command();
      room = reader_.room();
      break;
    default:
      CLEAT_CHECK(false);
  }
  Submit(kStepCookie, command, room);
}

// `room`: for the data that comes.
void Discovery::Submit(uint64_t cookie, const Command& command, std::span<uint8_t> room) {
  // An answer may come with the queue pair's end.
  if (admin_->room() == 0) return;
  fabrics::QueuedCommand queued{
      .entry = fabrics::EntryOf(command), .to_target = {}, .from_target = {}, .cookie = cookie};
  if (!room.empty()) {
    region_ = block::MemoryRegion::Borrow(room.data(), room.size());
    segment_ = {
        .region = region_.get(), .offset_bytes = 0, .length_bytes = static_cast<uint32_t>(room.size())};
    queued.from_target = {&segment_, 1};
  }
  admin_->Submit(queued);
}

void Discovery::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (step_ >= Step::kEnding) return;
  if (cookie == kKeepAliveCookie) return TakeKeepAlive(entry);
  if (cookie == kEventCookie) return TakeEvent(entry);
  if (!QueueLogin::IsOf(cookie)) {
    if (auto took = Took(entry, data_bytes); !took) Finish(took.error());
    return;
  }
  if (step_ != Step::kLogin) return;
  const auto ready = login_.Take(*admin_, cookie, entry, data_bytes, now_ns_);
  if (!ready) return Finish(ready.error());
  if (!*ready) return;
  if (IsWatching()) keep_alive_at_ns_ = now_ns_ + HalfKatoNs();
  Send(Step::kCapabilities);
}

void Discovery::Computed() {
  if (step_ == Step::kLogin) login_.Computed(*admin_, now_ns_);
}

cleat::Status Discovery::StatusError(const CompletionEntry& entry) const {
  const nvme::Status status = entry.status();
  return Error(
      status.do_not_retry() ? ErrorCode::kFailedPrecondition : ErrorCode::kUnavailable,
      fmt::format("{}: {}: {}", config_.who, NameOfStep(step_),
                  step_ == Step::kLog ? nvme::NameOf(status) : fabrics::NameOfFabricsStatus(status)));
}

cleat::Status Discovery::Took(const CompletionEntry& entry, uint64_t data_bytes) {
  if (step_ == Step::kShutdown) {
    Leave();
    return {};
  }
  if (step_ == Step::kEvents) {
    TookEvents(entry);
    return {};
  }
  if (!entry.status().ok()) return StatusError(entry);
  switch (step_) {
    case Step::kCapabilities: {
      CLEAT_ASSIGN(capabilities_, fabrics::ParseCapabilities(entry.result, config_.who));
      Send(Step::kEnable);
      return {};
    }
    case Step::kEnable:
      Send(Step::kReady);
      return {};
    case Step::kReady:
      return TookReady(entry);
    case Step::kIdentify:
      return TookController(data_bytes);
    case Step::kLog:
      return TookLog(data_bytes);
    default:
      return {};
  }
}

cleat::Status Discovery::TookReady(const CompletionEntry& entry) {
  const auto status = fabrics::ParseControllerStatus(static_cast<uint32_t>(entry.result));
  if (status.fatal) {
    return Error(
        ErrorCode::kUnavailable,
        config_.who + ": the controller reports a fatal status (CSTS.CFS): look into the target's log");
  }
  if (status.ready) {
    Send(IsWatching() ? Step::kIdentify : Step::kLog);
    return {};
  }
  step_ = Step::kReadyAgain;
  again_ns_ = now_ns_ + kPollNs;
  return {};
}

cleat::Status Discovery::TookLog(uint64_t data_bytes) {
  CLEAT_ASSIGN(const auto progress, reader_.Take(data_bytes));
  if (progress == LogReader::Progress::kMore) {
    Send(Step::kLog);
    return {};
  }
  CLEAT_ASSIGN(DiscoveryLog log, fabrics::ParseDiscoveryLog(reader_.log(), config_.who));
  if (IsWatching()) return TookWatched(std::move(log));
  result_.emplace(std::move(log));
  deadline_ns_ = now_ns_ + kShutdownTimeoutNs;
  Send(Step::kShutdown);
  return {};
}

// ---- A log that is watched

cleat::Status Discovery::TookController(uint64_t data_bytes) {
  if (data_bytes != controller_.size()) {
    return Error(ErrorCode::kDataLoss,
                 fmt::format("{}: {} bytes of Identify Controller came where {} were asked for", config_.who,
                             data_bytes, controller_.size()));
  }
  const IdentifyData data(controller_.data(), kIdentifyBytes);
  if ((fabrics::ParseEventsSupported(data) & fabrics::kEventDiscovery) != 0) {
    Send(Step::kEvents);
    return {};
  }
  untold_ = "its controller has no event for that (OAES)";
  Send(Step::kLog);
  return {};
}

// The request is with the controller before the log is read, so that no change after the reading is missed.
void Discovery::TookEvents(const CompletionEntry& entry) {
  if (entry.status().ok()) {
    ArmEvent();
  } else {
    untold_ = fmt::format("{}: {}", NameOfStep(step_), nvme::NameOf(entry.status()));
  }
  if (step_ == Step::kEvents) Send(Step::kLog);
}

cleat::Status Discovery::TookWatched(DiscoveryLog log) {
  step_ = Step::kWatching;
  refresh_at_ns_ = now_ns_ + kRefreshSpacingNs;
  const bool is_same =
      seen_ && seen_->records == log.records && seen_->skipped == log.skipped && untold_.empty();
  seen_ = std::move(log);
  if (!is_same) owner_.Seen(*seen_);
  if (untold_.empty() || step_ != Step::kWatching) return {};
  return Untold();
}

Error Discovery::Untold() const {
  return {ErrorCode::kUnimplemented,
          fmt::format("{}: the service does not tell of changes: {}", config_.who, untold_)};
}

uint64_t Discovery::HalfKatoNs() const {
  return config_.kato_ms * kMillisecondNs / 2;
}

// Half of the time that the target grants goes by between two of them, and the other half is there for the answer.
void Discovery::TickKeepAlive() {
  if (keep_alive_at_ns_ == 0) return;
  if (keep_alive_out_) {
    if (now_ns_ < keep_alive_sent_ns_ + HalfKatoNs()) return;
    return Finish(
        Error(ErrorCode::kDeadlineExceeded, fmt::format("{}: the target has not answered Keep Alive in {} ms",
                                                        config_.who, HalfKatoNs() / kMillisecondNs)));
  }
  if (now_ns_ < keep_alive_at_ns_) return;
  keep_alive_out_ = true;
  keep_alive_sent_ns_ = now_ns_;
  keep_alive_at_ns_ = now_ns_ + HalfKatoNs();
  Submit(kKeepAliveCookie, KeepAlive(), {});
}

void Discovery::TakeKeepAlive(const CompletionEntry& entry) {
  if (!keep_alive_out_) return;
  keep_alive_out_ = false;
  if (entry.status().ok()) return;
  Finish(Error(ErrorCode::kUnavailable,
               fmt::format("{}: Keep Alive: {}", config_.who, nvme::NameOf(entry.status()))));
}

void Discovery::ArmEvent() {
  if (event_out_ || now_ns_ < event_at_ns_) return;
  event_out_ = true;
  Submit(kEventCookie, AsyncEventRequest(), {});
}

// The request is renewed at the next Tick, so that a controller which answers from within Submit does not do so without end. What changes
// meanwhile, the controller keeps until it has a request.
void Discovery::TakeEvent(const CompletionEntry& entry) {
  if (!event_out_) return;
  event_out_ = false;
  const nvme::Status status = entry.status();
  if (status.ok()) {
    event_failures_ = 0;
    const auto event = fabrics::ParseEvent(static_cast<uint32_t>(entry.result));
    if (event.kind == fabrics::EventKind::kDiscoveryChanged) changed_ = true;
    return;
  }
  event_at_ns_ = now_ns_ + kEventRetryNs;
  const bool is_limit = status.type() == kCommandSpecificType && status.code() == kEventLimitExceeded;
  if (!is_limit && !status.do_not_retry() && ++event_failures_ < kEventFailuresMax) return;
  untold_ = "Asynchronous Event Request: " + nvme::NameOf(status);
  if (seen_) Finish(Untold());
}

// ---- Time, and the end

void Discovery::Tick(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (admin_ == nullptr || step_ >= Step::kEnding) return;
  if (step_ != Step::kShutdown) TickKeepAlive();
  if (seen_ && step_ < Step::kShutdown) ArmEvent();
  if (step_ >= Step::kEnding) return;
  if (step_ == Step::kWatching) {
    if (!changed_ || now_ns_ < refresh_at_ns_) return;
    changed_ = false;
    deadline_ns_ = now_ns_ + config_.timeout_ns;
    reader_.Restart();
    return Send(Step::kLog);
  }
  if (now_ns_ < deadline_ns_) {
    if (step_ == Step::kReadyAgain && now_ns_ >= again_ns_) Send(Step::kReady);
    return;
  }
  if (step_ == Step::kShutdown) return Leave();
  Finish(Error(ErrorCode::kDeadlineExceeded,
               fmt::format("{}: the log has not been read in {} ms; the target has not come further than {}",
                           config_.who, config_.timeout_ns / kMillisecondNs, NameOfStep(step_))));
}

void Discovery::Finish(Result<DiscoveryLog> result) {
  if (!result_) result_.emplace(std::move(result));
  Leave();
}

void Discovery::GiveUp() {
  if (step_ >= Step::kEnding) return;
  Finish(Error(ErrorCode::kCancelled, config_.who + ": the reading was given up"));
}

void Discovery::Leave() {
  step_ = Step::kEnding;
  admin_->Abort({ErrorCode::kCancelled, config_.who + ": the reading is over"});
}

void Discovery::Unanswered(uint64_t /*cookie*/, fabrics::Reached /*reached*/) {}

// A log that was read whole before the connection broke is the result.
void Discovery::Ended(const Error& reason) {
  if (step_ == Step::kOver) return;
  step_ = Step::kOver;
  if (!result_) result_.emplace(reason);
  owner_.Discovered(*std::move(result_));
}

}  // namespace cleat::nvme::host
