// SPDX-License-Identifier: Apache-2.0
// A host of an export whose engines are exchanged: writes and reads blocks of its own over NVMe/TCP, compares what it reads, and says how long the
// longest silence between two answers was. A connection that ends, a request that fails and a block that is wrong are faults. Made, used and destroyed
// by one thread; the load has one of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "perf/nvme_tcp/controller.h"
#include "perf/nvme_tcp/queue.h"

namespace cleat::bench {

class ExportHost {
 public:
  struct Options {
    std::string address;
    std::string nqn;
    std::string host_nqn;
    uint16_t depth = 8;
    uint64_t pause_ns = 0;  // between two looks at the socket
  };
  static Result<std::unique_ptr<ExportHost>> Start(const Options& options);
  ~ExportHost();
  ExportHost(const ExportHost&) = delete;
  ExportHost& operator=(const ExportHost&) = delete;

  // Forgets the silences so far.
  void Mark() { longest_ns_.store(0); }
  // The longest silence since then, in milliseconds, once so many more requests were answered; what is wrong.
  Result<double> TakeGap(const std::atomic<bool>& stop);
  Status Stop();

 private:
  static constexpr uint32_t kBlockBytes = 4096;
  // A slot writes its block and then reads it, again and again, each time with the next number in it.
  struct Slot {
    perf::wire::NvmeCommand command{};
    perf::NvmeAnswer answer;
    std::vector<uint64_t> block = std::vector<uint64_t>(kBlockBytes / sizeof(uint64_t));
    uint64_t number = 0;
    bool reads = false;
  };

  explicit ExportHost(const Options& options) : options_(options) {}
  Status Open();
  void Prepare(uint16_t slot);
  void Run();
  Status Take(uint16_t slot);
  void Fault(Error error);

  const Options options_;
  const MonotonicClock clock_;
  std::unique_ptr<perf::NvmeTcpController> controller_;
  perf::NvmeTcpController::Namespace namespace_;
  std::unique_ptr<perf::NvmeTcpQueue> queue_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> longest_ns_{0};
  std::atomic<uint64_t> answered_{0};
  std::atomic<bool> ending_{false};
  Mutex mutex_;
  Status fault_ CLEAT_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cleat::bench
