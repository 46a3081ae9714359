// SPDX-License-Identifier: Apache-2.0
#include "vhost/relay.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "vhost/peer_files.h"

namespace cleat::vhost {
namespace {

// What the library maps in the place of the guest's memory, of which it looks at ring indices while it is
// being set up: a file of ours, as long as the regions need it, without pages, that can't be made shorter.
Result<UniqueFd> StandIn(const std::vector<MemoryTableRegion>& regions) {
  uint64_t bytes = 0;
  for (const MemoryTableRegion& region : regions) {
    bytes = std::max(bytes, region.file_offset_bytes + region.size_bytes);  // checked when they were mapped
  }
  UniqueFd file(memfd_create("cleat-stand-in", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoError(errno, "memfd for the vhost library");
  }
  return file;
}

Error NotForRing(const Message& message, uint32_t index, const Error& why) {
  const char* what = message.request() == Request::kSetVringErr    ? "error"
                     : message.request() == Request::kSetVringCall ? "call"
                                                                   : "kick";
  return {why.code, "ring " + std::to_string(index) + ": " + what + ": " + why.message};
}

Message MakeNumber(const Message& request, uint64_t number) {
  Message reply = MakeReply(request, sizeof number);
  reply.Set(number);
  return reply;
}

}  // namespace

Relay::Relay(Reactor& control, Session& session, virtio::DeviceModel& model, PeerFiles* files)
    : control_(control),
      session_(session),
      model_(model),
      files_(files),
      progress_(control),
      peer_(Framer::Direction::kRequests, progress_, files),
      library_(Framer::Direction::kReplies, progress_) {
  session_.OnOwned([this] { progress_.Set(); });
}

void Relay::Stop() {
  stopping_ = true;
  progress_.Set();
}

void Relay::TellConfigChanged() {
  if (!backend_requests_) return;
  MessageHeader header;
  header.request = static_cast<uint32_t>(BackendRequest::kConfigChange);
  header.flags = kVersion;
  // The front end reads this channel whenever it isn't busy with a request of its own. A front end that has left so many
  // unread that the socket is full has been told often enough.
  if (send(backend_requests_.get(), &header, sizeof header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
      errno != EAGAIN) {
    CloseBackendChannel();
  }
}

void Relay::Fail(Error why) {
  failure_ = std::move(why);
  Stop();
}

// Whose queue nobody reads, and may hold anything.
void Relay::CloseBackendChannel() {
  if (files_ != nullptr) files_->CloseSocket(std::move(backend_requests_));
  backend_requests_.Reset();
}

void Relay::Close() {
  CloseBackendChannel();
  peer_.Close();
  library_.Close();
}

Task<Status> Relay::Run(UniqueFd peer, UniqueFd library) {
  Status ended = peer_.Start(control_, std::move(peer));
  if (ended) ended = library_.Start(control_, std::move(library));
  if (ended) {
    ended = co_await Converse();
  }
  stopping_ = true;
  yield_.End();
  co_return ended;
}

Task<Status> Relay::Yield(uint64_t deadline_ns) {
  if (stopping_) co_return Error(ErrorCode::kCancelled, "the connection ended");
  co_return co_await yield_.Ask(deadline_ns);
}

Task<Status> Relay::Converse() {
  while (!stopping_) {
    progress_.Reset();  // before the look at the sockets, so that nothing is missed after it
    if (yield_.wanted()) {
      yielded_ = co_await yield_.Take(session_);
      if (yielded_) break;
    }
    if (session_.may_start()) {
      CLEAT_CO_TRY(co_await session_.StartWaiting());
    }
    auto unasked = library_.TryRead();
    if (!unasked || *unasked) {
      co_return Error(ErrorCode::kInvalidArgument,
                      "the vhost library refused a message; the last one was " + last_request_);
    }
    auto next = peer_.TryRead();
    if (!next) {
      if (next.error().code == ErrorCode::kUnavailable) break;
      co_return std::move(next).error();
    }
    if (!*next) {
      co_await progress_.Wait();
      continue;
    }
    Message message = std::move(**next);
    ++messages_;
    last_request_ = RequestName(message.header.request);
    Status handled = co_await Handle(&message);
    // What nobody has taken is not known to be what it should be.
    if (!handled && files_ != nullptr) files_->Close(std::move(message.descriptors));
    if (!handled) {
      if (handled.error().code == ErrorCode::kUnavailable || stopping_ || yielded_) break;
      co_return Error(handled.error().code, last_request_ + ": " + handled.error().message);
    }
    // A peer that sends without a pause gets one message a turn.
    co_await control_.Yield();
  }
  co_return failure_;
}

Task<Status> Relay::Handle(Message* message) {
  std::optional<Message> answer;
  Status taken = co_await TakePart(message, &answer);
  if (!taken) {
    // The connection ends with the error; a front end that waits for a word gets one if it has room for it.
    if (message->needs_reply()) (void)peer_.TryWrite(MakeAck(*message, false));
    co_return taken;
  }
  const bool answered = FindRequest(message->header.request)->answered;
  const bool wanted = answered || message->needs_reply();
  if (!answer) {
    message->header.flags &= ~kFlagNeedReply;
    Status forwarded = co_await Write(library_, *message);
    if (!forwarded) co_return Error(ErrorCode::kInternal, "the vhost library has closed the connection");
    message->descriptors.clear();
    if (wanted && !answered) answer = MakeAck(*message, true);
  }
  if (!wanted) co_return Ok{};
  if (!answer) {
    CLEAT_CO_TRY(co_await AwaitReply(*message, &answer.emplace()));
  }
  co_return co_await Write(peer_, *answer);
}

Task<Status> Relay::AwaitReply(const Message& request, Message* reply) {
  while (!stopping_) {
    progress_.Reset();
    auto next = library_.TryRead();
    if (!next) co_return Error(ErrorCode::kInvalidArgument, "refused by the vhost library");
    if (*next) {
      *reply = std::move(**next);
      if (reply->header.request != request.header.request) {
        co_return Error(ErrorCode::kInternal,
                        "the vhost library answered " + RequestName(reply->header.request));
      }
      if (request.request() == Request::kGetVringBase) {
        auto state = reply->As<VringState>();
        state.num = stopped_base_;  // where the ring really stands
        reply->Set(state);
      }
      co_return Ok{};
    }
    co_await progress_.Wait();
  }
  co_return Error(ErrorCode::kCancelled, "stopped");
}

Task<Status> Relay::Write(MessageChannel& channel, const Message& message) {
  while (!stopping_) {
    progress_.Reset();
    CLEAT_CO_ASSIGN(auto written, channel.TryWrite(message));
    if (written) co_return Ok{};
    // The session is between two calls, so a peer that reads no answer does not keep the rings from another engine.
    if (yield_.wanted()) {
      yielded_ = co_await yield_.Take(session_);
      if (yielded_) co_return Error(ErrorCode::kCancelled, "the rings were yielded");
      continue;
    }
    co_await progress_.Wait();
  }
  co_return Error(ErrorCode::kCancelled, "stopped");
}

// ---- The session's and the model's part

Task<Status> Relay::TakePart(Message* message, std::optional<Message>* answer) {
  switch (message->request()) {
    case Request::kGetFeatures:
      *answer = MakeNumber(*message, session_.offer().features);
      co_return Ok{};
    case Request::kGetProtocolFeatures:
      *answer = MakeNumber(*message, session_.offer().protocol_features);
      co_return Ok{};
    case Request::kGetQueueNum:  // the device's, not the library's
      *answer = MakeNumber(*message, session_.ring_count());
      co_return Ok{};
    case Request::kSetOwner:
      co_return Ok{};
    case Request::kSetFeatures: {
      co_return co_await session_.SetFeatures(message->As<uint64_t>());
    }
    case Request::kSetProtocolFeatures:
      co_return session_.SetProtocolFeatures(message->As<uint64_t>());
    case Request::kResetOwner: {  // deprecated: stops all rings; the library would forget its features
      co_await session_.StopAllRings();
      *answer = MakeAck(*message, true);
      co_return Ok{};
    }
    case Request::kSetMemTable:
    case Request::kSetLogBase: {
      co_return co_await TakeMemory(message);
    }
    case Request::kSetLogFd: {  // an eventfd to say that the log has changed, which nobody uses
      Status checked = CheckEventfd(message->descriptors[0]);
      *answer = MakeAck(*message, checked.ok());
      co_return checked;
    }
    case Request::kSetBackendFd: {
      Status set = SetBackendChannel(message->descriptors[0]);
      *answer = MakeAck(*message, set.ok());
      co_return set;
    }
    case Request::kGetConfig:
      *answer = GetConfig(*message);
      co_return Ok{};
    case Request::kSetConfig: {
      Status set = SetConfig(*message);
      *answer = MakeAck(*message, set.ok());
      co_return message->needs_reply() ? Status(Ok{}) : set;
    }
    case Request::kGetInflightFd:
    case Request::kSetInflightFd: {
      co_return co_await TakeInflight(*message, answer);
    }
    case Request::kSetVringKick:
    case Request::kSetVringCall:
    case Request::kSetVringErr: {
      Status taken = co_await TakeDescriptor(message);
      *answer = MakeAck(*message, taken.ok());
      co_return taken;
    }
    case Request::kSetVringNum:
    case Request::kSetVringAddr:
    case Request::kSetVringBase:
    case Request::kGetVringBase:
    case Request::kSetVringEnable: {
      co_return co_await TakeRingPart(message);
    }
  }
  co_return Error(ErrorCode::kInvalidArgument, "not offered by this back end");
}

Task<Status> Relay::TakeMemory(Message* message) {
  if (message->request() == Request::kSetLogBase) {
    co_return co_await session_.SetLog(message->As<LogDescription>(), message->descriptors[0]);
  }
  std::vector<MemoryTableRegion> regions(message->descriptors.size());
  if (!regions.empty()) {
    std::memcpy(regions.data(), message->payload.data() + sizeof(MemoryTableHeader),
                regions.size() * sizeof(MemoryTableRegion));
  }
  CLEAT_CO_TRY(co_await session_.MapMemory(regions, message->descriptors));
  for (UniqueFd& descriptor : message->descriptors) {
    CLEAT_CO_ASSIGN(descriptor, StandIn(regions));
  }
  co_return Ok{};
}

Task<Status> Relay::TakeInflight(const Message& message, std::optional<Message>* answer) {
  const auto description = message.As<InflightDescription>();
  if (message.request() == Request::kSetInflightFd) {
    Status taken = co_await session_.SetInflight(description, message.descriptors[0]);
    *answer = MakeAck(message, taken.ok());
    co_return taken;
  }
  CLEAT_CO_ASSIGN(auto area, session_.MakeInflight(description.queues, description.queue_size));
  *answer = MakeReply(message, message.header.size_bytes);
  (*answer)->Set(area.description);
  (*answer)->descriptors.push_back(std::move(area.file));
  co_return Ok{};
}

Task<Status> Relay::TakeDescriptor(Message* message) {
  const auto value = message->As<uint64_t>();
  const auto index = static_cast<uint32_t>(value & kVringIndexMask);
  UniqueFd descriptor;
  if (!message->descriptors.empty()) {
    Status checked = CheckEventfd(message->descriptors[0]);
    if (!checked) co_return NotForRing(*message, index, checked.error());
    descriptor = std::move(message->descriptors[0]);
  }
  if (message->request() == Request::kSetVringErr) {
    co_return session_.SetRingError(index, std::move(descriptor));
  }
  if (message->request() == Request::kSetVringCall) {
    co_return co_await session_.SetRingCall(index, std::move(descriptor));
  }
  co_return co_await session_.SetRingKick(index, std::move(descriptor));
}

Task<Status> Relay::TakeRingPart(Message* message) {
  const auto state = message->As<VringState>();
  switch (message->request()) {
    case Request::kSetVringNum: {
      co_return co_await session_.SetRingSize(state.index, state.num);
    }
    case Request::kSetVringBase: {
      co_return co_await session_.SetRingBase(state.index, state.num);
    }
    case Request::kSetVringAddr: {
      co_return co_await session_.SetRingAddresses(message->As<VringAddresses>());
    }
    case Request::kSetVringEnable: {
      if (state.num > 1)
        co_return Error(ErrorCode::kInvalidArgument, "a state of " + std::to_string(state.num));
      co_return co_await session_.EnableRing(state.index, state.num == 1);
    }
    default: {
      CLEAT_CO_ASSIGN(stopped_base_, co_await session_.StopRing(state.index));
      co_return Ok{};
    }
  }
}

Status Relay::SetBackendChannel(UniqueFd& channel) {
  if (backend_requests_) return Error(ErrorCode::kInvalidArgument, "there is a back-end channel already");
  Status checked = CheckUnixSocket(channel);
  if (checked) backend_requests_ = std::move(channel);
  return checked;
}

Message Relay::GetConfig(const Message& message) const {
  const auto config = message.As<ConfigHeader>();
  const uint32_t size_bytes = message.header.size_bytes - sizeof(ConfigHeader);
  // No payload is the specification's way to say no.
  if (!model_.has_config() || config.size_bytes != size_bytes ||
      config.offset > kConfigBytesMax - size_bytes) {
    return MakeReply(message, 0);
  }
  Message reply = MakeReply(message, message.header.size_bytes);
  reply.Set(config);
  model_.ReadConfig(config.offset, {reply.payload.data() + sizeof(ConfigHeader), size_bytes});
  return reply;
}

Status Relay::SetConfig(const Message& message) {
  const auto config = message.As<ConfigHeader>();
  const uint32_t size_bytes = message.header.size_bytes - sizeof(ConfigHeader);
  if (!model_.has_config() || config.size_bytes != size_bytes ||
      config.offset > kConfigBytesMax - size_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(config.size_bytes) + " bytes at offset " + std::to_string(config.offset));
  }
  return model_.WriteConfig(config.offset, {message.payload.data() + sizeof(ConfigHeader), size_bytes});
}

}  // namespace cleat::vhost
