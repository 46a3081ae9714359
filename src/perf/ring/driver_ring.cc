// SPDX-License-Identifier: Apache-2.0
#include "perf/ring/driver_ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "perf/ring/packed_driver_ring.h"
#include "perf/ring/split_driver_ring.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kCacheLineBytes = 64;

}  // namespace

Result<std::unique_ptr<DriverRing>> DriverRing::Create(GuestMemory& memory, const RingOptions& options) {
  if (options.size == 0 || options.size > kSizeMax ||
      (!options.packed && !std::has_single_bit(options.size))) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a {} ring of {} entries: must be {}, {} at most", options.packed ? "packed" : "split",
                    options.size, options.packed ? "one at least" : "a power of two", kSizeMax));
  }
  std::unique_ptr<DriverRing> ring;
  if (options.packed) {
    ring = std::make_unique<PackedDriverRing>(memory, options);
  } else {
    ring = std::make_unique<SplitDriverRing>(memory, options);
  }
  ring->heads_.resize(options.size);
  ring->reserved_.resize(options.size);
  ring->free_count_ = options.size;
  CLEAT_TRY(ring->Initialize());
  ring->kick_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ring->call_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ring->err_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ring->kick_fd_ || !ring->call_fd_ || !ring->err_fd_) return ErrnoError(errno, "eventfd of a ring");
  return ring;
}

Status DriverRing::AllocateMemory(uint64_t desc_bytes, uint64_t avail_bytes, uint64_t used_bytes) {
  desc_bytes_ = desc_bytes;
  avail_bytes_ = avail_bytes;
  used_bytes_ = used_bytes;
  struct Area {
    uint64_t bytes;
    uint64_t* gpa;
  };
  for (const Area& area : {Area{desc_bytes, &desc_gpa_}, Area{avail_bytes, &avail_gpa_},
                           Area{used_bytes, &used_gpa_}, Area{table_bytes(), &tables_gpa_}}) {
    if (area.bytes == 0) continue;
    // The specification asks for 16, 2 and 4; a line each keeps the two sides apart.
    CLEAT_ASSIGN(*area.gpa, memory_.Allocate(area.bytes, kCacheLineBytes));
  }
  if (table_bytes() != 0) tables_ = memory_.Span(tables_gpa_, table_bytes()).data();
  return Ok{};
}

DriverRing::~DriverRing() {
  if (used_gpa_ == 0) return;
  memory_.Free(desc_gpa_, desc_bytes_);
  memory_.Free(avail_gpa_, avail_bytes_);
  memory_.Free(used_gpa_, used_bytes_);
  if (tables_ != nullptr) memory_.Free(tables_gpa_, table_bytes());
}

void DriverRing::Submit() {
  if (unpublished_ == 0) return;
  if (Publish()) {
    Kick();
  } else {
    ++stats_.kicks_suppressed;
  }
}

void DriverRing::Kick() {
  ++stats_.kicks;
  const uint64_t one = 1;
  const ssize_t written = write(kick_fd_.get(), &one, sizeof one);
  CLEAT_CHECK(written == sizeof one || errno == EAGAIN);  // EAGAIN: 2^64 - 2 unread kicks are as good as one
}

bool DriverRing::kick_pending() const {
  pollfd poll_fd{.fd = kick_fd_.get(), .events = POLLIN, .revents = 0};
  return poll(&poll_fd, 1, 0) > 0;
}

PopResult DriverRing::Break(std::string reason) {
  if (broken_reason_.empty()) broken_reason_ = std::move(reason);
  return PopResult::kBroken;
}

void DriverRing::ClearCall() {
  uint64_t count = 0;
  if (read(call_fd_.get(), &count, sizeof count) == sizeof count) ++stats_.calls;
}

bool DriverRing::WaitUsed(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  bool found = false;
  for (;;) {
    ClearCall();
    if (!EnableCalls()) {
      found = true;
      break;
    }
    pollfd poll_fd{.fd = call_fd_.get(), .events = POLLIN, .revents = 0};
    if (poll(&poll_fd, 1, deadline.LeftMs()) <= 0 && deadline.passed()) break;
  }
  DisableCalls();
  return found;
}

PopResult DriverRing::BreakUsed(uint32_t id, uint32_t written_bytes) {
  return Break(CheckUsed(id, written_bytes).value_or("a used entry"));
}

std::optional<std::string> DriverRing::CheckUsed(uint32_t id, uint32_t written_bytes) const {
  if (id >= options_.size) return fmt::format("used entry with id {} in a ring of {}", id, options_.size);
  const Head& head = heads_[id];
  if (head.descriptors == 0) return fmt::format("used entry with id {}, which is not in flight", id);
  if (written_bytes > head.writable_bytes) {
    return fmt::format("used entry {} says {} bytes were written, {} could have been", id, written_bytes,
                       head.writable_bytes);
  }
  return std::nullopt;
}

// ---- What a packed ring has no use for

uint16_t DriverRing::avail_idx() const {
  CLEAT_CHECK(!packed());
  return 0;
}

uint16_t DriverRing::device_used_idx() const {
  CLEAT_CHECK(!packed());
  return 0;
}

std::optional<std::vector<uint16_t>> DriverRing::TakeRaw(uint16_t /*count*/) {
  CLEAT_CHECK(!packed());
  return std::nullopt;
}

wire::Descriptor& DriverRing::RawDescriptor(uint16_t /*index*/) {
  CLEAT_CHECK(!packed());
  std::abort();
}

void DriverRing::PushRaw(uint16_t /*head*/, uint16_t /*descriptors*/, uint64_t /*token*/) {
  CLEAT_CHECK(!packed());
}

void DriverRing::PublishRawIndex(uint16_t /*avail_idx*/) {
  CLEAT_CHECK(!packed());
}

}  // namespace cleat::perf
