// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/read_policies.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "nvme/rdma_target/read_scheduler.h"

namespace cleat::sim::rdma {
namespace {

namespace target = nvme::rdma_target;

class CleatPolicy : public ReadPolicy {
 public:
  explicit CleatPolicy(const Load& load)
      : scheduler_(load.credits), requests_(load.writes_under_way), queue_(scheduler_, load.credits) {}

  void Add(Write& write) override {
    Request& request = requests_[write.place];
    request.write = &write;
    queue_.Add(request, static_cast<uint32_t>(write.read_ns.size()));
  }
  PostedRead Next() override {
    target::Read read;
    if (!scheduler_.Next(read)) return {};
    return {static_cast<Request*>(read.request)->write, read.index};
  }
  void Completed(const PostedRead& read) override {
    scheduler_.Completed(requests_[read.write->place], true);
  }

 private:
  struct Request : target::ReadRequest {
    Write* write = nullptr;
  };
  target::ReadScheduler scheduler_;
  std::vector<Request> requests_;
  target::ReadQueue queue_;
};

class OraclePolicy final : public CleatPolicy {
 public:
  explicit OraclePolicy(const Load& load) : CleatPolicy(load), order_(load.writes_under_way) {}

  void Add(Write& write) override {
    std::vector<uint32_t>& order = order_[write.place];
    order.resize(write.read_ns.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return write.read_ns[a] > write.read_ns[b]; });
    CleatPolicy::Add(write);
  }
  PostedRead Next() override {
    const PostedRead read = CleatPolicy::Next();
    if (read.write == nullptr) return read;
    return {read.write, order_[read.write->place][read.index]};
  }

 private:
  std::vector<std::vector<uint32_t>> order_;  // of each write's READs
};

// Policies that have a queue of writes, and post a number of the first one's READs together.
class RequestPolicy : public ReadPolicy {
 public:
  explicit RequestPolicy(const Load& load) : states_(load.writes_under_way), free_(load.credits) {}

  void Add(Write& write) override {
    states_[write.place] = {};
    waiting_.push_back(&write);
  }

  PostedRead Next() override {
    if (left_of_batch_ == 0 && !BeginBatch()) return {};
    --left_of_batch_;
    --free_;
    State& state = states_[batch_->place];
    ++state.outstanding;
    return {batch_, state.next++};
  }

  void Completed(const PostedRead& read) override {
    ++free_;
    State& state = states_[read.write->place];
    if (--state.outstanding == 0 && state.next < read.write->read_ns.size()) PartCame(*read.write);
  }

 protected:
  struct State {
    uint32_t next = 0;  // READ that is posted next
    uint32_t outstanding = 0;
  };

  // How many READs of the first write, which has `rest` left, are posted now; `free`, at least 1, are the credits.
  virtual uint32_t BatchOf(const Write& first, uint32_t rest, uint32_t free) = 0;
  // All READs of a part have come, and there is a rest.
  virtual void PartCame(Write& write) = 0;
  // Does a write of which a part is posted stay the first one?
  virtual bool StaysFirst() const = 0;

  State& state(const Write& write) { return states_[write.place]; }
  std::deque<Write*> waiting_;

 private:
  bool BeginBatch() {
    if (waiting_.empty() || free_ == 0) return false;
    Write* const first = waiting_.front();
    const auto rest = static_cast<uint32_t>(first->read_ns.size()) - states_[first->place].next;
    const uint32_t count = BatchOf(*first, rest, free_);
    if (count == 0) return false;
    CLEAT_CHECK(count <= rest && count <= free_);
    batch_ = first;
    left_of_batch_ = count;
    if (count == rest || !StaysFirst()) waiting_.pop_front();
    return true;
  }

  std::vector<State> states_;
  uint32_t free_;
  Write* batch_ = nullptr;
  uint32_t left_of_batch_ = 0;
};

class WholeRequestsPolicy final : public RequestPolicy {
 public:
  explicit WholeRequestsPolicy(const Load& load) : RequestPolicy(load) {
    CLEAT_CHECK(load.reads_a_write <= load.credits && "else nothing would ever go");
  }

 private:
  uint32_t BatchOf(const Write& /*first*/, uint32_t rest, uint32_t free) override {
    return rest <= free ? rest : 0;
  }
  void PartCame(Write& /*write*/) override { CLEAT_CHECK(false); }
  bool StaysFirst() const override { return true; }
};

// RDMA_REQUEST_STATE_DATA_TRANSFER_TO_CONTROLLER_PENDING in lib/nvmf/rdma.c.
class SpdkPolicy final : public RequestPolicy {
 public:
  using RequestPolicy::RequestPolicy;

 private:
  uint32_t BatchOf(const Write& first, uint32_t rest, uint32_t free) override {
    return state(first).outstanding > 0 ? 0 : std::min(rest, free);
  }
  void PartCame(Write& /*write*/) override {}
  bool StaysFirst() const override { return true; }
};

class ReordersPolicy final : public RequestPolicy {
 public:
  using RequestPolicy::RequestPolicy;

 private:
  uint32_t BatchOf(const Write& /*first*/, uint32_t rest, uint32_t free) override {
    return std::min(rest, free);
  }
  void PartCame(Write& write) override { waiting_.push_back(&write); }
  bool StaysFirst() const override { return false; }
};

}  // namespace

const char* NameOf(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kCleat:
      return "cleat";
    case PolicyKind::kWholeRequests:
      return "whole";
    case PolicyKind::kSpdk:
      return "spdk";
    case PolicyKind::kReorders:
      return "reorders";
    case PolicyKind::kOracle:
      return "oracle";
  }
  return "";
}

std::unique_ptr<ReadPolicy> MakePolicy(PolicyKind kind, const Load& load) {
  switch (kind) {
    case PolicyKind::kCleat:
      return std::make_unique<CleatPolicy>(load);
    case PolicyKind::kWholeRequests:
      return std::make_unique<WholeRequestsPolicy>(load);
    case PolicyKind::kSpdk:
      return std::make_unique<SpdkPolicy>(load);
    case PolicyKind::kReorders:
      return std::make_unique<ReordersPolicy>(load);
    case PolicyKind::kOracle:
      return std::make_unique<OraclePolicy>(load);
  }
  return nullptr;
}

}  // namespace cleat::sim::rdma
