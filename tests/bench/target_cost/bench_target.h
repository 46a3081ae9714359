// SPDX-License-Identifier: Apache-2.0
// The engine's target with a disk that does nothing, in virtual time: a control reactor and an I/O reactor on the caller's thread, and one host, which
// sends reads of 4 KiB. CountedTurn is the one function in which instructions are counted; what it calls of the host's side is left out.
//
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "block/pipeline.h"
#include "nvme/fabrics/capsule.h"
#include "nvmf/rdma/adapters.h"
#include "nvmf_target/target_service.h"
#include "observe/engine_counters.h"
#include "reactor/reactor.h"
#include "reactor/task.h"

namespace cleat::bench {

inline constexpr const char* kNqn = "nqn.2024-01.com.example:cost";
inline constexpr uint32_t kReadBytes = 4096;
inline constexpr uint32_t kEntries = 128;  // of the I/O queue, as Linux asks for

// Stands still until it is told to advance, and counts who looks.
class BenchClock final : public Clock {
 public:
  uint64_t NowNs() const override;
  void AdvanceBy(uint64_t ns) { now_ns_ += ns; }
  uint64_t readings() const { return readings_; }

 private:
  uint64_t now_ns_ = kNsPerSecond;
  mutable uint64_t readings_ = 0;
};

class BenchTarget {
 public:
  static constexpr uint64_t kTurnNs = 1000;

  // `address`: at which it serves its host, with the transport.
  BenchTarget(const std::string& address, nvmf::RdmaLibrary library);
  ~BenchTarget();
  BenchTarget(const BenchTarget&) = delete;
  BenchTarget& operator=(const BenchTarget&) = delete;

  // Both reactors, outside of what is counted, until `done`.
  void Until(const std::function<bool()>& done);
  // One turn of the I/O reactor.
  void CountedTurn();

  uint64_t busy_turns() const { return busy_turns_; }
  const BenchClock& clock() const { return clock_; }
  static nvme::fabrics::HostIdentity Host() { return nvme::fabrics::HostIdentityOfUuid({7, 7, 1}); }

 private:
  template <typename T>
  static Task<void> Keep(Task<T> task, bool& done) {
    (void)co_await std::move(task);
    done = true;
  }
  template <typename T>
  void Await(Task<T> task) {
    bool done = false;
    control_->PostCall([&] { Spawn(Keep(std::move(task), done)); });
    Until([&] { return done; });
  }
  Task<bool> Open();
  Task<bool> Close();
  void AddSubsystem(const std::string& address);

  BenchClock clock_;
  uint64_t busy_turns_ = 0;
  std::unique_ptr<Reactor> control_;
  std::unique_ptr<Reactor> io_;
  std::unique_ptr<observe::EngineCounters> counters_;
  std::unique_ptr<nvmf::RdmaAdapters> adapters_;
  std::unique_ptr<nvmf_target::TargetService> service_;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<observe::DiskCounters> disk_counters_;
  std::unique_ptr<block::PipelineChannel> channel_;
};

// A host with an admin queue and one I/O queue. Its I/O queue has no more of an adapter or of the kernel than memory of this process.
class BenchHost {
 public:
  static constexpr uint16_t kAdmin = 0;
  static constexpr uint16_t kIo = 1;

  virtual ~BenchHost() = default;
  // Connects both queues.
  void Connect(BenchTarget& target, bool flow_control);
  // A whole batch of reads is there for the target's next turn.
  virtual void SendReads(uint32_t count) = 0;
  // Requests that were answered with success since the last call.
  virtual uint32_t TakeAnswers() = 0;

 protected:
  // A connection for that queue.
  virtual void Open(BenchTarget& target, uint16_t queue) = 0;
  // Sends the command with `data` and waits for its answer.
  virtual nvme::fabrics::CompletionEntry Do(BenchTarget& target, uint16_t queue,
                                            const nvme::fabrics::SubmissionEntry& entry,
                                            std::span<const uint8_t> data) = 0;
  // From here on the I/O queue is in memory.
  virtual void Begin() {}
};

std::unique_ptr<BenchHost> MakeTcpHost(uint16_t port);

// `number`: which read of a batch.
nvme::fabrics::SubmissionEntry ReadEntry(uint32_t number);
[[noreturn]] void Fail(const std::string& why);

}  // namespace cleat::bench
