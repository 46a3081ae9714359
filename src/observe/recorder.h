// SPDX-License-Identifier: Apache-2.0
// Where a queue's requests are counted: each as it is answered (Ended), all together when the answers have been shown to
// the guest (Flush), for only then is known when that was. Requests that ended alike - same disk, operation, outcome and
// moments, as those of a batch do that the storage answers at once - are one run and cost one look at it.
//
// Belongs to a queue, on its reactor.
#pragma once

#include <array>
#include <cstdint>

#include "block/request.h"
#include "observe/cell.h"
#include "observe/reactor_sight.h"

namespace cleat::observe {

class Recorder {
 public:
  explicit Recorder(ReactorSight& sight) : sight_(sight) {}

  // `bytes`: of data, 0 when it failed.
  void Ended(Cell& cell, const block::Request& request, OpColumn op, uint64_t bytes, bool failed) {
    if constexpr (!block::kSight) return;
    if (runs_used_ > 0) [[likely]] {
      Run& run = runs_[runs_used_ - 1];
      if (run.cell == &cell && run.op == op && run.failed == failed && run.moments == request.moments)
          [[likely]] {
        ++run.count;
        run.bytes += bytes;
        return;
      }
    }
    Begin({&cell, op, failed, 1, bytes, request.offset_bytes, request.length_bytes, request.moments});
  }

  // The answers of all that has ended are in the used ring since `used_ns`; `called_ns`: when the guest was notified, 0 if
  // it was not.
  void Flush(uint64_t used_ns, uint64_t called_ns) {
    for (uint32_t i = 0; i < runs_used_; ++i) Write(runs_[i], used_ns, called_ns);
    runs_used_ = 0;
  }
  bool empty() const { return runs_used_ == 0; }

 private:
  // More than that in a batch, and the first ones are written without waiting for its end.
  static constexpr uint32_t kRunsMax = 16;
  struct Run {
    Cell* cell;
    OpColumn op;
    bool failed;
    uint64_t count;
    uint64_t bytes;
    uint64_t offset_bytes;  // of its first request
    uint64_t length_bytes;
    block::Moments moments;
  };
  void Begin(const Run& run);
  void Write(const Run& run, uint64_t used_ns, uint64_t called_ns);

  ReactorSight& sight_;
  uint32_t runs_used_ = 0;
  std::array<Run, kRunsMax> runs_;
};

}  // namespace cleat::observe
