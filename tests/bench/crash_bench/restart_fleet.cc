// SPDX-License-Identifier: Apache-2.0
#include "restart_fleet.h"

#include <poll.h>

#include <array>
#include <thread>

#include "base/clock.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kGuestBytes = uint64_t{16} << 20;  // sparse
constexpr uint64_t kEngineTimeoutNs = 60 * kNsPerSecond;
constexpr size_t kThreads = 4;  // a real host has one for each guest; more than there are cores is enough
constexpr int kStopLookMs = 100;

}  // namespace

Result<std::unique_ptr<RestartFleet>> RestartFleet::Listen(const std::vector<std::string>& sockets) {
  auto fleet = std::make_unique<RestartFleet>();
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

Status RestartFleet::Open(const std::atomic<bool>& stop) {
  for (const auto& guest : guests_) {
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    auto driver = perf::BlkDriver::Start(*guest->frontend, *guest->memory, {.auto_reconnect = true});
    if (!driver) return Error(driver.error().code, guest->socket + ": " + driver.error().message);
    guest->driver = std::move(*driver);
    auto buffer = guest->driver->AllocateBuffer(perf::GuestMemory::kPageBytes);
    if (!buffer) return std::move(buffer).error();
    guest->buffer_gpa = *buffer;
  }
  return Ok{};
}

Status RestartFleet::Submit() {
  for (const auto& guest : guests_) {
    perf::BlkDriver& driver = *guest->driver;
    const perf::BlkIo read{.op = perf::BlkOp::kRead,
                           .length_bytes = static_cast<uint32_t>(perf::GuestMemory::kPageBytes),
                           .data_gpa = guest->buffer_gpa};
    if (!driver.Submit(0, read)) return Error(ErrorCode::kResourceExhausted, "the ring has no room");
    driver.Kick(0);
    guest->served = false;
    if (!driver.ring(0).EnableCalls()) return Error(ErrorCode::kInternal, "a dead engine answered");
  }
  return Ok{};
}

Result<uint64_t> RestartFleet::Recover(const std::atomic<bool>& stop) {
  std::vector<std::thread> threads;
  std::array<Status, kThreads> statuses;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { statuses[i] = RecoverSome(i, kThreads, stop); });
  }
  for (std::thread& thread : threads) thread.join();
  const uint64_t end_ns = MonotonicClock().NowNs();
  for (Status& status : statuses) {
    if (!status) return std::move(status).error();
  }
  return end_ns;
}

// Whoever is called first is served first: by the next engine's connection, or by the answer.
Status RestartFleet::RecoverSome(size_t first, size_t step, const std::atomic<bool>& stop) {
  const uint64_t end_ns = MonotonicClock().NowNs() + kEngineTimeoutNs;
  std::vector<Guest*> guests;
  std::vector<pollfd> fds;
  for (size_t i = first; i < guests_.size(); i += step) {
    guests.push_back(guests_[i].get());
    fds.push_back({.fd = guests_[i]->frontend->listener_fd(), .events = POLLIN, .revents = 0});
  }
  for (size_t left = guests.size(); left > 0;) {
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (MonotonicClock().NowNs() > end_ns) {
      return Error(ErrorCode::kDeadlineExceeded, std::to_string(left) + " guests were not served again");
    }
    if (poll(fds.data(), fds.size(), kStopLookMs) <= 0) continue;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      Guest& guest = *guests[i];
      const bool connects = fds[i].fd == guest.frontend->listener_fd();
      if (Status done = connects ? Connect(guest) : TakeAnswer(guest); !done) {
        return Error(done.error().code, guest.socket + ": " + done.error().message);
      }
      fds[i].fd = guest.served ? -1 : guest.driver->ring(0).call_fd();
      if (guest.served) --left;
    }
  }
  return Ok{};
}

Status RestartFleet::Connect(Guest& guest) {
  return guest.driver->Reconnect();
}

Status RestartFleet::TakeAnswer(Guest& guest) {
  guest.driver->ring(0).ClearCall();
  std::array<perf::BlkCompletion, 1> completion;
  if (guest.driver->Poll(0, completion) == 0) return Ok{};  // called for nothing
  if (completion[0].status != perf::wire::kBlkOk) return Error(ErrorCode::kIo, "a read failed");
  guest.driver->ring(0).DisableCalls();
  guest.served = true;
  return Ok{};
}

}  // namespace cleat::bench
