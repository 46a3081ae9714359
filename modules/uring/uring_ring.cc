// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring_ring.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace cleat::modules {
namespace {

Error WhyNoRing(int error_number, const std::string& reactor) {
  const std::string what = "io_uring for " + reactor;
  switch (error_number) {
    case EPERM:
    case EACCES:
      return {ErrorCode::kUnimplemented,
              what +
                  " is forbidden on this host: set the sysctl kernel.io_uring_disabled to 0 and allow "
                  "io_uring_setup "
                  "in the seccomp filter (containers, systemd's SystemCallFilter)"};
    case ENOSYS:
      return {ErrorCode::kUnimplemented,
              what + ": the kernel has none, or a seccomp filter hides it: Linux 5.15 or later is needed"};
    case ENOMEM:
      return {ErrorCode::kResourceExhausted,
              what + ": no memory for its rings: raise RLIMIT_MEMLOCK (LimitMEMLOCK= in the unit)"};
    default:
      return ErrnoError(error_number, what);
  }
}

}  // namespace

UringRing::RingWatch::RingWatch(UringRing& r)
    : FdWatch([](FdWatch& watch, uint32_t /*events*/) {
        UringRing& woken = static_cast<RingWatch&>(watch).ring;
        woken.reactor_.Activate(woken);
      }),
      ring(r) {}

Result<std::unique_ptr<UringRing>> UringRing::Make(Reactor& reactor, const IoLifetime* lifetime) {
  std::unique_ptr<UringRing> ring(new UringRing(reactor));
  CLEAT_TRY(ring->SetUp());
  if (lifetime != nullptr) CLEAT_TRY(ring->Keep(*lifetime));
  reactor.AddPoller(*ring);
  return ring;
}

Status UringRing::SetUp() {
  io_uring_params params{};
  // The completion queue holds whatever may be under way: it can't overflow. Interrupts that only tell this
  // thread to look at completions are left out where the kernel can (5.19): it looks every turn.
  constexpr uint32_t kFlags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
  params.cq_entries = kUnderWayMax;
  params.flags = kFlags | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  int made = io_uring_queue_init_params(kSubmitMax, &ring_, &params);
  if (made == -EINVAL) {
    params = {};
    params.cq_entries = kUnderWayMax;
    params.flags = kFlags;
    made = io_uring_queue_init_params(kSubmitMax, &ring_, &params);
  }
  if (made != 0) return WhyNoRing(-made, reactor_.name());
  ring_made_ = true;
  if ((params.features & IORING_FEAT_NODROP) == 0 || (params.features & IORING_FEAT_SUBMIT_STABLE) == 0) {
    return WhyNoRing(ENOSYS, reactor_.name());
  }

  event_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event_) return ErrnoError(errno, "eventfd for the io_uring of " + reactor_.name());
  const int registered = io_uring_register_eventfd(&ring_, event_.get());
  if (registered != 0)
    return ErrnoError(-registered, "registering the io_uring's eventfd for " + reactor_.name());
  io_uring_cq_eventfd_toggle(&ring_, false);
  CLEAT_TRY(watch_.Start(reactor_, event_.get(), EPOLLIN));

  const auto map = [](size_t bytes, int protection) {
    void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
  };
  bounce_memory_ = map(size_t{kBounceBytes} * kBounceBuffers, PROT_READ | PROT_WRITE);
  zeroes_ = map(kZeroBytes, PROT_READ);  // never written: all of it is the kernel's one zero page
  if (bounce_memory_ == nullptr || zeroes_ == nullptr) {
    return Error(ErrorCode::kResourceExhausted, "no memory for the bounce buffers of " + reactor_.name());
  }
  bounce_free_.reserve(kBounceBuffers);
  for (uint32_t i = kBounceBuffers; i-- > 0;)
    bounce_free_.push_back(bounce_memory_ + size_t{kBounceBytes} * i);
  return Ok{};
}

// Registered files are the ring's, and go with its last request.
Status UringRing::Keep(const IoLifetime& lifetime) {
  const int fd = lifetime.fd();
  const int registered = io_uring_register_files(&ring_, &fd, 1);
  if (registered != 0)
    return ErrnoError(-registered,
                      "registering " + lifetime.path() + " with the io_uring of " + reactor_.name());
  return Ok{};
}

UringRing::~UringRing() {
  CLEAT_CHECK(under_way_ == 0 && waiting_.empty() && bounce_waiting_.empty());
  if (added()) reactor_.RemovePoller(*this);
  watch_.Stop();
  if (ring_made_) io_uring_queue_exit(&ring_);
  if (bounce_memory_ != nullptr) munmap(bounce_memory_, size_t{kBounceBytes} * kBounceBuffers);
  if (zeroes_ != nullptr) munmap(zeroes_, kZeroBytes);
}

void UringRing::Start(block::Request& request) {
  reactor_.Activate(*this);
  if (!waiting_.empty() || !TryIssue(request)) waiting_.PushBack(request);
}

bool UringRing::TryIssue(block::Request& request) {
  if (under_way_ >= kUnderWayMax) return false;
  const auto iovecs_wanted = static_cast<uint32_t>(std::min<size_t>(request.segments.size(), kIovecsMax));
  if (iovecs_used_ + iovecs_wanted > iovecs_.size() || io_uring_sq_space_left(&ring_) == 0) {
    SubmitPrepared();
    if (iovecs_used_ + iovecs_wanted > iovecs_.size() || io_uring_sq_space_left(&ring_) == 0) return false;
  }
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  CLEAT_CHECK(sqe != nullptr);
  ClientOf(request).Prepare(request, *sqe, {iovecs_.data() + iovecs_used_, iovecs_wanted});
  iovecs_used_ += iovecs_wanted;
  io_uring_sqe_set_data(sqe, &request);
  request.stamps.Stamp(RequestStage::kSubmitted, reactor_.now_ns());
  ++under_way_;
  return true;
}

void UringRing::IssueWaiting() {
  while (block::Request* request = waiting_.PopFront()) {
    if (!TryIssue(*request)) {
      waiting_.PushFront(*request);
      return;
    }
  }
}

// What the kernel doesn't take now (it is out of memory, say) stays in the submission queue for the next
// turn.
bool UringRing::SubmitPrepared() {
  bool any = false;
  while (io_uring_sq_ready(&ring_) > 0) {
    const int submitted = io_uring_submit(&ring_);
    if (submitted <= 0) {
      CLEAT_CHECK(submitted == 0 || submitted == -EAGAIN || submitted == -EBUSY || submitted == -EINTR ||
                  submitted == -ENOMEM);
      return any;
    }
    any = true;
  }
  iovecs_used_ = 0;
  return any;
}

bool UringRing::Reap() {
  constexpr uint32_t kBatch = 64;
  struct Completion {
    block::Request* request;
    int32_t result;
  };
  std::array<Completion, kBatch> batch;
  // Bounded: what was there when the turn began, more or less.
  for (uint32_t reaped = 0; reaped < kUnderWayMax;) {
    if ((IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) {
      io_uring_get_events(&ring_);
    }
    uint32_t count = 0;
    uint32_t head = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      batch[count++] = {static_cast<block::Request*>(io_uring_cqe_get_data(cqe)), cqe->res};
      if (count == kBatch) break;
    }
    if (count == 0) return reaped > 0;
    io_uring_cq_advance(&ring_, count);
    under_way_ -= count;
    for (uint32_t i = 0; i < count; ++i) {
      batch[i].request->stamps.Stamp(RequestStage::kDone, reactor_.now_ns());
      ClientOf(*batch[i].request).Finished(*batch[i].request, batch[i].result);
    }
    reaped += count;
  }
  return true;
}

bool UringRing::Poll() {
  if (under_way_ == 0 && waiting_.empty()) return false;
  bool worked = SubmitPrepared();
  worked |= Reap();
  IssueWaiting();
  worked |= SubmitPrepared();
  return worked;
}

bool UringRing::Arm() {
  if (io_uring_sq_ready(&ring_) > 0 || !waiting_.empty()) return false;
  if (under_way_ == 0) return true;  // Start activates
  io_uring_cq_eventfd_toggle(&ring_, true);
  // A full barrier, and what the kernel has kept back for this thread becomes visible.
  io_uring_get_events(&ring_);
  if (io_uring_cq_ready(&ring_) == 0) return true;
  Disarm();
  return false;
}

void UringRing::Disarm() {
  io_uring_cq_eventfd_toggle(&ring_, false);
}

uint8_t* UringRing::TakeBounce(block::Request& request) {
  if (bounce_free_.empty()) {
    bounce_waiting_.PushBack(request);
    return nullptr;
  }
  uint8_t* buffer = bounce_free_.back();
  bounce_free_.pop_back();
  return buffer;
}

void UringRing::GiveBounce(uint8_t* buffer) {
  if (block::Request* request = bounce_waiting_.PopFront()) {
    ClientOf(*request).BounceReady(*request, buffer);
  } else {
    bounce_free_.push_back(buffer);
  }
}

}  // namespace cleat::modules
