// SPDX-License-Identifier: Apache-2.0
#include "perf/load.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/random.h"

namespace cleat::perf {
namespace {

constexpr size_t kPollBatch = 64;
// Polls of all queues without a completion before the connection and the rings are looked at.
constexpr uint32_t kIdlePollsMax = 1U << 16;
constexpr uint64_t kVerifyEvery = 8;  // a write is followed by a read of the same block so often
constexpr uint64_t kVerifyDiskId = 0x636c656174;

class Load {
 public:
  Load(BlkDriver& driver, const LoadOptions& options)
      : driver_(driver), options_(options), random_(options.seed) {}

  Result<LoadReport> Run() {
    if (Status status = Prepare(); !status) return std::move(status).error();
    start_ns_ = now_ns_ = clock_.NowNs();
    const uint64_t end_ns = options_.seconds == 0 ? UINT64_MAX : start_ns_ + options_.seconds * kNsPerSecond;
    for (size_t i = 0; i < lanes_.size(); ++i) Next(i, end_ns);
    if (Status status = Drain(end_ns); !status) return std::move(status).error();
    report_.elapsed_ns = clock_.NowNs() - start_ns_;
    if (blocks_ && writes()) {
      if (Status status = VerifyAll(); !status) return std::move(status).error();
    }
    return std::move(report_);
  }

 private:
  // One of the requests in flight, with its buffer and, when verifying, its stripe: the blocks with number
  // `lane` modulo the number of lanes.
  struct Lane {
    BlkIo io;
    uint16_t queue = 0;
    uint64_t started_ns = 0;
    uint64_t position = 0;
    bool reads_back = false;
    bool waiting = false;  // did not fit into the ring, to be tried again
    bool done = false;
  };

  bool writes() const {
    return options_.pattern == LoadPattern::kWrite || options_.pattern == LoadPattern::kRandWrite;
  }
  bool random() const {
    return options_.pattern == LoadPattern::kRandRead || options_.pattern == LoadPattern::kRandWrite;
  }

  Status Prepare() {
    const uint64_t lane_count = uint64_t{driver_.num_queues()} * options_.queue_depth;
    if (options_.block_bytes == 0 || options_.block_bytes % driver_.block_bytes() != 0) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("block size {} is no multiple of the disk's {}",
                                                            options_.block_bytes, driver_.block_bytes()));
    }
    block_count_ = driver_.capacity_bytes() / options_.block_bytes;
    if (lane_count == 0 || block_count_ < lane_count || (options_.seconds == 0 && options_.requests == 0)) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} requests in flight on {} blocks, for {} s or {} requests: each must be above zero, "
                      "and a block for each request in flight",
                      lane_count, block_count_, options_.seconds, options_.requests));
    }
    Result<uint64_t> buffers = driver_.AllocateBuffer(lane_count * options_.block_bytes);
    if (!buffers) return std::move(buffers).error();
    stripe_blocks_ = block_count_ / lane_count;
    if (options_.verify) {
      blocks_.emplace(block_count_ * options_.block_bytes, options_.block_bytes, kVerifyDiskId, false);
    }
    lanes_.resize(lane_count);
    for (size_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].queue = static_cast<uint16_t>(i % driver_.num_queues());
      lanes_[i].io.data_gpa = *buffers + i * options_.block_bytes;
      lanes_[i].io.length_bytes = options_.block_bytes;
      lanes_[i].io.token = i;
    }
    return Ok{};
  }

  std::span<uint8_t> Buffer(const Lane& lane) const {
    return driver_.memory().Span(lane.io.data_gpa, lane.io.length_bytes);
  }

  // Chooses the lane's next request and submits it, or ends the lane.
  void Next(size_t index, uint64_t end_ns) {
    Lane& lane = lanes_[index];
    if (now_ns_ >= end_ns || (options_.requests != 0 && issued_ >= options_.requests)) {
      lane.done = true;
      return;
    }
    ++issued_;
    const uint64_t step = random() ? random_.Below(stripe_blocks_) : lane.position++ % stripe_blocks_;
    lane.io.offset_bytes = (step * lanes_.size() + index) * options_.block_bytes;
    lane.io.op = writes() ? BlkOp::kWrite : BlkOp::kRead;
    lane.reads_back = false;
    if (blocks_ && writes()) blocks_->BeginWrite(lane.io.offset_bytes, Buffer(lane));
    Start(lane);
  }

  void Start(Lane& lane) {
    lane.started_ns = now_ns_;
    lane.waiting = !driver_.Submit(lane.queue, lane.io);
    if (lane.waiting) {
      ++waiting_;
    } else {
      ++in_flight_;
    }
  }

  void Complete(const BlkCompletion& completion, uint64_t end_ns) {
    Lane& lane = lanes_[completion.token];
    --in_flight_;
    const bool ok = completion.status == wire::kBlkOk;
    if (!ok) ++report_.errors;
    if (!lane.reads_back) {
      ++report_.requests;
      report_.latency.Record(now_ns_ - lane.started_ns);
    }
    if (blocks_ && ok && lane.io.op == BlkOp::kWrite) {
      blocks_->Acknowledge(lane.io.offset_bytes, lane.io.length_bytes);
      if (random_.Below(kVerifyEvery) == 0) {
        lane.reads_back = true;
        lane.io.op = BlkOp::kRead;
        Start(lane);
        return;
      }
    } else if (blocks_ && ok) {
      Judge(lane.io.offset_bytes, Buffer(lane));
    }
    Next(completion.token, end_ns);
  }

  void Judge(uint64_t offset_bytes, std::span<const uint8_t> data) {
    ++report_.verified_blocks;
    const BlockFinding finding = blocks_->Check(offset_bytes, data);
    if (finding.ok()) return;
    if (report_.faults++ == 0) report_.first_fault = finding.ToString();
  }

  void RetryWaiting() {
    if (waiting_ == 0) return;
    for (Lane& lane : lanes_) {
      if (!lane.waiting || !driver_.Submit(lane.queue, lane.io)) continue;
      lane.waiting = false;
      --waiting_;
      ++in_flight_;
    }
  }

  Status Drain(uint64_t end_ns) {
    std::array<BlkCompletion, kPollBatch> batch;
    uint32_t idle_polls = 0;
    while (in_flight_ > 0 || waiting_ > 0) {
      if (in_flight_ == 0)
        return Error(ErrorCode::kInvalidArgument, "a request does not fit into an empty ring");
      size_t completed = 0;
      for (uint16_t queue = 0; queue < driver_.num_queues(); ++queue) {
        driver_.Kick(queue);
        const size_t count = driver_.Poll(queue, batch);
        if (count == 0) continue;
        completed += count;
        now_ns_ = clock_.NowNs();
        for (size_t i = 0; i < count; ++i) Complete(batch[i], end_ns);
        RetryWaiting();
        driver_.Kick(queue);
      }
      idle_polls = completed > 0 ? 0 : idle_polls + 1;
      if (idle_polls < kIdlePollsMax) continue;
      idle_polls = 0;
      if (Status health = driver_.Health(); !health) return health;
      if (Status waited = driver_.Wait(kDefaultIoTimeoutNs); !waited) return waited;
    }
    return Ok{};
  }

  Status VerifyAll() {
    std::vector<uint8_t> data(options_.block_bytes);
    for (uint64_t i = 0; i < block_count_; ++i) {
      if (Status status = driver_.ReadSync(i * options_.block_bytes, data); !status) return status;
      Judge(i * options_.block_bytes, data);
    }
    return Ok{};
  }

  BlkDriver& driver_;
  const LoadOptions options_;
  MonotonicClock clock_;
  Random random_;
  std::vector<Lane> lanes_;
  std::optional<StampedBlocks> blocks_;
  uint64_t block_count_ = 0;
  uint64_t stripe_blocks_ = 0;
  uint64_t issued_ = 0;
  uint64_t in_flight_ = 0;
  uint64_t waiting_ = 0;
  uint64_t start_ns_ = 0;
  uint64_t now_ns_ = 0;  // one timestamp a batch
  LoadReport report_;
};

}  // namespace

double LoadReport::iops() const {
  return elapsed_ns == 0 ? 0 : static_cast<double>(requests) * kNsPerSecond / static_cast<double>(elapsed_ns);
}

Result<LoadReport> RunLoad(BlkDriver& driver, const LoadOptions& options) {
  return Load(driver, options).Run();
}

}  // namespace cleat::perf
