// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/io_connect.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace cleat::nvme::host {

using fabrics::CompletionEntry;

IoConnect::IoConnect(IoConnectConfig config)
    : config_(std::move(config)),
      data_(fabrics::ConnectDataOf(config_.host, config_.subsystem_nqn, config_.controller_id)),
      region_(block::MemoryRegion::Borrow(&data_, sizeof(data_))),
      segment_{.region = region_.get(), .offset_bytes = 0, .length_bytes = sizeof(data_)} {
  CLEAT_CHECK(config_.queue_id > 0 && config_.timeout_ns > 0);
}

void IoConnect::Send(fabrics::QueuePair& queue, uint64_t now_ns) {
  CLEAT_CHECK(state_ == State::kIdle);
  state_ = State::kSent;
  deadline_ns_ = now_ns + config_.timeout_ns;
  queue.Submit({.entry = fabrics::EntryOf(fabrics::Connect(
                    {.queue_id = config_.queue_id, .entries = config_.entries, .kato_ms = 0})),
                .to_target = {&segment_, 1},
                .from_target = {},
                .cookie = kCookie});
}

cleat::Status IoConnect::Take(const CompletionEntry& entry) {
  if (state_ != State::kSent) return {};
  state_ = State::kFailed;
  CLEAT_ASSIGN(const auto answer,
               fabrics::ParseConnect(entry, config_.who, config_.host.nqn, config_.subsystem_nqn));
  if (answer.authentication_required) {
    return Error(ErrorCode::kPermissionDenied,
                 config_.who + ": the target wants authentication, which is not configured");
  }
  if (answer.controller_id != config_.controller_id) {
    return Error(ErrorCode::kDataLoss, fmt::format("{}: the queue is of controller {}, its association of {}",
                                                   config_.who, answer.controller_id, config_.controller_id));
  }
  state_ = State::kReady;
  return {};
}

std::optional<Error> IoConnect::Overdue(uint64_t now_ns) const {
  if (state_ != State::kSent || now_ns < deadline_ns_) return std::nullopt;
  return Error(ErrorCode::kDeadlineExceeded, fmt::format("{}: the target has not answered Connect in {} ms",
                                                         config_.who, config_.timeout_ns / 1'000'000));
}

}  // namespace cleat::nvme::host
