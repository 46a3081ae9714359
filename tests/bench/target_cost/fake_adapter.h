// SPDX-License-Identifier: Apache-2.0
// An adapter and a connection manager that cost next to nothing, for one host in the same process: a work is done when it is posted, and its completion is
// there at once. They check nothing (tests/support/rdma_fabric does). The data of WRITEs goes nowhere, as a disk that does nothing has none.
//
// One thread. Use: MakeFakeLibrary for the target, then Ask and SendCapsule for the host's part.
#pragma once

#include <sys/eventfd.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/fabrics/capsule.h"
#include "nvmf/rdma/adapters.h"
#include "rdma/connection_manager.h"

namespace cleat::bench {

// A queue of values that grows no more once it was full.
template <typename T>
class Ring {
 public:
  bool empty() const { return begin_ == end_; }
  void Push(const T& value) { values_[end_++ % values_.size()] = value; }
  T Pop() { return values_[begin_++ % values_.size()]; }

 private:
  std::vector<T> values_ = std::vector<T>(1U << 15);
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

struct FakeAdapter {
  Ring<rdma::Completion> completions;
  UniqueFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};  // of the completion queue
  bool armed = false;
  Ring<rdma::ReceiveWork> receives;
  std::vector<nvme::fabrics::CompletionEntry> answers;  // that went to the host
  rdma::ListenerOwner* listener_owner = nullptr;
  rdma::Listener* listener = nullptr;
  uint32_t accepted = 0;
  uint32_t pairs = 0;

  // A connect request of the host's; its queue pair is number pairs + 1.
  void Ask(std::span<const uint8_t> private_data);
  void SendCapsule(uint32_t pair, const nvme::fabrics::SubmissionEntry& entry);
};

inline constexpr const char* kFakeAddress = "192.0.2.1";
nvmf::RdmaLibrary MakeFakeLibrary(FakeAdapter& adapter);

std::unique_ptr<class BenchHost> MakeRdmaHost(FakeAdapter& adapter);

}  // namespace cleat::bench
