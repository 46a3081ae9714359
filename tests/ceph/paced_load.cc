// SPDX-License-Identifier: Apache-2.0
#include "tests/ceph/paced_load.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

namespace cleat::system_test {
namespace {

using perf::BlkOp;

constexpr uint64_t kPatienceNs = 120 * kNsPerSecond;  // without any answer
constexpr uint64_t kLookNs = 5 * kNsPerMs;            // whether to stop

}  // namespace

PacedLoad::PacedLoad(perf::BlkDriver& driver, perf::StampedBlocks& blocks, const PacedOptions& options)
    : driver_(driver), blocks_(blocks), options_(options), random_(options.seed) {}

PacedLoad::~PacedLoad() {
  static_cast<void>(Stop().ok());
}

Status PacedLoad::Prepare() {
  if (!lanes_.empty()) return Ok{};
  const uint32_t count = options_.eager + (options_.period_ns > 0 ? options_.paced_max : 0);
  lane_bytes_ = blocks_.disk_bytes() / count / kBytes * kBytes;
  if (lane_bytes_ == 0) return Error(ErrorCode::kInvalidArgument, "the disk is too small for this load");
  for (uint32_t i = 0; i < count; ++i) {
    auto buffer = driver_.AllocateBuffer(kBytes);
    if (!buffer) return std::move(buffer).error();
    Lane lane;
    lane.first_byte = i * lane_bytes_;
    lane.eager = i < options_.eager;
    lane.io.length_bytes = kBytes;
    lane.io.data_gpa = *buffer;
    lane.io.token = i;
    lanes_.push_back(lane);
    (lane.eager ? eager_free_ : paced_free_).push_back(i);
  }
  return Ok{};
}

Status PacedLoad::Start() {
  if (Status prepared = Prepare(); !prepared) return prepared;
  next_due_ns_ = clock_.NowNs() + options_.period_ns;
  stop_ = false;
  running_ = true;
  settled_ns_ = 0;
  result_ = Ok{};
  thread_ = std::thread([this] {
    Status result = Drive();
    Publish(clock_.NowNs());
    const std::lock_guard lock(mutex_);
    running_ = false;
    result_ = std::move(result);
    changed_.notify_all();
  });
  return Ok{};
}

Status PacedLoad::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return result_;
}

Status PacedLoad::Drive() {
  uint64_t answer_ns = clock_.NowNs();
  for (;;) {
    const bool stopping = stop_.load(std::memory_order_relaxed);
    const uint64_t now_ns = clock_.NowNs();
    if (!stopping) {
      if (Status begun = BeginDue(now_ns); !begun) return begun;
    }
    if (Status health = driver_.Health(); !health) return health;
    const uint64_t before = answered();
    if (Status reaped = Reap(); !reaped) return reaped;
    if (in_flight() == 0 || answered() > before) answer_ns = now_ns;
    if (now_ns > answer_ns + kPatienceNs)
      return Error(ErrorCode::kDeadlineExceeded, "no answer for two minutes");
    Publish(now_ns);
    if (stopping && in_flight() == 0) return Ok{};
    if (answered() > before) continue;  // those may be followed by others at once
    const uint64_t look_ns = now_ns + kLookNs;
    const bool pacing = !stopping && options_.period_ns > 0 && !paced_free_.empty();
    Sleep(pacing ? std::min(look_ns, next_due_ns_) : look_ns);
  }
}

Status PacedLoad::BeginDue(uint64_t now_ns) {
  while (!eager_free_.empty()) {
    if (Status begun = Begin(eager_free_, now_ns); !begun) return begun;
  }
  for (; options_.period_ns > 0 && !paced_free_.empty() && next_due_ns_ <= now_ns;
       next_due_ns_ += options_.period_ns) {
    if (Status begun = Begin(paced_free_, next_due_ns_); !begun) return begun;
  }
  driver_.Kick(0);
  return Ok{};
}

Status PacedLoad::Begin(std::vector<uint32_t>& free, uint64_t due_ns) {
  Lane& lane = lanes_[free.back()];
  lane.io.offset_bytes = lane.first_byte + kBytes * random_.Below(lane_bytes_ / kBytes);
  lane.io.op = random_.Chance(1, 2) ? BlkOp::kWrite : BlkOp::kRead;
  lane.due_ns = due_ns;
  if (lane.io.op == BlkOp::kWrite)
    blocks_.BeginWrite(lane.io.offset_bytes, driver_.memory().Span(lane.io.data_gpa, kBytes));
  if (!driver_.Submit(0, lane.io)) {
    return Error(ErrorCode::kResourceExhausted, "the queue has no room for all requests of this load");
  }
  lane.busy = true;
  free.pop_back();
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  return Ok{};
}

Status PacedLoad::Reap() {
  std::array<perf::BlkCompletion, 32> completions;
  const size_t count = driver_.Poll(0, completions);
  Status first;
  for (size_t i = 0; i < count; ++i) {
    Status status = Complete(completions[i]);
    if (!status && first) first = std::move(status);
  }
  return first;
}

Status PacedLoad::Complete(const perf::BlkCompletion& completion) {
  Lane& lane = lanes_[completion.token];
  lane.busy = false;
  (lane.eager ? eager_free_ : paced_free_).push_back(static_cast<uint32_t>(completion.token));
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  answered_.fetch_add(1, std::memory_order_relaxed);
  fresh_.push_back({lane.due_ns, clock_.NowNs()});
  const bool write = lane.io.op == BlkOp::kWrite;
  if (completion.status != perf::wire::kBlkOk) {
    return Error(ErrorCode::kIo, fmt::format("a {} at {}: status {:#x}", write ? "write" : "read",
                                             lane.io.offset_bytes, completion.status));
  }
  if (write) {
    blocks_.Acknowledge(lane.io.offset_bytes, kBytes);
    return Ok{};
  }
  const auto finding = blocks_.Check(lane.io.offset_bytes, driver_.memory().Span(lane.io.data_gpa, kBytes));
  if (!finding.ok()) return Error(ErrorCode::kDataLoss, finding.ToString());
  return Ok{};
}

// Until then, or until something was answered. (VirtioDriver's own waiting is in whole milliseconds.)
void PacedLoad::Sleep(uint64_t time_ns) {
  perf::DriverRing& ring = driver_.ring(0);
  ring.ClearCall();
  const uint64_t now_ns = clock_.NowNs();
  if (ring.EnableCalls() && now_ns < time_ns) {
    pollfd called{.fd = ring.call_fd(), .events = POLLIN, .revents = 0};
    const timespec left{.tv_sec = 0, .tv_nsec = static_cast<int64_t>(time_ns - now_ns)};  // kLookNs at most
    ppoll(&called, 1, &left, nullptr);
  }
  ring.DisableCalls();
}

void PacedLoad::Publish(uint64_t now_ns) {
  uint64_t settled_ns = options_.period_ns > 0 ? next_due_ns_ : now_ns;
  for (const Lane& lane : lanes_) {
    if (lane.busy) settled_ns = std::min(settled_ns, lane.due_ns);
  }
  const std::lock_guard lock(mutex_);
  settled_ns_ = settled_ns;
  answers_.insert(answers_.end(), fresh_.begin(), fresh_.end());
  fresh_.clear();
  changed_.notify_all();
}

Status PacedLoad::Verify() {
  std::vector<uint8_t> data(perf::kSyncChunkBytes);
  for (uint64_t at = 0; at < blocks_.disk_bytes(); at += data.size()) {
    data.resize(std::min<uint64_t>(data.size(), blocks_.disk_bytes() - at));
    if (Status read = driver_.ReadSync(at, data); !read) return read;
    const auto finding = blocks_.Check(at, data);
    if (!finding.ok()) return Error(ErrorCode::kDataLoss, "in the end: " + finding.ToString());
  }
  return Ok{};
}

bool PacedLoad::WaitAnswers(uint64_t count) {
  const uint64_t goal = answered() + count;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return answered() >= goal || !running_; });
  return answered() >= goal;
}

bool PacedLoad::WaitSettled(uint64_t due_before_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return settled_ns_ >= due_before_ns || !running_; });
  return settled_ns_ >= due_before_ns;
}

std::vector<PacedAnswer> PacedLoad::TakeAnswers() {
  const std::lock_guard lock(mutex_);
  return std::exchange(answers_, {});
}

}  // namespace cleat::system_test
