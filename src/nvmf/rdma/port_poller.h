// SPDX-License-Identifier: Apache-2.0
// The poller of a port, which is what the queues of one reactor have of one RDMA adapter: it polls the port's completion queue as long as there is anything,
// and is woken by the queue's event else.
//
// Base of the ports of both ends. On the reactor, which outlives it, but for the constructor and SetCompletions.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/result.h"
#include "rdma/device.h"
#include "reactor/poller.h"
#include "reactor/reactor.h"

namespace cleat::nvmf {

class RdmaPortPoller : protected Poller {
 public:
  RdmaPortPoller(const RdmaPortPoller&) = delete;
  RdmaPortPoller& operator=(const RdmaPortPoller&) = delete;

  Reactor& reactor() const { return reactor_; }
  Status Start();
  void Stop();  // without queues
  // Queues may have something to post, or to be completed.
  void Wake() {
    woken_ = true;
    if (added()) reactor_.Activate(*this);
  }

  static constexpr uint32_t kPollMax = 128;  // completions of one turn, which are counted at its end

  // How much has been polled by now.
  struct Mark {
    uint64_t empty_polls = 0;
    uint64_t polled = 0;
  };
  Mark Now() const { return {empty_polls_, polled_}; }
  // What was in the completion queue at the mark has been polled: the queue was found empty since, or as many completions as it has room for have come.
  bool IsDrainedSince(const Mark& mark) const {
    return empty_polls_ > mark.empty_polls + 1 || polled_ - mark.polled >= completions_max_ + kPollMax;
  }

 protected:
  // `on_failed`: once, on the reactor, when the adapter does nothing any more.
  RdmaPortPoller(Reactor& reactor, std::function<void()> on_failed)
      : reactor_(reactor), on_failed_(std::move(on_failed)) {}
  ~RdmaPortPoller() override;
  // Ahead of Start. `completions`, of so many entries, stays until Stop.
  void SetCompletions(rdma::CompletionQueue& completions, uint32_t entries);
  // For Poll: so many completions were there. Returns whether there were any.
  bool Count(uint32_t polled);
  void Fail();

 private:
  struct Watch : FdWatch {
    explicit Watch(RdmaPortPoller& p) : FdWatch(&OnEvent), poller(p) {}
    static void OnEvent(FdWatch& watch, uint32_t events);
    RdmaPortPoller& poller;
  };
  bool Arm() final;

  Reactor& reactor_;
  std::function<void()> on_failed_;  // nullptr: it was called
  rdma::CompletionQueue* completions_ = nullptr;
  uint32_t completions_max_ = 0;
  uint64_t empty_polls_ = 0;
  uint64_t polled_ = 0;
  bool woken_ = false;  // since Arm was begun
  Watch watch_{*this};
};

}  // namespace cleat::nvmf
