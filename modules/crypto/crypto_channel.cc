// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/crypto_channel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "block/segments.h"

namespace cleat::modules {
namespace {

using block::Frame;
using block::IoStatus;
using block::Op;
using block::Request;
using block::Segment;

// What may be encrypted before the reactor's time is taken anew, for the stamps: about 5 us, of which asking takes 10 ns.
constexpr uint64_t kStampEveryBytes = 32 * 1024;

constexpr uint32_t kOpBits = 8;

template <typename T>
uint64_t FromPointer(T* pointer) {
  return std::bit_cast<uintptr_t>(pointer);
}
template <typename T>
T* ToPointer(uint64_t word) {
  return std::bit_cast<T*>(static_cast<uintptr_t>(word));
}

// A write's shape: how many segments it has, and what it is to the layers above.
uint64_t ShapeOf(const Request& request) {
  return request.segments.size() << kOpBits | static_cast<uint64_t>(request.op);
}
Op OpOf(uint64_t shape) {
  return static_cast<Op>(shape & ((1U << kOpBits) - 1));
}
std::span<const Segment> SegmentsOf(uint64_t address, uint64_t shape) {
  return {ToPointer<const Segment>(address), shape >> kOpBits};
}

}  // namespace

// A place in segments.
class CryptoChannel::Cursor {
 public:
  explicit Cursor(std::span<const Segment> segments) : at_(segments.data()), end_(at_ + segments.size()) {}

  uint8_t* data() const { return at_->data() + within_; }
  uint64_t contiguous() const { return at_->length_bytes - within_; }
  void Skip(uint64_t bytes) {
    within_ += bytes;
    while (at_ != end_ && within_ >= at_->length_bytes) {
      within_ -= at_->length_bytes;
      ++at_;
    }
    CLEAT_DCHECK(at_ != end_ || within_ == 0);
  }
  // Calls piece(data, bytes) for each piece of the next `bytes`.
  template <typename Piece>
  void Take(uint64_t bytes, Piece piece) {
    while (bytes > 0) {
      const uint64_t length = std::min(contiguous(), bytes);
      piece(data(), length);
      Skip(length);
      bytes -= length;
    }
  }

 private:
  const Segment* at_;
  const Segment* end_;
  uint64_t within_ = 0;
};

CryptoChannel::CryptoChannel(Reactor& reactor, BouncePool& pool, std::unique_ptr<XtsContext> cipher,
                             uint32_t unit_bytes, std::unique_ptr<block::Channel> below)
    : FilterChannel(std::move(below)),
      reactor_(reactor),
      pool_(pool),
      cipher_(std::move(cipher)),
      unit_bytes_(unit_bytes),
      unit_shift_(static_cast<uint32_t>(std::countr_zero(unit_bytes))),
      lines_{Line(*this, BounceSize::kSmall), Line(*this, BounceSize::kLarge)} {}

void CryptoChannel::Submit(Request& request) {
  switch (request.op) {
    case Op::kRead:
      ++in_flight_;
      request.Push(&ReadDone, this);
      return below().Submit(request);
    case Op::kWrite:
      if (request.length_bytes <= kSmallBounceBytes) [[likely]]
        return WriteSmall(request);
      return WriteInParts(request);
    case Op::kWriteZeroes:
      return WriteInParts(request);
    case Op::kFlush:
    case Op::kDiscard:
      return below().Submit(request);
    case Op::kCompareAndWrite:  // the pipeline's entrance does it, with reads and writes
      return request.Complete(IoStatus::kUnsupported);
  }
}

// So that a queue's batch is stamped with a few times, none much too early.
inline void CryptoChannel::Stamp(Request& request, RequestStage stage, uint64_t bytes) {
  bytes_unstamped_ += bytes;
  if (bytes_unstamped_ >= kStampEveryBytes) {
    bytes_unstamped_ = 0;
    reactor_.RefreshNow();
  }
  request.stamps.Stamp(stage, reactor_.now_ns());
}

// ---- Writes

void CryptoChannel::WriteSmall(Request& request) {
  ++in_flight_;
  Frame& frame = request.Push(&SmallDone, this);
  frame.scratch[kSegments] = FromPointer(request.segments.data());
  frame.scratch[kShape] = ShapeOf(request);
  SubmitSmall(request, BouncePool::Whose::kNewcomer);
}

void CryptoChannel::SubmitSmall(Request& request, BouncePool::Whose whose) {
  Bounce* bounce = pool_.TakeSmall(whose);
  if (bounce == nullptr) [[unlikely]]
    return pool_.Wait(BounceSize::kSmall, lines_[static_cast<size_t>(BounceSize::kSmall)], request);
  request.top().scratch[kBounces] = FromPointer(bounce);
  Cursor from(request.segments);
  const uint64_t bytes = request.length_bytes;
  const bool good = EncryptInto(pool_.data(*bounce), bytes, request.offset_bytes / kSectorBytes, from);
  bounce->segments[0].length_bytes = static_cast<uint32_t>(bytes);
  request.segments = {bounce->segments.data(), 1};
  if (!good) [[unlikely]]
    return request.Complete(IoStatus::kIoError);
  Stamp(request, RequestStage::kCryptoOut, bytes);
  below().Submit(request);
}

void CryptoChannel::SmallDone(Request& request, const Frame& frame) {
  auto& channel = *static_cast<CryptoChannel*>(frame.layer);
  BouncePool& pool = channel.pool_;
  request.segments = SegmentsOf(frame.scratch[kSegments], frame.scratch[kShape]);
  pool.GiveSmall(*ToPointer<Bounce>(frame.scratch[kBounces]));
  --channel.in_flight_;
  request.Complete(request.status);  // may end the channel
  pool.Serve();
}

void CryptoChannel::WriteInParts(Request& request) {
  ++in_flight_;
  Frame& frame = request.Push(&PartDone, this);
  frame.scratch[kSegments] = FromPointer(request.segments.data());
  frame.scratch[kShape] = ShapeOf(request);
  frame.scratch[kOffset] = request.offset_bytes;
  frame.scratch[kLength] = request.length_bytes;
  frame.scratch[kDone] = 0;
  SubmitPart(request, BouncePool::Whose::kNewcomer);
}

void CryptoChannel::SubmitPart(Request& request, BouncePool::Whose whose) {
  auto& scratch = request.top().scratch;
  const uint64_t left = scratch[kLength] - scratch[kDone];
  const uint64_t count = (left + kLargeBounceBytes - 1) / kLargeBounceBytes;
  Bounce* bounces = pool_.TakeLarge(static_cast<uint32_t>(std::min<uint64_t>(count, kBouncesOfAPart)), whose);
  if (bounces == nullptr) [[unlikely]]
    return pool_.Wait(BounceSize::kLarge, lines_[static_cast<size_t>(BounceSize::kLarge)], request);
  scratch[kBounces] = FromPointer(bounces);
  if (!EncryptPart(request, *bounces)) [[unlikely]]
    return request.Complete(IoStatus::kIoError);
  Stamp(request, RequestStage::kCryptoOut, request.length_bytes);
  below().Submit(request);
}

// Makes the request a write of what comes next, as much as the buffers hold.
bool CryptoChannel::EncryptPart(Request& request, Bounce& bounces) {
  const auto& scratch = request.top().scratch;
  const bool zeroes = OpOf(scratch[kShape]) == Op::kWriteZeroes;
  Cursor from(SegmentsOf(scratch[kSegments], scratch[kShape]));
  if (!zeroes) from.Skip(scratch[kDone]);
  const uint64_t begin = scratch[kOffset] + scratch[kDone];
  const uint64_t end = scratch[kOffset] + scratch[kLength];
  uint64_t at = begin;
  uint32_t count = 0;
  bool good = true;
  for (Bounce* bounce = &bounces; bounce != nullptr && good; bounce = bounce->next) {
    const uint64_t bytes = std::min<uint64_t>(end - at, kLargeBounceBytes);
    uint8_t* out = pool_.data(*bounce);
    if (zeroes) {
      std::memset(out, 0, bytes);
      good = cipher_->Encrypt(out, out, at / kSectorBytes, bytes >> unit_shift_);
    } else {
      good = EncryptInto(out, bytes, at / kSectorBytes, from);
    }
    bounces.segments[count++] = {&pool_.region(), bounce->offset_bytes, static_cast<uint32_t>(bytes)};
    at += bytes;
  }
  request.op = Op::kWrite;
  request.offset_bytes = begin;
  request.length_bytes = at - begin;
  request.segments = {bounces.segments.data(), count};
  return good;
}

// Whole data units are read from where they lie, once each: what a guest changes meanwhile is its own loss. One that lies
// in several segments is gathered first: in parts it would be another cipher text.
bool CryptoChannel::EncryptInto(uint8_t* out, uint64_t bytes, uint64_t sector, Cursor& from) {
  while (bytes > 0) {
    const uint64_t whole = std::min(from.contiguous(), bytes) & ~uint64_t{unit_bytes_ - 1};
    const uint64_t step = whole > 0 ? whole : unit_bytes_;
    const uint8_t* in = out;
    if (whole > 0) [[likely]] {
      in = from.data();
      if (!cipher_->Encrypt(in, out, sector, whole >> unit_shift_)) return false;
      from.Skip(whole);
    } else {
      uint8_t* to = out;
      from.Take(unit_bytes_, [&to](const uint8_t* data, uint64_t length) {
        block::CopyShared(to, data, length);
        to += length;
      });
      if (!cipher_->Encrypt(out, out, sector, 1)) return false;
    }
    out += step;
    bytes -= step;
    sector += step / kSectorBytes;
  }
  return true;
}

void CryptoChannel::PartDone(Request& request, const Frame& frame) {
  auto& channel = *static_cast<CryptoChannel*>(frame.layer);
  BouncePool& pool = channel.pool_;
  const auto& scratch = frame.scratch;
  const uint64_t done = scratch[kDone] + request.length_bytes;
  request.op = OpOf(scratch[kShape]);
  request.offset_bytes = scratch[kOffset];
  request.length_bytes = scratch[kLength];
  request.segments = SegmentsOf(scratch[kSegments], scratch[kShape]);
  pool.GiveLarge(*ToPointer<Bounce>(scratch[kBounces]));
  if (request.status != IoStatus::kOk || done == request.length_bytes) [[likely]] {
    --channel.in_flight_;
    request.Complete(request.status);  // may end the channel
  } else {
    channel.WaitForNextPart(request, frame, done);
  }
  pool.Serve();
}

// At the end of the disk's line, and so of its turn.
void CryptoChannel::WaitForNextPart(Request& request, const Frame& frame, uint64_t done) {
  auto scratch = frame.scratch;
  scratch[kDone] = done;
  request.Push(&PartDone, this).scratch = scratch;
  pool_.Wait(BounceSize::kLarge, lines_[static_cast<size_t>(BounceSize::kLarge)], request);
}

void CryptoChannel::AbortQueued(const Request* only) {
  block::RequestList aborted;
  const auto wanted = [only](Request& request) {
    const bool in_parts = request.top().done == &PartDone;
    return (only == nullptr || only == &request) && !(in_parts && request.top().scratch[kDone] > 0);
  };
  for (Line& line : lines_) pool_.Withdraw(line, wanted, aborted);
  // Last: what ends there gives its buffers back, which are not for these any more.
  FilterChannel::AbortQueued(only);
  while (Request* request = aborted.PopFront()) {
    request->top().done = &Recalled;        // it is still as it came, and has no buffer
    request->Complete(IoStatus::kAborted);  // the last one may end the channel
  }
}

void CryptoChannel::Recalled(Request& request, const Frame& frame) {
  --static_cast<CryptoChannel*>(frame.layer)->in_flight_;
  request.Complete(request.status);
}

// ---- Reads

void CryptoChannel::ReadDone(Request& request, const Frame& frame) {
  auto& channel = *static_cast<CryptoChannel*>(frame.layer);
  --channel.in_flight_;
  if (request.status == IoStatus::kOk) [[likely]] {
    if (!channel.Decrypt(request.segments, request.offset_bytes, request.length_bytes)) [[unlikely]]
      request.status = IoStatus::kIoError;
    channel.Stamp(request, RequestStage::kCryptoIn, request.length_bytes);
  }
  request.Complete(request.status);
}

bool CryptoChannel::Decrypt(std::span<const Segment> segments, uint64_t offset_bytes, uint64_t bytes) {
  Cursor at(segments);
  uint64_t sector = offset_bytes / kSectorBytes;
  while (bytes > 0) {
    const uint64_t whole = std::min(at.contiguous(), bytes) & ~uint64_t{unit_bytes_ - 1};
    const uint64_t step = whole > 0 ? whole : unit_bytes_;
    if (whole > 0) [[likely]] {
      uint8_t* data = at.data();
      if (!cipher_->Decrypt(data, data, sector, whole >> unit_shift_)) return false;
      at.Skip(whole);
    } else if (!DecryptSplit(at, sector)) {
      return false;
    }
    bytes -= step;
    sector += step / kSectorBytes;
  }
  return true;
}

bool CryptoChannel::DecryptSplit(Cursor& at, uint64_t sector) {
  uint8_t* unit = split_unit_.data();
  Cursor from = at;
  from.Take(unit_bytes_, [&unit](const uint8_t* data, uint64_t length) {
    block::CopyShared(unit, data, length);
    unit += length;
  });
  if (!cipher_->Decrypt(split_unit_.data(), split_unit_.data(), sector, 1)) return false;
  unit = split_unit_.data();
  at.Take(unit_bytes_, [&unit](uint8_t* data, uint64_t length) {
    std::memcpy(data, unit, length);
    unit += length;
  });
  return true;
}

}  // namespace cleat::modules
