// SPDX-License-Identifier: Apache-2.0
// Requests to engines, one at a time for a resource, and when a failed one is made again. Pure: times are passed in, in nanoseconds of
// one clock.
//
//   idle --Begin--> busy --Done--> idle, failures are forgotten
//                    |
//                    +----Fail---> idle, not Ready for a while: twice as long after each failure in a row
//                    +----End----> idle, failures stay as they were
//
// A PendingRequests belongs to the view of one engine and ends with its connection. The RetryQueue is the reconciler's. On the link's
// thread.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace cleat::control {

// Ids of resources that a kind is to be told of, so that one is not taken for another.
struct ControllerId {
  std::string id;
  auto operator<=>(const ControllerId&) const = default;
};
struct DiskId {
  std::string id;
  auto operator<=>(const DiskId&) const = default;
};
struct GroupId {
  std::string id;
  auto operator<=>(const GroupId&) const = default;
};
struct ClusterId {
  std::string id;
  auto operator<=>(const ClusterId&) const = default;
};
// All groups of one engine: they wait for the same request.
struct GroupsOfEngine {
  std::string engine;
  auto operator<=>(const GroupsOfEngine&) const = default;
};
using ResourceId = std::variant<ControllerId, DiskId, GroupId, ClusterId, GroupsOfEngine>;

struct BackoffLimits {
  uint64_t min_ns = 0;  // after the first failure
  uint64_t max_ns = 0;
};

class PendingRequest {
 public:
  bool busy() const { return busy_; }
  uint32_t failures() const { return failures_; }  // in a row
  // Whether the request may be made: it is not on its way, and its last failure was long enough ago.
  bool Ready(uint64_t now_ns) const { return !busy_ && now_ns >= not_before_ns_; }

  void Begin() { busy_ = true; }
  void End() { busy_ = false; }
  void Done() { *this = {}; }
  // Returns after how many nanoseconds it is Ready again.
  uint64_t Fail(uint64_t now_ns, const BackoffLimits& limits) {
    constexpr uint32_t kDoublingsMax = 20;
    const uint64_t wait_ns = std::min(limits.max_ns, limits.min_ns << std::min(failures_, kDoublingsMax));
    busy_ = false;
    ++failures_;
    not_before_ns_ = now_ns + wait_ns;
    return wait_ns;
  }
  // The next one need not wait. Failures stay counted.
  void RetryNow() { not_before_ns_ = 0; }

 private:
  bool busy_ = false;
  uint32_t failures_ = 0;
  uint64_t not_before_ns_ = 0;
};

// A request for each of many resources. Those without a request or failure take no memory.
template <typename Id>
class PendingRequests {
 public:
  bool IsBusy(const Id& id) const { return Get(id).busy(); }
  bool AnyBusy() const {
    return std::any_of(requests_.begin(), requests_.end(), [](const auto& r) { return r.second.busy(); });
  }
  bool Ready(const Id& id, uint64_t now_ns) const { return Get(id).Ready(now_ns); }
  uint32_t Failures(const Id& id) const { return Get(id).failures(); }

  void Begin(const Id& id) { requests_[id].Begin(); }
  void End(const Id& id) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    found->second.End();
    if (found->second.failures() == 0) requests_.erase(found);
  }
  void Done(const Id& id) { requests_.erase(id); }
  uint64_t Fail(const Id& id, uint64_t now_ns, const BackoffLimits& limits) {
    return requests_[id].Fail(now_ns, limits);
  }
  void RetryNow(const Id& id) {
    if (const auto found = requests_.find(id); found != requests_.end()) found->second.RetryNow();
  }

 private:
  PendingRequest Get(const Id& id) const {
    const auto found = requests_.find(id);
    return found == requests_.end() ? PendingRequest{} : found->second;
  }

  std::map<Id, PendingRequest> requests_;
};

// Resources that are to be reconciled again at a time. A resource may be there more than once: that costs a look.
class RetryQueue {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};

  void Add(uint64_t due_ns, ResourceId id) { queue_.emplace(due_ns, std::move(id)); }
  // The one that has been due longest; nothing when none is.
  std::optional<ResourceId> TakeDue(uint64_t now_ns) {
    if (queue_.empty() || queue_.begin()->first > now_ns) return std::nullopt;
    return std::move(queue_.extract(queue_.begin()).mapped());
  }
  uint64_t next_ns() const { return queue_.empty() ? kNever : queue_.begin()->first; }

 private:
  std::multimap<uint64_t, ResourceId> queue_;  // by the time when they are due
};

}  // namespace cleat::control
