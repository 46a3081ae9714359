// SPDX-License-Identifier: Apache-2.0
// A host over RDMA, with a key for each read, which the answer invalidates, as Linux has it.
#include <array>
#include <cstring>

#include "nvme/rdma/connect_data.h"
#include "nvme/rdma/keyed_sgl.h"
#include "tests/bench/target_cost/bench_target.h"
#include "tests/bench/target_cost/fake_adapter.h"

namespace cleat::bench {
namespace {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;

class RdmaHost final : public BenchHost {
 public:
  explicit RdmaHost(FakeAdapter& adapter) : adapter_(adapter) {}

  void SendReads(uint32_t count) override {
    constexpr uint64_t kSomewhere = 1U << 20;
    for (uint32_t i = 0; i < count; ++i) {
      SubmissionEntry entry = ReadEntry(i);
      entry.data = nvme::rdma::EntryDescriptorOf(
          nvme::rdma::MakeKeyed(kSomewhere + uint64_t{i} * kReadBytes, kReadBytes, i + 1, true));
      adapter_.SendCapsule(pairs_[kIo], entry);
    }
  }
  uint32_t TakeAnswers() override {
    const auto count = static_cast<uint32_t>(adapter_.answers.size());
    for (const CompletionEntry& answer : adapter_.answers) {
      if (!answer.status().ok()) Fail("a read has failed");
    }
    adapter_.answers.clear();
    return count;
  }

 private:
  void Open(BenchTarget& target, uint16_t queue) override {
    constexpr uint32_t kAdminEntries = 32;
    const auto request = nvme::rdma::RequestOf(queue, queue == kAdmin ? kAdminEntries : kEntries, 0);
    const uint32_t before = adapter_.accepted;
    pairs_[queue] = adapter_.pairs + 1;
    adapter_.Ask({reinterpret_cast<const uint8_t*>(&request), sizeof(request)});
    target.Until([&] { return adapter_.accepted > before; });
  }
  CompletionEntry Do(BenchTarget& target, uint16_t queue, const SubmissionEntry& entry,
                     std::span<const uint8_t> data) override {
    SubmissionEntry keyed = entry;
    keyed.data = nvme::rdma::EntryDescriptorOf(nvme::rdma::MakeKeyed(
        reinterpret_cast<uint64_t>(data.data()), static_cast<uint32_t>(data.size()), 1, !data.empty()));
    adapter_.SendCapsule(pairs_[queue], keyed);
    target.Until([&] { return !adapter_.answers.empty(); });
    const CompletionEntry answer = adapter_.answers.front();
    adapter_.answers.clear();
    if (!answer.status().ok()) Fail("the target refuses what a host does to connect");
    return answer;
  }

  FakeAdapter& adapter_;
  std::array<uint32_t, 2> pairs_{};
};

}  // namespace

std::unique_ptr<BenchHost> MakeRdmaHost(FakeAdapter& adapter) {
  return std::make_unique<RdmaHost>(adapter);
}

}  // namespace cleat::bench
