// SPDX-License-Identifier: Apache-2.0
#include "observe/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "observe/histogram.h"

namespace cleat::observe {
namespace {

// What a segment can't reasonably exceed, so that a broken header costs no memory here.
constexpr uint64_t kReactorsMax = 1024;
constexpr uint64_t kCellsReadMax = uint64_t{1} << 20;
constexpr uint64_t kSlowRingMax = uint64_t{1} << 16;
constexpr uint32_t kGroupsMax = 64;
constexpr uint64_t kCountersEndMax = uint64_t{1} << 16;  // in a cell
constexpr int kTriesMax = 8;                             // of a copy that was written in the middle

std::string TextOf(const char* text, size_t bytes_max) {
  return {text, strnlen(text, bytes_max)};
}

bool TableFits(const Table& table, uint64_t entry_bytes, uint64_t count_max, uint64_t segment_bytes) {
  if (table.count > count_max || table.stride_bytes < entry_bytes) return false;
  if (table.stride_bytes > segment_bytes || table.offset_bytes > segment_bytes) return false;
  return table.count <= (segment_bytes - table.offset_bytes) / table.stride_bytes;
}

bool IsSane(const SegmentHeader& header) {
  const uint64_t whole = header.segment_bytes;
  const uint64_t stride = header.cells.stride_bytes;
  if (header.header_bytes < sizeof(SegmentHeader)) return false;
  if (!TableFits(header.reactors, sizeof(ReactorHead), kReactorsMax, whole)) return false;
  if (!TableFits(header.cells, sizeof(CellHead), kCellsReadMax, whole)) return false;
  if (header.slow_rings.count != header.reactors.count || header.slow_ring_count == 0 ||
      header.slow_ring_count > kSlowRingMax || header.slow_entry_bytes < sizeof(SlowEntry) ||
      header.slow_entry_bytes > whole ||
      !TableFits(header.slow_rings, header.slow_ring_count * header.slow_entry_bytes, kReactorsMax, whole)) {
    return false;
  }
  if (header.op_count == 0 || header.op_count > kOpsMax || header.stage_count == 0 ||
      header.stage_count > kStagesMax || header.group_count == 0 || header.group_count > kGroupsMax ||
      header.group_buckets != kGroupBuckets || header.counters_stride_bytes < sizeof(OpCounters) ||
      header.counters_stride_bytes > stride || header.counters_offset_bytes > stride ||
      header.histograms_offset_bytes > stride) {
    return false;
  }
  const uint64_t histograms =
      uint64_t{header.group_count} * header.op_count * header.stage_count * kGroupBuckets * sizeof(uint64_t);
  const uint64_t counters_end = header.counters_offset_bytes + header.op_count * header.counters_stride_bytes;
  return header.counters_offset_bytes <= kCountersEndMax && header.counters_stride_bytes <= kCountersEndMax &&
         counters_end <= kCountersEndMax && counters_end <= stride &&
         histograms <= stride - header.histograms_offset_bytes;
}

}  // namespace

// ---- Histogram

void Histogram::Add(uint32_t group, uint32_t bucket, uint64_t count) {
  if (count == 0) return;
  const size_t at = size_t{group} * kGroupBuckets + bucket;
  if (counts_.size() <= at) counts_.resize(at + 1);
  counts_[at] += count;
  count_ += count;
}

void Histogram::Add(const Histogram& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
}

namespace {
BucketAt AtIndex(size_t index) {
  return {static_cast<uint32_t>(index / kGroupBuckets), static_cast<uint32_t>(index % kGroupBuckets)};
}
}  // namespace

uint64_t Histogram::PercentileNs(double part) const {
  const auto wanted = static_cast<uint64_t>(part * static_cast<double>(count_));
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    if (below > wanted || (below == count_ && counts_[i] > 0)) return BucketMiddleNs(AtIndex(i));
  }
  return 0;
}

uint64_t Histogram::LongestNs() const {
  for (size_t i = counts_.size(); i-- > 0;) {
    if (counts_[i] > 0) return BucketHighestNs(AtIndex(i));
  }
  return 0;
}

double Histogram::SumNs() const {
  double sum = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    sum += static_cast<double>(counts_[i]) * static_cast<double>(BucketMiddleNs(AtIndex(i)));
  }
  return sum;
}

uint64_t Histogram::CountUpTo(uint64_t duration_ns) const {
  uint64_t count = 0;
  for (size_t i = 0; i < counts_.size() && BucketHighestNs(AtIndex(i)) <= duration_ns; ++i)
    count += counts_[i];
  return count;
}

Histogram Histogram::Since(const Histogram& before) const {
  Histogram since;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const uint64_t then = i < before.counts_.size() ? before.counts_[i] : 0;
    const BucketAt at = AtIndex(i);
    if (counts_[i] > then) since.Add(at.group, at.bucket, counts_[i] - then);
  }
  return since;
}

// ---- SegmentReader

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(UniqueFd fd) {
  SegmentHeader header{};
  const ssize_t got = pread(fd.get(), &header, sizeof(header), 0);
  if (got < 0) return ErrnoError(errno, "reading an engine's counters");
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition, "an engine's counters can't be read: " + why);
  };
  if (static_cast<size_t>(got) < sizeof(header.magic) + sizeof(header.layout_version) ||
      header.magic != kMagic) {
    return refuse("the descriptor is of something else");
  }
  if (header.layout_version != kLayoutVersion) {
    return refuse("their layout is version " + std::to_string(header.layout_version) +
                  ", this program knows " + std::to_string(kLayoutVersion) +
                  ": use the one that came with the engine");
  }
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoError(errno, "fstat of an engine's counters");
  if (static_cast<size_t>(got) < sizeof(header) ||
      static_cast<uint64_t>(file.st_size) < header.segment_bytes || !IsSane(header)) {
    return refuse("their header makes no sense");
  }
  return std::unique_ptr<SegmentReader>(new SegmentReader(std::move(fd), header));
}

SegmentReader::SegmentReader(UniqueFd fd, const SegmentHeader& header)
    : fd_(std::move(fd)),
      header_(header),
      engine_(TextOf(header.engine, kNameBytes)),
      slow_read_(header.reactors.count) {
  for (uint32_t i = 0; i < header.op_count; ++i) op_names_.push_back(TextOf(header.op_names[i], kLabelBytes));
  for (uint32_t i = 0; i < header.stage_count; ++i) {
    stage_names_.push_back(TextOf(header.stage_names[i], kLabelBytes));
  }
}

bool SegmentReader::ReadAt(uint64_t offset_bytes, void* out, size_t bytes) const {
  return pread(fd_.get(), out, bytes, static_cast<off_t>(offset_bytes)) == static_cast<ssize_t>(bytes);
}

uint64_t SegmentReader::Used() const {
  uint64_t used = 0;
  if (!ReadAt(offsetof(SegmentHeader, cells_used), &used, sizeof(used))) return 0;
  return std::min(used, header_.cells.count);
}

template <typename Wanted>
std::vector<CellSeen> SegmentReader::Choose(std::span<const uint64_t> among, Wanted wanted) const {
  std::vector<CellSeen> cells;
  const uint64_t used = Used();
  // Before the cells: one that is written meanwhile is newer than its reactor's last look, and not taken for older.
  const std::vector<ReactorSeen> reactors = Reactors();
  if (reactors.size() != header_.reactors.count) return cells;
  const uint64_t end = header_.counters_offset_bytes + header_.op_count * header_.counters_stride_bytes;
  std::vector<uint8_t> copy(std::max<uint64_t>(end, sizeof(CellHead)));
  const auto look = [&](uint64_t index) {
    if (index >= used || !wanted(index, reactors)) return;
    if (CellSeen cell; ReadCell(index, reactors, &copy, &cell)) cells.push_back(std::move(cell));
  };
  if (among.empty()) {
    for (uint64_t index = 0; index < used; ++index) look(index);
  } else {
    for (const uint64_t index : among) look(index);
  }
  return cells;
}

std::vector<CellSeen> SegmentReader::Cells(Which which) const {
  return Choose({}, [&](uint64_t index, const std::vector<ReactorSeen>& reactors) {
    return which == Which::kAll || !IsIdle(index, reactors);
  });
}

std::vector<CellSeen> SegmentReader::CellsOf(const std::string& controller,
                                             std::span<const uint64_t> among) const {
  std::vector<CellSeen> cells =
      Choose(among, [&](uint64_t index, const std::vector<ReactorSeen>&) { return IsOf(index, controller); });
  // A name is read without looking whether it was just being changed.
  std::erase_if(cells, [&](const CellSeen& cell) { return cell.controller != controller; });
  return cells;
}

bool SegmentReader::IsOf(uint64_t index, const std::string& controller) const {
  const uint64_t at = header_.cells.offset_bytes + index * header_.cells.stride_bytes;
  std::array<char, kNameBytes> name{};
  return ReadAt(at + offsetof(CellHead, controller), name.data(), name.size()) &&
         TextOf(name.data(), name.size()) == controller;
}

// An idle cell is nobody's, or had nothing in flight when its reactor last looked.
bool SegmentReader::IsIdle(uint64_t index, const std::vector<ReactorSeen>& reactors) const {
  const uint64_t at = header_.cells.offset_bytes + index * header_.cells.stride_bytes;
  CellHead head;
  if (!ReadAt(at, &head, sizeof(head)) || head.reactor >= reactors.size()) return true;
  return head.oldest.scanned_ns == 0 || head.oldest.scanned_ns < reactors[head.reactor].scanned_ns;
}

bool SegmentReader::ReadCell(uint64_t index, const std::vector<ReactorSeen>& reactors,
                             std::vector<uint8_t>* copy, CellSeen* cell) const {
  const uint64_t at = header_.cells.offset_bytes + index * header_.cells.stride_bytes;
  CellHead head;
  OldestRequest oldest{};
  bool whole = false;
  // Two system calls a cell: a reader looks at thousands of them.
  for (int tries = 0; tries < kTriesMax && !whole; ++tries) {
    CellHead after;
    if (!ReadAt(at, copy->data(), copy->size())) return false;
    std::memcpy(&head, copy->data(), sizeof(head));
    if (head.generation == 0 || head.generation % 2 != 0) return false;
    if (!ReadAt(at, &after, sizeof(after)) || after.generation != head.generation) return false;
    whole = head.oldest.sequence % 2 == 0 && head.oldest.sequence == after.oldest.sequence;
  }
  if (head.reactor >= reactors.size()) return false;
  if (whole) oldest = head.oldest;  // else it is written faster than we read, so nothing is stuck
  cell->index = index;
  cell->generation = head.generation;
  cell->controller = TextOf(head.controller, kNameBytes);
  cell->disk = TextOf(head.disk, kNameBytes);
  cell->target = head.target;
  cell->reactor = head.reactor;
  cell->since_ns = head.since_ns;
  for (uint32_t op = 0; op < header_.op_count; ++op) {
    OpCounters counters;
    std::memcpy(&counters, copy->data() + header_.counters_offset_bytes + op * header_.counters_stride_bytes,
                sizeof(counters));
    cell->ops.push_back({counters.requests, counters.bytes, counters.errors});
  }
  if (oldest.scanned_ns == 0 || oldest.scanned_ns < reactors[head.reactor].scanned_ns) return true;
  cell->oldest = {oldest.in_flight,
                  oldest.seen_ns,
                  oldest.stage_ns,
                  std::min(oldest.op, header_.op_count - 1),
                  std::min(oldest.stage, header_.stage_count - 1),
                  oldest.offset_bytes,
                  oldest.length_bytes};
  return true;
}

std::vector<std::vector<Histogram>> SegmentReader::Histograms(const CellSeen& cell) const {
  if (cell.index >= header_.cells.count) return {};
  const uint64_t cell_at = header_.cells.offset_bytes + cell.index * header_.cells.stride_bytes;
  const uint64_t begin = cell_at + header_.histograms_offset_bytes;
  const uint64_t columns = uint64_t{header_.op_count} * header_.stage_count;
  const uint64_t group_bytes = columns * kGroupBuckets * sizeof(uint64_t);
  const uint64_t end = begin + header_.group_count * group_bytes;
  std::vector<std::vector<Histogram>> histograms(header_.op_count,
                                                 std::vector<Histogram>(header_.stage_count));
  std::vector<uint64_t> counts(group_bytes / sizeof(uint64_t));
  for (uint64_t at = begin; at < end;) {
    // Only what was ever written; the file is mostly holes.
    const off_t data = lseek(fd_.get(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 || static_cast<uint64_t>(data) >= end) break;
    const uint64_t group = (static_cast<uint64_t>(data) - begin) / group_bytes;
    at = begin + group * group_bytes;
    if (!ReadAt(at, counts.data(), group_bytes)) return {};
    for (uint64_t column = 0; column < columns; ++column) {
      Histogram& histogram = histograms[column / header_.stage_count][column % header_.stage_count];
      for (uint32_t bucket = 0; bucket < kGroupBuckets; ++bucket) {
        histogram.Add(static_cast<uint32_t>(group), bucket, counts[column * kGroupBuckets + bucket]);
      }
    }
    at += group_bytes;
  }
  uint64_t generation = 0;
  if (!ReadAt(cell_at + offsetof(CellHead, generation), &generation, sizeof(generation)) ||
      generation != cell.generation) {
    return {};
  }
  return histograms;
}

std::vector<ReactorSeen> SegmentReader::Reactors() const {
  std::vector<ReactorSeen> reactors;
  for (uint64_t i = 0; i < header_.reactors.count; ++i) {
    ReactorHead head;
    if (!ReadAt(header_.reactors.offset_bytes + i * header_.reactors.stride_bytes, &head, sizeof(head)))
      break;
    reactors.push_back({TextOf(head.name, sizeof(head.name)), head.scanned_ns, head.oldest_ns});
  }
  return reactors;
}

std::vector<SlowSeen> SegmentReader::NewSlow(uint64_t* lost) {
  std::vector<SlowSeen> all;
  *lost = 0;
  for (uint64_t reactor = 0; reactor < header_.reactors.count; ++reactor) {
    ReactorHead head;
    if (!ReadAt(header_.reactors.offset_bytes + reactor * header_.reactors.stride_bytes, &head, sizeof(head)))
      break;
    uint64_t& next = slow_read_[reactor];
    if (head.slow_written - std::min(next, head.slow_written) > header_.slow_ring_count) {
      *lost += head.slow_written - next - header_.slow_ring_count;
      next = head.slow_written - header_.slow_ring_count;
    }
    const uint64_t ring = header_.slow_rings.offset_bytes + reactor * header_.slow_rings.stride_bytes;
    for (; next < head.slow_written; ++next) {
      SlowEntry entry;
      const uint64_t at = ring + next % header_.slow_ring_count * header_.slow_entry_bytes;
      uint64_t sequence = 0;
      if (!ReadAt(at, &entry, sizeof(entry)) || !ReadAt(at, &sequence, sizeof(sequence))) break;
      if (entry.sequence != 2 * next + 2 || sequence != entry.sequence) {
        ++*lost;  // a newer one is on its way into its place
        continue;
      }
      all.push_back({TextOf(entry.controller, kNameBytes), TextOf(entry.disk, kNameBytes), entry.target,
                     std::min(entry.op, header_.op_count - 1), entry.ended != 0, entry.failed != 0,
                     entry.offset_bytes, entry.length_bytes, entry.noticed_ns,
                     std::vector<uint64_t>(entry.moments_ns, entry.moments_ns + kMoments)});
    }
  }
  std::ranges::stable_sort(all, {}, &SlowSeen::noticed_ns);
  return all;
}

}  // namespace cleat::observe
