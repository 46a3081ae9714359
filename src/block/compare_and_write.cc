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
  if (!owner_.busy_) {
    owner_.busy_ = true;
    return false;
  }
  owner_.waiting_.push_back({Reactor::Current(), awaiting});
  return true;
}

void CompareAndWrite::EndTurn() {
  const MutexLock lock(mutex_);
  if (waiting_.empty()) {
    busy_ = false;
    return;
  }
  const Waiting next = waiting_.front();
  waiting_.pop_front();
  next.reactor->PostCall([handle = next.handle] { handle.resume(); });
}

void CompareAndWrite::Start(PipelineChannel& origin, Request& request) {
  Spawn(Run(origin, request));
}

Task<void> CompareAndWrite::Run(PipelineChannel& origin, Request& request) {
  Reactor& home = *Reactor::Current();
  co_await Turn(*this);
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
  EndTurn();
  origin.FinishExclusive(request, status);  // the pipeline may be gone now
}

// How many, one after the other, have nothing in flight any more: all, or up to the one that gave way.
Task<size_t> CompareAndWrite::HoldAll(const std::vector<ChannelRegistry::Member>& members,
                                      const Request& request) {
  size_t held = 0;
  for (const ChannelRegistry::Member& member : members) {
    co_await member.reactor->Enter();
    const auto holding = std::make_shared<Holding>(Holding{.member = member});
    {
      const MutexLock lock(mutex_);
      holding_ = holding;
    }
    const bool all_ended = co_await member.channel->Hold(request.offset_bytes, request.length_bytes);
    holding->over = true;
    if (!all_ended) break;
    ++held;
  }
  co_return held;
}

// A request that begins to be held afterwards sees the count.
void CompareAndWrite::BeginGivingWay() {
  const MutexLock lock(mutex_);
  giving_way_.fetch_add(1, std::memory_order_release);
  if (holding_ == nullptr) return;
  holding_->member.reactor->PostCall([holding = holding_] {
    if (!holding->over) holding->member.channel->GiveWay();
  });
}

void CompareAndWrite::EndGivingWay() {
  const MutexLock lock(mutex_);
  giving_way_.fetch_sub(1, std::memory_order_release);
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
  const IoStatus seen = co_await SubmitAndWait(origin.below(), read);
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
  const IoStatus written = co_await SubmitAndWait(origin.below(), write);
  request.error_number = write.error_number;
  request.stamps.Stamp(RequestStage::kDone, reactor.now_ns());
  co_return written;
}

}  // namespace cleat::block
