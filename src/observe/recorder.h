// SPDX-License-Identifier: Apache-2.0
// Where a queue's requests are counted: each as it is answered (Ended), all together when the answers have been shown to
// the guest (Flush), for only then is known when that was. Requests that ended alike - same disk, operation, outcome and
// stamps, as those of a batch do that the storage answers at once - are one run and cost one look at it.
//
// Belongs to a queue, on its reactor.
#pragma once

#include <array>
#include <cstdint>

#include "block/request.h"
#include "observe/disk_counters.h"
#include "observe/reactor_counters.h"

namespace cleat::observe {

class Recorder {
 public:
  explicit Recorder(ReactorCounters& counters) : counters_(counters) {}

  // `bytes`: of data, 0 when it failed.
  void Ended(DiskCounters& disk, const block::Request& request, OpColumn op, uint64_t bytes, bool failed) {
    if constexpr (!block::kCountersOn) return;
    Run& run = *last_;
    if (run.disk == &disk && run.kind == KindOf(op, failed) && run.stamps.SameAs(request.stamps)) [[likely]] {
      ++run.count;
      run.bytes += bytes;
      return;
    }
    Begin({&disk, KindOf(op, failed), 1, bytes, request.offset_bytes, request.length_bytes, request.stamps});
  }

  // The answers of all that has ended are in the used ring since `used_ns`; `called_ns`: when the guest was notified, 0 if
  // it was not.
  void Flush(uint64_t used_ns, uint64_t called_ns) {
    for (Run* run = runs_.data() + 1; run <= last_; ++run) Write(*run, used_ns, called_ns);
    last_ = runs_.data();
  }
  bool empty() const { return last_ == runs_.data(); }

 private:
  // More than that in a batch, and the first ones are written without waiting for its end.
  static constexpr uint32_t kRunsMax = 16;
  static constexpr uint32_t KindOf(OpColumn op, bool failed) {
    return static_cast<uint32_t>(op) << 1 | (failed ? 1 : 0);
  }
  struct Run {
    DiskCounters* disk = nullptr;
    uint32_t kind = 0;
    uint64_t count = 0;
    uint64_t bytes = 0;
    uint64_t offset_bytes = 0;  // of its first request
    uint64_t length_bytes = 0;
    block::StageStamps stamps;

    OpColumn op() const { return static_cast<OpColumn>(kind >> 1); }
    bool failed() const { return (kind & 1) != 0; }
  };
  void Begin(const Run& run);
  void Write(const Run& run, uint64_t used_ns, uint64_t called_ns);

  ReactorCounters& counters_;
  std::array<Run, 1 + kRunsMax> runs_;  // the first is nobody's: no request ended as it did
  Run* last_ = runs_.data();
};

}  // namespace cleat::observe
