// SPDX-License-Identifier: Apache-2.0
#include "upgrade_guests.h"

#include <fmt/format.h>
#include <poll.h>

#include <utility>

#include "base/clock.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kLoadBytes = uint64_t{2} << 20;  // of each disk
constexpr uint32_t kBlockBytes = 512;
constexpr uint64_t kMovedTimeoutNs = 60 * kNsPerSecond;
constexpr int kEndLookMs = 50;
constexpr int kIdleLookMs = 1;

double Milliseconds(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerMs);
}

}  // namespace

UpgradeGuests::Loaded::Loaded(perf::ScsiDriver& driver, uint64_t id, const Load& options)
    : port(driver, 0, kBlockBytes),
      blocks(kLoadBytes, kBlockBytes, id),
      load(port, blocks, {.seed = id, .depth = options.depth, .pause_ns = options.pause_ns}) {}

Result<std::unique_ptr<UpgradeGuests>> UpgradeGuests::Listen(const std::vector<std::string>& sockets) {
  auto fleet = GuestFleet::Listen(sockets, GuestFleet::WhenGone::kReconnect);
  if (!fleet) return std::move(fleet).error();
  return std::unique_ptr<UpgradeGuests>(new UpgradeGuests(std::move(*fleet)));
}

UpgradeGuests::~UpgradeGuests() {
  ending_ = true;
  if (keeper_.joinable()) keeper_.join();
}

Status UpgradeGuests::Start(const Load& load) {
  for (uint32_t i = 0; i < load.loaded; ++i) {
    perf::ScsiDriver& driver = fleet_->driver(i);
    if (auto cleared = driver.ClearUnitAttentions(perf::scsi::LunOf(0)); !cleared)
      return std::move(cleared).error();
    loaded_.push_back(std::make_unique<Loaded>(driver, i + 1, load));
    if (Status started = loaded_.back()->load.Start(); !started) return started;
  }
  if (load.loaded < fleet_->size()) keeper_ = std::thread([this] { KeepConnected(); });
  return Ok{};
}

// A connection that waits at the listener is the next engine's: the last one has hung up before.
void UpgradeGuests::KeepConnected() {
  std::vector<pollfd> fds;
  for (size_t i = loaded_.size(); i < fleet_->size(); ++i)
    fds.push_back({.fd = fleet_->frontend(i).listener_fd(), .events = POLLIN, .revents = 0});
  while (!ending_.load()) {
    if (poll(fds.data(), fds.size(), kEndLookMs) <= 0) continue;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const Status status = fleet_->driver(loaded_.size() + i).Reconnect();
      if (status) {
        idle_reconnects_.fetch_add(1);
      } else if (status.error().code !=
                 ErrorCode::kUnavailable) {  // that one went away again: the next one is waited for
        idle_failed_.store(true);
      }
    }
  }
}

void UpgradeGuests::Mark() {
  for (const auto& guest : loaded_) {
    guest->mark = guest->load.Mark();
    guest->load.gaps().TakeLongestNs();
  }
  idle_goal_ = idle_reconnects_.load() + fleet_->size() - loaded_.size();
}

void UpgradeGuests::TakeGaps(std::vector<double>* gaps_ms) {
  for (const auto& guest : loaded_) gaps_ms->push_back(Milliseconds(guest->load.gaps().TakeLongestNs()));
}

Status UpgradeGuests::WaitMoved(const std::atomic<bool>& stop, std::vector<double>* gaps_ms) {
  const uint64_t end_ns = MonotonicClock().NowNs() + kMovedTimeoutNs;
  for (const auto& guest : loaded_) {
    if (guest->load.WaitRecovered(guest->mark, kMovedTimeoutNs)) continue;
    if (Status judged = Judge(); !judged) return judged;
    return Error(ErrorCode::kDeadlineExceeded, "a guest was not served again");
  }
  while (idle_reconnects_.load() < idle_goal_) {
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (idle_failed_.load() || MonotonicClock().NowNs() > end_ns)
      return Error(ErrorCode::kDeadlineExceeded, "an idle guest was not connected again");
    poll(nullptr, 0, kIdleLookMs);
  }
  TakeGaps(gaps_ms);
  return Judge();
}

Status UpgradeGuests::Judge() const {
  for (const auto& guest : loaded_) {
    for (const perf::CrashFinding& finding : guest->load.findings()) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("a guest found fault: {}: {}", CrashFaultName(finding.fault), finding.text));
    }
  }
  return Ok{};
}

Status UpgradeGuests::Stop() {
  for (const auto& guest : loaded_) guest->load.Stop();
  return Judge();
}

}  // namespace cleat::bench
