// SPDX-License-Identifier: Apache-2.0
// What the engine does for each kind of request of cleatd's. On the control reactor.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/engine.h"
#include "engine/protocol/codec.h"
#include "reactor/task.h"

namespace cleat::engine {

struct Answer {
  // NOLINTNEXTLINE(google-explicit-constructor): most answers are no more than that.
  Answer(Status outcome) : status(std::move(outcome)) {}

  Status status;
  UniqueFd fd;  // of the memory that was fetched, or of the connections that were yielded
  std::optional<HandOver> hand_over;  // of the controller that was yielded
  std::optional<DiscoveryReport> discovery;
};

// `request`, not a reply to a hello, and `fds`, which came with it, stay until the task has ended; both may be moved from.
Task<Answer> CarryOut(Engine& engine, Incoming& request, std::vector<UniqueFd>& fds);

}  // namespace cleat::engine
