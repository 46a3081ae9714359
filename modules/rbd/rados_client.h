// SPDX-License-Identifier: Apache-2.0
// One client of a Ceph cluster with a thread of its own ("rbd-N"), on which happens all that may block: connecting,
// opening images, locks, sizes. Closing begins there, and goes on beside the others. One after the other, so a cluster
// that hangs holds up the callers of its own clients and nobody else. I/O is submitted elsewhere (rbd_channel.h) and never
// waits.
//
// The thread takes its place (ClusterOptions::cpus) before librados is made, so that librados' and librbd's threads,
// which all descend from it, stay off the reactors' cores.
//
// Owned by the ClientPool and by those who use it; functions are for the control reactor unless they say otherwise.
// When the last owner lets go, the thread does what it was told, disconnects and ends by itself: nobody waits for it,
// so that one that hangs in Ceph keeps no process from ending.
#pragma once

#include <rados/librados.h>

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"
#include "modules/rbd/cluster_health.h"
#include "modules/rbd/rbd_cluster.h"
#include "modules/rbd/used_pools.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// The way from Ceph's threads to the control reactor, for as long as there is one.
class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  explicit ControlLink(Reactor& control) : control_(&control) {}
  // Any thread. After Cut no call is made any more, and whoever waits for one waits for ever: only at a process' end.
  void Post(std::function<void()> call);
  void Cut();  // control

  std::atomic<uint32_t> threads{0};  // of clients, that have not ended

 private:
  Mutex mutex_;
  Reactor* control_;  // changed under the mutex, on the control reactor, which alone reads it without
};

// What a client's thread works with, once it is connected.
struct RadosConnection {
  rados_t cluster = nullptr;
  std::string id;       // "client.4123": unique in the cluster for all time
  std::string address;  // "10.0.0.7:0/312": what is blocklisted
  std::shared_ptr<UsedPools> pools;
};

class RadosClient {
 public:
  RadosClient(std::shared_ptr<const ClusterOptions> cluster, std::shared_ptr<ControlLink> link,
              uint32_t number);
  ~RadosClient();
  RadosClient(const RadosClient&) = delete;
  RadosClient& operator=(const RadosClient&) = delete;

  template <typename T>
  using Work = std::function<Result<T>(const RadosConnection&)>;

  // auto result = co_await client.Run(work): does it on the client's thread, which connects first if need be (then an
  // error is that of connecting), and goes on here. What `work` refers to stays until it has run, which on a cluster
  // that hangs may be after everything else: let it hold references of its own.
  template <typename T>
  class Call {
   public:
    Call(RadosClient& client, Work<T> work)
        : client_(client), state_(std::make_shared<State>(std::move(work))) {}
    bool await_ready() const { return false; }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting) {
      state_->awaiting = awaiting;
      client_.Submit(
          [state = state_, link = client_.link_](const Result<RadosConnection>& connected) mutable {
            if (connected) {
              state->result.emplace(state->work(connected.value()));
            } else {
              state->result.emplace(connected.error());
            }
            state->work = nullptr;  // what it holds goes here, not on the reactor
            ControlLink& way = *link;
            way.Post([held = std::move(state)] { held->awaiting.resume(); });
          });
    }
    Result<T> await_resume() { return std::move(*state_->result); }

   private:
    struct State {
      explicit State(Work<T> w) : work(std::move(w)) {}
      Work<T> work;
      std::optional<Result<T>> result;
      std::coroutine_handle<> awaiting;
    };
    RadosClient& client_;
    std::shared_ptr<State> state_;
  };
  template <typename T>
  Call<T> Run(const Work<T>& work) {
    return {*this, work};
  }

  // Any thread; nobody waits. Not run at all when the client can't connect.
  void Post(std::function<void(const RadosConnection&)> work);

  // Asks the cluster's monitors, beside the client's thread: on one of its own, for as long as that takes, which may be until the
  // connect timeout. `answered` is called on control. The client is connected. False: no thread is to be had now.
  bool AskHealth(std::function<void(const Result<ClusterHealth>&)> answered);

  const ClusterOptions& cluster() const { return *cluster_; }
  const std::shared_ptr<ControlLink>& link() const { return link_; }
  uint32_t number() const { return number_; }

  // Any thread. Empty until it is connected.
  std::string id() const;
  bool failed() const;                  // it could not connect, and won't try again: make another
  std::set<std::string> pools() const;  // of its images that are open, or are being opened
  // How long the work under way has been; 0: none.
  uint64_t busy_ns() const;

  // The client was shut out of the cluster: nothing of it works any more, for good.
  bool blocklisted() const { return blocklisted_.load(std::memory_order_relaxed); }
  void SetBlocklisted() { blocklisted_.store(true, std::memory_order_relaxed); }

 private:
  using Job = std::function<void(const Result<RadosConnection>&)>;
  struct Core;
  void Submit(Job job);

  const std::shared_ptr<const ClusterOptions> cluster_;
  const std::shared_ptr<ControlLink> link_;
  const uint32_t number_;
  const std::shared_ptr<Core> core_;  // the thread's as well
  std::atomic<bool> blocklisted_{false};
};

// Threads of this process that are Ceph's or a client's, found by their names. Reads /proc; any thread.
uint32_t CountCephThreads();

}  // namespace cleat::modules
