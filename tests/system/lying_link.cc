// SPDX-License-Identifier: Apache-2.0
#include "lying_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/check.h"

namespace cleat::system_test {
namespace {

constexpr int kSendTimeoutMs = 120'000;

UniqueFd Listen(const std::string& path) {
  auto listener = control::ListenSeqpacket(path);
  CLEAT_CHECK(listener.ok());
  return std::move(*listener);
}

}  // namespace

LyingLink::LyingLink(std::string path, std::string cleatd_path)
    : path_(std::move(path)),
      cleatd_path_(std::move(cleatd_path)),
      listener_(Listen(path_)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

LyingLink::~LyingLink() {
  stopping_ = true;
  CLEAT_CHECK(eventfd_write(wake_.get(), 1) == 0);
  thread_.join();
}

void LyingLink::SetYield(Yield yield, std::function<void()> before_lie, const std::string& controller) {
  const std::lock_guard lock(mutex_);
  yield_ = yield;
  before_lie_ = std::move(before_lie);
  controller_ = controller.empty() ? "" : "controllers/" + controller;
}

void LyingLink::Release() {
  {
    const std::lock_guard lock(mutex_);
    yield_ = Yield::kTruth;
    release_ = true;
  }
  CLEAT_CHECK(eventfd_write(wake_.get(), 1) == 0);
}

// ---- The link's thread

void LyingLink::Run() {
  while (!stopping_) {
    if (Meet()) {
      while (Serve()) {
      }
    }
    // As when the engine itself had ended, or cleatd.
    engine_.Reset();
    cleatd_.Reset();
    answered_.clear();
    held_.clear();
    held_count_ = 0;
    deaf_ = false;
  }
}

bool LyingLink::Serve() {
  std::array<pollfd, 3> polled{{{.fd = engine_.get(), .events = POLLIN, .revents = 0},
                                {.fd = cleatd_.get(), .events = POLLIN, .revents = 0},
                                {.fd = wake_.get(), .events = POLLIN, .revents = 0}}};
  if (poll(polled.data(), polled.size(), -1) < 0) return true;
  if (stopping_) return false;
  if (polled[2].revents != 0 && !ServeRelease()) return false;
  if (polled[0].revents != 0 && !PassToCleatd()) return false;
  return polled[1].revents == 0 || PassToEngine();
}

bool LyingLink::ServeRelease() {
  eventfd_t count = 0;
  static_cast<void>(eventfd_read(wake_.get(), &count));
  const std::lock_guard lock(mutex_);
  if (!std::exchange(release_, false)) return true;
  for (; !held_.empty(); held_.pop_front()) {
    if (!Send(engine_, held_.front())) return false;
  }
  held_count_ = 0;
  return true;
}

bool LyingLink::Meet() {
  std::array<pollfd, 2> polled{{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                {.fd = wake_.get(), .events = POLLIN, .revents = 0}}};
  while (poll(polled.data(), polled.size(), -1) < 0) {
  }
  if (stopping_) return false;
  if (polled[1].revents != 0) {
    static_cast<void>(ServeRelease());  // nothing is held
    return false;
  }
  engine_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  auto cleatd = control::ConnectSeqpacket(cleatd_path_);
  if (!engine_.valid() || !cleatd) return false;
  cleatd_ = std::move(*cleatd);
  return true;
}

bool LyingLink::PassToCleatd() {
  auto datagram = control::ReceiveDatagram(engine_.get());
  if (!datagram) return false;
  if (!datagram->has_value()) return true;
  const engine::v1::Envelope& envelope = (*datagram)->envelope;
  if (envelope.has_reply() && answered_.erase(envelope.id()) != 0) return true;
  return Send(cleatd_, **datagram);
}

bool LyingLink::PassToEngine() {
  auto datagram = control::ReceiveDatagram(cleatd_.get());
  if (!datagram) return false;
  if (!datagram->has_value() || deaf_) return true;
  if ((*datagram)->envelope.has_yield_controller()) return HandleYield(std::move(**datagram));
  if ((*datagram)->envelope.has_share_groups() && groups_apart_) ReplaceMemory(**datagram);
  return Send(engine_, **datagram);
}

bool LyingLink::HandleYield(control::Datagram datagram) {
  Yield yield = Yield::kTruth;
  std::function<void()> before_lie;
  {
    const std::lock_guard lock(mutex_);
    const std::string& asked = datagram.envelope.yield_controller().name();
    if (controller_.empty() || controller_ == asked) yield = yield_;
    before_lie = before_lie_;
  }
  switch (yield) {
    case Yield::kTruth:
      return Send(engine_, datagram);
    case Yield::kHeld:
      held_.push_back(std::move(datagram));
      held_count_ = held_.size();
      return true;
    case Yield::kTooEarly:
      answered_.insert(datagram.envelope.id());
      if (!Send(engine_, datagram)) return false;
      break;
    case Yield::kNotAtAll:
      deaf_ = true;
      break;
  }
  if (before_lie) before_lie();
  control::Datagram lie;
  lie.envelope.set_id(datagram.envelope.id());
  lie.envelope.mutable_reply()->set_ok(true);
  lie.envelope.mutable_reply()->mutable_hand_over();
  return Send(cleatd_, lie);
}

// Of the same size, and nobody else's.
void LyingLink::ReplaceMemory(control::Datagram& datagram) {
  struct stat info {};
  CLEAT_CHECK(datagram.fds.size() == 1 && fstat(datagram.fds[0].get(), &info) == 0);
  UniqueFd memory(memfd_create("apart", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CLEAT_CHECK(memory.valid() && ftruncate(memory.get(), info.st_size) == 0);
  const int seals = fcntl(datagram.fds[0].get(), F_GET_SEALS);
  if (seals > 0) CLEAT_CHECK(fcntl(memory.get(), F_ADD_SEALS, seals) == 0);
  datagram.fds[0] = std::move(memory);
}

bool LyingLink::Send(const UniqueFd& to, const control::Datagram& datagram) {
  for (;;) {
    auto sent = control::SendDatagram(to.get(), datagram);
    if (!sent) return false;
    if (*sent) return true;
    pollfd polled{.fd = to.get(), .events = POLLOUT, .revents = 0};
    if (poll(&polled, 1, kSendTimeoutMs) == 0) return false;
  }
}

}  // namespace cleat::system_test
