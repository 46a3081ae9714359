// SPDX-License-Identifier: Apache-2.0
// ApplyHost: brings a host's intent to what a request declares, object by object, through the same calls that a caller
// would make. Where a removal stands in the way of what comes next, it waits for that, within the request's time. One a
// call, on its thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/host_state.h"

namespace cleat::control {

class ApplyHostCall {
 public:
  // Both outlive it. `cancelled` is asked now and then while it waits.
  ApplyHostCall(HostState& state, std::function<bool()> cancelled)
      : state_(state), cancelled_(std::move(cancelled)) {}

  // An error only when the request as a whole makes no sense: nothing was done then.
  Result<v1::ApplyHostResponse> Apply(const v1::ApplyHostRequest& request);

 private:
  struct Names {
    std::set<std::string> disks;
    std::set<std::string> groups;
    std::set<std::string> clusters;
    std::set<std::string> subsystems;
    std::set<std::string> controllers;
    std::set<std::string> attachments;
    bool Empty() const;
  };

  // What is there and not on its way out already, by name.
  struct Present {
    std::string etag;
    bool has_key = false;
  };
  using PresentByName = std::map<std::string, Present>;
  struct Host {
    PresentByName disks;
    PresentByName groups;
    PresentByName clusters;
    PresentByName subsystems;
    PresentByName controllers;
    PresentByName attachments;
    std::string Etag() const;
  };
  struct Removal {
    std::string name;
    Present present;  // as it was when the call began: what was changed since stays
    Status (*remove)(HostState& state, const Removal& removal);
  };

  Result<Names> NamesOf(const v1::ApplyHostRequest& request) const;
  // What EXACT has to remove, in an order that works; an error when the request does not allow it.
  Result<std::vector<Removal>> PlanRemovals(const v1::ApplyHostRequest& request, const Names& wanted);
  Result<Host> PresentHost();
  template <auto kKind, auto kMethod, typename Request>
  static Status Remove(HostState& state, const Removal& removal);
  void RemoveOne(const Removal& removal);

  void ApplyGroup(const v1::Group& group);
  void ApplyCluster(const v1::Cluster& cluster);
  void ApplySubsystem(const v1::Subsystem& subsystem);
  void ApplyDisk(const v1::Disk& disk);
  void ApplyController(const v1::Controller& controller);
  void ApplyAttachment(const v1::Attachment& attachment);
  // Runs `call` until it does not answer RESOURCE_BUSY any more, or the time is over.
  template <typename Call>
  auto RetryWhileBusy(Call call) -> decltype(call());

  void Report(const std::string& name, v1::ApplyAction action);
  void ReportFailed(const std::string& name, const Error& error);

  HostState& state_;
  const std::function<bool()> cancelled_;
  bool dry_run_ = false;
  std::chrono::steady_clock::time_point deadline_;
  // What a dry run has done, in thought.
  std::set<std::string> made_;
  std::set<std::string> removed_;
  v1::ApplyHostResponse response_;
  size_t error_bytes_ = 0;
};

}  // namespace cleat::control
