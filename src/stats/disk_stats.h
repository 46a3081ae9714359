// SPDX-License-Identifier: Apache-2.0
// An engine's counters by disk, and as the API's messages: what cleatd and `cleatctl --engine` have in common. An
// engine counts for each disk and reactor; here a disk's reactors are added up. Pure functions of what a reader finds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleat/v1/cleat.pb.h"
#include "observe/reader.h"

namespace cleat::stats {

// One disk of one controller, over all reactors that serve it.
struct DiskSeen {
  std::string controller;  // resource names
  std::string disk;
  uint32_t target = 0;
  uint64_t since_ns = 0;              // of the oldest of its cells
  std::vector<observe::OpCount> ops;  // by op_names()
  uint64_t in_flight = 0;
  // The oldest request in flight; seen_ns is 0 when there is none.
  observe::OldestSeen oldest;
  uint64_t age_ns = 0;        // of the oldest
  uint64_t stage_age_ns = 0;  // ... in its stage
  std::vector<observe::CellSeen> cells;
};

// By controller and target. `now_ns`: CLOCK_MONOTONIC. A request's age is as of its reactor's last look; as of now when
// that was too long ago for a reactor that runs.
std::vector<DiskSeen> DisksOf(const observe::SegmentReader& reader, uint64_t now_ns,
                              observe::SegmentReader::Which which = observe::SegmentReader::Which::kAll);

// Whether some disk may have a request in flight that is slow, by what the reactors say of all theirs: false costs a
// read for each reactor, however many disks there are.
bool MayHaveSlow(const observe::SegmentReader& reader, uint64_t now_ns);

// [op][stage]; empty when the disk has been detached meanwhile.
std::vector<std::vector<observe::Histogram>> HistogramsOf(const observe::SegmentReader& reader,
                                                          const DiskSeen& disk);

// Whether a request's name ("" for all) means this disk.
bool Matches(std::string_view name, std::string_view engine_name, const DiskSeen& disk);

v1::DiskStats ToApi(const observe::SegmentReader& reader, const DiskSeen& disk, bool histograms);
// Without `connected`.
v1::EngineStats EngineOf(const observe::SegmentReader& reader);

// Whether the duration of a stage is a part of the request's: not of the whole itself, nor after the answer.
bool IsPart(std::string_view stage);

}  // namespace cleat::stats
