// SPDX-License-Identifier: Apache-2.0
// Cuts a vhost-user byte stream into whole, sane messages. Pure: it gets bytes and descriptors and knows
// neither the socket they come from nor the engine. One framer a direction; owned by whoever reads the
// socket; one thread.
//
// Descriptors belong to the message in whose bytes they came. The kernel hands them over with the last byte
// of a read, so a reader must never read over the end of a message: it asks wanted() and reads at most that
// much.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "vhost/protocol.h"

namespace cleat::vhost {

struct Message {
  MessageHeader header;
  std::array<uint8_t, kPayloadBytesMax> payload{};  // header.size_bytes of it
  std::vector<UniqueFd> descriptors;

  Request request() const { return static_cast<Request>(header.request); }
  bool needs_reply() const { return (header.flags & kFlagNeedReply) != 0; }

  // The payload's beginning as a T; what is missing behind its end reads as zero.
  template <typename T>
  T As() const {
    static_assert(sizeof(T) <= kPayloadBytesMax);
    T value;
    std::memcpy(&value, payload.data(), sizeof value);
    return value;
  }
  template <typename T>
  void Set(const T& value) {
    static_assert(sizeof(T) <= kPayloadBytesMax);
    std::memcpy(payload.data(), &value, sizeof value);
  }
};

// The answer to `request`, with `size_bytes` of payload.
Message MakeReply(const Message& request, uint32_t size_bytes);
// The acknowledgement of a request that asked for one: 0 for success.
Message MakeAck(const Message& request, bool ok);

class Framer {
 public:
  // Requests are checked for their shape (size, descriptors, known request) as well; replies for version and
  // size.
  enum class Direction : uint8_t { kRequests, kReplies };
  explicit Framer(Direction direction) : direction_(direction) {}

  // How many bytes are missing until the next decision: 1 to kPayloadBytesMax. 0: a message is ready to be
  // taken.
  size_t wanted() const;

  // At most wanted() bytes, with the descriptors that came with them. An error says what was wrong with the
  // message; the stream can't be followed after it.
  Status Push(std::span<const uint8_t> bytes, std::vector<UniqueFd> descriptors);

  // Of a message that is refused or not whole, for whoever closes them.
  std::vector<UniqueFd> TakeDescriptors() { return std::exchange(message_.descriptors, {}); }

  // The message that has become whole, if any.
  std::optional<Message> Take();

  bool in_message() const { return received_ > 0; }  // some bytes of a message are there, but not all
  size_t received() const { return received_; }

 private:
  Status CheckHeader() const;
  Status CheckShape() const;

  const Direction direction_;
  Message message_;
  size_t received_ = 0;  // bytes of the present message, with its header
};

}  // namespace cleat::vhost
