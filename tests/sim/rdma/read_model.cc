// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/read_model.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/check.h"
#include "base/random.h"

namespace cleat::sim::rdma {
namespace {

// (0, 1]
double Uniform(Random& random) {
  return static_cast<double>((random.Next() >> 11) + 1) * 0x1p-53;
}

class Model {
 public:
  Model(const Load& load, ReadPolicy& policy)
      : load_(load), policy_(policy), random_(load.seed), writes_(load.writes_under_way) {
    CLEAT_CHECK(load.in_order || load.link_ns == 0);
  }

  Outcome Run() {
    for (uint32_t i = 0; i < writes_.size(); ++i) {
      writes_[i].place = i;
      Begin(writes_[i]);
    }
    Post();
    while (latencies_ns_.size() < load_.writes) Step();
    Outcome outcome = Sum();
    begins_ = false;
    while (!completions_.empty()) Step();
    CLEAT_CHECK(outstanding_ == 0 && under_way_ == 0);
    return outcome;
  }

 private:
  struct Completion {
    uint64_t at_ns;
    uint64_t number;  // of the READ, as they were posted
    PostedRead read;
    bool operator>(const Completion& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };

  uint64_t DrawNs() {
    const auto mean = static_cast<double>(load_.mean_ns);
    const double factor =
        load_.law == LatencyLaw::kEven ? 0.7 + 0.6 * Uniform(random_) : -std::log(Uniform(random_));
    return 1 + static_cast<uint64_t>(mean * factor);
  }

  // What a READ will take is drawn when its write comes: the same for each policy.
  void Begin(Write& write) {
    ++under_way_;
    write.came_ns = now_ns_;
    write.completed = 0;
    write.read_ns.clear();
    const uint32_t reads = load_.mixed && random_.Chance(1, 2) ? 1 : load_.reads_a_write;
    for (uint32_t i = 0; i < reads; ++i) write.read_ns.push_back(DrawNs());
    policy_.Add(write);
  }

  void Post() {
    for (PostedRead read = policy_.Next(); read.write != nullptr; read = policy_.Next()) {
      ++outstanding_;
      CLEAT_CHECK(outstanding_ <= load_.credits && "one credit too many");
      uint64_t& read_ns = read.write->read_ns[read.index];
      CLEAT_CHECK(read_ns > 0 && "posted once");
      uint64_t at_ns = now_ns_ + read_ns;
      read_ns = 0;
      if (load_.in_order) at_ns = last_ns_ = std::max(at_ns, last_ns_) + load_.link_ns;
      if (load_.poll_ns > 0) at_ns = (at_ns + load_.poll_ns - 1) / load_.poll_ns * load_.poll_ns;
      completions_.push({at_ns, posted_++, read});
    }
  }

  // All that completes at one time is one look at the completion queue.
  void Step() {
    CLEAT_CHECK(!completions_.empty() && "no READ is posted while writes wait");
    const uint64_t at_ns = completions_.top().at_ns;
    if (measures_) outstanding_ns_ += outstanding_ * (at_ns - now_ns_);
    now_ns_ = at_ns;
    while (!completions_.empty() && completions_.top().at_ns == at_ns) {
      const PostedRead read = completions_.top().read;
      completions_.pop();
      Complete(read);
    }
    Post();
  }

  void Complete(const PostedRead& read) {
    --outstanding_;
    if (measures_) ++reads_;
    policy_.Completed(read);
    Write& write = *read.write;
    if (++write.completed < write.read_ns.size()) return;
    --under_way_;
    if (measures_) {
      latencies_ns_.push_back(now_ns_ - write.came_ns);
      if (write.read_ns.size() == 1) small_ns_.push_back(latencies_ns_.back());
    }
    // The writes that all come in the beginning are no usual load.
    if (!measures_ && ++skipped_ == 2 * load_.writes_under_way) {
      measures_ = true;
      begun_ns_ = now_ns_;
    }
    if (begins_) Begin(write);
  }

  Outcome Sum() {
    const auto took_ns = static_cast<double>(now_ns_ - begun_ns_);
    std::sort(latencies_ns_.begin(), latencies_ns_.end());
    std::sort(small_ns_.begin(), small_ns_.end());
    return {.credit_use_percent = 100 * static_cast<double>(outstanding_ns_) / (took_ns * load_.credits),
            .reads_per_ms = 1e6 * static_cast<double>(reads_) / took_ns,
            .p50_ns = latencies_ns_[latencies_ns_.size() / 2],
            .p99_ns = latencies_ns_[latencies_ns_.size() * 99 / 100],
            .small_p99_ns = small_ns_.empty() ? 0 : small_ns_[small_ns_.size() * 99 / 100]};
  }

  const Load& load_;
  ReadPolicy& policy_;
  Random random_;
  std::vector<Write> writes_;
  std::priority_queue<Completion, std::vector<Completion>, std::greater<>> completions_;
  std::vector<uint64_t> latencies_ns_, small_ns_;
  uint64_t now_ns_ = 0, last_ns_ = 0, begun_ns_ = 0, outstanding_ns_ = 0, posted_ = 0, reads_ = 0;
  uint32_t outstanding_ = 0, under_way_ = 0, skipped_ = 0;
  bool measures_ = false, begins_ = true;
};

}  // namespace

Outcome RunReads(const Load& load, ReadPolicy& policy) {
  return Model(load, policy).Run();
}

}  // namespace cleat::sim::rdma
