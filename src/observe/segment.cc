// SPDX-License-Identifier: Apache-2.0
#include "observe/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cleat::observe {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t PagesOf(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

constexpr uint64_t kHeaderBytes = PagesOf(sizeof(SegmentHeader));
constexpr uint64_t kReactorStride = kPage;  // a page each: no line of one is another's neighbour
constexpr uint64_t kSlowStride = PagesOf(sizeof(SlowEntry) * kSlowRingCount);
constexpr uint64_t kCountersAt = (sizeof(CellHead) + 63) / 64 * 64;
constexpr uint64_t kHistogramsAt = PagesOf(kCountersAt + sizeof(OpCounters) * kOpCount);
constexpr uint64_t kCellStride =
    kHistogramsAt + PagesOf(sizeof(uint64_t) * kGroups * kOpCount * kStageCount * kGroupBuckets);
static_assert(kOpCount <= kOpsMax && kStageCount <= kStagesMax);

template <size_t kBytes>
void CopyName(char (&to)[kBytes], const std::string& name) {
  const size_t bytes = std::min(name.size(), kBytes - 1);
  std::memcpy(to, name.data(), bytes);
  std::memset(to + bytes, 0, kBytes - bytes);
}

void Describe(SegmentHeader& header, const SegmentOptions& options) {
  const uint64_t reactors = options.reactors.size();
  header.layout_version = kLayoutVersion;
  header.header_bytes = sizeof(SegmentHeader);
  header.started_ns = options.now_ns;
  header.process = static_cast<uint64_t>(getpid());
  header.incarnation = options.incarnation;
  header.slow_after_ns = options.slow_after_ns;
  CopyName(header.engine, options.engine);
  header.reactors = {kHeaderBytes, kReactorStride, reactors};
  header.slow_rings = {kHeaderBytes + reactors * kReactorStride, kSlowStride, reactors};
  header.slow_ring_count = kSlowRingCount;
  header.slow_entry_bytes = sizeof(SlowEntry);
  header.cells = {header.slow_rings.offset_bytes + reactors * kSlowStride, kCellStride, kCellsMax};
  header.segment_bytes = header.cells.offset_bytes + kCellsMax * kCellStride;
  header.counters_offset_bytes = kCountersAt;
  header.counters_stride_bytes = sizeof(OpCounters);
  header.histograms_offset_bytes = kHistogramsAt;
  header.op_count = kOpCount;
  header.stage_count = kStageCount;
  header.group_count = kGroups;
  header.group_buckets = kGroupBuckets;
  std::memcpy(header.op_names, kOpNames, sizeof(kOpNames));
  std::memcpy(header.stage_names, kStageNames, sizeof(kStageNames));
}

}  // namespace

Result<std::unique_ptr<Segment>> Segment::Make(const SegmentOptions& options) {
  SegmentHeader header{};
  Describe(header, options);
  UniqueFd fd(memfd_create("cleat-counters", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError(errno, "memfd_create for the counters");
  if (ftruncate(fd.get(), static_cast<off_t>(header.segment_bytes)) != 0) {
    return ErrnoError(errno, "making " + std::to_string(header.segment_bytes >> 20) +
                                 " MiB (of which little is used) for the counters");
  }
  void* base =
      mmap(nullptr, header.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoError(errno, "mapping the counters");
  // Not against writing: the pages of a cell could not be given back any more.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const Error error = ErrnoError(errno, "sealing the counters");
    munmap(base, header.segment_bytes);
    return error;
  }
  madvise(base, header.segment_bytes, MADV_DONTDUMP);  // as good as it gets: a core with them is only larger
  std::memcpy(base, &header, sizeof(header));
  std::unique_ptr<Segment> segment(
      new Segment(std::move(fd), static_cast<uint8_t*>(base), header.segment_bytes));
  for (uint32_t i = 0; i < options.reactors.size(); ++i) {
    CopyName(segment->reactor(i).name, options.reactors[i]);
    segment->reactor(i).oldest_ns = kNothingInFlight;
  }
  std::atomic_ref(reinterpret_cast<SegmentHeader*>(base)->magic).store(kMagic, std::memory_order_release);
  return segment;
}

Segment::~Segment() {
  CLEAT_CHECK(in_use_ == 0);
  munmap(base_, bytes_);
}

Result<UniqueFd> Segment::OpenForReaders() const {
  UniqueFd fd(open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError(errno, "opening the counters for readers");
  return fd;
}

ReactorHead& Segment::reactor(uint32_t index) {
  CLEAT_CHECK(index < header().reactors.count);
  return *reinterpret_cast<ReactorHead*>(base_ + header().reactors.offset_bytes + index * kReactorStride);
}

SlowEntry* Segment::slow_ring(uint32_t reactor) {
  CLEAT_CHECK(reactor < header().slow_rings.count);
  return reinterpret_cast<SlowEntry*>(base_ + header().slow_rings.offset_bytes + reactor * kSlowStride);
}

uint8_t* Segment::CellAt(uint64_t index) {
  return base_ + header().cells.offset_bytes + index * kCellStride;
}

Result<std::unique_ptr<DiskCounters>> Segment::Add(const std::string& controller, const std::string& disk,
                                                   uint32_t target, uint32_t reactor, uint64_t now_ns) {
  auto& used = reinterpret_cast<SegmentHeader*>(base_)->cells_used;
  uint64_t index = used;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (used == kCellsMax) {
    return Error(ErrorCode::kResourceExhausted, controller + ": there are counters for " +
                                                    std::to_string(kCellsMax) + " disks, and " + disk +
                                                    " would be one more: it is served without");
  }
  uint8_t* at = CellAt(index);
  auto* head = reinterpret_cast<CellHead*>(at);
  std::atomic_ref generation(head->generation);
  // From 0, nobody's, to 2; from an odd number, nobody's any more, to the next even one.
  const uint64_t next = generation.load(std::memory_order_relaxed) / 2 * 2 + 2;
  generation.store(next - 1, std::memory_order_release);
  head->target = target;
  head->reactor = reactor;
  head->since_ns = now_ns;
  CopyName(head->controller, controller);
  CopyName(head->disk, disk);
  generation.store(next, std::memory_order_release);
  if (index == used) std::atomic_ref(used).store(used + 1, std::memory_order_release);
  ++in_use_;
  return std::unique_ptr<DiskCounters>(new DiskCounters(*this, index, at));
}

void Segment::GiveBack(uint64_t index) {
  uint8_t* at = CellAt(index);
  std::atomic_ref generation(reinterpret_cast<CellHead*>(at)->generation);
  const uint64_t odd = generation.load(std::memory_order_relaxed) + 1;
  generation.store(odd, std::memory_order_release);
  // All zero again, and no memory but the first page, whose generation goes on.
  const auto offset = static_cast<off_t>(header().cells.offset_bytes + index * kCellStride);
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset + static_cast<off_t>(kPage),
                static_cast<off_t>(kCellStride - kPage)) != 0) {
    std::memset(at + kPage, 0, kCellStride - kPage);
  }
  static_assert(kHistogramsAt == kPage);
  std::memset(at + sizeof(uint64_t), 0, kPage - sizeof(uint64_t));
  free_.push_back(index);
  --in_use_;
}

DiskCounters::DiskCounters(Segment& segment, uint64_t index, uint8_t* at)
    : segment_(segment),
      index_(index),
      head_(reinterpret_cast<CellHead*>(at)),
      counters_(reinterpret_cast<OpCounters*>(at + kCountersAt)),
      histograms_(reinterpret_cast<uint64_t*>(at + kHistogramsAt)) {
  static_assert(offsetof(CellHead, generation) == 0);
}

DiskCounters::~DiskCounters() {
  segment_.GiveBack(index_);
}

void DiskCounters::SetOldest(const OldestRequest& oldest) {
  OldestRequest& at = head_->oldest;
  std::atomic_ref sequence(at.sequence);
  const uint64_t before = sequence.load(std::memory_order_relaxed);
  // Each word with release: who reads any of the new ones sees that the number was odd.
  const auto set = [](auto& to, auto value) { std::atomic_ref(to).store(value, std::memory_order_release); };
  sequence.store(before + 1, std::memory_order_relaxed);
  set(at.scanned_ns, oldest.scanned_ns);
  set(at.seen_ns, oldest.seen_ns);
  set(at.in_flight, oldest.in_flight);
  set(at.op, oldest.op);
  set(at.stage, oldest.stage);
  set(at.offset_bytes, oldest.offset_bytes);
  set(at.length_bytes, oldest.length_bytes);
  set(at.stage_ns, oldest.stage_ns);
  sequence.store(before + 2, std::memory_order_release);
}

std::optional<OldestRequest> DiskCounters::CopyOldest() const {
  OldestRequest& at = head_->oldest;
  const auto get = [](auto& from) { return std::atomic_ref(from).load(std::memory_order_acquire); };
  const uint64_t before = get(at.sequence);
  OldestRequest seen{};
  seen.scanned_ns = get(at.scanned_ns);
  seen.seen_ns = get(at.seen_ns);
  seen.in_flight = get(at.in_flight);
  seen.op = get(at.op);
  seen.stage = get(at.stage);
  seen.offset_bytes = get(at.offset_bytes);
  seen.length_bytes = get(at.length_bytes);
  seen.stage_ns = get(at.stage_ns);
  if (before % 2 != 0 || get(at.sequence) != before) return std::nullopt;
  return seen;
}

uint64_t DiskCounters::succeeded() const {
  const auto get = [](uint64_t& from) { return std::atomic_ref(from).load(std::memory_order_relaxed); };
  uint64_t sum = 0;
  for (uint32_t op = 0; op < kOpCount; ++op) {
    const uint64_t errors = get(counters_[op].errors);  // before the requests, which have them in
    sum += get(counters_[op].requests) - errors;
  }
  return sum;
}

}  // namespace cleat::observe
