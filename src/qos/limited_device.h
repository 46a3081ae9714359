// SPDX-License-Identifier: Apache-2.0
// The filter that holds a disk to its limits and to those of its group, either of which may be nothing. It stands below
// the pipeline's entrance and pushes no frame: a request that may pass goes on as if it were not there. One that may not
// waits in its channel, in order; when it has passed the disk's limits and is the first, it waits in its group.
//
// What waits is in a list of its own requests; a channel has one timer, a group one on each reactor. An idle disk has
// none, and no poller looks after any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "block/filter_device.h"
#include "qos/group.h"
#include "qos/limit_source.h"
#include "qos/limits.h"

namespace cleat::qos {

class LimitedDevice final : public block::FilterDevice {
 public:
  // On the control reactor. kInvalidArgument when the limits are not good; `below` is left alone then: whoever opened it
  // closes it. `group` may be nullptr.
  static Result<std::unique_ptr<LimitedDevice>> Make(std::unique_ptr<block::Device>&& below,
                                                     const Limits& limits, std::shared_ptr<Group> group);
  ~LimitedDevice() override;

  // On the control reactor, at any time, as often as one likes: what waits goes on by the new limits, at the next turn
  // of each reactor. They have passed CheckLimits.
  void SetLimits(const Limits& limits);
  Limits limits() const { return limit_source_.view().limits; }

  // What was saved and what is owed by now, for the device that stands for this disk in another process: words that only
  // RestoreUse reads. Nothing is in flight here, and nothing was there. Others' words, of another version, are left alone.
  std::vector<uint64_t> SaveUse() const { return SaveAccounts(*limit_source_.view().accounts); }
  void RestoreUse(std::span<const uint64_t> words);

  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override;

 private:
  LimitedDevice(std::unique_ptr<block::Device> below, const Limits& limits, std::shared_ptr<Group> group);

  const std::shared_ptr<Group> group_;
  LimitSource limit_source_;
};

}  // namespace cleat::qos
