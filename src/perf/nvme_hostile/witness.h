// SPDX-License-Identifier: Apache-2.0
// A host that keeps all rules, beside others that keep none: it writes and reads blocks of its own at the end of a namespace, stamped and
// checked (workload/verify.h), and says when the target was silent, failed a request or returned wrong data. Begin, Run and Recheck in
// that order, one thread at a time; Run's may be another one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "perf/nvme_tcp/controller.h"
#include "perf/workload/latency_histogram.h"
#include "perf/workload/verify.h"

namespace cleat::perf {

struct NvmeWitnessReport {
  uint64_t requests = 0;
  uint64_t errors = 0;  // of requests
  uint64_t verified_blocks = 0;
  uint64_t faults = 0;
  uint64_t longest_gap_ns = 0;  // between two answers, while requests were always in flight
  LatencyHistogram latency;
  std::string first_error;
  std::string first_fault;
  std::string ended;  // why it stopped before it should: the target serves no longer; or nothing
};

class NvmeWitness {
 public:
  static constexpr size_t kLanes = 4;                       // requests in flight, each on blocks of its own
  static constexpr uint64_t kBytesMax = uint64_t{4} << 20;  // of the namespace

  NvmeWitness(NvmeTcpOptions target, uint64_t seed);

  // Connects; the blocks are the last of the namespace, a quarter of it at most.
  Status Begin();
  const NvmeTcpController::Namespace& disk() const { return disk_; }
  const NvmeTcpController::Facts& facts() const { return controller_->facts(); }
  uint64_t first_block() const { return disk_.blocks - (stamps_->disk_bytes() / disk_.block_bytes); }

  // Until `stop`, or until the target serves no longer.
  void Run(const std::atomic<bool>& stop);
  // As a host that comes anew: everything that was written.
  void Recheck();

  const NvmeWitnessReport& report() const { return report_; }

 private:
  static constexpr uint32_t kRequestBlocksMax = 8;
  static constexpr uint32_t kStampBytesMin = 4096;

  struct Lane {
    wire::NvmeCommand entry{};
    NvmeAnswer answer;
    std::vector<uint8_t> data;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
    uint64_t sent_ns = 0;
    bool writes = false;
    bool in_flight = false;
  };

  Status Connect();
  Status Serve(const std::atomic<bool>& stop);
  Status ReadAll();
  void Send(uint16_t lane, uint64_t now_ns);
  void Take(uint16_t lane, uint64_t now_ns);
  void Check(uint64_t offset_bytes, std::span<const uint8_t> data);
  void NoteError(const NvmeAnswer& answer, const char* what, uint64_t offset_bytes);
  Status CheckPatience(uint64_t now_ns) const;

  const NvmeTcpOptions target_;
  Random random_;
  const MonotonicClock clock_;
  std::unique_ptr<NvmeTcpController> controller_;
  std::unique_ptr<NvmeTcpQueue> queue_;
  NvmeTcpController::Namespace disk_;
  std::optional<StampedBlocks> stamps_;
  std::array<Lane, kLanes> lanes_;
  uint64_t last_answer_ns_ = 0;
  NvmeWitnessReport report_;
};

}  // namespace cleat::perf
