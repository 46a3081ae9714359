// SPDX-License-Identifier: Apache-2.0
#include "engine/link/discoveries.h"

#include <utility>

namespace cleat::engine {

Task<Answer> Discoveries::Ask(uint64_t id, DiscoverySpec discovery, DiscoverySeen seen) {
  CancelToken cancel;
  const auto [place, is_new] = under_way_.emplace(id, &cancel);
  if (!is_new) co_return Status(Error(ErrorCode::kInvalidArgument, "a request of that id is under way"));
  auto discovered = co_await engine_.Discover(std::move(discovery), std::move(seen), cancel);
  const auto left = under_way_.find(id);
  if (left != under_way_.end() && left->second == &cancel) under_way_.erase(left);
  if (!discovered) co_return Status(std::move(discovered).error());
  Answer answer{Status(Ok{})};
  answer.discovery = std::move(discovered).value();
  co_return answer;
}

void Discoveries::Stop(uint64_t id) {
  const auto found = under_way_.find(id);
  if (found != under_way_.end()) found->second->Cancel();
}

void Discoveries::StopAll() {
  const auto under_way = std::exchange(under_way_, {});
  for (const auto& [id, cancel] : under_way) cancel->Cancel();
}

}  // namespace cleat::engine
