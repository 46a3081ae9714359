// SPDX-License-Identifier: Apache-2.0
// The connection and the sequences. The single messages are in frontend_steps.cc.
#include "perf/vhost_user/frontend.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "perf/vhost_user/deadline.h"

namespace cleat::perf {

Result<std::unique_ptr<Frontend>> Frontend::Listen(std::string path, const FrontendOptions& options) {
  CLEAT_ASSIGN(auto listener, ListenUnix(path));
  std::unique_ptr<Frontend> frontend(new Frontend(Role::kServer, std::move(path), options));
  frontend->listener_ = std::move(listener);
  return frontend;
}

Result<std::unique_ptr<Frontend>> Frontend::Connect(std::string path, const FrontendOptions& options) {
  std::unique_ptr<Frontend> frontend(new Frontend(Role::kClient, std::move(path), options));
  CLEAT_TRY(frontend->Accept());
  return frontend;
}

std::unique_ptr<Frontend> Frontend::Wrap(UniqueFd connected, const FrontendOptions& options) {
  std::unique_ptr<Frontend> frontend(new Frontend(Role::kWrapped, {}, options));
  frontend->Adopt(std::move(connected));
  return frontend;
}

Frontend::~Frontend() {
  if (role_ == Role::kServer && listener_) unlink(path_.c_str());
}

Status Frontend::Accept() {
  Disconnect();
  if (role_ == Role::kWrapped) {
    return Error(ErrorCode::kFailedPrecondition, "a wrapped socket has nobody to connect to: use Adopt");
  }
  CLEAT_ASSIGN(auto fd, role_ == Role::kServer ? AcceptUnix(listener_.get(), options_.accept_timeout_ns)
                                               : ConnectUnix(path_, options_.accept_timeout_ns));
  Adopt(std::move(fd));
  return Ok{};
}

void Frontend::Adopt(UniqueFd connected) {
  Disconnect();
  socket_ = MessageSocket(std::move(connected));
}

void Frontend::Disconnect() {
  socket_.Close();
  backend_channel_.Close();
  protocol_features_ = 0;
}

Status Frontend::WaitPeerGone(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  while (!PeerGone()) {
    pollfd poll_fd{.fd = socket_.fd(), .events = POLLRDHUP, .revents = 0};
    if (poll(&poll_fd, 1, deadline.LeftMs()) == 0 && deadline.passed()) {
      return Error(ErrorCode::kDeadlineExceeded, "the back end kept the connection open");
    }
  }
  return Ok{};
}

Status Frontend::Open() {
  CLEAT_ASSIGN(auto features, GetFeatures());
  if ((features & wire::kFeatureProtocolFeatures) != 0) {
    CLEAT_ASSIGN(auto protocol, GetProtocolFeatures());
    CLEAT_TRY(SetProtocolFeatures(protocol & options_.protocol_features));
  }
  if ((protocol_features_ & wire::kProtocolMq) != 0) {
    CLEAT_ASSIGN(auto queues, GetQueueNum());
    queues_max_ = static_cast<uint16_t>(std::min<uint64_t>(queues, wire::kVringIndexMask + 1));
  }
  if ((protocol_features_ & wire::kProtocolBackendReq) != 0) {
    CLEAT_TRY(SetBackendReqFd());
  }
  return SetOwner();
}

Status Frontend::Start(uint64_t features, const GuestMemory& memory, std::span<const RingSetup> rings) {
  if ((features & ~offered_features_) != 0) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("features {:#x} are not offered by the back end (it offers {:#x})",
                             features & ~offered_features_, offered_features_));
  }
  // The transport's own bit goes with the driver's: without it rings would start enabled.
  features |= offered_features_ & wire::kFeatureProtocolFeatures;
  for (uint32_t i = 0; i < rings.size(); ++i) {
    CLEAT_TRY(SetVringCall(i, rings[i].call_fd));
  }
  CLEAT_TRY(SetFeatures(features));
  CLEAT_TRY(SetUpInflight(rings));
  CLEAT_TRY(SetMemTable(memory));
  for (uint32_t i = 0; i < rings.size(); ++i) {
    CLEAT_TRY(SetUpRing(i, rings[i]));
  }
  if ((features & wire::kFeatureProtocolFeatures) == 0) return Ok{};
  for (uint32_t i = 0; i < rings.size(); ++i) {
    if (!rings[i].enable) continue;
    CLEAT_TRY(SetVringEnable(i, true));
  }
  return Ok{};
}

Status Frontend::SetUpInflight(std::span<const RingSetup> rings) {
  if ((protocol_features_ & wire::kProtocolInflightShmfd) == 0 || rings.empty()) return Ok{};
  const auto count = static_cast<uint16_t>(rings.size());
  if (inflight_ && (inflight_->num_queues != count || inflight_->queue_size != rings[0].size))
    inflight_.reset();
  if (!inflight_) {
    CLEAT_ASSIGN(inflight_, GetInflightFd(count, rings[0].size));
  }
  return SetInflightFd(*inflight_);
}

Status Frontend::SetUpRing(uint32_t index, const RingSetup& ring) {
  CLEAT_TRY(SetVringNum(index, ring.size));
  CLEAT_TRY(SetVringBase(index, ring.base));
  CLEAT_TRY(SetVringAddr(index, ring));
  if (ring.err_fd >= 0) {
    CLEAT_TRY(SetVringErr(index, ring.err_fd));
  }
  CLEAT_TRY(SetVringKick(index, ring.kick_fd));
  return SetVringCall(index, ring.call_fd);
}

Status Frontend::Stop(std::span<uint32_t> bases) {
  if ((offered_features_ & wire::kFeatureProtocolFeatures) != 0) {
    for (uint32_t i = 0; i < bases.size(); ++i) CLEAT_TRY(SetVringEnable(i, false));
  }
  for (uint32_t i = 0; i < bases.size(); ++i) {
    CLEAT_ASSIGN(bases[i], GetVringBase(i));
  }
  return Ok{};
}

}  // namespace cleat::perf
