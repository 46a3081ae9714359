// SPDX-License-Identifier: Apache-2.0
#include "observe/recorder.h"

#include "base/no_stack_buffer.h"

namespace cleat::observe {

void Recorder::Begin(const Run& run) {
  if (last_ == runs_.data() + kRunsMax) Flush(counters_.now_ns(), 0);
  *++last_ = run;
}

CLEAT_NO_STACK_BUFFER void Recorder::Write(const Run& run, uint64_t used_ns, uint64_t called_ns) {
  DiskCounters& disk = *run.disk;
  const OpColumn op = run.op();
  disk.Count(op, run.count, run.bytes, run.failed() ? run.count : 0);
  const uint64_t seen_ns = run.stamps.at_ns(RequestStage::kSeen);
  uint64_t last_ns = seen_ns;
  const auto record = [&](RequestStage stage, uint64_t at_ns) {
    if (at_ns == 0) return;
    disk.Record(op, stage, at_ns - last_ns, run.count);
    last_ns = at_ns;
  };
  for (size_t i = 1; i < kCarriedStages; ++i) {
    record(static_cast<RequestStage>(i), run.stamps.at_ns(static_cast<RequestStage>(i)));
  }
  record(RequestStage::kUsed, used_ns);
  record(RequestStage::kCalled, called_ns);
  disk.Record(op, RequestStage::kTotal, used_ns - seen_ns, run.count);
  if (used_ns - seen_ns >= counters_.slow_after_ns()) [[unlikely]] {
    counters_.LogSlow(disk, {.op = op,
                             .ended = true,
                             .failed = run.failed(),
                             .offset_bytes = run.offset_bytes,
                             .length_bytes = run.length_bytes,
                             .stamps = run.stamps,
                             .used_ns = used_ns,
                             .called_ns = called_ns});
  }
}

}  // namespace cleat::observe
