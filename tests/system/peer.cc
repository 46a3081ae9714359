// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <sys/stat.h>

#include "perf/vhost_user/deadline.h"

namespace cleat::system_test {

template <typename Driver>
Result<std::unique_ptr<PeerWith<Driver>>> PeerWith<Driver>::Listen(const std::string& path,
                                                                   const perf::FrontendOptions& options) {
  auto frontend = perf::Frontend::Listen(path, options);
  if (!frontend) return std::move(frontend).error();
  chmod(path.c_str(), 0666);  // the engine may run as somebody else
  return std::unique_ptr<PeerWith>(new PeerWith(std::move(*frontend)));
}

template <typename Driver>
Result<std::unique_ptr<PeerWith<Driver>>> PeerWith<Driver>::Connect(const std::string& path,
                                                                    const perf::FrontendOptions& options) {
  const perf::Deadline deadline(options.accept_timeout_ns);
  for (;;) {
    auto frontend = perf::Frontend::Connect(path, options);
    if (!frontend) return std::move(frontend).error();
    const Status opened = (*frontend)->Open();
    if (opened) return std::unique_ptr<PeerWith>(new PeerWith(std::move(*frontend)));
    if (opened.error().code != ErrorCode::kUnavailable || deadline.passed()) return opened.error();
  }
}

template <typename Driver>
Result<std::unique_ptr<PeerWith<Driver>>> PeerWith<Driver>::Start(const std::string& path,
                                                                  const Options& options) {
  auto peer = Listen(path);
  if (!peer) return peer;
  if (Status booted = (*peer)->Boot(options); !booted) return std::move(booted).error();
  return peer;
}

template <typename Driver>
PeerWith<Driver>::~PeerWith() {
  Cut();
}

template <typename Driver>
Status PeerWith<Driver>::Boot(const Options& options) {
  if (driver_ != nullptr) Cut();
  auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
  if (!memory) return std::move(memory).error();
  memory_ = std::move(*memory);
  if (!frontend_->connected()) {
    if (Status accepted = frontend_->Accept(); !accepted) return accepted;
    if (Status opened = frontend_->Open(); !opened) return opened;
  }
  auto driver = Driver::Start(*frontend_, *memory_, options);
  if (!driver) return std::move(driver).error();
  driver_ = std::move(*driver);
  return Ok{};
}

template <typename Driver>
void PeerWith<Driver>::Cut() {
  frontend_->Disconnect();
  driver_.reset();
  memory_.reset();
}

template <typename Driver>
Status PeerWith<Driver>::ShutDown() {
  Status stopped = driver_->Stop();
  Cut();
  return stopped;
}

template <typename Driver>
Status PeerWith<Driver>::WaitCut(uint64_t timeout_ns) {
  Status gone = frontend_->WaitPeerGone(timeout_ns);
  Cut();
  return gone;
}

template class PeerWith<perf::BlkDriver>;
template class PeerWith<perf::ScsiDriver>;

}  // namespace cleat::system_test
