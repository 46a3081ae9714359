// SPDX-License-Identifier: Apache-2.0
#include "vhost/message_channel.h"

#include <sys/uio.h>

#include <array>
#include <utility>
#include <vector>

#include "base/unix_socket.h"

namespace cleat::vhost {
namespace {

static_assert(kDescriptorsMax <= kMessageFdsMax);

Error Closed(bool in_message) {
  if (in_message)
    return {ErrorCode::kInvalidArgument, "the connection was closed in the middle of a message"};
  return {ErrorCode::kUnavailable, "the connection was closed"};
}

}  // namespace

Status MessageChannel::Start(Reactor& control, UniqueFd socket) {
  socket_ = std::move(socket);
  return watch_.Start(control, socket_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

void MessageChannel::Close() {
  watch_.Stop();
  if (files_ != nullptr) {
    files_->Close(framer_.TakeDescriptors());
    files_->CloseSocket(std::move(socket_));
  }
  socket_.Reset();
}

void MessageChannel::Watch::OnEvent(FdWatch& watch, uint32_t /*epoll_events*/) {
  static_cast<Watch&>(watch).progress.Set();
}

Result<std::optional<Message>> MessageChannel::TryRead() {
  std::array<uint8_t, kPayloadBytesMax> bytes;
  while (framer_.wanted() > 0) {
    std::vector<UniqueFd> refused;
    auto received =
        ReceiveWithFds(socket_.get(), {bytes.data(), framer_.wanted()}, kDescriptorsMax, &refused);
    if (!received) {
      if (files_ != nullptr) files_->Close(std::move(refused));
      if (received.error().code == ErrorCode::kUnavailable) return Closed(framer_.in_message());
      return std::move(received).error();
    }
    if (!*received) return std::optional<Message>();
    ReceivedMessage& message = **received;
    if (message.bytes == 0) return Closed(framer_.in_message());
    CLEAT_TRY(framer_.Push({bytes.data(), message.bytes}, std::move(message.fds)));
  }
  return framer_.Take();
}

Result<bool> MessageChannel::TryWrite(const Message& message) {
  CLEAT_CHECK(message.descriptors.size() <= kDescriptorsMax);
  const iovec parts[2] = {{const_cast<MessageHeader*>(&message.header), sizeof(MessageHeader)},
                          {const_cast<uint8_t*>(message.payload.data()), message.header.size_bytes}};
  const auto sent = SendWithFds(socket_.get(), parts, message.descriptors);
  if (!sent) return sent.error().code == ErrorCode::kUnavailable ? Closed(false) : sent.error();
  // So short a message is one buffer of the kernel's: all of it goes, or nothing.
  CLEAT_CHECK(*sent == 0 || *sent == sizeof(MessageHeader) + message.header.size_bytes);
  return *sent > 0;
}

}  // namespace cleat::vhost
