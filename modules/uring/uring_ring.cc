// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring_ring.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
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

constexpr size_t kVectorBytes = sizeof(iovec) * UringRing::kVectors * UringRing::kVectorIovecs;

// What the kernel keeps with an operation: the request, and above its address, which has 48 bits, the number of its vector.
constexpr uint32_t kVectorShift = 48;
constexpr uint64_t kAddress = (uint64_t{1} << kVectorShift) - 1;
static_assert(UringRing::kVectors < 1U << (64 - kVectorShift));

uint64_t DataOf(block::Request& request, uint64_t vector) {
  const auto address = static_cast<uint64_t>(std::bit_cast<uintptr_t>(&request));
  CLEAT_CHECK(address <= kAddress);
  return address | vector << kVectorShift;
}

block::Request* RequestOf(uint64_t data) {
  return std::bit_cast<block::Request*>(static_cast<uintptr_t>(data & kAddress));
}

}  // namespace

UringRing::RingWatch::RingWatch(UringRing& r)
    : FdWatch([](FdWatch& watch, uint32_t /*events*/) {
        UringRing& woken = static_cast<RingWatch&>(watch).ring;
        woken.reactor_.Activate(woken);
      }),
      ring(r) {}

Result<std::unique_ptr<UringRing>> UringRing::Make(Reactor& reactor, const IoLifetime* lifetime, Kind kind,
                                                   uint32_t kept_files) {
  std::unique_ptr<UringRing> ring(new UringRing(reactor, kind, kept_files));
  CLEAT_TRY(ring->SetUp());
  if (kind == Kind::kCommands) CLEAT_TRY(ring->MakePlaces());
  if (lifetime != nullptr) CLEAT_TRY(ring->Keep(*lifetime));
  reactor.AddPoller(*ring);
  return ring;
}

Status UringRing::MakeRing() {
  io_uring_params params{};
  // The completion queue holds whatever may be under way: it can't overflow. Interrupts that only tell this
  // thread to look at completions are left out where the kernel can (5.19): it looks every turn.
  const uint32_t flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                         (kind_ == Kind::kCommands ? IORING_SETUP_SQE128 | IORING_SETUP_CQE32 : 0U);
  params.cq_entries = kUnderWayMax;
  params.flags = flags | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  int made = io_uring_queue_init_params(kSubmitMax, &ring_, &params);
  if (made == -EINVAL) {
    params = {};
    params.cq_entries = kUnderWayMax;
    params.flags = flags;
    made = io_uring_queue_init_params(kSubmitMax, &ring_, &params);
  }
  if (made == -EINVAL && kind_ == Kind::kCommands) {
    return Error(ErrorCode::kUnimplemented, "io_uring for " + reactor_.name() +
                                                " takes no devices' commands: Linux 5.19 or later is needed");
  }
  if (made != 0) return WhyNoRing(-made, reactor_.name());
  ring_made_ = true;
  if ((params.features & IORING_FEAT_NODROP) == 0 || (params.features & IORING_FEAT_SUBMIT_STABLE) == 0) {
    return WhyNoRing(ENOSYS, reactor_.name());
  }
  return Ok{};
}

Status UringRing::SetUp() {
  CLEAT_TRY(MakeRing());
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
  if (kind_ == Kind::kCommands) {
    vector_memory_ = map(kVectorBytes, PROT_READ | PROT_WRITE);
    if (vector_memory_ == nullptr)
      return Error(ErrorCode::kResourceExhausted, "no memory for the commands of " + reactor_.name());
    vectors_free_.reserve(kVectors);
    for (uint64_t vector = kVectors; vector > 0; --vector) vectors_free_.push_back(vector);
  }
  bounce_free_.reserve(kBounceBuffers);
  for (uint32_t i = kBounceBuffers; i-- > 0;)
    bounce_free_.push_back(bounce_memory_ + size_t{kBounceBytes} * i);
  return Ok{};
}

Status UringRing::MakePlaces() {
  const int made = io_uring_register_files_sparse(&ring_, kept_files_);
  if (made < 0) return ErrnoError(-made, "places for files in the io_uring of " + reactor_.name());
  return Ok{};
}

// Registered files are the ring's, and go with its last request.
Status UringRing::Keep(const IoLifetime& lifetime) {
  const int fd = lifetime.fd();
  const int registered = kind_ == Kind::kFiles ? io_uring_register_files(&ring_, &fd, 1)
                                               : io_uring_register_files_update(&ring_, 0, &fd, 1);
  if (registered < 0)
    return ErrnoError(-registered,
                      "registering " + lifetime.path() + " with the io_uring of " + reactor_.name());
  return Ok{};
}

Status UringRing::KeepFile(uint32_t place, int fd) {
  CLEAT_CHECK(kind_ == Kind::kCommands && place > 0 && place < kept_files_);
  const int registered = io_uring_register_files_update(&ring_, place, &fd, 1);
  if (registered < 0)
    return ErrnoError(-registered, "registering a file with the io_uring of " + reactor_.name());
  return Ok{};
}

Status UringRing::MakeBufferPlaces(uint32_t places) {
  const int made = io_uring_register_buffers_sparse(&ring_, places);
  if (made < 0) return ErrnoError(-made, "places for memory in the io_uring of " + reactor_.name());
  return Ok{};
}

Status UringRing::SetBuffer(uint32_t place, const iovec& memory) {
  const int set = io_uring_register_buffers_update_tag(&ring_, place, &memory, nullptr, 1);
  if (set == 1) return Ok{};
  if (set == -ENOMEM) {
    return Error(ErrorCode::kResourceExhausted,
                 "the kernel locks no more memory for the engine's user, whose processes and io_urings count "
                 "together, "
                 "or has none: raise LimitMEMLOCK= in the unit");
  }
  return ErrnoError(set < 0 ? -set : EIO, "registering memory with the io_uring of " + reactor_.name());
}

UringRing::~UringRing() {
  CLEAT_CHECK(under_way_ == 0 && waiting_.empty() && bounce_waiting_.empty());
  if (added()) reactor_.RemovePoller(*this);
  watch_.Stop();
  if (ring_made_) io_uring_queue_exit(&ring_);
  if (bounce_memory_ != nullptr) munmap(bounce_memory_, size_t{kBounceBytes} * kBounceBuffers);
  if (zeroes_ != nullptr) munmap(zeroes_, kZeroBytes);
  if (vector_memory_ != nullptr) munmap(vector_memory_, kVectorBytes);
}

void UringRing::Start(block::Request& request) {
  reactor_.Activate(*this);
  if (!waiting_.empty() || !TryIssue(request)) waiting_.PushBack(request);
}

// nullopt: there are none now.
std::optional<UringRing::Entry> UringRing::FindIovecs(const block::Request& request) {
  const size_t segments = request.segments.size();
  if (kind_ == Kind::kFiles) {
    const size_t wanted = std::min<size_t>(segments, kIovecsMax);
    if (iovecs_used_ + wanted > iovecs_.size()) return std::nullopt;
    return Entry{nullptr, {iovecs_.data() + iovecs_used_, wanted}, 0};
  }
  if (segments <= 1) return Entry{nullptr, {iovecs_.data(), segments}, 0};  // said in the entry itself
  if (vectors_free_.empty()) return std::nullopt;
  const uint64_t vector = vectors_free_.back();
  auto* iovecs = reinterpret_cast<iovec*>(vector_memory_) + (vector - 1) * kVectorIovecs;
  return Entry{nullptr, {iovecs, std::min<size_t>(segments, kVectorIovecs)}, vector};
}

// Without an entry: there is no room now.
UringRing::Entry UringRing::NextEntry(const block::Request& request) {
  if (under_way_ >= kUnderWayMax) return {};
  auto entry = FindIovecs(request);
  if (!entry || io_uring_sq_space_left(&ring_) == 0) {
    SubmitPrepared();
    entry = FindIovecs(request);
    if (!entry) return {};
  }
  entry->sqe = io_uring_get_sqe(&ring_);
  return *entry;
}

// False: something of it has to wait for room.
bool UringRing::TryIssue(block::Request& request) {
  bool more = true;
  while (more) {
    const Entry entry = NextEntry(request);
    if (entry.sqe == nullptr) return false;
    more = ClientOf(request).Prepare(request, *entry.sqe, entry.iovecs);
    if (entry.vector != 0) vectors_free_.pop_back();
    if (kind_ == Kind::kFiles) iovecs_used_ += static_cast<uint32_t>(entry.iovecs.size());
    io_uring_sqe_set_data64(entry.sqe, DataOf(request, entry.vector));
    ++under_way_;
  }
  request.stamps.Stamp(RequestStage::kSubmitted, reactor_.now_ns());
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
      const uint64_t data = io_uring_cqe_get_data64(cqe);
      if (const uint64_t vector = data >> kVectorShift; vector != 0) vectors_free_.push_back(vector);
      batch[count++] = {RequestOf(data), cqe->res};
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
