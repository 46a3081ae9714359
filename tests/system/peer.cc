// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <sys/stat.h>

#include "perf/deadline.h"

namespace cleat::system_test {

Result<std::unique_ptr<Peer>> Peer::Listen(const std::string& path, const perf::FrontendOptions& options) {
  auto frontend = perf::Frontend::Listen(path, options);
  if (!frontend) return std::move(frontend).error();
  chmod(path.c_str(), 0666);  // the engine may run as somebody else
  return std::unique_ptr<Peer>(new Peer(std::move(*frontend)));
}

Result<std::unique_ptr<Peer>> Peer::Connect(const std::string& path, const perf::FrontendOptions& options) {
  const perf::Deadline deadline(options.accept_timeout_ns);
  for (;;) {
    auto frontend = perf::Frontend::Connect(path, options);
    if (!frontend) return std::move(frontend).error();
    const Status opened = (*frontend)->Open();
    if (opened) return std::unique_ptr<Peer>(new Peer(std::move(*frontend)));
    if (opened.error().code != ErrorCode::kUnavailable || deadline.passed()) return opened.error();
  }
}

Result<std::unique_ptr<Peer>> Peer::Start(const std::string& path, const perf::BlkOptions& options) {
  auto peer = Listen(path);
  if (!peer) return peer;
  if (Status booted = (*peer)->Boot(options); !booted) return std::move(booted).error();
  return peer;
}

Peer::~Peer() {
  Cut();
}

Status Peer::Boot(const perf::BlkOptions& options) {
  if (driver_ != nullptr) Cut();
  auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
  if (!memory) return std::move(memory).error();
  memory_ = std::move(*memory);
  if (!frontend_->connected()) {
    if (Status accepted = frontend_->Accept(); !accepted) return accepted;
    if (Status opened = frontend_->Open(); !opened) return opened;
  }
  auto driver = perf::BlkDriver::Start(*frontend_, *memory_, options);
  if (!driver) return std::move(driver).error();
  driver_ = std::move(*driver);
  return Ok{};
}

void Peer::Cut() {
  frontend_->Disconnect();
  driver_.reset();
  memory_.reset();
}

Status Peer::ShutDown() {
  Status stopped = driver_->Stop();
  Cut();
  return stopped;
}

Status Peer::WaitCut(uint64_t timeout_ns) {
  Status gone = frontend_->WaitPeerGone(timeout_ns);
  Cut();
  return gone;
}

}  // namespace cleat::system_test
