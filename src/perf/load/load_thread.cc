// SPDX-License-Identifier: Apache-2.0
#include "perf/load/load_thread.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace cleat::perf {
namespace {

constexpr int kEventsMax = 64;
constexpr uint32_t kWakeIndex = UINT32_MAX;

void Signal(int eventfd) {
  const uint64_t one = 1;
  const ssize_t written = write(eventfd, &one, sizeof one);
  CLEAT_CHECK(written == sizeof one || errno == EAGAIN);
}

}  // namespace

LoadThread::~LoadThread() {
  if (!thread_.joinable()) return;
  Notify(kStop);
  thread_.join();
}

void LoadThread::AddQueue(std::unique_ptr<LoadQueue> queue, Watched& device) {
  lanes_.push_back({.queue = std::move(queue), .device = &device});
}

Status LoadThread::Prepare() {
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_ || !epoll_) return ErrnoError(errno, "a generator thread's eventfd and epoll");
  if (options_.wait != LoadWait::kCall) return Ok{};
  // Edge-triggered: a call's count is never read, every signal is an event.
  const auto add = [&](int fd, uint32_t index) {
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u32 = index}};
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  bool added = add(wake_.get(), kWakeIndex);
  for (uint32_t i = 0; i < lanes_.size(); ++i) added = added && add(lanes_[i].queue->call_fd(), i);
  if (!added) return ErrnoError(errno, "epoll of a generator thread");
  return Ok{};
}

void LoadThread::Start(int core) {
  thread_ = std::thread([this, core] {
    if (core >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(core), &set);
      const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
      if (error != 0) status_ = ErrnoError(error, fmt::format("binding a generator thread to core {}", core));
    }
    if (status_) status_ = Run();
    done_.store(true, std::memory_order_release);
    Signal(done_fd_);
  });
}

void LoadThread::Notify(uint32_t attention) {
  attention_.fetch_or(attention, std::memory_order_release);
  Signal(wake_.get());
}

Status LoadThread::Join() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

Status LoadThread::Run() {
  for (Lane& lane : lanes_) lane.queue->Start();
  CLEAT_TRY(Drive());
  loaded_ns = state.stats.last_completion_ns;
  if (!options_.verify || !options_.writes()) return Ok{};
  state.phase = LoadThreadState::Phase::kVerify;
  for (Lane& lane : lanes_) lane.queue->StartVerification();
  return Drive();
}

Status LoadThread::Drive() {
  return options_.wait == LoadWait::kPoll ? DrivePolling() : DriveWaiting();
}

Status LoadThread::DrivePolling() {
  while (Live()) {
    size_t idle = 0;
    for (Lane& lane : lanes_) idle += lane.queue->Poll() == 0 ? 1 : 0;
    state.stats.polls += lanes_.size();
    state.stats.idle_polls += idle;
    if (attention_.load(std::memory_order_relaxed) != 0 || state.broken) [[unlikely]] {
      CLEAT_TRY(Attend());
    }
  }
  return Ok{};
}

// A queue is polled when it was called, until it has nothing more, and then asks for calls again.
Status LoadThread::DriveWaiting() {
  std::vector<uint32_t> ready;
  for (uint32_t i = 0; i < lanes_.size(); ++i) ready.push_back(i);
  while (Live()) {
    for (const uint32_t i : ready) {
      LoadQueue& queue = *lanes_[i].queue;
      do {
        queue.DisableCalls();
        while (queue.Poll() > 0 && attention_.load(std::memory_order_relaxed) == 0) {
        }
      } while (!queue.EnableCalls() && attention_.load(std::memory_order_relaxed) == 0 && !state.broken);
    }
    CLEAT_TRY(Sleep(&ready));
    if (attention_.load(std::memory_order_relaxed) != 0 || state.broken) {
      CLEAT_TRY(Attend());
      ready.clear();  // whatever was missed
      for (uint32_t i = 0; i < lanes_.size(); ++i) ready.push_back(i);
    }
  }
  for (Lane& lane : lanes_) lane.queue->DisableCalls();
  return Ok{};
}

// Until a queue is called or a request is due. `ready`: the queues to be polled.
Status LoadThread::Sleep(std::vector<uint32_t>* ready) {
  ready->clear();
  if (!Live()) return Ok{};
  uint64_t due_ns = UINT64_MAX;
  if (state.live_streams > 0) {
    for (const Lane& lane : lanes_) due_ns = std::min(due_ns, lane.queue->NextDueNs());
  }
  timespec left{};
  const timespec* timeout = nullptr;
  if (due_ns != UINT64_MAX) {
    const uint64_t now_ns = state.clock.NowNs();
    const uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    left = {.tv_sec = static_cast<time_t>(left_ns / kNsPerSecond),
            .tv_nsec = static_cast<long>(left_ns % kNsPerSecond)};
    timeout = &left;
  }
  std::array<epoll_event, kEventsMax> events;
  const int count = epoll_pwait2(epoll_.get(), events.data(), kEventsMax, timeout, nullptr);
  if (count < 0 && errno != EINTR) return ErrnoError(errno, "epoll of a generator thread");
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<size_t>(i)].data.u32 != kWakeIndex)
      ready->push_back(events[static_cast<size_t>(i)].data.u32);
  }
  if (due_ns == UINT64_MAX) return Ok{};
  const uint64_t now_ns = state.clock.NowNs();
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].queue->NextDueNs() <= now_ns &&
        std::find(ready->begin(), ready->end(), i) == ready->end()) {
      ready->push_back(i);
    }
  }
  return Ok{};
}

Status LoadThread::Attend() {
  const uint32_t attention = attention_.exchange(0, std::memory_order_acquire);
  const uint64_t now_ns = state.clock.NowNs();
  if ((attention & kStop) != 0) {
    state.end_ns = std::min(state.end_ns, now_ns);
    for (Lane& lane : lanes_) lane.queue->EndSchedule(now_ns);
  }
  for (Lane& lane : lanes_) {
    CLEAT_TRY(LookAfter(lane, now_ns));
  }
  return Ok{};
}

Status LoadThread::LookAfter(Lane& lane, uint64_t now_ns) {
  LoadQueue& queue = *lane.queue;
  if (const std::string problem = queue.Problem(); !problem.empty()) {
    return Error(ErrorCode::kDataLoss, queue.name() + ": " + problem);
  }
  if (lane.device->gone.load(std::memory_order_acquire)) {
    while (queue.Poll() > 0) {  // what was completed before the end must not be missed
    }
    if (Live()) {
      CLEAT_TRY(LeftBy(*lane.device));
    }
  }
  if (queue.in_flight() == 0 || queue.completed() != lane.completed_seen || lane.stuck_since_ns == 0) {
    lane.completed_seen = queue.completed();
    lane.stuck_since_ns = now_ns;
  } else if (now_ns - lane.stuck_since_ns > options_.stall_timeout_ns) {
    return Error(ErrorCode::kDeadlineExceeded,
                 fmt::format("{}: {} requests are in flight and none has completed for {} s", queue.name(),
                             queue.in_flight(), options_.stall_timeout_ns / kNsPerSecond));
  }
  return Ok{};
}

Status LoadThread::LeftBy(Watched& device) {
  if (!environment_.reconnect || device.device->driver == nullptr) {
    uint32_t in_flight = 0;
    for (const Lane& lane : lanes_) in_flight += lane.device == &device ? lane.queue->in_flight() : 0;
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("{}: the {} closed the connection with {} requests in flight", device.device->name,
                    device.device->nvme != nullptr ? "target" : "back end", in_flight));
  }
  // The new back end may be gone again before all is set up: then the next one is waited for.
  VirtioDriver& driver = *device.device->driver;
  Status status = driver.Reconnect();
  while (!status && status.error().code == ErrorCode::kUnavailable) status = driver.Reconnect();
  if (!status) return status;
  ++state.reconnects;
  device.gone.store(false, std::memory_order_release);
  return Ok{};
}

}  // namespace cleat::perf
