// SPDX-License-Identifier: Apache-2.0
#include "perf/crash/crash_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace cleat::perf {
namespace {

// How long the thread sleeps at most before it looks for lost requests.
constexpr uint64_t kLookNs = 100 * kNsPerMs;
constexpr size_t kBatch = 32;
// Of a lane's blocks, so many take half of all writes.
constexpr uint64_t kHotBlocks = 8;
constexpr size_t kDescribedMax = 3;

}  // namespace

const char* CrashFaultName(CrashFault fault) {
  switch (fault) {
    case CrashFault::kData:
      return "data";
    case CrashFault::kLost:
      return "lost";
    case CrashFault::kRings:
      return "rings";
    case CrashFault::kFailed:
      return "failed";
    case CrashFault::kFrontEnd:
      return "front end";
  }
  return "?";
}

CrashLoad::CrashLoad(DiskPort& port, StampedBlocks& blocks, const CrashLoadOptions& options)
    : port_(port),
      blocks_(blocks),
      options_(options),
      random_(options.seed),
      give_back_percent_(options.give_back_percent) {}

CrashLoad::~CrashLoad() {
  Stop();
}

// ---- The owner's thread

Status CrashLoad::Prepare() {
  const uint32_t count = port_.queues() * options_.depth;
  const uint32_t block_bytes = blocks_.block_bytes();
  const uint64_t lane_bytes = blocks_.disk_bytes() / count / block_bytes * block_bytes;
  if (lane_bytes < kHotBlocks * block_bytes || options_.bytes_max < kHotBlocks * block_bytes) {
    return Error(ErrorCode::kInvalidArgument, "the disk or its requests are too small for this load");
  }
  for (uint32_t i = 0; i < count; ++i) {
    Lane lane;
    lane.queue = static_cast<uint16_t>(i % port_.queues());
    lane.first_byte = i * lane_bytes;
    lane.bytes = i + 1 == count ? blocks_.disk_bytes() - lane.first_byte : lane_bytes;
    lane.compare_from = lane.bytes;
    for (uint64_t& buffer : lane.buffers) {
      CLEAT_ASSIGN(buffer, port_.AllocateBuffer(options_.bytes_max));
    }
    lanes_.push_back(lane);
  }
  return Ok{};
}

Status CrashLoad::Start() {
  CLEAT_CHECK(lanes_.empty());
  CLEAT_TRY(Prepare());
  epoch_ = port_.reconnects();
  reconnects_ = epoch_;
  looked_ns_ = clock_.NowNs();
  {
    const MutexLock lock(mutex_);
    running_ = true;
  }
  thread_ = std::thread([this] { Run(); });
  return Ok{};
}

void CrashLoad::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

bool CrashLoad::WaitProgress(uint64_t requests, uint64_t timeout_ns) {
  const MutexLock lock(mutex_);
  const uint64_t goal = counts_.requests + requests;
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  while (counts_.requests < goal && running_ && changed_.WaitUntil(mutex_, until)) {
  }
  return counts_.requests >= goal;
}

bool CrashLoad::WaitRecovered(uint64_t mark, uint64_t timeout_ns) {
  const MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  while (recovered_ <= mark && running_ && changed_.WaitUntil(mutex_, until)) {
  }
  return recovered_ > mark;
}

CrashLoad::Counts CrashLoad::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::vector<CrashFinding> CrashLoad::findings() const {
  const MutexLock lock(mutex_);
  return findings_;
}

// ---- The load's thread

void CrashLoad::Run() {
  while (Step()) {
  }
  const MutexLock lock(mutex_);
  running_ = false;
  changed_.NotifyAll();
}

bool CrashLoad::Step() {
  const bool stopping = stop_.load(std::memory_order_relaxed);
  if (stopping && !last_compare_) {
    last_compare_ = true;
    CompareEverything();
  }
  if (SubmitAll(stopping) == 0) return false;
  if (options_.pause_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(options_.pause_ns));
  const Status waited = port_.Wait(kLookNs);
  NoticeReconnect();
  if (!waited && waited.error().code != ErrorCode::kDeadlineExceeded) {
    Find(CrashFault::kFrontEnd, waited.error().message);
    return false;
  }
  ReapAll();
  if (reset_.load(std::memory_order_relaxed) && !Reset()) return false;
  if (Status health = port_.Health(); !health) {
    Find(CrashFault::kRings, health.error().message);
    return false;
  }
  FindLost();
  Publish(0);
  return true;
}

uint32_t CrashLoad::SubmitAll(bool stopping) {
  uint32_t busy = 0;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (lane.lost) continue;
    if (!lane.busy && (lane.prepared || PrepareNext(lane, stopping))) {
      lane.request.token = i;
      lane.since_ns = patience_ns_;
      lane.busy = port_.Submit(lane.queue, lane.request);
      lane.prepared = !lane.busy;
    }
    if (lane.busy) ++busy;
  }
  for (uint16_t queue = 0; queue < port_.queues(); ++queue) port_.Kick(queue);
  return busy;
}

bool CrashLoad::PrepareNext(Lane& lane, bool stopping) {
  lane.comparing = lane.compare_from < lane.bytes;
  if (!lane.comparing && stopping) return false;
  GiveBack(lane);
  if (lane.comparing) {
    PrepareCompare(lane);
  } else {
    PrepareRandom(lane);
  }
  lane.prepared = true;
  return true;
}

// Nothing of the lane is in flight: neither of its buffers is in use.
void CrashLoad::GiveBack(Lane& lane) {
  const uint32_t percent = give_back_percent_.load(std::memory_order_relaxed);
  if (percent == 0 || !random_.Chance(percent, 100)) return;
  const Status given = port_.GiveBack(lane.buffers[lane.next_buffer], options_.bytes_max);
  if (!given) return Find(CrashFault::kFrontEnd, given.error().message);
  ++given_back_;
}

void CrashLoad::PrepareCompare(Lane& lane) {
  const uint64_t bytes = std::min<uint64_t>(lane.bytes - lane.compare_from, options_.bytes_max);
  lane.request = {.op = DiskOp::kRead,
                  .offset_bytes = lane.first_byte + lane.compare_from,
                  .length_bytes = static_cast<uint32_t>(bytes),
                  .data_gpa = lane.buffers[lane.next_buffer]};
  lane.compare_from += bytes;
}

void CrashLoad::PrepareRandom(Lane& lane) {
  const uint32_t block_bytes = blocks_.block_bytes();
  const uint64_t lane_blocks = lane.bytes / block_bytes;
  const bool hot = random_.Chance(1, 2);
  const uint64_t area_blocks = hot ? kHotBlocks : lane_blocks;
  const uint64_t blocks_max = std::min<uint64_t>(area_blocks, options_.bytes_max / block_bytes);
  // Small ones as often as large ones.
  const uint64_t blocks = random_.Between(1, std::max<uint64_t>(1, blocks_max >> random_.Below(7)));
  const uint64_t dice = random_.Below(options_.only_reads_and_writes ? 90 : 100);
  DiskRequest& request = lane.request;
  request = {};
  request.op = dice < 55   ? DiskOp::kWrite
               : dice < 90 ? DiskOp::kRead
               : dice < 95 ? DiskOp::kFlush
                           : DiskOp::kZero;
  if (request.op == DiskOp::kFlush) return;
  request.offset_bytes = lane.first_byte + random_.Below(area_blocks - blocks + 1) * block_bytes;
  request.length_bytes = static_cast<uint32_t>(blocks * block_bytes);
  if (request.op == DiskOp::kZero) {
    blocks_.BeginZero(request.offset_bytes, request.length_bytes);
    return;
  }
  request.data_gpa = lane.buffers[lane.next_buffer];
  if (request.op == DiskOp::kRead) return;
  lane.next_buffer ^= 1;
  blocks_.BeginWrite(request.offset_bytes, port_.Buffer(request.data_gpa, request.length_bytes));
}

bool CrashLoad::Reset() {
  Status done = port_.Stop();
  // The next back end is waited for first: what a dead one has in the storage may still come into the guest's memory.
  if (!done && done.error().code == ErrorCode::kUnavailable) return true;
  reset_ = false;
  if (done) {
    ReapAll();
    done = port_.StartAnew();
  }
  if (!done) {
    Find(CrashFault::kRings, "a reset by the guest: " + done.error().message);
    return false;
  }
  // What the device had not begun is asked for once more.
  for (Lane& lane : lanes_) {
    if (!lane.busy || lane.lost) continue;
    lane.busy = false;
    lane.before_reconnect = false;
    lane.prepared = true;
  }
  ++resets_;
  CompareEverything();
  return true;
}

void CrashLoad::ReapAll() {
  for (uint16_t queue = 0; queue < port_.queues(); ++queue) Reap(queue);
}

void CrashLoad::Reap(uint16_t queue) {
  std::array<DiskAnswer, kBatch> answers;
  for (;;) {
    const size_t count = port_.Poll(queue, answers);
    if (count == 0) return;
    const uint64_t now_ns = clock_.NowNs();
    for (size_t i = 0; i < count; ++i) Complete(answers[i], now_ns);
    Publish(count);
  }
}

void CrashLoad::Complete(const DiskAnswer& answer, uint64_t now_ns) {
  gaps_.Completed(now_ns);
  if (answer.token >= lanes_.size() || !lanes_[answer.token].busy) {
    Find(CrashFault::kRings, fmt::format("an answer to request {}, which is not in flight", answer.token));
    return;
  }
  Lane& lane = lanes_[answer.token];
  lane.busy = false;
  lane.before_reconnect = false;
  if (lane.lost) return;  // it was told
  if (answer.outcome == DiskAnswer::Outcome::kAgain) {
    lane.prepared = true;
    return;
  }
  Judge(lane, answer);
}

void CrashLoad::Judge(Lane& lane, const DiskAnswer& answer) {
  const DiskRequest& request = lane.request;
  if (answer.outcome != DiskAnswer::Outcome::kDone) {
    Find(CrashFault::kFailed, fmt::format("{}: answered with {:#x}", Describe(lane), answer.code));
    return;
  }
  switch (request.op) {
    case DiskOp::kWrite:
    case DiskOp::kZero:
      blocks_.Acknowledge(request.offset_bytes, request.length_bytes);
      ++written_;
      break;
    case DiskOp::kRead: {
      compared_ += request.length_bytes / blocks_.block_bytes();
      const BlockFinding finding =
          blocks_.Check(request.offset_bytes, port_.Buffer(request.data_gpa, request.length_bytes));
      if (!finding.ok()) Find(CrashFault::kData, Describe(lane) + ": " + finding.ToString());
      break;
    }
    case DiskOp::kFlush:
      break;
  }
}

// What has come since may have been answered by the old one; it is all the same in flight if it has not been taken yet.
void CrashLoad::NoticeReconnect() {
  const uint64_t reconnects = port_.reconnects();
  if (reconnects == epoch_) return;
  epoch_ = reconnects;
  epoch_ns_ = patience_ns_;
  for (Lane& lane : lanes_) {
    lane.before_reconnect = lane.busy && !lane.lost;
    if (lane.before_reconnect) ++in_flight_;
  }
  CompareEverything();
  reconnects_ = reconnects;
}

void CrashLoad::CompareEverything() {
  for (Lane& lane : lanes_) lane.compare_from = 0;
}

// As if each look took no longer than a look takes. Accepting a new back end's connection is no look at its rings.
void CrashLoad::AdvancePatience() {
  const uint64_t now_ns = clock_.NowNs();
  patience_ns_ += std::min(now_ns - looked_ns_, 2 * kLookNs);
  looked_ns_ = now_ns;
}

void CrashLoad::FindLost() {
  AdvancePatience();
  std::string text;
  size_t count = 0;
  for (Lane& lane : lanes_) {
    if (!lane.busy || lane.lost) continue;
    const uint64_t since_ns = std::max(lane.since_ns, epoch_ns_);
    if (patience_ns_ < since_ns + options_.lost_after_ns) continue;
    lane.lost = true;
    if (++count <= kDescribedMax) {
      text += fmt::format("; {}, from {} the reconnect ({})", Describe(lane),
                          lane.before_reconnect ? "before" : "after", port_.Describe(lane.queue));
    }
    lane.before_reconnect = false;
  }
  if (count == 0) return;
  Find(CrashFault::kLost,
       fmt::format("{} requests not answered in {} ms{}", count, options_.lost_after_ns / kNsPerMs, text));
}

bool CrashLoad::Recovered() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    const bool comparing = lane.compare_from < lane.bytes || ((lane.busy || lane.prepared) && lane.comparing);
    return lane.lost || (!lane.before_reconnect && !comparing);
  });
}

void CrashLoad::Publish(uint64_t answered) {
  const MutexLock lock(mutex_);
  counts_.requests += answered;
  counts_.writes = written_;
  counts_.blocks_compared = compared_;
  counts_.reconnects = epoch_;
  counts_.in_flight = in_flight_;
  counts_.resets = resets_;
  counts_.given_back = given_back_;
  if (recovered_ != epoch_ && Recovered()) recovered_ = epoch_;
  changed_.NotifyAll();
}

void CrashLoad::Find(CrashFault fault, std::string text) {
  const MutexLock lock(mutex_);
  ++counts_.findings;
  if (findings_.size() < kFindingsMax) findings_.push_back({fault, std::move(text)});
}

std::string CrashLoad::Describe(const Lane& lane) const {
  const DiskRequest& request = lane.request;
  return fmt::format("{} of {} bytes at {} on queue {}", DiskOpName(request.op), request.length_bytes,
                     request.offset_bytes, lane.queue);
}

}  // namespace cleat::perf
