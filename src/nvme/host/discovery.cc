// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/discovery.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace cleat::nvme::host {
namespace {

using fabrics::CompletionEntry;
using fabrics::DiscoveryLog;
using fabrics::LogReader;
using fabrics::Property;

constexpr uint64_t kMillisecondNs = 1'000'000;
constexpr uint64_t kPollNs = 100 * kMillisecondNs;  // of CSTS
constexpr uint64_t kStepCookie = 1;

QueueLoginConfig LoginConfigOf(const DiscoveryConfig& config) {
  QueueLoginConfig login;
  login.who = config.who;
  login.host = config.host;
  login.subsystem_nqn = std::string(fabrics::kDiscoveryNqn);
  login.entries = config.admin_entries;
  login.timeout_ns = config.timeout_ns;
  return login;
}

}  // namespace

Discovery::Discovery(DiscoveryConfig config, DiscoveryOwner& owner)
    : config_(std::move(config)),
      owner_(owner),
      login_(LoginConfigOf(config_)),
      reader_(LogReader::Discovery(kDiscoveryPieceBytes, config_.who)) {
  CLEAT_CHECK(config_.admin_entries >= 2 && config_.timeout_ns > 0);
}

void Discovery::Start(fabrics::QueuePair& admin, uint64_t now_ns) {
  CLEAT_CHECK(admin_ == nullptr);
  admin_ = &admin;
  now_ns_ = now_ns;
  deadline_ns_ = now_ns + config_.timeout_ns;
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
      return "Connect";
    case Step::kCapabilities:
      return "Property Get of CAP";
    case Step::kEnable:
    case Step::kShutdown:
      return "Property Set of CC";
    case Step::kReady:
    case Step::kReadyAgain:
      return "Property Get of CSTS";
    case Step::kLog:
      return "Get Log Page (Discovery)";
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
    case Step::kLog:
      command = reader_.command();
      break;
    default:
      CLEAT_CHECK(false);
  }
  // An answer may come with the queue pair's end.
  if (admin_->room() == 0) return;
  fabrics::QueuedCommand queued{
      .entry = fabrics::EntryOf(command), .to_target = {}, .from_target = {}, .cookie = kStepCookie};
  if (step == Step::kLog) {
    const std::span<uint8_t> room = reader_.room();
    region_ = block::MemoryRegion::Borrow(room.data(), room.size());
    segment_ = {
        .region = region_.get(), .offset_bytes = 0, .length_bytes = static_cast<uint32_t>(room.size())};
    queued.from_target = {&segment_, 1};
  }
  admin_->Submit(queued);
}

void Discovery::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (step_ >= Step::kEnding) return;
  if (!QueueLogin::IsOf(cookie)) {
    if (auto took = Took(entry, data_bytes); !took) Finish(took.error());
    return;
  }
  if (step_ != Step::kLogin) return;
  const auto ready = login_.Take(*admin_, cookie, entry, data_bytes, now_ns_);
  if (!ready) return Finish(ready.error());
  if (*ready) Send(Step::kCapabilities);
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
    Send(Step::kLog);
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
  result_.emplace(std::move(log));
  deadline_ns_ = now_ns_ + kShutdownTimeoutNs;
  Send(Step::kShutdown);
  return {};
}

// ---- Time, and the end

void Discovery::Tick(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (admin_ == nullptr || step_ >= Step::kEnding) return;
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
