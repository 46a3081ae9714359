// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/queue_login.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::host {
namespace {

using fabrics::CompletionEntry;
using fabrics::QueuePair;

constexpr uint64_t kMillisecondNs = 1'000'000;

}  // namespace

QueueLogin::QueueLogin(QueueLoginConfig config)
    : config_(std::move(config)),
      data_(fabrics::ConnectDataOf(config_.host, config_.subsystem_nqn, config_.controller_id)),
      region_(block::MemoryRegion::Borrow(&data_, sizeof(data_))),
      segment_{.region = region_.get(), .offset_bytes = 0, .length_bytes = sizeof(data_)} {
  CLEAT_CHECK(config_.timeout_ns > 0);
  CLEAT_CHECK((config_.queue_id == 0) == (config_.controller_id == fabrics::kAnyController));
  CLEAT_CHECK(config_.chap.secrets == nullptr || (config_.chap.random && config_.chap.compute));
}

void QueueLogin::Begin(QueuePair& queue, uint64_t now_ns) {
  CLEAT_CHECK(state_ == State::kIdle);
  state_ = State::kConnect;
  deadline_ns_ = now_ns + config_.timeout_ns;
  // An I/O queue has its association's, and says nothing of it.
  const uint32_t kato_ms = config_.queue_id == 0 ? config_.kato_ms : 0;
  queue.Submit({.entry = fabrics::EntryOf(fabrics::Connect(
                    {.queue_id = config_.queue_id, .entries = config_.entries, .kato_ms = kato_ms})),
                .to_target = {&segment_, 1},
                .from_target = {},
                .cookie = kConnectCookie});
}

Result<bool> QueueLogin::Take(QueuePair& queue, uint64_t cookie, const CompletionEntry& entry,
                              uint64_t data_bytes, uint64_t now_ns) {
  CLEAT_CHECK(state_ == (cookie == kConnectCookie ? State::kConnect : State::kAuthentication));
  // An answer may come with the queue pair's end.
  if (queue.room() == 0) {
    state_ = State::kFailed;
    return Error(ErrorCode::kUnavailable, config_.who + ": the queue ended in the midst of its login");
  }
  auto taken = cookie == kConnectCookie ? TakeConnect(queue, entry, now_ns)
                                        : TakeAuthentication(queue, entry, data_bytes, now_ns);
  if (!taken) {
    state_ = State::kFailed;
  } else if (*taken) {
    state_ = State::kReady;
  }
  return taken;
}

// ---- Connect

Result<bool> QueueLogin::TakeConnect(QueuePair& queue, const CompletionEntry& entry, uint64_t now_ns) {
  CLEAT_ASSIGN(const auto answer,
               fabrics::ParseConnect(entry, config_.who, config_.host.nqn, config_.subsystem_nqn));
  CLEAT_TRY(CheckAnswer(answer));
  controller_id_ = answer.controller_id;
  asked_ = answer.authentication_required;
  const auth::ChapSecrets* const secrets = config_.chap.secrets.get();
  if (!asked_ && (secrets == nullptr || !secrets->controller)) return true;
  BeginAuthentication(queue, now_ns);
  return false;
}

cleat::Status QueueLogin::CheckAnswer(const fabrics::ConnectAnswer& answer) const {
  if (config_.queue_id != 0 && answer.controller_id != config_.controller_id) {
    return Error(ErrorCode::kDataLoss, fmt::format("{}: the queue is of controller {}, its association of {}",
                                                   config_.who, answer.controller_id, config_.controller_id));
  }
  if (answer.secure_channel_required) {
    return Error(
        ErrorCode::kUnimplemented,
        config_.who +
            ": the target asks for a secure channel that authentication makes (AUTHREQ: ASCR), which "
            "Cleat does not do: ask for authentication alone there");
  }
  if (answer.authentication_required && config_.chap.secrets == nullptr) {
    return Error(ErrorCode::kPermissionDenied,
                 config_.who +
                     ": the target asks for authentication (DH-HMAC-CHAP), and no secret is configured: give "
                     "the subsystem the one that the target has for this host (cleatctl subsystem update, "
                     "--dhchap-secret-file)");
  }
  return {};
}

// ---- Authentication

void QueueLogin::BeginAuthentication(QueuePair& queue, uint64_t now_ns) {
  state_ = State::kAuthentication;
  authentication_ = std::make_shared<auth::Authentication>(
      auth::AuthenticationConfig{.who = config_.who,
                                 .host_nqn = config_.host.nqn,
                                 .subsystem_nqn = config_.subsystem_nqn,
                                 .secrets = config_.chap.secrets,
                                 .offer = config_.chap.offer,
                                 .random = config_.chap.random,
                                 .timeout_ns = config_.timeout_ns});
  authentication_->Start(queue, now_ns);
}

Result<bool> QueueLogin::TakeAuthentication(QueuePair& queue, const CompletionEntry& entry,
                                            uint64_t data_bytes, uint64_t now_ns) {
  const auto progress = authentication_->Take(queue, entry, data_bytes, now_ns);
  if (!progress) return Refused(progress.error());
  if (*progress == auth::Progress::kCompute) {
    state_ = State::kCompute;
    left_ns_ = deadline_ns_ - std::min(deadline_ns_, now_ns);
    deadline_ns_ = now_ns + ComputeTimeoutNs();
    config_.chap.compute(authentication_);
  }
  if (*progress != auth::Progress::kDone) return false;
  proved_ = authentication_->both_ways();
  authentication_.reset();  // a queue lives long, and a message has some room
  return true;
}

// A target that knows nothing of authentication answers with one of many statuses, and one that has no secrets for this host (SPDK's) says that
// the host's is wrong. None of it passes by itself.
Error QueueLogin::Refused(const Error& error) const {
  if (asked_ || error.code == ErrorCode::kDataLoss) return error;
  return {
      ErrorCode::kPermissionDenied,
      error.message +
          "; it has not asked for authentication, but the subsystem has to prove that it has its secret: set "
          "the secrets at the target, or remove the subsystem's own here"};
}

void QueueLogin::Computed(QueuePair& queue, uint64_t now_ns) {
  if (state_ != State::kCompute) return;
  state_ = State::kAuthentication;
  deadline_ns_ = now_ns + left_ns_;
  authentication_->Continue(queue, now_ns);
}

uint64_t QueueLogin::ComputeTimeoutNs() const {
  if (config_.kato_ms == 0) return kComputeTimeoutMaxNs;
  return std::min(config_.kato_ms * kMillisecondNs / 2, kComputeTimeoutMaxNs);
}

std::optional<Error> QueueLogin::Overdue(uint64_t now_ns) const {
  const bool waits =
      state_ == State::kConnect || state_ == State::kAuthentication || state_ == State::kCompute;
  if (!waits || now_ns < deadline_ns_) return std::nullopt;
  if (state_ == State::kCompute) {
    return Error(
        ErrorCode::kDeadlineExceeded,
        fmt::format("{}: this host has not come to compute its part of the authentication in {} ms, and "
                    "later the target would not wait for it (keep alive timeout: {} ms)",
                    config_.who, ComputeTimeoutNs() / kMillisecondNs, config_.kato_ms));
  }
  // Whatever the authentication waits for is late; where the target is only being told of a failure, that failure is the reason.
  if (state_ == State::kAuthentication) {
    const std::optional<Error> late = authentication_->Overdue(UINT64_MAX);
    return late ? WhyEnded(*late) : late;
  }
  return Error(ErrorCode::kDeadlineExceeded, fmt::format("{}: the target has not answered Connect in {} ms",
                                                         config_.who, config_.timeout_ns / kMillisecondNs));
}

Error QueueLogin::WhyEnded(const Error& reason) const {
  if (authentication_ == nullptr || reason.code == ErrorCode::kCancelled) return reason;
  const std::optional<Error> refusal = authentication_->refusal();
  return refusal ? Refused(*refusal) : reason;
}

}  // namespace cleat::nvme::host
