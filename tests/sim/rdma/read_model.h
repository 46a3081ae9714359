// SPDX-License-Identifier: Apache-2.0
// A queue pair of an RDMA adapter, as far as READs go, and a host that keeps so many writes under way: when which write has all of its data, in
// virtual time, by the policy that says which READ is posted next. What a READ takes does not depend on the others, but for their order and the link.
#pragma once

#include <cstdint>
#include <vector>

namespace cleat::sim::rdma {

// A write of which the target fetches the data.
struct Write {
  uint64_t came_ns = 0;
  std::vector<uint64_t> read_ns;  // of each of its READs: how long it takes once it is posted
  uint32_t completed = 0;         // of its READs
  uint32_t place = 0;             // among the writes under way
};

struct PostedRead {
  Write* write = nullptr;  // nullptr: none
  uint32_t index = 0;
};

// Says in which order READs are posted. Knows how many credits there are; the model checks that it keeps to them.
class ReadPolicy {
 public:
  virtual ~ReadPolicy() = default;
  virtual void Add(Write& write) = 0;
  // The next READ to post now.
  virtual PostedRead Next() = 0;
  // A READ is over.
  virtual void Completed(const PostedRead& read) = 0;
};

enum class LatencyLaw : uint8_t {
  kEven,         // uniform within 30 % of the mean
  kExponential,  // as over a network with queues
};

struct Load {
  LatencyLaw law = LatencyLaw::kEven;
  uint32_t credits = 16;
  uint32_t writes_under_way = 64;
  uint32_t reads_a_write = 8;
  uint64_t mean_ns = 10'000;
  // As on a reliable connection: READs complete in the order in which they were posted. Without: as they come.
  bool in_order = false;
  // How long the data of a READ occupies the link, one after the other; with in_order alone. 0: no time.
  uint64_t link_ns = 0;
  // Every other write, by chance, has one READ.
  bool mixed = false;
  // How often the target looks at its completions; 0: at once.
  uint64_t poll_ns = 0;
  uint32_t writes = 4'000;  // that are measured
  uint64_t seed = 1;
};

struct Outcome {
  double credit_use_percent = 0;  // READs outstanding of those that might have been, over time
  double reads_per_ms = 0;
  uint64_t p50_ns = 0, p99_ns = 0;  // from when a write came to when it has its data
  uint64_t small_p99_ns = 0;        // of writes with one READ, where there are any
};

// Each write that is whole is followed by the next one at once, so there are always as many under way. CLEAT_CHECKs that the policy keeps to the
// credits, posts each READ once, and leaves none behind.
Outcome RunReads(const Load& load, ReadPolicy& policy);

}  // namespace cleat::sim::rdma
