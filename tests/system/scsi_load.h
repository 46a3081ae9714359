// SPDX-License-Identifier: Apache-2.0
// Random, verified I/O by one guest on all disks behind a SCSI controller: reads and writes of all sizes, cache
// synchronisation, unmap and write same, on all queues, several at once; every block stamped and every read compared
// (perf/workload/verify.h). On the caller's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "perf/driver/scsi_driver.h"
#include "perf/workload/verify.h"

namespace cleat::system_test {

class ScsiLoad {
 public:
  // How many requests are in flight on each disk and queue, and how large they are at most.
  static constexpr uint32_t kDepth = 4;
  static constexpr uint32_t kBytesMax = 32 * 1024;

  // `blocks` says what each disk holds and outlives the load.
  ScsiLoad(perf::ScsiDriver& driver, uint64_t seed) : driver_(driver), random_(seed) {}

  Status AddDisk(uint8_t target, perf::StampedBlocks& blocks);
  // From now on the disk may disappear: a refusal ends the load on it instead of being an error.
  void ExpectGone(uint8_t target) { disks_.at(target)->may_go = true; }
  bool gone(uint8_t target) const { return disks_.at(target)->gone; }
  void RemoveDisk(uint8_t target);

  // This many requests, all of them answered at the end. An error is a request that failed, data that was wrong, a
  // driver that found the device at fault, or kUnavailable: the back end is gone.
  Status Run(uint64_t requests);
  // Everything on the disk, compared.
  Status Verify(uint8_t target);

  // Goes on until `work`, on a thread of its own, has returned, and gives its value; `result` says how the load went.
  template <typename Work>
  auto RunDuring(Work work, Status* result) {
    auto done = std::async(std::launch::async, work);
    *result = Ok{};
    do {
      *result = Run(kRoundRequests);
    } while (*result && done.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
    return done.get();
  }

 private:
  static constexpr uint64_t kRoundRequests = 64;
  enum class Op : uint8_t { kRead, kWrite, kZero, kSync };
  struct Disk {
    uint8_t target = 0;
    perf::StampedBlocks* blocks = nullptr;
    bool may_go = false;
    bool gone = false;
  };
  // One request at a time in a part of the disk of its own, so that no two are ever for the same block.
  struct Lane {
    Disk* disk = nullptr;
    uint16_t queue = 0;
    uint64_t first_block = 0;
    uint64_t block_count = 0;
    uint64_t buffer_gpa = 0;
    Op op = Op::kRead;
    uint64_t lba = 0;
    uint32_t blocks = 0;
    bool busy = false;
    bool again = false;  // the same once more: it met a unit attention
  };

  void Choose(Lane& lane);
  bool Submit(size_t index);
  Status Complete(const perf::ScsiCompletion& completion);
  Status Poll(uint32_t* busy);

  perf::ScsiDriver& driver_;
  Random random_;
  std::map<uint8_t, std::unique_ptr<Disk>> disks_;
  std::vector<Lane> lanes_;
  std::vector<uint64_t> free_buffers_;
};

}  // namespace cleat::system_test
