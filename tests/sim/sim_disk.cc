// SPDX-License-Identifier: Apache-2.0
#include "sim_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cleat::sim {

using block::AccessMode;
using block::IoStatus;
using block::Op;

bool Medium::HeldByOthers(AccessMode mode) const {
  return std::any_of(owners.begin(), owners.end(), [&](const auto& owner) {
    return mode == AccessMode::kReadWrite || owner.second == AccessMode::kReadWrite;
  });
}

void Medium::Hold() {
  held = true;
  for (const auto& [disk, fault] : open) {
    if (fault != nullptr) fault->Hold();
  }
}

void Medium::LetGo() {
  held = false;
  for (const auto& [disk, fault] : open) {
    if (fault != nullptr) fault->LetGo();
  }
}

class SimDisk::SimChannel final : public block::Channel {
 public:
  SimChannel(SimDisk& disk, const Reactor& reactor) : disk_(disk), reactor_(reactor) { ++disk_.channels_; }
  ~SimChannel() override {
    if (Reactor::Current() != &reactor_) disk_.report_(disk_.name() + ": channel closed on another reactor");
    --disk_.channels_;
  }

  void Submit(block::Request& request) override {
    if (Reactor::Current() != &reactor_) disk_.report_(disk_.name() + ": request on another reactor");
    const IoStatus status = disk_.Execute(request);
    const bool twice = disk_.defect_ == Defect::kCompleteTwice && disk_.Strikes();
    request.Complete(status);
    if (twice) request.Complete(status);
  }

 private:
  SimDisk& disk_;
  const Reactor& reactor_;
};

SimDisk::SimDisk(Medium& medium, const block::Geometry& geometry, std::string user, Defect defect,
                 ReportFn report)
    : Device(medium.model.name(), geometry),
      medium_(medium),
      user_(std::move(user)),
      defect_(defect),
      report_(std::move(report)) {
  medium_.open.emplace(this, nullptr);
}

SimDisk::~SimDisk() {
  if (owned_) report_(name() + " for " + user_ + ": destroyed while it owns the disk");
  if (channels_ > 0) report_(name() + " for " + user_ + ": destroyed with open channels");
  if (defect_ == Defect::kLeakDisk) {
    medium_.open.emplace(nullptr, nullptr);
  }
  medium_.open.erase(this);
}

Result<std::unique_ptr<block::Channel>> SimDisk::OpenChannel(Reactor& reactor) {
  if (Reactor::Current() != &reactor) report_(name() + ": channel opened on another reactor");
  return std::unique_ptr<block::Channel>(std::make_unique<SimChannel>(*this, reactor));
}

Task<Status> SimDisk::Acquire(AccessMode mode) {
  if (owned_) report_(name() + " for " + user_ + ": acquired twice");
  medium_.owners.emplace(this, mode);
  const auto writers = std::count_if(medium_.owners.begin(), medium_.owners.end(), [](const auto& owner) {
    return owner.second == AccessMode::kReadWrite;
  });
  if (writers > 0 && medium_.owners.size() > 1) report_(name() + ": two owners at once, one of them writing");
  owned_ = true;
  writable_ = mode == AccessMode::kReadWrite;
  co_return Ok{};
}

Task<Status> SimDisk::Release() {
  if (!owned_) report_(name() + " for " + user_ + ": released without being owned");
  owned_ = false;
  if (defect_ == Defect::kKeepOwner) {
    medium_.owners.emplace(nullptr, AccessMode::kReadWrite);
  }
  medium_.owners.erase(this);
  co_return Ok{};
}

Task<Status> SimDisk::Close() {
  if (owned_) report_(name() + " for " + user_ + ": closed while it owns the disk");
  if (channels_ > 0) report_(name() + " for " + user_ + ": closed with open channels");
  if (closed_) report_(name() + " for " + user_ + ": closed twice");
  closed_ = true;
  co_return Ok{};
}

bool SimDisk::Strikes() {
  return ++strikes_ % 5 == 0;
}

IoStatus SimDisk::Execute(const block::Request& request) {
  if (!owned_) report_(name() + " for " + user_ + ": a request while the disk is not owned");
  if (request.op == Op::kFlush) return IoStatus::kOk;
  if (request.op != Op::kRead && !writable_)
    report_(name() + " for " + user_ + ": a write to a read-only disk");
  if (request.length_bytes == 0 || request.offset_bytes % kBlockBytes != 0 ||
      request.length_bytes % kBlockBytes != 0 ||
      request.offset_bytes + request.length_bytes > medium_.bytes.size()) {
    report_(name() + ": a request that should not have come through the pipeline's checks");
    return IoStatus::kInvalid;
  }
  if (request.op == Op::kRead || request.op == Op::kWrite) {
    uint64_t sum = 0;
    for (const block::Segment& segment : request.segments) sum += segment.length_bytes;
    if (sum != request.length_bytes) report_(name() + ": the segments' lengths are not the request's");
  }
  if (request.op == Op::kRead) {
    Read(request);
  } else {
    Write(request);
  }
  return IoStatus::kOk;
}

void SimDisk::Read(const block::Request& request) {
  const bool stale = defect_ == Defect::kStaleRead && !before_.empty() && Strikes();
  const uint8_t* from = (stale ? before_ : medium_.bytes).data() + request.offset_bytes;
  for (const block::Segment& segment : request.segments) {
    std::memcpy(segment.data(), from, segment.length_bytes);
    from += segment.length_bytes;
  }
}

void SimDisk::Write(const block::Request& request) {
  if (defect_ == Defect::kLoseWrite && Strikes()) return;
  if (defect_ == Defect::kStaleRead) before_ = medium_.bytes;
  uint64_t offset = request.offset_bytes;
  if (defect_ == Defect::kMisplaceWrite && Strikes()) {
    offset = offset >= kBlockBytes ? offset - kBlockBytes : offset + kBlockBytes;
    offset = std::min(offset, medium_.bytes.size() - request.length_bytes);
  }
  uint8_t* to = medium_.bytes.data() + offset;
  if (request.op == Op::kWriteZeroes) {
    std::memset(to, 0, request.length_bytes);
  } else if (request.op == Op::kDiscard) {
    // Every second block, so that nobody can rely on either answer.
    for (uint64_t i = 0; i < request.length_bytes; i += 2 * uint64_t{kBlockBytes})
      std::memset(to + i, 0, kBlockBytes);
  } else {
    uint64_t left = request.length_bytes;
    if (defect_ == Defect::kTearWrite && Strikes()) left -= kBlockBytes / 2;
    for (const block::Segment& segment : request.segments) {
      const uint64_t bytes = std::min<uint64_t>(segment.length_bytes, left);
      std::memcpy(to, segment.data(), bytes);
      to += bytes;
      left -= bytes;
    }
  }
}

}  // namespace cleat::sim
