// SPDX-License-Identifier: Apache-2.0
// What an engine shows of its work: a segment of shared memory that its reactors write and that anybody who has its
// descriptor reads, without asking and without being noticed. This header is the format; it depends on nothing but the
// order of the stages, since readers live in other processes and may be of another version.
//
//   SegmentHeader | reactors: ReactorHead each | slow requests: a ring for each reactor | cells
//
// A cell is a disk of a controller on one reactor: names, counters for each operation, what is in flight, and the
// histograms. One thread writes each part (a cell's names: the engine's control reactor, before it is in use and after),
// with relaxed atomic stores; a reader may see one counter newer than another.
//
// Read it with pread, not through a mapping: looking at a page of a memfd that was never written allocates it.
//
// Versions: `layout_version` changes when a reader of before would read nonsense. What may grow without that - operations,
// stages, buckets, a longer head - is described by the header: take counts, names and offsets from there, not from the
// constants here. All numbers are in the machine's byte order; all times are CLOCK_MONOTONIC.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/request_stage.h"

namespace cleat::observe {

inline constexpr uint64_t kMagic = 0x5354415445414c43;  // "CLEATATS"
inline constexpr uint32_t kLayoutVersion = 1;

inline constexpr uint32_t kNameBytes = 96;   // resource names, terminated
inline constexpr uint32_t kLabelBytes = 24;  // of operations and stages, terminated
inline constexpr uint32_t kOpsMax = 16;
inline constexpr uint32_t kStagesMax = 16;

// A table: `count` entries of `stride_bytes`, the first at `offset_bytes` of the segment.
struct Table {
  uint64_t offset_bytes;
  uint64_t stride_bytes;
  uint64_t count;
};

struct SegmentHeader {
  uint64_t magic;  // written last: the segment is whole
  uint32_t layout_version;
  uint32_t header_bytes;
  uint64_t segment_bytes;
  uint64_t started_ns;
  uint64_t process;  // the engine's process id
  uint64_t incarnation;
  uint64_t slow_after_ns;  // a request is slow from this age on
  char engine[kNameBytes];
  Table reactors;
  Table slow_rings;          // one for each reactor ...
  uint64_t slow_ring_count;  // ... of so many SlowEntry, `slow_entry_bytes` apart
  uint64_t slow_entry_bytes;
  Table cells;
  uint64_t cells_used;  // cells from here on were never used
  // In a cell: OpCounters[op_count] at counters_offset_bytes; the histograms' counts at histograms_offset_bytes, as
  // uint64_t[group_count][op_count][stage_count][group_buckets]. See histogram.h for what a bucket is. The groups are
  // outermost because a disk's latencies lie in a few of them: the others' pages are never touched and cost nothing.
  uint64_t counters_offset_bytes;
  uint64_t counters_stride_bytes;
  uint64_t histograms_offset_bytes;
  uint32_t op_count;
  uint32_t stage_count;
  uint32_t group_count;
  uint32_t group_buckets;
  char op_names[kOpsMax][kLabelBytes];
  char stage_names[kStagesMax][kLabelBytes];
};

// A stage (RequestStage) is a place in stage_names, in each row of the histograms, and in the times of a slow request.
inline constexpr uint32_t kMoments = 9;  // all stages but kTotal have a time
inline constexpr uint32_t kStageCount = 10;
static_assert(kMoments == static_cast<uint32_t>(RequestStage::kTotal) && kStageCount == kMoments + 1);
inline constexpr char kStageNames[kStageCount][kLabelBytes] = {
    "seen", "fetched", "qos_out", "crypto_out", "submitted", "done", "crypto_in", "used", "called", "total"};

enum class OpColumn : uint32_t { kRead, kWrite, kFlush, kDiscard, kWriteZeroes, kCompareAndWrite, kOther };
inline constexpr uint32_t kOpCount = 7;
// "other": what the storage is not asked for (INQUIRY, say), and what was refused.
inline constexpr char kOpNames[kOpCount][kLabelBytes] = {
    "read", "write", "flush", "discard", "write_zeroes", "compare_and_write", "other"};

inline constexpr uint64_t kNothingInFlight = ~uint64_t{0};

struct ReactorHead {
  char name[32];
  uint64_t scanned_ns;    // its last look at what is in flight; there are some a second while anything is
  uint64_t slow_written;  // slow requests so far; entry n is at [n % slow_ring_count]
  // When the oldest of what was in flight at that look was seen, or kNothingInFlight: who looks for what is slow need
  // not read thousands of cells. 0: an engine that does not tell.
  uint64_t oldest_ns;
};

struct OpCounters {
  uint64_t requests;
  uint64_t bytes;
  uint64_t errors;
};

// Guarded by a sequence number: odd while it is written. A reader copies, and does so again when the number was odd or
// has changed.
struct OldestRequest {
  uint64_t sequence;
  uint64_t scanned_ns;  // older than its reactor's: nothing was in flight at the last scan
  uint64_t seen_ns;
  uint64_t in_flight;
  uint32_t op;
  uint32_t stage;  // the last one that it has reached
  uint64_t offset_bytes;
  uint64_t length_bytes;
  uint64_t stage_ns;  // since when it is there
};

struct CellHead {
  uint64_t
      generation;  // odd: nobody's, or being changed; even: in use, and names and numbers are of one disk
  uint32_t target;
  uint32_t reactor;
  char controller[kNameBytes];
  char disk[kNameBytes];
  uint64_t since_ns;
  OldestRequest oldest;  // of the last scan, a quarter of a second ago at most
};

struct SlowEntry {
  uint64_t sequence;  // 2 n + 2 when entry n is whole; odd while it is written
  char controller[kNameBytes];
  char disk[kNameBytes];
  uint32_t target;
  uint32_t op;
  uint32_t ended;  // 0: still in flight when it was noticed
  uint32_t failed;
  uint64_t offset_bytes;
  uint64_t length_bytes;
  uint64_t noticed_ns;
  uint64_t moments_ns[kMoments];  // by RequestStage; 0: it did not come there
};

}  // namespace cleat::observe
