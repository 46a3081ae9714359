// SPDX-License-Identifier: Apache-2.0
#include "observe/sight.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cleat::observe {

Result<std::unique_ptr<Sight>> Sight::Make(const std::string& engine, uint64_t incarnation,
                                           const std::vector<Reactor*>& reactors, uint64_t slow_after_ns) {
  SegmentOptions options;
  options.engine = engine;
  options.incarnation = incarnation;
  options.slow_after_ns = slow_after_ns;
  for (const Reactor* reactor : reactors) options.reactors.push_back(reactor->name());
  if (!reactors.empty()) options.now_ns = reactors.front()->now_ns();
  CLEAT_ASSIGN(auto segment, Segment::Make(options));
  return std::unique_ptr<Sight>(new Sight(std::move(segment), reactors));
}

Sight::Sight(std::unique_ptr<Segment> segment, const std::vector<Reactor*>& reactors)
    : segment_(std::move(segment)), reactors_(reactors) {
  for (uint32_t i = 0; i < reactors_.size(); ++i) {
    sights_.push_back(std::make_unique<ReactorSight>(*segment_, *reactors_[i], i));
  }
}

ReactorSight* Sight::On(const Reactor& reactor) const {
  for (size_t i = 0; i < reactors_.size(); ++i) {
    if (reactors_[i] == &reactor) return sights_[i].get();
  }
  return nullptr;
}

std::unique_ptr<Cell> Sight::AddCell(const std::string& controller, const std::string& disk, uint32_t target,
                                     const Reactor& reactor, uint64_t now_ns) {
  const ReactorSight* sight = On(reactor);
  CLEAT_CHECK(sight != nullptr);
  auto cell = segment_->Add(controller, disk, target, sight->index(), now_ns);
  if (cell) return std::move(cell).value();
  spdlog::warn("{}; move disks to another engine to have counters for all", cell.error().message);
  return nullptr;
}

}  // namespace cleat::observe
