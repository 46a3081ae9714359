// SPDX-License-Identifier: Apache-2.0
#include "block/compare_and_write.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "block/pipeline.h"
#include "block/submit_and_wait.h"

namespace cleat::block {
namespace {

constexpr size_t kBufferAlignment = 4096;  // what O_DIRECT may ask for

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Where `bytes` and the segments' beginning first differ; `bytes.size()` when they don't.
size_t FirstDifference(std::span<const uint8_t> bytes, std::span<const Segment> segments) {
  size_t done = 0;
  for (const Segment& segment : segments) {
    const size_t piece = std::min<size_t>(segment.length_bytes, bytes.size() - done);
    const uint8_t* guest = segment.data();
    const auto [ours, theirs] = std::mismatch(bytes.data() + done, bytes.data() + done + piece, guest);
    done += static_cast<size_t>(ours - (bytes.data() + done));
    if (theirs != guest + piece || done == bytes.size()) break;
  }
  return done;
}

// The segments behind their first `skip_bytes`.
std::vector<Segment> Behind(std::span<const Segment> segments, uint64_t skip_bytes) {
  std::vector<Segment> rest;
  for (const Segment& segment : segments) {
    if (skip_bytes >= segment.length_bytes) {
      skip_bytes -= segment.length_bytes;
      continue;
    }
    rest.push_back({segment.region, segment.offset_bytes + skip_bytes,
                    static_cast<uint32_t>(segment.length_bytes - skip_bytes)});
    skip_bytes = 0;
  }
  return rest;
}

}  // namespace

// ---- ChannelRegistry

void ChannelRegistry::Add(Reactor& reactor, PipelineChannel& channel) {
  const MutexLock lock(mutex_);
  members_.push_back({&reactor, &channel});
}

void ChannelRegistry::Remove(PipelineChannel& channel) {
  const MutexLock lock(mutex_);
  std::erase_if(members_, [&channel](const Member& member) { return member.channel == &channel; });
}

std::vector<ChannelRegistry::Member> ChannelRegistry::Members() const {
  const MutexLock lock(mutex_);
  return members_;
}

// ---- CompareAndWrite

bool CompareAndWrite::Turn::await_suspend(std::coroutine_handle<> awaiting) {
  const MutexLock lock(owner_.mutex_);
  if (owner_.present_ == nullptr) {
    owner_.present_ = this;
    return false;
  }
  handle_ = awaiting;
  owner_.waiting_.push_back(this);
  return true;
}

void CompareAndWrite::EndTurn() {
  const MutexLock lock(mutex_);
  aborting_.store(false, std::memory_order_release);
  wait_ = nullptr;
  present_ = nullptr;
  if (waiting_.empty()) return;
  present_ = waiting_.front();
  waiting_.pop_front();
  present_->GoOn();
}

void CompareAndWrite::Start(PipelineChannel& origin, Request& request) {
  Spawn(Run(origin, request));
}

Task<void> CompareAndWrite::Run(PipelineChannel& origin, Request& request) {
  IoStatus status = IoStatus::kAborted;
  Turn turn(*this, origin, request);
  if (co_await turn) {
    status = co_await TakeTurn(origin, request);
    EndTurn();
  }
  origin.FinishExclusive(request, status);  // the pipeline may be gone now
}

Task<IoStatus> CompareAndWrite::TakeTurn(PipelineChannel& origin, Request& request) {
  Reactor& home = *Reactor::Current();
  std::vector<ChannelRegistry::Member> members = channels_.Members();
  const size_t held = co_await HoldAll(members, request);
  co_await home.Enter();
  IoStatus status = IoStatus::kAborted;
  if (held == members.size()) status = co_await ReadCompareWrite(origin, request);
  members.resize(std::min(held + 1, members.size()));  // the one that gave way as well
  for (const ChannelRegistry::Member& member : members) {
    co_await member.reactor->Enter();
    member.channel->LetGo();
  }
  co_await home.Enter();
  co_return status;
}

// How many, one after the other, have nothing in flight any more: all, or up to the one that gave way.
Task<size_t> CompareAndWrite::HoldAll(const std::vector<ChannelRegistry::Member>& members,
                                      const Request& request) {
  size_t held = 0;
  for (const ChannelRegistry::Member& member : members) {
    co_await member.reactor->Enter();
    const std::shared_ptr<Wait> wait = BeginWait(member, nullptr);
    const bool all_ended = co_await member.channel->Hold(request.offset_bytes, request.length_bytes);
    wait->over = true;
    if (!all_ended) break;
    ++held;
  }
  co_return held;
}

std::shared_ptr<CompareAndWrite::Wait> CompareAndWrite::BeginWait(const ChannelRegistry::Member& member,
                                                                  const Request* step) {
  auto wait = std::make_shared<Wait>(Wait{.member = member, .step = step});
  const MutexLock lock(mutex_);
  wait_ = wait;
  return wait;
}

// The one whose turn it is, if there is any, is told where it waits.
void CompareAndWrite::GiveWay() {
  if (wait_ == nullptr) return;
  wait_->member.reactor->PostCall([wait = wait_] {
    if (!wait->over) wait->member.channel->GiveWay(wait->step);
  });
}

// A wait that begins afterwards sees the count.
void CompareAndWrite::BeginGivingWay() {
  const MutexLock lock(mutex_);
  giving_way_.fetch_add(1, std::memory_order_release);
  GiveWay();
}

void CompareAndWrite::EndGivingWay() {
  const MutexLock lock(mutex_);
  giving_way_.fetch_sub(1, std::memory_order_release);
}

void CompareAndWrite::Abort(const PipelineChannel& origin, const Request* only) {
  const MutexLock lock(mutex_);
  if (present_ != nullptr && present_->IsFor(origin, only)) {
    aborting_.store(true, std::memory_order_release);
    GiveWay();
  }
  std::erase_if(waiting_, [&](Turn* turn) {
    if (!turn->IsFor(origin, only)) return false;
    turn->given_up_ = true;
    turn->GoOn();
    return true;
  });
}

Task<IoStatus> CompareAndWrite::ReadCompareWrite(PipelineChannel& origin, Request& request) {
  const uint64_t bytes = request.length_bytes;
  const size_t room = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  const std::unique_ptr<uint8_t, Free> buffer(
      static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, room)));
  if (buffer == nullptr) co_return IoStatus::kIoError;
  const std::shared_ptr<MemoryRegion> region = MemoryRegion::Borrow(buffer.get(), room);
  const Segment whole{region.get(), 0, static_cast<uint32_t>(bytes)};

  Request read;
  read.op = Op::kRead;
  read.offset_bytes = request.offset_bytes;
  read.length_bytes = bytes;
  read.segments = {&whole, 1};
  const Reactor& reactor = *Reactor::Current();  // also afterwards: a channel completes where it was asked
  request.stamps.Stamp(RequestStage::kSubmitted, reactor.now_ns());
  Channel& below = origin.below(request);
  const IoStatus seen = co_await DoStep(origin, below, read);
  request.error_number = read.error_number;
  if (seen != IoStatus::kOk) co_return seen;

  request.miscompare_bytes = FirstDifference({buffer.get(), bytes}, request.segments);
  if (request.miscompare_bytes != bytes) co_return IoStatus::kMiscompare;

  const std::vector<Segment> data = Behind(request.segments, bytes);
  Request write;
  write.op = Op::kWrite;
  write.fua = request.fua;
  write.offset_bytes = request.offset_bytes;
  write.length_bytes = bytes;
  write.segments = data;
  const IoStatus written = co_await DoStep(origin, below, write);
  request.error_number = write.error_number;
  request.stamps.Stamp(RequestStage::kDone, reactor.now_ns());
  co_return written;
}

// A read or write that is told to give way is taken back out of the limits, and ends with kAborted.
Task<IoStatus> CompareAndWrite::DoStep(PipelineChannel& origin, Channel& below, Request& step) {
  Reactor& home = *Reactor::Current();
  const ChannelRegistry::Member here{&home, &origin};
  const std::shared_ptr<Wait> wait = BeginWait(here, &step);
  if (gives_way()) {
    const MutexLock lock(mutex_);
    GiveWay();  // once it has been submitted
  }
  const IoStatus status = co_await SubmitAndWait(below, step);
  wait->over = true;
  // Within the channel's AbortQueued, which the channel outlives: what comes next may end it.
  if (status == IoStatus::kAborted) co_await home.Yield();
  co_return status;
}

}  // namespace cleat::block
