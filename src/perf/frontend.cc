// SPDX-License-Identifier: Apache-2.0
// The connection and the sequences. The single messages are in frontend_steps.cc.
#include "perf/frontend.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "perf/deadline.h"

namespace cleat::perf {

Result<std::unique_ptr<Frontend>> Frontend::Listen(std::string path, const FrontendOptions& options) {
  Result<UniqueFd> listener = ListenUnix(path);
  if (!listener) return std::move(listener).error();
  std::unique_ptr<Frontend> frontend(new Frontend(Role::kServer, std::move(path), options));
  frontend->listener_ = std::move(*listener);
  return frontend;
}

Result<std::unique_ptr<Frontend>> Frontend::Connect(std::string path, const FrontendOptions& options) {
  std::unique_ptr<Frontend> frontend(new Frontend(Role::kClient, std::move(path), options));
  if (Status status = frontend->Accept(); !status) return std::move(status).error();
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
  Result<UniqueFd> fd = role_ == Role::kServer ? AcceptUnix(listener_.get(), options_.accept_timeout_ns)
                                               : ConnectUnix(path_, options_.accept_timeout_ns);
  if (!fd) return std::move(fd).error();
  Adopt(std::move(*fd));
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
  Result<uint64_t> features = GetFeatures();
  if (!features) return std::move(features).error();
  if ((*features & wire::kFeatureProtocolFeatures) != 0) {
    Result<uint64_t> protocol = GetProtocolFeatures();
    if (!protocol) return std::move(protocol).error();
    if (Status status = SetProtocolFeatures(*protocol & options_.protocol_features); !status) return status;
  }
  if ((protocol_features_ & wire::kProtocolMq) != 0) {
    Result<uint64_t> queues = GetQueueNum();
    if (!queues) return std::move(queues).error();
    queues_max_ = static_cast<uint16_t>(std::min<uint64_t>(*queues, wire::kVringIndexMask + 1));
  }
  if ((protocol_features_ & wire::kProtocolBackendReq) != 0) {
    if (Status status = SetBackendReqFd(); !status) return status;
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
    if (Status status = SetVringCall(i, rings[i].call_fd); !status) return status;
  }
  if (Status status = SetFeatures(features); !status) return status;
  if (Status status = SetUpInflight(rings); !status) return status;
  if (Status status = SetMemTable(memory); !status) return status;
  for (uint32_t i = 0; i < rings.size(); ++i) {
    if (Status status = SetUpRing(i, rings[i]); !status) return status;
  }
  if ((features & wire::kFeatureProtocolFeatures) == 0) return Ok{};
  for (uint32_t i = 0; i < rings.size(); ++i) {
    if (!rings[i].enable) continue;
    if (Status status = SetVringEnable(i, true); !status) return status;
  }
  return Ok{};
}

Status Frontend::SetUpInflight(std::span<const RingSetup> rings) {
  if ((protocol_features_ & wire::kProtocolInflightShmfd) == 0 || rings.empty()) return Ok{};
  const auto count = static_cast<uint16_t>(rings.size());
  if (inflight_ && (inflight_->num_queues != count || inflight_->queue_size != rings[0].size))
    inflight_.reset();
  if (!inflight_) {
    Result<SharedArea> area = GetInflightFd(count, rings[0].size);
    if (!area) return std::move(area).error();
    inflight_ = std::move(*area);
  }
  return SetInflightFd(*inflight_);
}

Status Frontend::SetUpRing(uint32_t index, const RingSetup& ring) {
  if (Status status = SetVringNum(index, ring.size); !status) return status;
  if (Status status = SetVringBase(index, ring.base); !status) return status;
  if (Status status = SetVringAddr(index, ring); !status) return status;
  if (ring.err_fd >= 0) {
    if (Status status = SetVringErr(index, ring.err_fd); !status) return status;
  }
  if (Status status = SetVringKick(index, ring.kick_fd); !status) return status;
  return SetVringCall(index, ring.call_fd);
}

Result<std::vector<uint32_t>> Frontend::Stop(uint16_t ring_count) {
  std::vector<uint32_t> bases;
  if ((offered_features_ & wire::kFeatureProtocolFeatures) != 0) {
    for (uint16_t i = 0; i < ring_count; ++i) {
      if (Status status = SetVringEnable(i, false); !status) return std::move(status).error();
    }
  }
  for (uint16_t i = 0; i < ring_count; ++i) {
    Result<uint32_t> base = GetVringBase(i);
    if (!base) return std::move(base).error();
    bases.push_back(*base);
  }
  return bases;
}

}  // namespace cleat::perf
