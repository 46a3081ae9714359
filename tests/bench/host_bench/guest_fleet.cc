// SPDX-License-Identifier: Apache-2.0
#include "guest_fleet.h"

#include <poll.h>

#include <thread>

#include "base/clock.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kGuestBytes = uint64_t{32} << 20;  // sparse
constexpr uint64_t kEngineTimeoutNs = 60 * kNsPerSecond;
constexpr size_t kBootThreads = 4;
constexpr int kStopLookMs = 100;

}  // namespace

Result<std::unique_ptr<GuestFleet>> GuestFleet::Listen(const std::vector<std::string>& sockets,
                                                       WhenGone when_gone) {
  std::unique_ptr<GuestFleet> fleet(new GuestFleet(when_gone));
  for (const std::string& socket : sockets) {
    auto guest = std::make_unique<Guest>();
    guest->socket = socket;
    auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
    if (!memory) return std::move(memory).error();
    guest->memory = std::move(*memory);
    auto frontend = perf::Frontend::Listen(socket, {.accept_timeout_ns = kEngineTimeoutNs});
    if (!frontend) return std::move(frontend).error();
    guest->frontend = std::move(*frontend);
    fleet->guests_.push_back(std::move(guest));
  }
  return fleet;
}

Status GuestFleet::Open(const std::atomic<bool>& stop) {
  std::vector<std::thread> threads;
  std::vector<Status> statuses(kBootThreads);
  for (size_t i = 0; i < kBootThreads; ++i) {
    threads.emplace_back([&, i] { statuses[i] = BootSome(i, kBootThreads, stop); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& status : statuses) {
    if (!status) return std::move(status);
  }
  return Ok{};
}

// Whoever is called first is served first.
Status GuestFleet::BootSome(size_t first, size_t step, const std::atomic<bool>& stop) {
  const MonotonicClock clock;
  const uint64_t end_ns = clock.NowNs() + kEngineTimeoutNs;
  std::vector<pollfd> fds;
  std::vector<size_t> indices;
  for (size_t i = first; i < guests_.size(); i += step) {
    fds.push_back({.fd = guests_[i]->frontend->listener_fd(), .events = POLLIN, .revents = 0});
    indices.push_back(i);
  }
  size_t left = fds.size();
  while (left > 0) {
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (clock.NowNs() > end_ns) {
      return Error(ErrorCode::kDeadlineExceeded,
                   std::to_string(left) + " controllers were not connected to by the engine");
    }
    if (poll(fds.data(), fds.size(), kStopLookMs) <= 0) continue;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      if (Status status = Boot(*guests_[indices[i]]); !status) {
        return Error(status.error().code, guests_[indices[i]]->socket + ": " + status.error().message);
      }
      fds[i].fd = -1;
      --left;
    }
  }
  return Ok{};
}

Status GuestFleet::Boot(Guest& guest) const {
  if (Status status = guest.frontend->Accept(); !status) return status;
  if (Status status = guest.frontend->Open(); !status) return status;
  auto driver = perf::ScsiDriver::Start(*guest.frontend, *guest.memory,
                                        {.auto_reconnect = when_gone_ == WhenGone::kReconnect});
  if (!driver) return std::move(driver).error();
  guest.driver = std::move(*driver);
  return Ok{};
}

Result<perf::LoadDevice> GuestFleet::DeviceOf(size_t guest, uint8_t target) {
  return perf::LoadDevice::Of(driver(guest), guests_[guest]->socket, {&target, 1});
}

}  // namespace cleat::bench
