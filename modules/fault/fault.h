// SPDX-License-Identifier: Apache-2.0
// A filter that makes the disk below it slow and unreliable in a repeatable way: requests wait (and so
// overtake each other), fail, or hang until they are let go. For tests; time comes from the reactor's timers,
// so that it works in virtual time, and everything else from the seed.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "block/filter_device.h"

namespace cleat::modules {

inline constexpr uint64_t kFaultDelayNsMax = 10'000'000'000;

struct FaultPlan {
  FaultPlan(uint64_t random_seed, uint64_t delay_max_ns, uint32_t fails_per_million)
      : seed(random_seed), delay_ns_max(delay_max_ns), fail_per_million(fails_per_million) {}

  uint64_t seed;  // with the order of channels and requests on a reactor it decides everything
  // Each request waits up to so long in all: part of it before the disk below sees it, part before it is
  // completed.
  uint64_t delay_ns_max;
  // So many of a million fail with kIoError. Half of those were carried out all the same, as with real
  // storage.
  uint32_t fail_per_million;
};

class FaultDevice final : public block::FilterDevice {
 public:
  // On the control reactor. kInvalidArgument when the plan is beyond its limits.
  // `below` is left alone then: whoever opened it closes it.
  static Result<std::unique_ptr<FaultDevice>> Make(std::unique_ptr<block::Device>&& below,
                                                   const FaultPlan& plan);
  ~FaultDevice() override;

  // Any thread. From Hold on nothing is completed, as on storage that hangs; LetGo lets everything go on. A
  // channel with held requests is not drained.
  void Hold();
  void LetGo();

  uint32_t frames() const override { return FilterDevice::frames() + 1; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override;

 private:
  class Stage;         // one channel's waiting requests
  class FaultChannel;  // what the pipeline sees of it
  FaultDevice(std::unique_ptr<block::Device> below, const FaultPlan& plan);

  const FaultPlan plan_;
  std::atomic<bool> held_{false};
  struct Opened {
    Reactor* reactor;
    std::weak_ptr<Stage> stage;  // used, and dies, on its reactor alone
  };
  Mutex mutex_;  // channels are opened on I/O reactors
  std::vector<Opened> opened_ CLEAT_GUARDED_BY(mutex_);
  std::map<uint32_t, uint64_t> opened_on_
      CLEAT_GUARDED_BY(mutex_);  // how many channels a reactor has opened so far
};

}  // namespace cleat::modules
