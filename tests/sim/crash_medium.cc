// SPDX-License-Identifier: Apache-2.0
#include "crash_medium.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "block/segments.h"

namespace cleat::sim {

using block::IoStatus;
using block::Op;

namespace {

// A guest here has one region of memory, and nothing else of a process is as large.
bool OfGuest(std::span<const block::Segment> segments) {
  return std::all_of(segments.begin(), segments.end(), [](const block::Segment& segment) {
    return segment.region->size_bytes() == kCrashGuestBytes;
  });
}

}  // namespace

class CrashMedium::CrashChannel final : public block::Channel {
 public:
  CrashChannel(CrashMedium& medium, uint64_t process, Reactor& reactor)
      : medium_(medium), process_(process), reactor_(reactor) {}
  void Submit(block::Request& request) override { medium_.Submit(process_, reactor_, request); }

 private:
  CrashMedium& medium_;
  const uint64_t process_;
  Reactor& reactor_;
};

class CrashMedium::CrashDevice final : public block::Device {
 public:
  CrashDevice(CrashMedium& medium, uint64_t process, const block::Geometry& geometry)
      : Device(medium.name(), geometry), medium_(medium), process_(process) {}

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override {
    return std::unique_ptr<block::Channel>(std::make_unique<CrashChannel>(medium_, process_, reactor));
  }
  Task<Status> Acquire(block::AccessMode /*mode*/) override {
    constexpr uint64_t kRetryNs = 50 * kNsPerUs;
    while (!medium_.TryLock(process_) && medium_.locks() && !medium_.kill_.dead()) {
      co_await medium_.world_.control().SleepFor(kRetryNs);
    }
    co_return Ok{};
  }
  Task<Status> Release() override {
    if (!medium_.kill_.dead()) medium_.Unlock(process_);
    co_return Ok{};
  }

 private:
  CrashMedium& medium_;
  const uint64_t process_;
};

CrashMedium::CrashMedium(const Parts& parts, const std::string& name, DiskIdentity identity, uint64_t blocks,
                         const Plan& plan, uint64_t seed, Defect defect)
    : world_(parts.world),
      kill_(parts.kill),
      memory_(parts.memory),
      known_to_guest_(parts.known_to_guest),
      identity_(identity),
      plan_(plan),
      defect_(defect),
      random_(seed),
      model_(name, blocks),
      bytes_(blocks * kBlockBytes) {
  world_.AddActor(*this);
}

CrashMedium::~CrashMedium() {
  world_.RemoveActor(*this);
}

std::unique_ptr<block::Device> CrashMedium::Open(uint64_t process, const block::Geometry& geometry) {
  return std::make_unique<CrashDevice>(*this, process, geometry);
}

// ---- The lock

bool CrashMedium::TryLock(uint64_t process) {
  if (kill_.dead()) return false;
  const bool busy = std::any_of(under_way_.begin(), under_way_.end(),
                                [&](const UnderWay& io) { return io.process != process && io.fenced; });
  if (busy || (owner_ != 0 && owner_ != process)) return false;
  owner_ = process;
  return true;
}

void CrashMedium::Unlock(uint64_t process) {
  if (owner_ == process) owner_ = 0;
}

void CrashMedium::Terminating(uint64_t process) {
  if (defect_ != Defect::kDrainCutShort && defect_ != Defect::kFailAtStop) return;
  for (UnderWay& io : under_way_) {
    if (io.process != process) continue;
    if (defect_ == Defect::kDrainCutShort) {
      io.fenced = false;
    } else {
      Finish(io, IoStatus::kAborted);
    }
  }
  if (defect_ == Defect::kDrainCutShort) kill_.Kill();
}

void CrashMedium::Gone(uint64_t process) {
  for (UnderWay& io : under_way_) {
    if (io.process != process) continue;
    Finish(io, IoStatus::kOk);  // nobody hears of it
    io.next_ns += random_.Below(plan_.late_ns_max + 1);
  }
  Unlock(process);
}

// ---- Requests

void CrashMedium::Submit(uint64_t process, Reactor& reactor, block::Request& request) {
  kill_.BeforeSubmit();
  if (kill_.dead()) {  // it was never submitted; what the dead does with the answer is the same in each run
    for (const block::Segment& segment : request.segments) {
      if (request.op == Op::kRead) std::memset(segment.data(), 0, segment.length_bytes);
    }
    return request.Complete(IoStatus::kOk);
  }
  CheckSubmitted(process, request);
  UnderWay io;
  io.process = process;
  io.op = request.op;
  io.first_block = request.offset_bytes / kBlockBytes;
  io.segments.assign(request.segments.begin(), request.segments.end());
  io.request = &request;
  io.reactor = &reactor;
  const uint64_t count = request.op == Op::kFlush ? 0 : request.length_bytes / kBlockBytes;
  if (!OfGuest(io.segments)) {
    io.own.resize(request.length_bytes);
    if (io.op == Op::kWrite) block::Gather(io.segments, 0, io.own.data(), io.own.size());
  }
  io.fails = random_.Chance(plan_.fail_percent, 100);
  for (uint64_t i = 0; i < count; ++i) {
    if (!io.fails || random_.Chance(1, 2)) io.blocks.push_back(i);
  }
  if (random_.Chance(plan_.at_once_percent, 100)) {
    while (!io.blocks.empty()) LandOne(io);
    GiveOwn(io);
    return request.Complete(io.fails ? IoStatus::kIoError : IoStatus::kOk);
  }
  io.next_ns = world_.now_ns() + 1 + random_.Below(plan_.land_ns_max);
  under_way_.push_back(std::move(io));
}

void CrashMedium::CheckSubmitted(uint64_t process, const block::Request& request) {
  if (owner_ != process && locks()) {
    world_.Violation(name() + ": a request of a process that does not own the disk");
  }
  if (const DiskModel* known = known_to_guest_(); known != &model_)
    world_.Violation(name() + ": a request that the guest meant for " + known->name());
  if (request.op != Op::kWrite) return;
  std::vector<uint8_t> block(kBlockBytes);
  for (uint64_t at = 0; at < request.length_bytes; at += kBlockBytes) {
    block::Gather(request.segments, at, block.data(), kBlockBytes);
    const uint64_t stamp = DiskModel::StampOf(block, (request.offset_bytes + at) / kBlockBytes);
    if (at == 0) CountSubmitted(stamp);
    if (!model_.Acknowledged(stamp)) continue;
    return world_.Violation(name() + ": write " + std::to_string(stamp) +
                            " runs again after its acknowledgement");
  }
}

void CrashMedium::CountSubmitted(uint64_t stamp) {
  if (stamp >= model_.stamps()) return;  // not one of the guest's, which is found when it is read
  submitted_.resize(model_.stamps());
  replayed_ += submitted_[stamp] ? 1 : 0;
  submitted_[stamp] = true;
}

void CrashMedium::LandOne(UnderWay& io) {
  const uint64_t which = random_.Below(io.blocks.size());
  LandBlock(io, io.blocks[which]);
  io.blocks[which] = io.blocks.back();
  io.blocks.pop_back();
}

// The segments' mapping belonged to the process; the guest's memory is the same at another place.
void CrashMedium::LandBlock(UnderWay& io, uint64_t index) {
  uint8_t* on_disk = bytes_.data() + (io.first_block + index) * kBlockBytes;
  const auto move = [&](uint8_t* in_memory, uint64_t bytes) {
    io.op == Op::kRead ? std::memcpy(in_memory, on_disk, bytes) : std::memcpy(on_disk, in_memory, bytes);
    on_disk += bytes;
  };
  if (io.op != Op::kRead && io.op != Op::kWrite) {
    std::memset(on_disk, 0, kBlockBytes);
  } else if (!io.own.empty()) {
    move(io.own.data() + index * kBlockBytes, kBlockBytes);
  } else {
    uint64_t skip = index * kBlockBytes;
    uint64_t left = kBlockBytes;
    for (const block::Segment& segment : io.segments) {
      const uint64_t skipped = std::min<uint64_t>(skip, segment.length_bytes);
      const uint64_t bytes = std::min<uint64_t>(left, segment.length_bytes - skipped);
      if (bytes > 0) move(memory_.Span(segment.offset_bytes + skipped, bytes).data(), bytes);
      skip -= skipped;
      left -= bytes;
    }
  }
}

void CrashMedium::GiveOwn(const UnderWay& io) {
  if (io.op == Op::kRead && !io.own.empty()) block::Scatter(io.own.data(), io.own.size(), io.segments, 0);
}

void CrashMedium::Finish(UnderWay& io, IoStatus status) {
  block::Request* const request = std::exchange(io.request, nullptr);
  if (request == nullptr) return;
  GiveOwn(io);
  io.reactor->PostCall([request, status] { request->Complete(status); });
}

void CrashMedium::LandAll() {
  for (auto io = under_way_.begin(); io != under_way_.end();) {
    if (io->request != nullptr) {
      ++io;
      continue;
    }
    landed_late_ += io->blocks.size();
    while (!io->blocks.empty()) LandOne(*io);
    io = under_way_.erase(io);
  }
}

bool CrashMedium::Step() {
  bool any = false;
  for (auto io = under_way_.begin(); io != under_way_.end();) {
    if (io->next_ns > world_.now_ns()) {
      ++io;
      continue;
    }
    any = true;
    if (!io->blocks.empty()) {
      if (io->request == nullptr) ++landed_late_;
      LandOne(*io);
    }
    io->next_ns = world_.now_ns() + 1 + random_.Below(plan_.land_ns_max);
    if (!io->blocks.empty()) {
      ++io;
      continue;
    }
    Finish(*io, io->fails ? IoStatus::kIoError : IoStatus::kOk);
    io = under_way_.erase(io);
  }
  return any;
}

uint64_t CrashMedium::waited_for() const {
  return static_cast<uint64_t>(std::count_if(under_way_.begin(), under_way_.end(),
                                             [](const UnderWay& io) { return io.request != nullptr; }));
}

uint64_t CrashMedium::NextNs() const {
  uint64_t next_ns = kNoDeadline;
  for (const UnderWay& io : under_way_) next_ns = std::min(next_ns, io.next_ns);
  return next_ns;
}

void CrashMedium::CheckContent() {
  const std::string wrong = model_.CheckContent(bytes_);
  if (!wrong.empty()) world_.Violation("on the storage: " + wrong);
}

std::string CrashMedium::Describe() const {
  return model_.name() + ": " + std::to_string(under_way_.size()) + " requests under way, owner " +
         std::to_string(owner_);
}

}  // namespace cleat::sim
