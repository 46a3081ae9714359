// SPDX-License-Identifier: Apache-2.0
// The single messages of vhost-user, each as the specification has it.
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "perf/vhost_user/frontend.h"
#include "perf/wire/vhost_user.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {

using wire::Request;

Status Frontend::Transmit(uint32_t request, uint32_t flags, std::span<const uint8_t> payload,
                          std::span<const int> fds) {
  if (messages_left_ == 0) {
    messages_left_ = UINT64_MAX;
    Disconnect();
    return Error(ErrorCode::kCancelled, fmt::format("disconnected before message {}, as asked for", request));
  }
  if (messages_left_ != UINT64_MAX) --messages_left_;
  ++messages_sent_;
  return socket_.Send(request, wire::kVersion | flags, payload, fds, options_.message_timeout_ns);
}

Status Frontend::Send(uint32_t request, std::span<const uint8_t> payload, std::span<const int> fds) {
  return Transmit(request, 0, payload, fds);
}

Result<Message> Frontend::Receive() {
  return socket_.Receive(options_.message_timeout_ns);
}

Result<Message> Frontend::Call(uint32_t request, std::span<const uint8_t> payload, std::span<const int> fds) {
  CLEAT_TRY(Transmit(request, 0, payload, fds));
  Result<Message> reply = Receive();
  CLEAT_TRY(reply);
  if (reply->header.request != request || (reply->header.flags & wire::kFlagReply) == 0 ||
      (reply->header.flags & wire::kVersionMask) != wire::kVersion) {
    return Error(ErrorCode::kInternal,
                 fmt::format("the back end answered message {} with request {}, flags {:#x}", request,
                             reply->header.request, reply->header.flags));
  }
  return reply;
}

Status Frontend::SendAcked(uint32_t request, std::span<const uint8_t> payload, std::span<const int> fds,
                           bool qemu_asks) {
  const bool wanted = options_.ack == AckMode::kAlways || (options_.ack == AckMode::kLikeQemu && qemu_asks);
  const bool ask = wanted && (protocol_features_ & wire::kProtocolReplyAck) != 0;
  if (Status status = Transmit(request, ask ? wire::kFlagNeedReply : 0, payload, fds); !status || !ask)
    return status;
  CLEAT_ASSIGN(auto reply, Receive());
  if (reply.header.request != request) {
    return Error(ErrorCode::kInternal, fmt::format("the back end acknowledged message {} when {} was sent",
                                                   reply.header.request, request));
  }
  CLEAT_ASSIGN(auto value, reply.As<uint64_t>());
  if (value != 0) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("the back end refused message {}: {}", request, value));
  }
  return Ok{};
}

Result<uint64_t> Frontend::CallU64(uint32_t request) {
  CLEAT_ASSIGN(auto reply, Call(request, {}));
  return reply.As<uint64_t>();
}

Result<uint64_t> Frontend::GetFeatures() {
  Result<uint64_t> features = CallU64(Request::kGetFeatures);
  if (features) offered_features_ = *features;
  return features;
}

Status Frontend::SetFeatures(uint64_t features) {
  return SendAcked(Request::kSetFeatures, AsBytes(features), {}, false);
}

Result<uint64_t> Frontend::GetProtocolFeatures() {
  return CallU64(Request::kGetProtocolFeatures);
}

Status Frontend::SetProtocolFeatures(uint64_t features) {
  // Not acknowledged: whether acknowledgements exist is what this message settles.
  Status status = Transmit(Request::kSetProtocolFeatures, 0, AsBytes(features), {});
  if (status) protocol_features_ = features;
  return status;
}

Result<uint64_t> Frontend::GetQueueNum() {
  return CallU64(Request::kGetQueueNum);
}
Status Frontend::SetOwner() {
  return SendAcked(Request::kSetOwner, {}, {}, false);
}
Status Frontend::ResetOwner() {
  return SendAcked(Request::kResetOwner, {}, {}, false);
}
Status Frontend::ResetDevice() {
  return SendAcked(Request::kResetDevice, {}, {}, false);
}

Result<std::vector<uint8_t>> Frontend::GetConfig(uint32_t offset, uint32_t size_bytes) {
  const wire::ConfigHeader header{.offset = offset, .size = size_bytes, .flags = 0};
  std::vector<uint8_t> payload(sizeof header + size_bytes);
  std::memcpy(payload.data(), &header, sizeof header);
  CLEAT_ASSIGN(auto reply, Call(Request::kGetConfig, payload));
  // An empty payload is the specification's way to say no.
  if (reply.payload.size() != payload.size()) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("the back end answered GET_CONFIG of {} bytes at {} with {} bytes", size_bytes,
                             offset, reply.payload.size()));
  }
  return std::vector<uint8_t>(reply.payload.begin() + sizeof header, reply.payload.end());
}

Result<wire::BlkConfig> Frontend::GetBlkConfig() {
  CLEAT_ASSIGN(auto bytes, GetConfig(0, sizeof(wire::BlkConfig)));
  wire::BlkConfig config;
  std::memcpy(&config, bytes.data(), sizeof config);
  return config;
}

Status Frontend::SetConfig(uint32_t offset, std::span<const uint8_t> bytes) {
  const wire::ConfigHeader header{.offset = offset, .size = static_cast<uint32_t>(bytes.size()), .flags = 0};
  std::vector<uint8_t> payload(sizeof header + bytes.size());
  std::memcpy(payload.data(), &header, sizeof header);
  if (!bytes.empty()) std::memcpy(payload.data() + sizeof header, bytes.data(), bytes.size());
  return SendAcked(Request::kSetConfig, payload, {}, true);
}

Result<SharedArea> Frontend::GetInflightFd(uint16_t num_queues, uint16_t queue_size) {
  const wire::Inflight wanted{.mmap_size_bytes = 0,
                              .mmap_offset_bytes = 0,
                              .num_queues = num_queues,
                              .queue_size = queue_size,
                              .padding = 0};
  CLEAT_ASSIGN(auto reply, Call(Request::kGetInflightFd, AsBytes(wanted)));
  if (reply.payload.size() < wire::kInflightBytesMin || reply.payload.size() > sizeof(wire::Inflight) ||
      reply.fds.size() != 1) {
    return Error(ErrorCode::kInternal,
                 fmt::format("the back end answered GET_INFLIGHT_FD with {} bytes and {} fds",
                             reply.payload.size(), reply.fds.size()));
  }
  wire::Inflight answer{};
  std::memcpy(&answer, reply.payload.data(), reply.payload.size());
  SharedArea area;
  area.fd = std::move(reply.fds[0]);
  area.size_bytes = answer.mmap_size_bytes;
  area.offset_bytes = answer.mmap_offset_bytes;
  area.num_queues = num_queues;
  area.queue_size = queue_size;
  return area;
}

Status Frontend::SetInflightFd(const SharedArea& area) {
  const wire::Inflight inflight{.mmap_size_bytes = area.size_bytes,
                                .mmap_offset_bytes = area.offset_bytes,
                                .num_queues = area.num_queues,
                                .queue_size = area.queue_size,
                                .padding = 0};
  const int fds[] = {area.fd.get()};
  return SendAcked(Request::kSetInflightFd, AsBytes(inflight), fds, false);
}

Status Frontend::SetMemTable(const GuestMemory& memory) {
  const std::vector<wire::MemoryRegion> regions = memory.Table();
  const std::vector<int> fds = memory.Fds();
  return SetMemTable(regions, fds);
}

Status Frontend::SetMemTable(std::span<const wire::MemoryRegion> regions, std::span<const int> fds) {
  const wire::MemTableHeader header{.region_count = static_cast<uint32_t>(regions.size()), .padding = 0};
  std::vector<uint8_t> payload(sizeof header + regions.size_bytes());
  std::memcpy(payload.data(), &header, sizeof header);
  if (!regions.empty()) std::memcpy(payload.data() + sizeof header, regions.data(), regions.size_bytes());
  return SendAcked(Request::kSetMemTable, payload, fds, true);
}

Status Frontend::SetLogBase(const SharedArea& area) {
  const wire::Log log{.size_bytes = area.size_bytes, .mmap_offset_bytes = area.offset_bytes};
  const int fds[] = {area.fd.get()};
  // With LOG_SHMFD, always answered (the answer's payload means nothing).
  if ((protocol_features_ & wire::kProtocolLogShmfd) == 0)
    return Send(Request::kSetLogBase, AsBytes(log), fds);
  CLEAT_TRY(Call(Request::kSetLogBase, AsBytes(log), fds));
  return Ok{};
}

Status Frontend::SetVringNum(uint32_t index, uint32_t size) {
  return SendAcked(Request::kSetVringNum, AsBytes(wire::VringState{index, size}), {}, false);
}

Status Frontend::SetVringBase(uint32_t index, uint32_t base) {
  return SendAcked(Request::kSetVringBase, AsBytes(wire::VringState{index, base}), {}, false);
}

Status Frontend::SetVringAddr(uint32_t index, const RingSetup& ring) {
  const wire::VringAddr address{.index = index,
                                .flags = ring.log ? wire::kVringLog : 0,
                                .desc_user = ring.desc_user,
                                .used_user = ring.used_user,
                                .avail_user = ring.avail_user,
                                .log_gpa = ring.log ? ring.log_gpa : 0};
  return SendAcked(Request::kSetVringAddr, AsBytes(address), {}, ring.log);
}

Result<uint32_t> Frontend::GetVringBase(uint32_t index) {
  CLEAT_ASSIGN(auto reply, Call(Request::kGetVringBase, AsBytes(wire::VringState{index, 0})));
  CLEAT_ASSIGN(auto state, reply.As<wire::VringState>());
  if (state.index != index) {
    return Error(
        ErrorCode::kInternal,
        fmt::format("the back end answered with the base of ring {} for ring {}", state.index, index));
  }
  return state.num;
}

Status Frontend::SetVringFd(uint32_t request, uint32_t index, int fd) {
  const uint64_t value = fd >= 0 ? index : index | wire::kVringNoFd;
  const int fds[] = {fd};
  return SendAcked(request, AsBytes(value), fd >= 0 ? std::span<const int>(fds) : std::span<const int>(),
                   false);
}

Status Frontend::SetVringKick(uint32_t index, int fd) {
  return SetVringFd(Request::kSetVringKick, index, fd);
}
Status Frontend::SetVringCall(uint32_t index, int fd) {
  return SetVringFd(Request::kSetVringCall, index, fd);
}
Status Frontend::SetVringErr(uint32_t index, int fd) {
  return SetVringFd(Request::kSetVringErr, index, fd);
}

Status Frontend::SetVringEnable(uint32_t index, bool enable) {
  const wire::VringState state{index, enable ? 1U : 0U};
  return SendAcked(Request::kSetVringEnable, AsBytes(state), {}, enable);
}

Status Frontend::SetBackendReqFd() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoError(errno, "socketpair");
  backend_channel_ = MessageSocket(UniqueFd(pair[0]));
  const UniqueFd theirs(pair[1]);
  const int fds[] = {theirs.get()};
  return SendAcked(Request::kSetBackendReqFd, {}, fds, false);
}

Result<Message> Frontend::ReceiveBackendRequest(uint64_t timeout_ns) {
  Result<Message> message = backend_channel_.Receive(timeout_ns);
  if (!message || (message->header.flags & wire::kFlagNeedReply) == 0) return message;
  const uint64_t ok = 0;
  CLEAT_TRY(backend_channel_.Send(message->header.request, wire::kVersion | wire::kFlagReply, AsBytes(ok), {},
                                  timeout_ns));
  return message;
}

}  // namespace cleat::perf
