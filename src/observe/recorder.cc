// SPDX-License-Identifier: Apache-2.0
#include "observe/recorder.h"

namespace cleat::observe {

void Recorder::Begin(const Run& run) {
  if (last_ == runs_.data() + kRunsMax) Flush(sight_.now_ns(), 0);
  *++last_ = run;
}

void Recorder::Write(const Run& run, uint64_t used_ns, uint64_t called_ns) {
  Cell& cell = *run.cell;
  const OpColumn op = run.op();
  cell.Count(op, run.count, run.bytes, run.failed() ? run.count : 0);
  const uint64_t seen_ns = run.moments.at_ns(block::Moment::kSeen);
  uint64_t last_ns = seen_ns;
  const auto record = [&](Stage stage, uint64_t at_ns) {
    if (at_ns == 0) return;
    cell.Record(op, stage, at_ns - last_ns, run.count);
    last_ns = at_ns;
  };
  for (size_t i = 1; i < block::kMoments; ++i) {
    record(static_cast<Stage>(i), run.moments.at_ns(static_cast<block::Moment>(i)));
  }
  record(Stage::kUsed, used_ns);
  record(Stage::kCalled, called_ns);
  cell.Record(op, Stage::kTotal, used_ns - seen_ns, run.count);
  if (used_ns - seen_ns >= sight_.slow_after_ns()) [[unlikely]] {
    sight_.LogSlow(cell, {.op = op,
                          .ended = true,
                          .failed = run.failed(),
                          .offset_bytes = run.offset_bytes,
                          .length_bytes = run.length_bytes,
                          .moments = run.moments,
                          .used_ns = used_ns,
                          .called_ns = called_ns});
  }
}

}  // namespace cleat::observe
