// SPDX-License-Identifier: Apache-2.0
// A guest's load on a disk whose back end is killed again and again, and the judge of what the back ends made of it:
// writes of stamped blocks at depth on all queues, reads that compare, flushes. The guest knows nothing of the deaths:
// its requests stay in the rings, nothing is submitted again.
//
// What it finds fault with:
//   data      a read that shows anything but the last acknowledged write of each block (perf/workload/verify.h). After each
//             death everything is read again. What a device promises to write as a whole is one logical block, and that
//             is the model's block: it may be old or new while its write is unacknowledged, never in between.
//   lost      a request that is not answered within a limit although a back end is there
//   rings     an answer to what was not asked or was answered before, a request that a stopped device had begun and left, or any other breach of
//             a ring's rules
//   failed    an answer that is an error
//   front end the back end closed the handshake for good, or refused a message
//
// The model wants one writer a block: each request in flight has a lane, a part of the disk of its own, in which a few
// blocks are written far more often than others, so that a write that runs once more after its acknowledgement meets a
// newer one. A lane uses two buffers in turns for the same reason: a late second run would find the old data in memory.
//
// Owned by a test, which keeps port and model alive. Start and Stop give and take the driver to a thread of its own; the
// rest of the public functions are for the owner's thread meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "perf/driver/disk_port.h"
#include "perf/workload/gap_meter.h"
#include "perf/workload/verify.h"

namespace cleat::perf {

struct CrashLoadOptions {
  uint64_t seed = 1;
  uint32_t depth = 8;                  // requests in flight on each queue
  bool only_reads_and_writes = false;  // no flushes, no write zeroes
  uint32_t bytes_max = 32 * 1024;
  // From filling the queues until what was answered is taken: many guests are not to take all of the machine.
  uint64_t pause_ns = 0;
  // Before so many of a hundred requests the pages of their buffer go back to the host, as a balloon's do, and the request uses new ones.
  uint32_t give_back_percent = 0;
  uint64_t lost_after_ns = 60 * kNsPerSecond;  // without an answer, since there is a back end
};

enum class CrashFault : uint8_t { kData, kLost, kRings, kFailed, kFrontEnd };
const char* CrashFaultName(CrashFault fault);

struct CrashFinding {
  CrashFault fault = CrashFault::kData;
  std::string text;
};

class CrashLoad {
 public:
  static constexpr size_t kFindingsMax = 16;  // kept; more are only counted

  struct Counts {
    uint64_t requests = 0;  // answered
    uint64_t writes = 0;    // of those; zeroes as well
    uint64_t blocks_compared = 0;
    uint64_t reconnects = 0;
    uint64_t in_flight = 0;   // at reconnects, summed up: what had to be answered by a successor
    uint64_t resets = 0;      // of the device, by the guest
    uint64_t given_back = 0;  // buffers
    uint64_t findings = 0;
  };

  CrashLoad(DiskPort& port, StampedBlocks& blocks, const CrashLoadOptions& options = {});
  ~CrashLoad();  // Stop()
  CrashLoad(const CrashLoad&) = delete;
  CrashLoad& operator=(const CrashLoad&) = delete;

  Status Start();
  // Completes what is in flight, compares the whole disk, ends the thread. To be told with a back end there.
  void Stop();

  // Until that many more requests were answered; false when the load has ended or `timeout_ns` has passed before.
  bool WaitProgress(uint64_t requests, uint64_t timeout_ns);
  // Of an event: to be taken when the old back end is dead, and waited for when a new one is started. Recovered means:
  // a new back end was connected to since, all that was in flight then has been answered (or found lost), and the
  // whole disk was compared.
  uint64_t Mark() const { return reconnects_.load(); }
  bool WaitRecovered(uint64_t mark, uint64_t timeout_ns);

  // The guest resets its device under load, as soon as a back end is there: what the device has begun is answered, what it has not is
  // asked for once more, and everything goes on in empty rings. Then the whole disk is compared.
  void AskReset() { reset_ = true; }
  // From now on: see CrashLoadOptions.
  void SetGiveBackPercent(uint32_t percent) { give_back_percent_ = percent; }

  GapMeter& gaps() { return gaps_; }
  Counts counts() const;
  std::vector<CrashFinding> findings() const;

 private:
  struct Lane {
    uint16_t queue = 0;
    uint64_t first_byte = 0;
    uint64_t bytes = 0;
    std::array<uint64_t, 2> buffers{};
    uint32_t next_buffer = 0;
    DiskRequest request;
    bool prepared = false;   // `request` is to be submitted
    bool comparing = false;  // `request` is one of those that read everything
    bool busy = false;
    bool lost = false;
    bool before_reconnect = false;  // it was in flight then
    uint64_t since_ns = 0;          // on the clock of our patience, when it was submitted
    uint64_t compare_from = 0;      // everything from here on is to be read and compared
  };

  Status Prepare();
  void Run();
  bool Step();  // false: ended
  uint32_t SubmitAll(bool stopping);
  bool PrepareNext(Lane& lane, bool stopping);
  void PrepareCompare(Lane& lane);
  void PrepareRandom(Lane& lane);
  bool Reset();  // false: ended
  void ReapAll();
  void Reap(uint16_t queue);
  void GiveBack(Lane& lane);
  void Complete(const DiskAnswer& answer, uint64_t now_ns);
  void Judge(Lane& lane, const DiskAnswer& answer);
  void NoticeReconnect();
  void CompareEverything();
  void AdvancePatience();
  void FindLost();
  bool Recovered() const;
  void Publish(uint64_t answered);
  void Find(CrashFault fault, std::string text);
  std::string Describe(const Lane& lane) const;

  DiskPort& port_;
  StampedBlocks& blocks_;
  const CrashLoadOptions options_;
  const MonotonicClock clock_;
  Random random_;
  std::vector<Lane> lanes_;
  uint64_t epoch_ = 0;     // reconnects seen
  uint64_t epoch_ns_ = 0;  // on the clock of our patience
  // Stands still while this thread is kept from looking, so that a busy machine is not taken for a lost request.
  uint64_t patience_ns_ = 0;
  uint64_t looked_ns_ = 0;
  bool last_compare_ = false;
  uint64_t written_ = 0;
  uint64_t compared_ = 0;
  uint64_t in_flight_ = 0;
  GapMeter gaps_;
  uint64_t resets_ = 0;
  uint64_t given_back_ = 0;
  std::atomic<uint64_t> reconnects_{0};
  std::atomic<bool> reset_{false};
  std::atomic<uint32_t> give_back_percent_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool running_ CLEAT_GUARDED_BY(mutex_) = false;
  uint64_t recovered_ CLEAT_GUARDED_BY(mutex_) = 0;  // the last reconnect that all is well after
  Counts counts_ CLEAT_GUARDED_BY(mutex_);
  std::vector<CrashFinding> findings_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::perf
